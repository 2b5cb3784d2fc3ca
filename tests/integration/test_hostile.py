"""What must not shake a Runtime: bad answers, dying actors, a failing store, racing commands, early exits."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import anyio
import pytest
from msgspec import UNSET

from actors.testing import run_until_idle, virtual
from agentflow import Runtime, Service, function
from agentflow.definition.conversation import Usage
from agentflow.definition.failure import ErrorInfo
from agentflow.definition.ir import EndNode, StartNode, ToolNode, Workflow
from agentflow.errors import StoreError
from agentflow.events.envelope import decode
from agentflow.events.memory import MemoryLog
from agentflow.events.sqlite.log import SqliteLog
from agentflow.models import ModelError, ModelReply
from agentflow.runtime.command_messages import Cancel
from agentflow.testing import ScriptedModel
from agentflow.testing.scripted import call
from tests.integration.virtual import LoopClock

pytestmark = pytest.mark.timeout(30)
QUOTA = ModelError(ErrorInfo(category="quota", code="insufficient_quota", message="no"))


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    monkeypatch.setenv("AGENTFLOW_MODEL", "scripted:m")


def agents(*prompts: str, **more) -> dict:
    return {"agents": [{"name": f"agent {i}", "system_prompt": p, **more} for i, p in enumerate(prompts)]}


def steps(*given: dict, **workflow) -> dict:
    listed = []
    for step in given:
        spec = {"systemPrompt": step["id"], "input": "hi", "resultSchema": True, "attachedFunctions": "none"}
        listed.append({"type": "run", **step, "agent": {**spec, **step.get("agent", {})}})
    return {"version": "1.0", "workflow": {"steps": listed, **workflow}}


def held() -> Workflow:
    nodes = (
        StartNode(id="__start", next="t"),
        ToolNode(id="t", tool="gate.hold", next="__end", input={}),
        EndNode(id="__end", drain=True),
    )
    return Workflow(name="held", nodes=nodes)


class Gate:
    def __init__(self, **declared) -> None:
        self.entered, self.leave = asyncio.Event(), asyncio.Event()
        self.cancelled = False
        self.calls = self.inside = 0

        @function(name="hold", **declared)
        async def hold() -> dict:
            """Waits."""
            self.calls += 1
            self.inside += 1
            self.entered.set()
            try:
                await self.leave.wait()
            except asyncio.CancelledError:
                self.cancelled = True
                raise
            finally:
                self.inside -= 1
            return {"held": self.calls}

        self.service = Service.of("gate", hold)


class HeldLog(MemoryLog):
    """Appends are acknowledged when the test says so, or refused."""

    def __init__(self) -> None:
        super().__init__()
        self.queue: list | None = None
        self.refused: set[int] = set()
        self.appends = 0

    def append(self, batch):
        self.appends += 1
        future = asyncio.get_running_loop().create_future()
        number = self.appends

        def go() -> None:
            error = (
                StoreError("disk full")
                if number in self.refused
                else MemoryLog.append(self, batch).exception()
            )
            future.set_result(None) if error is None else future.set_exception(error)

        if self.queue is None:
            asyncio.get_running_loop().call_soon(go)
        else:
            self.queue.append(go)
        return future

    def let_go(self) -> None:
        waiting, self.queue = self.queue or [], None
        for go in waiting:
            go()


async def settled(handle, seconds: float = 2):
    return await asyncio.wait_for(handle.rest(), seconds)


async def types(log, run_id: str) -> list[str]:
    return [decode(row.body).type for row in await log.read(run_id, 0, 100_000)]


async def stuck(request):
    await asyncio.Event().wait()


class TestBadAnswers:
    @pytest.mark.parametrize("text", ["half \ud83d", '{"t": "\\ud83d"}'])
    async def test_half_a_surrogate_pair(self, text):
        model = ScriptedModel(lambda r: text)
        async with Runtime(models=[model], grace=0.1) as runtime:
            handle = await runtime.submit(steps({"id": "a"}), {})
            result = await settled(handle)
            assert result.state in ("completed", "failed")
            assert len(model.requests) <= 3  # asked to repair its answer at most twice

    async def test_half_a_surrogate_pair_in_arguments(self):
        @function(side_effect="none")
        async def f(t: str) -> int:
            """Takes text."""
            return 1

        bad = call("s__f")._replace(arguments='{"t": "\\ud83d"}')
        model = ScriptedModel(lambda r: bad if len(r.messages) < 3 else "done")
        async with Runtime(models=[model], services=[Service.of("s", f)], grace=0.1) as runtime:
            result = await settled(await runtime.submit(agents("x", tools=["s.f"]), "go"))
            assert result.state in ("completed", "failed")

    @pytest.mark.parametrize("what", ["none", "content", "usage", "cancelled"])
    async def test_an_adapter_with_a_bug(self, what):
        class Provider(ScriptedModel):
            async def complete(self, request, **more):
                reply = await super().complete(request, **more)
                if what == "none":
                    return None
                if what == "cancelled":
                    raise asyncio.CancelledError("its own")
                message = reply.message
                return ModelReply(
                    message=message.__class__(role="assistant", content=None)
                    if what == "content"
                    else message,
                    finish_reason="stop",
                    response_model="m",
                    usage=None if what == "usage" else reply.usage,
                )

        model = Provider(lambda r: "ok")
        async with Runtime(models=[model], grace=0.1) as runtime:
            handle = await runtime.submit(agents("x"), "go")
            result = await settled(handle)
            assert result.state == "failed"
            assert len(model.requests) == 1
            assert (await runtime.record(handle.workflow_id)).state == "failed"

    @pytest.mark.parametrize(
        "wrong",
        [
            {"category": "made_up"},
            {"code": 5},
            {"message": "half \ud83d"},
            {"details": {"an": object()}},
            {"http_status": "503"},
        ],
    )
    async def test_an_error_that_no_event_can_hold(self, wrong):
        given = {"category": "transient", "code": "server_error", "message": "no", **wrong}
        error = ModelError(ErrorInfo(**given), usage=Usage(input_tokens=3, model_calls=1))
        async with Runtime(models=[ScriptedModel([error])], grace=0.1) as runtime:
            handle = await runtime.submit(agents("x"), "go")
            result = await settled(handle)
            assert (result.state, result.error.code) == ("failed", "agent_error")
            assert result.usage.input_tokens == 3
            assert (await runtime.record(handle.workflow_id)).state == "failed"  # its log can be read

    @pytest.mark.parametrize(
        "wrong",
        [
            {"usage": {"input_tokens": "1"}},
            {"usage": Usage(input_tokens=-5)},
            {"usage": Usage(input_tokens="x")},
            {"partial": 5},
            {"partial": "half \ud83d"},
            {"retry_after": "soon"},
            {"retry_after": float("nan")},
            {"retry_after": -1.0},
        ],
    )
    async def test_what_stands_wrong_beside_an_error_is_left_out(self, wrong):
        info = ErrorInfo(category="auth", code="authentication_failed", message="no")
        async with Runtime(models=[ScriptedModel([ModelError(info, **wrong)])], grace=0.1) as runtime:
            handle = await runtime.submit(agents("x"), "go")
            result = await settled(handle)
            assert (result.state, result.error.code) == ("failed", "authentication_failed")
            events = [event async for event in handle.events()]
        (failed,) = [e.data for e in events if e.type == "model.call_failed"]
        assert failed.usage is UNSET
        assert failed.partial is UNSET

    async def test_what_a_failed_call_cost_counts(self):
        info = ErrorInfo(category="agent", code="content_filtered", message="withheld")
        used = Usage(input_tokens=30, output_tokens=10, model_calls=1, cost_usd=0.5)
        model = ScriptedModel([ModelError(info, usage=used)])
        async with Runtime(models=[model], grace=0.1) as runtime:
            handle = await runtime.submit(agents("x"), "go", budget={"max_tokens": 1000})
            result = await settled(handle)
            record = await runtime.record(handle.workflow_id)
            events = [event async for event in handle.events()]
        (failed,) = [e.data for e in events if e.type == "model.call_failed"]
        assert failed.usage == result.usage == record.usage == used
        assert record.budget.used == {"max_tokens": 40}

    async def test_an_exception_that_is_no_exception(self):
        class Boom(BaseException):
            pass

        @function(side_effect="none")
        async def f() -> int:
            """Raises."""
            raise Boom

        model = ScriptedModel(lambda r: call("s__f") if len(r.messages) < 3 else "done")
        async with Runtime(models=[model], services=[Service.of("s", f)], grace=0.1) as runtime:
            assert (
                await settled(await runtime.submit(agents("x", tools=["s.f"]), "go"))
            ).state == "completed"

    async def test_labels_that_no_event_can_hold(self):
        async with Runtime(models=[ScriptedModel(lambda r: "ok")], grace=0.1) as runtime:
            with pytest.raises(Exception) as caught:
                await asyncio.wait_for(runtime.submit(agents("x"), "go", labels={"a": object()}), 1)
            assert not isinstance(caught.value, TimeoutError)


class TestDyingActors:
    async def test_the_bus_fails_at_one_batch(self, monkeypatch):
        from agentflow.runtime import event_bus

        real, left = event_bus.UnsealedBatch, [2]  # the second batch

        def unsealed(*args, **more):
            left[0] -= 1
            if left[0] == 0:
                raise RuntimeError("a bug")
            return real(*args, **more)

        monkeypatch.setattr(event_bus, "UnsealedBatch", unsealed)
        async with Runtime(models=[ScriptedModel(lambda r: "ok")], grace=0.1) as runtime:
            assert (await settled(await runtime.submit(agents("x"), "go"))).state == "completed"
        assert left[0] <= 0

    async def test_the_actor_of_a_service_under_a_tool_node(self):
        gate = Gate(side_effect="none")
        async with Runtime(services=[gate.service], grace=0.1) as runtime:
            handle = await runtime.submit(held(), {})
            await gate.entered.wait()
            ref = next(r for name, r in runtime.system.children.items() if name.startswith("tools-"))
            ref.kill()
            gate.leave.set()
            assert (await settled(handle)).state in ("completed", "failed", "waiting")

    @virtual
    async def test_the_actor_of_a_provider_is_gone(self):
        async with Runtime(models=[ScriptedModel(lambda r: "ok")], grace=0.1) as runtime:
            await runtime.run(agents("x"), "go")
            ref = next(r for name, r in runtime.system.children.items() if name.startswith("model-"))
            ref.kill()
            await asyncio.sleep(0)
            handle = await runtime.submit(agents("x"), "go")
            await asyncio.wait([asyncio.ensure_future(handle.rest())], timeout=0.5)
            assert await runtime.log.last(handle.workflow_id) < 100

    @virtual
    async def test_names_of_agents_do_not_clash(self):
        async def answer(request):
            await asyncio.sleep(0.02)
            return "{}"

        document = steps({"id": "a", "for_each": "${{ inputs.l }}"}, {"id": "a-0"})
        async with Runtime(models=[ScriptedModel(answer)], grace=0.1) as runtime:
            assert (await settled(await runtime.submit(document, {"l": [1, 2]}))).state == "completed"

    @virtual
    async def test_a_place_is_free_again_when_a_call_is_cancelled_as_it_begins(self):
        log, gate = HeldLog(), Gate(side_effect="none")
        gate.leave.set()
        async with Runtime(log, services=[gate.service], grace=0.1) as runtime:
            for i in range(9):
                log.queue = []
                submitting = asyncio.ensure_future(runtime.submit(held(), {}, workflow_id=f"wf_{i}"))
                await run_until_idle()
                ref = runtime._registry.live[f"wf_{i}"]
                log.let_go()
                asyncio.get_running_loop().call_soon(ref.tell, Cancel(mode="hard", by="test"))
                await settled(await submitting)
            assert (await settled(await runtime.submit(held(), {}))).state == "completed"


class TestDeafFunctions:
    """A function that swallows cancellation: its time limit holds all the same, and so does the service's."""

    def service(self, deaf_for: int, entered: list[float]) -> Service:
        """Functions of a service that does one thing at a time; `hold` goes on after so many cancels."""

        @function(name="hold", timeout=10, side_effect="read")
        async def hold() -> dict:
            """Waits."""
            left = deaf_for
            while True:
                try:
                    await asyncio.sleep(1000)
                except asyncio.CancelledError:
                    left -= 1
                    if left < 0:
                        raise

        @function(name="next", side_effect="none")
        async def after() -> dict:
            """Says when it was called."""
            entered.append(asyncio.get_running_loop().time())
            return {}

        return Service.of("gate", hold, after, max_concurrency=1)

    def graph(self, tool: str) -> Workflow:
        nodes = (
            StartNode(id="__start", next="t"),
            ToolNode(id="t", tool=tool, next="__end", input={}),
            EndNode(id="__end", drain=True),
        )
        return Workflow(name="deaf", nodes=nodes)

    @pytest.mark.parametrize(("deaf_for", "free_at"), [(0, 10), (2, 12), (30, 15)])
    @virtual
    async def test_it_is_answered_for_at_its_limit_and_the_place_comes_back(self, deaf_for, free_at, caplog):
        entered: list[float] = []
        async with Runtime(services=[self.service(deaf_for, entered)], grace=0.1) as runtime:
            slow = await runtime.submit(self.graph("gate.hold"), {})
            await asyncio.sleep(1)
            quick = await runtime.submit(self.graph("gate.next"), {})
            result = await settled(slow, 60)
            assert (result.state, asyncio.get_running_loop().time()) == ("failed", pytest.approx(10))
            assert "tool_timeout" in str(result.error)
            assert (await settled(quick, 60)).state == "completed"
            assert entered == [pytest.approx(free_at)]
            assert ("its place is given to the next" in caplog.text) == (free_at == 15)
        assert asyncio.all_tasks() == {asyncio.current_task()}  # nothing of it is left when the Runtime is

    @virtual
    async def test_an_agents_call_too(self):
        def answer(request):
            return "done" if len(request.messages) > 2 else call("gate.hold")

        document = agents("x", tools=["gate.hold"])
        async with Runtime(
            models=[ScriptedModel(answer)], services=[self.service(3, [])], grace=0.1
        ) as runtime:
            result = await settled(await runtime.submit(document, "go"), 600)
        assert result.state == "completed"
        assert asyncio.all_tasks() == {asyncio.current_task()}


