"""Runs survive a bug or a kill of EventBus, RunsSupervisor, RunSupervisor or ModelActor."""

import asyncio
import logging

import pytest

from actors import Actor, ActorSystem, ChildSpec, on
from actors.testing import run_until_idle, virtual
from agentflow import Runtime
from agentflow.definition.ir import EndNode, StartNode, ToolNode, Workflow
from agentflow.errors import AgentflowError
from agentflow.events.memory import MemoryLog
from agentflow.runtime.actor_pools import ActorPools
from agentflow.runtime.model_actor import ModelActor
from agentflow.runtime.permanent_actor import PermanentActor
from agentflow.runtime.runs_supervisor import RunsSupervisor
from agentflow.runtime.tool_actor import ToolActor
from agentflow.testing import ScriptedModel
from agentflow.testing.scripted import call
from tests.faults.simulated.invariants import assert_log_invariants
from tests.integration.support.runs import Desk, chain, document, log_of, step
from tests.integration.virtual import LoopClock, seconds


@pytest.fixture(autouse=True)
def scripted(monkeypatch):
    monkeypatch.setenv("AGENTFLOW_MODEL", "scripted:m")


def opened(*, log=None, model=None, desk=None):
    desk = desk or Desk()
    models = [ScriptedModel(model or (lambda request: {"ok": True}))]
    return Runtime(log or "memory:", clock=LoopClock(), grace=0.01, models=models, services=[desk.service()])


def end(path, runtime, how):
    """Kill the actor of a path, or let it fail as by a bug."""
    ref = runtime.system.find(path)
    assert ref is not None
    if how == "kill":
        ref.kill()
    else:
        ref.cell.signal_failure(RuntimeError("an injected bug"))


class TestAnActorThatEndsInTheMiddleOfARun:
    @pytest.mark.parametrize("how", ["kill", "bug"])
    @pytest.mark.parametrize("path", ["/bus", "/runs", "/runs/wf_a"])
    @virtual
    async def test_is_replaced_and_the_handle_gets_the_result(self, path, how):
        """actors D2: without any command that takes the run up again."""
        desk = Desk(look=True, pay=True)
        async with opened(desk=desk) as runtime:
            handle = await runtime.submit(chain("look", "look"), workflow_id="wf_a")
            await desk.entered.wait()
            other = await runtime.submit(chain("pay"), workflow_id="wf_b")
            await desk.until(lambda: len(desk.at_work) == 2)
            end(path, runtime, how)
            desk.gates["look"].set()
            result = await handle.result()
            assert result.state == "completed"
            assert seconds() < 5
            desk.gates["pay"].set()
            # Both supervisors end with RunsSupervisor: an external call open then has an unknown outcome.
            assert (await other.result()).state == ("waiting" if path == "/runs" else "completed")
            assert [times for key, times in desk.executions.items() if "wf_b" in key] == [1]
            assert_log_invariants(await log_of(runtime, "wf_a"))

    @virtual
    async def test_a_supervisor_that_is_killed_again_and_again_is_given_up(self):
        async with opened(desk=(desk := Desk(look=True))) as runtime:
            handle = await runtime.submit(chain("look"), workflow_id="wf_a")
            result = asyncio.ensure_future(handle.result())
            for _ in range(6):
                await desk.entered.wait()
                desk.entered.clear()
                await run_until_idle()
                end("/runs/wf_a", runtime, "kill")
            with pytest.raises(AgentflowError, match="stopped before it came to rest"):
                await result
            desk.gates["look"].set()
            await runtime.resume("wf_a")
            assert (await (await runtime.attach("wf_a")).result()).state == "completed"

    @pytest.mark.parametrize("how", ["kill", "bug"])
    @virtual
    async def test_no_deadline_of_a_waiting_run_is_lost_with_runs(self, how):
        async with opened() as runtime:
            handle = await runtime.submit(document(step("a", approval={"timeout": "1h"})))
            assert (await handle.result()).state == "waiting"
            end("/runs", runtime, how)
            await asyncio.sleep(3700)
            again = await runtime.attach(handle.workflow_id)
            result = await again.result(raise_on_failure=False)
            assert result.error.code == "approval_denied"

    @virtual
    async def test_a_run_that_cannot_be_taken_up_fails_alone(self, monkeypatch):
        desk, true = Desk(look=True), RunsSupervisor._start

        def start(self, run_id):
            if run_id == "wf_bad" and desk.entered.is_set():
                raise RuntimeError("an injected bug")
            true(self, run_id)

        monkeypatch.setattr(RunsSupervisor, "_start", start)
        async with opened(desk=desk) as runtime:
            bad = await runtime.submit(chain("look"), workflow_id="wf_bad")
            good = await runtime.submit(chain("look"), workflow_id="wf_good")
            await desk.entered.wait()
            end("/runs", runtime, "kill")
            with pytest.raises(AgentflowError, match="wf_bad stopped before it came to rest"):
                await bad.result()
            desk.gates["look"].set()
            assert (await good.result()).state == "completed"

    @virtual
    async def test_a_failure_in_the_middle_of_the_end_of_a_run_loses_no_waiter(self, monkeypatch):
        """The handler of Terminated fails half-way: the run's admission must not stay without an end."""
        true, failures = RunsSupervisor._settle_launch, []

        def over(self, run_id, error):
            if not failures:
                failures.append(run_id)
                raise RuntimeError("an injected bug")
            true(self, run_id, error)

        monkeypatch.setattr(RunsSupervisor, "_settle_launch", over)
        async with opened() as runtime:
            handle = await runtime.submit(document(step("a", approval=True)), workflow_id="wf_a")
            assert (await handle.result()).state == "waiting"
            assert failures == ["wf_a"]
            (request,) = await runtime.requests("wf_a")
            await runtime.decide("wf_a", request_id=request.request_id, granted=True)
            assert (await (await runtime.attach("wf_a")).result()).state == "completed"


