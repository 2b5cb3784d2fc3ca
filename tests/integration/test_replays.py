"""Replays: a new run of a recorded one, served from its results (page 003 §9)."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import pytest

from agentflow import Runtime, Service, ToolContext, function
from agentflow.definition.ir import EndNode, StartNode, WaitNode, Workflow
from agentflow.errors import CommandRefused, RunExists, RunNotFound
from agentflow.events.memory import MemoryLog
from agentflow.records.trace import encode_trace, trace_of
from agentflow.testing import ScriptedModel
from agentflow.testing.scripted import call
from tests.golden.stage import Stage
from tests.integration.support.runs import document, log_of, step


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTFLOW_MODEL", "scripted:m")


class World:
    """A model and a service that count what they are asked. Their answers change with each execution."""

    def __init__(self) -> None:
        self.models = 0
        self.tools: list[Any] = []
        self.failing = 0

    def model(self) -> ScriptedModel:
        def answer(request: Any) -> Any:
            self.models += 1
            if request.tools and all(m.role != "tool" for m in request.messages):
                return call("desk__pay", x=1)
            return {"told": request.messages[-1].content, "count": self.models}

        return ScriptedModel(answer)

    def service(self) -> Service:
        @function(side_effect="external")
        async def pay(ctx: ToolContext, x: int = 0) -> Any:
            """Pay."""
            self.tools.append(x)
            if self.failing:
                self.failing -= 1
                raise ValueError("no money")
            return {"paid": x, "number": len(self.tools)}

        return Service.of("desk", pay)

    def runtime(self, log: Any = "memory:") -> Runtime:
        return Runtime(log, models=[self.model()], services=[self.service()])

    @property
    def sent(self) -> int:
        """Calls that went out."""
        return self.models + len(self.tools)


STEPS = document(
    step("a", functions=["pay"], input="${{ inputs.x }}"),
    step("b", depends_on=["a"], input="${{ steps.a.outputs.result.count }}"),
)
ENDS = ("model.call_completed", "tool.call_completed")
ALL = ["Always", "Mixed", "Refresh"]


async def recorded(runtime: Runtime, submission: Any = STEPS, input: Any = None, **more: Any) -> Any:
    given = {"x": "one"} if input is None else input
    return await runtime.run(submission, given, workflow_id="wf_a", raise_on_failure=False, **more)


async def replayed(runtime: Runtime, policy: Any, **more: Any) -> Any:
    return await (await runtime.replay("wf_a", policy, as_id="wf_b", **more)).result(raise_on_failure=False)


async def logical(runtime: Runtime, run: str) -> bytes:
    return encode_trace(trace_of(await log_of(runtime, run), "logical"))


@pytest.mark.parametrize(("policy", "executed"), [("Always", 0), ("Mixed", 0), ("Refresh", 4)])
async def test_a_record_of_an_equal_request_is_served(policy: str, executed: int):
    world = World()
    async with world.runtime() as runtime:
        first = await recorded(runtime)
        before = world.sent
        again = await replayed(runtime, policy)
        assert world.sent - before == executed
        assert again.state == "completed"
        assert (again.output == first.output) == (policy != "Refresh")
        assert await logical(runtime, "wf_b") == await logical(runtime, "wf_a")
        started = (await log_of(runtime, "wf_b"))[0].data
        assert (started.replay_of.workflow_id, started.replay_of.policy) == ("wf_a", policy)
        usage = (await runtime.record("wf_b")).usage
        assert (usage.model_calls, usage.tool_calls) == ((0, 0) if policy != "Refresh" else (3, 1))


async def test_a_served_result_names_its_record():
    async with World().runtime() as runtime:
        await recorded(runtime)
        await replayed(runtime, "Always")
        log = {event.offset: event for event in await log_of(runtime, "wf_a")}
        ends = [
            e
            for e in await log_of(runtime, "wf_b")
            if e.type in ("model.call_completed", "tool.call_completed")
        ]
        assert len(ends) == 4
        for end in ends:
            assert end.data.replayed.workflow_id == "wf_a"
            record = log[end.data.replayed.offset]
            assert record.type == end.type
            if end.type == "model.call_completed":
                assert (record.data.message, end.data.usage.model_calls) == (end.data.message, 0)
            else:
                assert record.data.output == end.data.output


@pytest.mark.parametrize("policy", ALL)
async def test_a_request_that_differs(policy: str):
    world = World()
    async with world.runtime() as runtime:
        await recorded(runtime)
        before = world.sent
        again = await replayed(runtime, policy, input={"x": "two"})
        if policy != "Always":
            assert again.state == "completed"
            assert world.sent > before
            return
        assert (again.state, again.error.code) == ("failed", "replay_divergence")
        assert again.error.details["key"]["activation"] == "/a#0"
        (found,) = [d for d in again.error.details["diff"] if d["path"].startswith("/request/messages")]
        assert (found["recorded"], found["asked"]) == ("one", "two")
        assert world.sent == before


@pytest.mark.parametrize("policy", ALL)
async def test_a_call_without_a_record(policy: str):
    """The recorded run was cancelled before its second step, whose call has no record."""
    world = World()
    asking = document(
        step("a", functions=["pay"]),
        step("b", depends_on=["a"], input="${{ steps.a.outputs.result.count }}", approval=True),
    )
    async with world.runtime() as runtime:
        handle = await runtime.submit(asking, workflow_id="wf_a")
        await handle.rest()
        await handle.cancel()
        await handle.rest()
        before = world.sent
        again = await (await runtime.replay("wf_a", policy, as_id="wf_b")).rest()  # type: ignore[arg-type]
        if policy == "Always":
            assert again.error is not None
            assert (again.state, again.error.code) == ("failed", "replay_miss")
            assert again.error.details is not None
            assert again.error.details["key"]["activation"] == "/b#0"
            assert world.sent == before
        else:
            assert again.state == "waiting"  # a person is asked anew: there is no answer on record


@pytest.mark.parametrize("policy", ALL)
async def test_a_recorded_failure(policy: str):
    """`Always` serves it, the others call again."""
    from tests.integration.support.runs import chain

    world = World()
    world.failing = 1
    async with world.runtime() as runtime:
        first = await recorded(runtime, chain("pay"))
        assert first.state == "failed"
        again = await replayed(runtime, policy)
        assert again.state == ("failed" if policy == "Always" else "completed")
        assert len(world.tools) == (1 if policy == "Always" else 2)
        if policy == "Always":
            assert again.error == first.error


@pytest.mark.parametrize("policy", ["Always", "Mixed"])
async def test_answers_of_people_pass_at_once(policy: str):
    world = World()
    async with world.runtime() as runtime:
        handle = await runtime.submit(document(step("a", approval=True)), workflow_id="wf_a")
        await handle.rest()
        await handle.decide(granted=True, step_id="a", by="ann", reason="it is fine")
        await handle.result()
        before = world.sent
        again = await replayed(runtime, policy)
        assert (again.state, world.sent) == ("completed", before)
        (granted,) = [e for e in await log_of(runtime, "wf_b") if e.type == "approval.granted"]
        assert (granted.data.by, granted.data.reason) == ("ann", "it is fine")
        assert granted.data.replayed.workflow_id == "wf_a"


async def test_another_definition_is_replayed_as_far_as_it_asks_alike():
    world = World()
    async with world.runtime() as runtime:
        await recorded(runtime)
        before = world.sent
        longer = document(
            *STEPS["workflow"]["steps"],
            step("c", depends_on=["b"], input="${{ steps.b.outputs.result.count }}"),
        )
        again = await replayed(runtime, "Mixed", definition=longer)
        assert (again.state, world.sent - before) == ("completed", 1)
        failed = await (await runtime.replay("wf_a", "Always", definition=longer)).result(
            raise_on_failure=False
        )
        assert failed.error is not None
        assert failed.error.details is not None
        assert failed.error.code == "replay_miss"
        assert failed.error.details["key"]["activation"] == "/c#0"


async def test_a_replay_of_a_replay():
    world = World()
    async with world.runtime() as runtime:
        first = await recorded(runtime)
        await replayed(runtime, "Always")
        before = world.sent
        again = await (await runtime.replay("wf_b", "Always", as_id="wf_c")).result()
        assert (again.output, world.sent) == (first.output, before)


@pytest.mark.parametrize("policy", ["Always", "Mixed"])
async def test_a_replay_goes_on_from_its_own_log_after_a_restart(policy: str):
    """Cut the log of a replay at each offset and take it up: it ends alike, with nothing sent."""
    world, log = World(), MemoryLog()
    async with world.runtime(log) as runtime:
        first = await recorded(runtime)
        await replayed(runtime, policy)
        whole = await log_of(runtime, "wf_b")
    before = world.sent
    for cut in range(1, len(whole) - 1):
        log2 = await log_up_to(log, "wf_b", cut)
        async with world.runtime(log2) as runtime:
            await runtime.recover()
            result = await runtime.result("wf_b", raise_on_failure=False)
            assert (result.state, result.output) == ("completed", first.output), cut
            ends = [
                e.data.model_call_id
                for e in await log_of(runtime, "wf_b")
                if e.type == "model.call_completed"
            ]
            assert len(set(ends)) == len(ends) == 3
    assert world.sent == before


async def log_up_to(log: MemoryLog, run: str, cut: int) -> MemoryLog:
    """Return a copy of a log in which a run stops before offset `cut`, as its process was killed there."""
    copied = MemoryLog()
    for name in ("_runs", "_gone", "_order", "_cursors", "_blobs", "_definitions"):
        if hasattr(log, name):
            setattr(copied, name, copy.copy(getattr(log, name)))
    kept = copied._runs[run] = copy.copy(log._runs[run])  # pyright: ignore[reportPrivateUsage]
    kept._events, kept._late, kept.last = kept.events[:cut], [], cut - 1  # pyright: ignore[reportPrivateUsage]
    kept.state, kept.ended, kept.owner = "running", False, None
    kept.updated_at = kept.events[-1].ts
    return copied


async def test_what_cannot_be_replayed_is_refused():
    async with World().runtime() as runtime:
        with pytest.raises(RunNotFound):
            await runtime.replay("wf_none")
        await recorded(runtime)
        with pytest.raises(CommandRefused, match="policy 'always' is none of"):
            await runtime.replay("wf_a", "always")  # type: ignore[arg-type]
        with pytest.raises(RunExists):
            await runtime.replay("wf_a", as_id="wf_a")
        with pytest.raises(CommandRefused, match="input"):
            await runtime.replay("wf_a", input=float("nan"))


async def test_parallel_results_come_in_the_recorded_order():
    """The recorded run had them in an order that depends on how long each took."""
    done = {name: asyncio.Event() for name in "abc"}

    async def answer(request: Any) -> Any:
        said = request.messages[-1].content
        await done[said].wait()
        return {"said": said}

    steps = document(*(step(name, input=name) for name in "abc"))
    async with Runtime(models=[ScriptedModel(answer)]) as runtime:
        handle = await runtime.submit(steps, workflow_id="wf_a")
        for name in "cab":
            done[name].set()
            async for event in runtime.events("wf_a"):
                if event.type == "workflow.step_completed" and event.data.step_id == name:
                    break
        await handle.result()
        await replayed(runtime, "Always")
        assert await logical(runtime, "wf_b") == await logical(runtime, "wf_a")
        ends = [e for e in await log_of(runtime, "wf_b") if e.type == "workflow.step_completed"]
        assert [end.data.step_id for end in ends] == ["c", "a", "b"]


@pytest.mark.parametrize("policy", ["Always", "Mixed"])
def test_recorded_waits_pass_at_once(policy: str):
    """A wait of an hour on the virtual clock; the replay takes none of it, and gives the recorded times."""
    stage = Stage()
    waits = Workflow(
        name="waits",
        nodes=(
            StartNode(id="begin", next="rest"),
            WaitNode(id="rest", duration=3_600.0, next="end"),
            EndNode(id="end"),
        ),
    )

    async def life(runtime: Runtime) -> None:
        first = await runtime.submit(waits, workflow_id="wf_a")
        async for _ in first.events():
            pass
        loop = asyncio.get_running_loop()
        before = loop.time()
        assert before >= 3_600
        second = await runtime.replay("wf_a", policy, as_id="wf_b")  # type: ignore[arg-type]
        async for _ in second.events():
            pass
        assert loop.time() - before < 1
        (fired,) = [e for e in await log_of(runtime, "wf_b") if e.type == "timer.fired"]
        assert fired.data.replayed.workflow_id == "wf_a"
        if policy == "Always":
            outputs = [
                event.data.output
                for run in ("wf_a", "wf_b")
                for event in await log_of(runtime, run)
                if event.type == "workflow.step_completed" and event.data.step_id == "rest"
            ]
            assert outputs[0] == outputs[1]

    stage.process(life)


# -- forks -----------------------------------------------------------------------------------------

ASKED = document(
    step("a", functions=["pay"], input="${{ inputs.x }}"),
    step("b", depends_on=["a"], input="${{ steps.a.outputs.result.count }}"),
    step("c", depends_on=["b"], approval=True),
)


@pytest.mark.parametrize("policy", ["Always", "Mixed"])
@pytest.mark.parametrize("again", [None, {"x": "one"}], ids=["with its base", "from the beginning"])
async def test_a_replay_of_a_fork_is_served_from_the_fork_and_from_the_run_that_it_came_from(
    policy: str, again: Any
):
    world = World()
    async with world.runtime() as runtime:
        handle = await runtime.submit(ASKED, {"x": "one"}, workflow_id="wf_a")
        await handle.rest()
        fork = await runtime.fork("wf_a", from_step="b", as_id="wf_f")
        await fork.rest()
        await runtime.decide("wf_f", granted=True, step_id="c")
        first = await fork.result()
        twice = await runtime.fork("wf_f", from_step="c", as_id="wf_g")
        await twice.rest()
        await runtime.decide("wf_g", granted=True, step_id="c")
        await twice.result()
        for source in ("wf_f", "wf_g"):
            before = world.sent
            replay = await runtime.replay(source, policy, input=again)  # type: ignore[arg-type]
            result = await replay.result()
            assert (result.output, world.sent) == (first.output | result.output, before)
            ends = [e for e in await log_of(runtime, replay.workflow_id) if hasattr(e.data, "replayed")]
            served = [e.data for e in ends if e.data.replayed]
            for end in served:
                record = (await log_of(runtime, end.replayed.workflow_id))[end.replayed.offset]
                assert record.data.EVENT_TYPE == end.EVENT_TYPE
            assert {end.replayed.workflow_id for end in served} >= ({"wf_a"} if again else {source})
            assert await runtime.checkpoints(replay.workflow_id)


async def test_a_replay_of_a_fork_goes_on_after_a_restart():
    """Its records are found again by the run that they stand in, not by their place in the fork."""
    world, log = World(), MemoryLog()
    async with world.runtime(log) as runtime:
        await recorded(runtime)
        await (await runtime.fork("wf_a", from_step="b", as_id="wf_f")).result()
        await (await runtime.replay("wf_f", "Always", input={"x": "one"}, as_id="wf_b")).result()
        whole = await log_of(runtime, "wf_b")
    before = world.sent
    for cut in range(1, len(whole) - 1):
        async with world.runtime(await log_up_to(log, "wf_b", cut)) as runtime:
            await runtime.recover()
            assert (await runtime.result("wf_b", raise_on_failure=False)).state == "completed", cut
            assert await logical(runtime, "wf_b") == await logical_of(log, "wf_b")
    assert world.sent == before


async def logical_of(log: MemoryLog, run: str) -> bytes:
    return encode_trace(trace_of(await log_of(log, run), "logical"))


TIMES = {
    "version": "v0",
    "name": "times",
    "nodes": [
        {"id": "s", "type": "start", "next": "pause"},
        {"id": "pause", "type": "wait", "duration": 0.01, "next": "ask"},
        {
            "id": "ask",
            "type": "human_in_the_loop",
            "prompt": "Go on?",
            "on_approve": "decide",
            "on_reject": "pay",
        },
        {
            "id": "decide",
            "type": "human_in_the_loop",
            "prompt": "?",
            "decision_path": "input.yes",
            "on_approve": "pay",
            "on_reject": "pay",
        },
        {
            "id": "pay",
            "type": "tool",
            "tool": "desk.pay",
            "input": {"x": "{{ nodes.pause.output.fired_at }} {{ nodes.ask.output.at }}"},
            "next": "both",
        },
        {
            "id": "both",
            "type": "end",
            "output": ["{{ nodes.decide.output.at }}", "{{ nodes.pay.output.number }}"],
        },
    ],
}


@pytest.mark.parametrize("policy", ["Always", "Mixed"])
async def test_what_follows_from_the_time_of_an_answer_is_served(policy: Any):
    """When a person answered, or a timer fired, is of the record: what follows from it asks alike."""
    world = World()

    @function(side_effect="external")
    async def pay(x: str) -> Any:
        world.tools.append(x)
        return {"number": len(world.tools)}

    async with Runtime("memory:", services=[Service.of("desk", pay)]) as runtime:
        handle = await runtime.submit(TIMES, {"yes": True}, workflow_id="wf_a")
        async for event in handle.events():
            if event.type == "approval.requested":
                await handle.decide(request_id=event.data.request_id, granted=True)
        first = await handle.result()
        again = await replayed(runtime, policy)
        assert (again.state, again.output[1], len(world.tools)) == ("completed", 1, 1)
        assert (again.output == first.output) == (policy == "Always")  # `decide` reads the clock by itself