class TestRaces:
    async def test_one_id_submitted_twice_at_once(self):
        gate = asyncio.Event()

        async def answer(request):
            if request.messages[0].content == "other":
                await gate.wait()
            return "ok"

        async with Runtime(models=[ScriptedModel(answer)], grace=0.1) as runtime:
            other = await runtime.submit(agents("other"), "go")
            twice = (runtime.submit(agents("x"), "go", workflow_id="wf_x") for _ in range(2))
            for handle in await asyncio.wait_for(asyncio.gather(*twice), 2):
                assert (await settled(handle)).state == "completed"
            gate.set()
            assert (await settled(other)).state == "completed"

    @pytest.mark.parametrize("command", ["resume", "cancel"])
    async def test_a_parked_run_taken_up_twice_at_once(self, tmp_path, command):
        log = SqliteLog(tmp_path / "runs.db")
        async with Runtime(log, models=[ScriptedModel(stuck)], grace=0.1) as runtime:
            parked = await runtime.submit(agents("x"), "go")
        async with Runtime(log, models=[ScriptedModel(lambda r: "ok")], grace=0.1) as runtime:
            twice = (getattr(runtime, command)(parked.workflow_id) for _ in range(2))
            await asyncio.wait_for(asyncio.gather(*twice), 3)
            result = await settled(await runtime.attach(parked.workflow_id))
            assert result.state == {"resume": "completed", "cancel": "cancelled"}[command]
            ends = [t for t in await types(log, parked.workflow_id) if t == f"workflow.{result.state}"]
            assert len(ends) == 1
        await log.close()

    @pytest.mark.parametrize("command", ["resume", "cancel"])
    async def test_a_command_right_behind_a_pause(self, command):
        answers = iter([QUOTA])
        async with Runtime(models=[ScriptedModel(lambda r: next(answers, "ok"))], grace=0.1) as runtime:
            handle = await runtime.submit(agents("x"), "go")
            assert (await settled(handle)).state == "paused"
            await getattr(runtime, command)(handle.workflow_id)
            handle = await runtime.attach(handle.workflow_id)
            assert (await settled(handle)).state == {"resume": "completed", "cancel": "cancelled"}[command]

    @virtual
    async def test_leaving_while_a_submission_is_under_way(self):
        log = HeldLog()
        async with Runtime(log, models=[ScriptedModel(lambda r: "ok")], grace=0.1) as runtime:
            log.queue = []
            submitting = asyncio.ensure_future(runtime.submit(agents("x"), "go"))
            await run_until_idle()
        log.let_go()
        await asyncio.wait([submitting], timeout=1)
        assert submitting.done()