class TestABugInModelActor:
    @pytest.mark.parametrize("failures", [1, 2])
    @virtual
    async def test_costs_an_attempt_not_the_run(self, failures, monkeypatch):
        """Product: a bug in ModelActor's handler; the call is closed as interrupted and made again."""
        true, left = ModelActor.complete, [failures]

        def answer(self, message):
            if left[0]:
                left[0] -= 1
                raise RuntimeError("an injected bug")
            return true(self, message)

        with monkeypatch.context() as patched:
            patched.setitem(ModelActor.__handlers__, *handler_of(ModelActor, true, answer))
            async with opened() as runtime:
                result = await runtime.run(document(step("a")), workflow_id="wf_a")
                assert result.state == "completed"
                events = await log_of(runtime, "wf_a")
        lost = [e.data.error for e in events if e.type == "model.call_failed"]
        assert [error.category for error in lost] == ["interrupted"] * failures
        assert_log_invariants(events)

    @virtual
    async def test_fails_the_call_at_the_third_attempt_in_a_row(self, monkeypatch):
        """A call that hits the bug each time must not be made for ever."""

        def answer(self, message):
            raise RuntimeError("an injected bug")

        monkeypatch.setitem(ModelActor.__handlers__, *handler_of(ModelActor, ModelActor.complete, answer))
        async with opened() as runtime:
            document_ = document(step("a", retry=False))
            result = await runtime.run(document_, workflow_id="wf_a", raise_on_failure=False)
            assert (result.state, result.error.category) == ("failed", "system")
            events = await log_of(runtime, "wf_a")
        failed = [e.data.error.category for e in events if e.type == "model.call_failed"]
        assert failed == ["interrupted", "interrupted", "system"]
        assert_log_invariants(events)


def handler_of(kind, handler, instead):
    """The entry of a table of handlers, replaced."""
    return next(message for message, known in kind.__handlers__.items() if known is handler), instead


def service_path(runtime):
    """The path of the actor of the service `desk`."""
    return next(info.path for info in runtime.system.tree().children if info.path.startswith("/tools-"))