class TestDurability:
    @virtual
    async def test_a_cancel_has_no_effect_before_it_is_durable(self):
        log, gate = HeldLog(), Gate()
        async with Runtime(log, services=[gate.service], grace=0.1) as runtime:
            handle = await runtime.submit(held(), {})
            await gate.entered.wait()
            log.queue = []
            cancelling = asyncio.ensure_future(handle.cancel())
            await run_until_idle()
            seen = cancelling.done(), gate.cancelled
            log.let_go()
            await cancelling
            assert seen == (False, False)

    async def test_a_cancelled_run_whose_last_event_is_missing_is_closed_by_resume(self):
        log, gate = HeldLog(), Gate()
        async with Runtime(log, services=[gate.service], grace=0.1) as runtime:
            handle = await runtime.submit(held(), {})
            await gate.entered.wait()
            log.refused = {log.appends + 2}
            await handle.cancel(mode="hard")
            with pytest.raises(StoreError):
                await settled(handle)
        assert (await types(log, handle.workflow_id))[-1] == "workflow.cancel_requested"
        async with Runtime(log, services=[gate.service], grace=0.1) as runtime:
            handle = await runtime.resume(handle.workflow_id)
            assert (await settled(handle)).state == "cancelled"

    async def test_a_store_that_cannot_release_harms_no_other_run(self):
        class Failing(HeldLog):
            async def release(self, workflow_id, owner):
                raise StoreError("gone")

        log, gate = Failing(), asyncio.Event()

        async def answer(request):
            await (gate if request.messages[0].content == "one" else asyncio.Event()).wait()
            return "ok"

        runtime = Runtime(log, models=[ScriptedModel(answer)], grace=0.1)
        await runtime.__aenter__()
        handles = [await runtime.submit(agents(prompt), "go") for prompt in ("one", "idle")]
        log.refused = {log.appends + 1}
        gate.set()
        outcomes = [asyncio.ensure_future(h.rest()) for h in handles]
        await asyncio.wait(outcomes[:1], timeout=2)
        with suppress(StoreError):
            await runtime.__aexit__(None, None, None)
        done, _ = await asyncio.wait(outcomes, timeout=1)
        assert len(done) == 2, "whoever waits for the idle run is never told"

    @virtual
    async def test_a_pause_lets_steps_in_flight_finish(self):
        gate = Gate()

        async def answer(request):
            if request.messages[0].content == "b":
                await gate.entered.wait()
                raise QUOTA
            return call("gate__hold") if len(request.messages) < 3 else "{}"

        tools = {"attachedFunctions": [{"service": "gate", "function": "hold"}]}
        async with Runtime(models=[ScriptedModel(answer)], services=[gate.service], grace=0.1) as runtime:
            handle = await runtime.submit(steps({"id": "a", "agent": tools}, {"id": "b"}), {})
            await gate.entered.wait()
            await run_until_idle()
            gate.leave.set()
            await settled(handle)
            assert not gate.cancelled


class TestLeaving:
    async def test_inside_a_cancelled_scope(self, tmp_path):
        log, finished, scope = MemoryLog(), [], anyio.CancelScope()

        @function(name="hold")
        async def hold() -> dict:
            """Takes a while."""
            scope.cancel()
            await asyncio.sleep(0.2)
            finished.append(1)
            return {}

        with scope:
            async with Runtime(log, services=[Service.of("gate", hold)], grace=5) as runtime:
                handle = await runtime.submit(held(), {})
                await anyio.sleep(100)
        assert finished
        assert (await types(log, handle.workflow_id))[-1] == "workflow.paused"
        with anyio.move_on_after(0.05):
            async with Runtime(f"sqlite:{tmp_path / 'runs.db'}") as runtime:
                await anyio.sleep(10)
        assert runtime.log._group.closed

    async def test_a_provider_that_does_not_close(self, tmp_path):
        class Provider(ScriptedModel):
            async def aclose(self):
                raise RuntimeError("no")

        with pytest.raises(RuntimeError):
            async with Runtime(
                f"sqlite:{tmp_path / 'runs.db'}", models=[Provider(lambda r: "ok")]
            ) as runtime:
                pass
        assert runtime.log._group.closed

    @virtual
    async def test_who_follows_a_paused_run_is_let_go(self):
        def answer(request):
            raise QUOTA

        async with Runtime(models=[ScriptedModel(answer)], grace=0.1) as runtime:
            handle = await runtime.submit(agents("x"), "go")
            await settled(handle)

            async def follow():
                return [e async for e in handle.events()]

            following = asyncio.ensure_future(follow())
            await run_until_idle()
        await asyncio.wait([following], timeout=1)
        assert following.done()