def wide(*tools):
    """A graph that calls these functions of the service `desk` side by side."""
    nodes = [
        ToolNode(id=f"n{i}", index=i, tool=f"desk.{tool}", input={}, join="all_succeeded")
        for i, tool in enumerate(tools)
    ]
    ends = (StartNode(id="__start"), EndNode(id="__end", index=len(nodes), drain=True))
    return Workflow(name="wide", nodes=(*nodes, *ends))


class TestTheActorOfAServiceThatFails:
    """A told call is not left open: RunSupervisor and ToolActor watch each other."""

    @pytest.mark.parametrize("how", ["kill", "bug"])
    @virtual
    async def test_loses_calls_at_work_which_are_made_again(self, how):
        async with opened(desk=(desk := Desk(look=True))) as runtime:
            handle = await runtime.submit(chain("look", "look"), workflow_id="wf_a")
            await desk.entered.wait()
            end(service_path(runtime), runtime, how)
            await desk.until(lambda: desk.calls == 2)
            desk.gates["look"].set()
            assert (await handle.result()).state == "completed"
            events = await log_of(runtime, "wf_a")
        assert (desk.cancelled, list(desk.executions.values())) == (1, [2, 1])
        lost = [e.data.error.category for e in events if e.type == "tool.call_failed"]
        assert lost == ["interrupted"]
        assert_log_invariants(events)

    @pytest.mark.parametrize("how", ["kill", "bug"])
    @virtual
    async def test_leaves_the_outcome_of_an_unsafe_call_to_a_person(self, how):
        async with opened(desk=(desk := Desk(pay=True))) as runtime:
            handle = await runtime.submit(chain("pay"), workflow_id="wf_a")
            await desk.entered.wait()
            end(service_path(runtime), runtime, how)
            assert (await handle.result()).state == "waiting"
            (request,) = await runtime.requests("wf_a")
            assert request.request_type == "outcome_unknown"
        assert desk.calls == 1

    @pytest.mark.parametrize("failures", [1, 2])
    @virtual
    async def test_loses_the_message_in_hand_which_is_sent_again(self, failures, monkeypatch):
        """The handler fails before it has taken the call; other calls in the mailbox are not made twice."""
        true, left = ToolActor.call, [failures]

        def fail(self, message):
            if left[0] and message.workflow_id == "wf_bad":
                left[0] -= 1
                raise RuntimeError("an injected bug")
            return true(self, message)

        monkeypatch.setitem(ToolActor.__handlers__, *handler_of(ToolActor, true, fail))
        async with opened(desk=(desk := Desk())) as runtime:
            runs = ["wf_a", "wf_bad", "wf_b"]
            handles = [await runtime.submit(chain("look"), workflow_id=run) for run in runs]
            assert [(await h.result()).state for h in handles] == ["completed"] * 3
            events = await log_of(runtime, "wf_bad")
        assert set(desk.executions.values()) <= {1, 2}
        lost = [e.data.error.category for e in events if e.type == "tool.call_failed"]
        assert lost == ["interrupted"] * failures
        assert_log_invariants(events)

    @virtual
    async def test_fails_the_call_that_it_loses_for_the_third_time(self, monkeypatch):
        def fail(self, message):
            raise RuntimeError("an injected bug")

        monkeypatch.setitem(ToolActor.__handlers__, *handler_of(ToolActor, ToolActor.call, fail))
        async with opened() as runtime:
            result = await runtime.run(chain("look"), workflow_id="wf_a", raise_on_failure=False)
            assert (result.state, result.error.category) == ("failed", "system")
            events = await log_of(runtime, "wf_a")
        failed = [e.data.error.category for e in events if e.type == "tool.call_failed"]
        assert failed == ["interrupted", "interrupted", "system"]

    @virtual
    async def test_keeps_the_calls_that_wait_in_its_mailbox_over_a_restart(self, monkeypatch):
        """They are neither lost nor reported as lost: what is unsafe is executed once and has its result."""
        true, depths = ToolActor.call, []

        def fail(self, message):
            if message.step_id == "n0" and not depths:
                depths.append(self.ctx.self.cell.depth)
                raise RuntimeError("an injected bug")
            return true(self, message)

        monkeypatch.setitem(ToolActor.__handlers__, *handler_of(ToolActor, true, fail))
        async with opened(desk=(desk := Desk())) as runtime:
            result = await runtime.run(wide("look", "pay", "pay"), {}, workflow_id="wf_a")
            assert result.state == "completed"
            events = await log_of(runtime, "wf_a")
        assert depths == [2]
        assert list(desk.executions.values()) == [1] * 3
        assert [e.data.step_id for e in events if e.type == "tool.call_failed"] == ["n0"]
        assert_log_invariants(events)

    @virtual
    async def test_has_room_for_more_calls_than_its_mailbox(self, monkeypatch):
        """A call that finds the mailbox full is sent once there is a slot."""
        monkeypatch.setattr(ToolActor, "__mailbox__", 1)
        async with opened(desk=(desk := Desk())) as runtime:
            assert (await runtime.run(wide(*["look"] * 9), {})).state == "completed"
        assert list(desk.executions.values()) == [1] * 9


class TestASupervisorThatEnds:
    @pytest.mark.parametrize("how", ["kill", "bug"])
    @virtual
    async def test_has_the_functions_of_its_calls_cancelled(self, how):
        """What it told a service to do is not at work for a supervisor that is gone."""
        async with opened(desk=(desk := Desk(pay=True))) as runtime:
            handle = await runtime.submit(chain("pay"), workflow_id="wf_a")
            other = await runtime.submit(chain("pay"), workflow_id="wf_b")
            await desk.until(lambda: len(desk.at_work) == 2)
            end("/runs/wf_a", runtime, how)
            await desk.until(lambda: desk.cancelled == 1)
            assert desk.at_work == {"wf_b"}
            assert (await handle.result()).state == "waiting"
            desk.gates["pay"].set()
            assert (await other.result()).state == "completed"


class TestAClosingRuntime:
    @pytest.mark.parametrize("tool", ["of an agent", "of a tool node", "model"])
    @virtual
    async def test_leaves_a_call_that_finds_no_actor_open(self, tool, monkeypatch, caplog):
        """A call that begins while the system ends: no actor can be started for it any more."""
        desk, closing, asked = Desk(), asyncio.Event(), []
        find = ActorPools.find_provider if tool == "model" else ActorPools.find_service

        def refused(self, wanted):
            asked.append(wanted)
            closing.set()
            self._system._begin_end()  # what leaving the block does first
            return find(self, wanted)

        def answer(request):
            if request.tools and request.messages[-1].role != "tool":
                return [call(tool.name) for tool in request.tools]
            return {"ok": True}

        monkeypatch.setattr(ActorPools, find.__name__, refused)
        graph = chain("look") if tool == "of a tool node" else document(step("a", functions=["look"]))
        log = MemoryLog()
        with caplog.at_level(logging.WARNING, logger="actors"):
            async with opened(log=log, model=answer, desk=desk) as runtime:
                await runtime.submit(graph, workflow_id="wf_a")
                await closing.wait()
        assert len(asked) == 1
        assert not [record for record in caplog.records if record.exc_info], caplog.text
        monkeypatch.undo()
        monkeypatch.setenv("AGENTFLOW_MODEL", "scripted:m")
        async with opened(log=log, model=answer, desk=desk) as runtime:
            await runtime.resume("wf_a")
            assert (await (await runtime.attach("wf_a")).result()).state == "completed"
        assert_log_invariants(await log_of(log, "wf_a"))
        await log.close()


class Echo(Actor):
    @on(str)
    def echo(self, text: str) -> str:
        return text


class TestPermanentActor:
    @virtual
    async def test_is_started_anew_until_its_system_closes(self):
        async with ActorSystem() as system:
            echo = PermanentActor(system, ChildSpec("echo", Echo))
            await echo.start()
            for _ in range(3):
                before = echo.ref
                before.kill()
                await run_until_idle()
                assert echo.ref != before
                assert await echo.ask("still here", timeout=1) == "still here"
        assert not echo.ref.is_alive
        await echo.close()