class TestLimits:
    async def test_actors_do_not_pile_up(self, tmp_path, monkeypatch):
        code = (
            "from agentflow import function\n@function(side_effect='none')\ndef f() -> int:\n    return 1\n"
        )
        (tmp_path / "piling.py").write_text(code)
        monkeypatch.syspath_prepend(str(tmp_path))
        tools = {"attachedFunctions": [{"service": "s", "function": "f"}]}
        document = {
            **steps({"id": "a", "agent": tools}),
            "services": {"s": {"type": "python", "module": "piling"}},
        }
        async with Runtime(models=[ScriptedModel(lambda r: "{}")]) as runtime:
            for _ in range(20):
                await runtime.run(document, {})
            assert len(runtime.system.children) < 10

    async def test_each_provider_serves_its_own_models(self):
        one, two = (ScriptedModel(lambda r, n=n: n, name=n) for n in ("one", "two"))
        one.limiter_key = two.limiter_key = "shared"
        async with Runtime(models=[one, two]) as runtime:
            outputs = [(await runtime.run(agents("x", model=f"{n}:m"), "go")).output for n in ("one", "two")]
        assert outputs == ["one", "two"]

    @virtual
    async def test_an_attempt_that_is_over_is_stopped(self):
        gate = Gate(side_effect="none")
        model = ScriptedModel(lambda r: call("gate__hold") if len(r.messages) < 3 else "done")
        retry = {"timeout": 10, "max_attempts": 3, "backoff": 5}
        async with Runtime(models=[model], services=[gate.service], grace=0.1, clock=LoopClock()) as runtime:
            handle = await runtime.submit(agents("x", tools=["gate.hold"], retry=retry), "go")
            most = 0
            while not handle._launch.rested.done():
                await asyncio.sleep(1)
                most = max(most, gate.inside)
        assert most == 1
