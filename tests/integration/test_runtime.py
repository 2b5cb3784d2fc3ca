"""The Runtime on real actors: agent lists, failures, waiting, cancelling, parking, resuming, supervision."""

from __future__ import annotations

import asyncio

import pytest

from actors.testing import run_until_idle, virtual
from agentflow import AgentflowError, DefinitionError, Runtime, Service, WorkflowFailed, function
from agentflow.definition.failure import ErrorInfo
from agentflow.definition.ir import EndNode, StartNode, ToolNode, Workflow
from agentflow.errors import ConfigurationError, Fenced, InvalidAnswer, RunExists, RunNotFound, UnknownRequest
from agentflow.events.envelope import decode
from agentflow.events.memory import MemoryLog
from agentflow.models import ModelError, ModelProfile
from agentflow.testing import ScriptedModel
from agentflow.testing.scripted import call
from tests.integration.support import shop
from tests.integration.virtual import LoopClock, seconds


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    monkeypatch.setenv("AGENTFLOW_MODEL", "scripted:m")
    shop.reset()


def agents(*prompts: str, retry: dict | None = None, **more) -> dict:
    spec = {} if retry is None else {"retry": retry}
    listed = [{"name": f"agent {i}", "system_prompt": p, **spec} for i, p in enumerate(prompts)]
    return {"agents": listed, **more}


async def types(runtime: Runtime, run_id: str) -> list[str]:
    return [e.type async for e in runtime.events(run_id, follow=False)]


class Gate:
    """A function that is open until the test lets it go."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.leave = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.calls = 0

    def service(self, **declared) -> Service:
        @function(name="hold", **declared)
        async def hold() -> dict:
            """Waits."""
            self.calls += 1
            self.entered.set()
            try:
                await self.leave.wait()
            except asyncio.CancelledError:
                self.cancelled.set()
                raise
            return {"held": self.calls}

        return Service.of("gate", hold)


class TestAgentList:
    async def test_each_agent_gets_the_answer_of_the_one_before_unchanged(self):
        model = ScriptedModel(lambda request: request.messages[-1].content + "!")
        async with Runtime(models=[model]) as runtime:
            result = await runtime.run(agents("one", "two", "three"), "go")
        assert result.output == "go!!!"
        assert [r.messages[0].content for r in model.requests] == ["one", "two", "three"]

    async def test_the_first_failure_halts(self):
        def answer(request):
            if request.messages[0].content == "two":
                info = ErrorInfo(category="auth", code="authentication_failed", message="no")
                return ModelError(info)
            return "ok"

        async with Runtime(models=[ScriptedModel(answer)]) as runtime:
            with pytest.raises(WorkflowFailed) as caught:
                await runtime.run(agents("one", "two", "three"), "go")
            result = caught.value.result
            events = await types(runtime, result.workflow_id)
        assert result.error.details == {"step_id": "step_1"}
        assert result.steps["step_2"].state == "pending"
        assert events[-3:] == ["agent.failed", "workflow.step_failed", "workflow.failed"]


class TestRefusals:
    async def test_every_problem_at_once_and_no_run(self):
        document = {
            "version": "1.0",
            "workflow": {
                "steps": [
                    {
                        "type": "run",
                        "id": "a",
                        "agent": {
                            "systemPrompt": "x",
                            "input": "${{ inputs.need }}",
                            "attachedFunctions": [
                                {"service": "custmer", "function": "getCustomer"},
                                {"service": "customer", "function": "getCustomr"},
                            ],
                            "model": "nowhere:m",
                            "resultSchema": True,
                        },
                    }
                ]
            },
        }
        services = [Service.of("customer", shop.get_customer)]
        async with Runtime(models=[ScriptedModel(["x"])], services=services) as runtime:
            with pytest.raises(DefinitionError) as caught:
                await runtime.submit(document, {})
            assert await runtime.list() == []
        found = {d.code: d.hint for d in caught.value.diagnostics if d.severity == "error"}
        assert found["E_UNKNOWN_SERVICE"] == 'did you mean "customer"?'
        assert found["E_UNKNOWN_FUNCTION"] == 'did you mean "getCustomer"?'
        assert set(found) == {"E_UNKNOWN_SERVICE", "E_UNKNOWN_FUNCTION", "E_UNKNOWN_MODEL", "E_INPUT_MISSING"}

    async def test_no_model_at_all_names_what_helps(self, monkeypatch, tmp_path):
        monkeypatch.delenv("AGENTFLOW_MODEL")
        for key in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY", "OPENAI_BASE_URL"):
            monkeypatch.delenv(key, raising=False)
        monkeypatch.setattr("agentflow.models.Models._installed_local", lambda self: [])
        monkeypatch.chdir(tmp_path)
        async with Runtime() as runtime:
            with pytest.raises(DefinitionError) as caught:
                await runtime.submit(agents("x"), "go")
        error = next(d for d in caught.value.diagnostics if d.severity == "error")
        assert error.code == "E_UNKNOWN_MODEL"
        assert "agentflow model install smollm2-135m" in error.message + (error.hint or "")

    async def test_a_model_that_takes_one_function_is_not_given_two(self):
        tools = ["customer.getCustomer", "company.getCompany"]
        document = agents("x")
        document["agents"][0]["tools"] = tools
        services = [Service.of("customer", shop.get_customer), Service.of("company", shop.get_company)]
        model = ScriptedModel(["x"], profile=ModelProfile(tools="single"))
        async with Runtime(models=[model], services=services) as runtime:
            with pytest.raises(DefinitionError) as caught:
                await runtime.submit(document, "go")
            assert await runtime.list() == []
        (error,) = [d for d in caught.value.diagnostics if d.severity == "error"]
        assert error.code == "E_MODEL_CAPABILITY"
        assert "takes one function" in error.message

    @pytest.mark.parametrize("options", [{"on_failure": "explode"}, {"onfailure": "halt"}])
    async def test_options_are_checked(self, options):
        async with Runtime(models=[ScriptedModel(lambda r: "ok")]) as runtime:
            with pytest.raises(ConfigurationError, match=r"on_?failure"):
                await runtime.submit(agents("x"), "go", options=options)
            assert await runtime.list() == []

    async def test_two_runtimes_of_one_process_are_two_writers(self, tmp_path):
        entered = asyncio.Event()

        async def stuck(request):
            entered.set()
            await asyncio.Event().wait()

        url = f"sqlite:{tmp_path / 'runs.db'}"
        async with Runtime(url, models=[ScriptedModel(stuck)], grace=0.1) as one:
            handle = await one.submit(agents("x"), "go")
            await entered.wait()
            async with Runtime(url, models=[ScriptedModel(lambda r: "ok")]) as two:
                with pytest.raises(Fenced):
                    await two.resume(handle.workflow_id)
        async with Runtime(url, models=[ScriptedModel(lambda r: "ok")]) as three:
            assert (await (await three.resume(handle.workflow_id)).result()).state == "completed"

    async def test_an_id_is_used_once(self):
        async with Runtime(models=[ScriptedModel(lambda r: "ok")]) as runtime:
            first = await runtime.submit(agents("x"), "go", workflow_id="wf_mine")
            await first.result()
            again = await runtime.submit(agents("x"), "go", workflow_id="wf_mine")
            assert (await again.result()).state == "completed"
            with pytest.raises(RunExists):
                await runtime.submit(agents("x"), "other", workflow_id="wf_mine")
            with pytest.raises(RunNotFound):
                await runtime.resume("wf_unknown")


class TestModels:
    @pytest.mark.parametrize(
        ("models", "model", "sent"),
        [
            ({"default": {"provider": "scripted", "model": "big", "temperature": 0.5}}, None, "big"),
            ({"small": "scripted:s"}, "small", "s"),
            ({"small": "scripted:s"}, {"use": "small", "temperature": 0.5}, "s"),
            ({}, {"temperature": 0.5}, "m"),
            ({}, None, "m"),
        ],
    )
    async def test_an_alias_a_default_and_parameters(self, models, model, sent):
        scripted = ScriptedModel(lambda r: "ok")
        agent = {
            "systemPrompt": "x",
            "input": "x",
            "attachedFunctions": "none",
            "resultSchema": {"type": "string"},
        }
        if model is not None:
            agent["model"] = model
        document = {
            "version": "1.0",
            "models": models,
            "workflow": {"steps": [{"type": "run", "id": "a", "agent": agent}]},
        }
        async with Runtime(models=[scripted]) as runtime:
            await runtime.run(document, {})
        (request,) = scripted.requests
        assert request.model == sent
        wants = "temperature" in str(models) + str(model)
        assert request.parameters == ({"temperature": 0.5} if wants else {})


class TestWork:
    async def test_many_runs_at_once_have_logs_of_their_own(self):
        model = ScriptedModel(lambda r: r.messages[-1].content, max_concurrency=50)
        async with Runtime(models=[model]) as runtime:
            definition = runtime.load(agents("one", "two"))
            results = await asyncio.gather(*(runtime.run(definition, f"n{i}") for i in range(50)))
            assert [r.output for r in results] == [f"n{i}" for i in range(50)]
            for result in results:
                rows = await runtime.log.read(result.workflow_id)
                assert [decode(r.body).offset for r in rows] == list(range(len(rows)))

    async def test_a_tool_that_raises_is_an_answer_to_the_agent(self):
        model = ScriptedModel([call("shop__broken", reason="no paper"), {"sorry": True}])
        services = [Service.of("shop", shop.broken)]
        document = agents("x")
        document["agents"][0]["tools"] = ["shop.broken"]
        async with Runtime(models=[model], services=services) as runtime:
            result = await runtime.run(document, "go")
            assert result.output == '{"sorry":true}'
        assert "no paper" in model.requests[-1].messages[-1].content

    async def test_context_reaches_the_function_and_never_the_model(self):
        model = ScriptedModel([call("customer__getCustomer", email="ann@example.com"), {"ok": 1}])
        document = {
            "version": "1.0",
            "workflow": {
                "steps": [
                    {
                        "type": "run",
                        "id": "a",
                        "agent": {
                            "systemPrompt": "x",
                            "input": "hello",
                            "context": {"tenant": "${{ inputs.tenant }}"},
                            "attachedFunctions": [{"service": "customer", "function": "getCustomer"}],
                            "resultSchema": True,
                        },
                    }
                ]
            },
        }
        async with Runtime(models=[model], services=[Service.of("customer", shop.get_customer)]) as runtime:
            result = await runtime.run(document, {"tenant": "secret-tenant"})
            rows = await runtime.log.read(result.workflow_id)
        _, _, ctx = shop.calls[0]
        assert ctx.context == {"tenant": "secret-tenant"}
        assert ctx.idempotency_key == f"{result.workflow_id}/a//{ctx.call_id}"
        assert all("secret-tenant" not in str(r) for r in model.requests)
        assert sum(b"secret-tenant" in r.body for r in rows) == 1  # the submitted input itself

    @virtual
    async def test_a_slow_function_is_cut_off_at_its_time_limit(self):
        gate = Gate()
        graph = Workflow(
            name="t",
            nodes=(
                StartNode(id="__start", next="t"),
                ToolNode(id="t", tool="gate.hold", next="__end"),
                EndNode(id="__end"),
            ),
        )
        async with Runtime(services=[gate.service(timeout=50, side_effect="read")]) as runtime:
            result = await runtime.run(graph, {}, raise_on_failure=False)
        assert result.state == "failed"
        assert gate.cancelled.is_set()
        assert seconds() == pytest.approx(50)
        assert "tool_timeout" in str(result.error)


def held() -> Workflow:
    return Workflow(
        name="held",
        nodes=(
            StartNode(id="__start", next="t"),
            ToolNode(id="t", tool="gate.hold", next="__end", input={}),
            EndNode(id="__end", drain=True),
        ),
    )


class TestCancel:
    @virtual
    async def test_it_reaches_the_function_and_closes_the_log(self):
        gate = Gate()
        async with Runtime(services=[gate.service()]) as runtime:
            handle = await runtime.submit(held(), {})
            await gate.entered.wait()
            await handle.cancel("enough")
            result = await handle.rest()
            await gate.cancelled.wait()
            events = [e async for e in handle.events()]
        assert result.state == "cancelled"
        assert [e.type for e in events][-4:] == [
            "workflow.cancel_requested",
            "tool.call_failed",
            "workflow.step_failed",
            "workflow.cancelled",
        ]
        assert events[-1].data.unknown_calls == (events[-3].data.tool_call_id,)

    async def test_an_agent_in_the_middle_of_a_model_call(self):
        entered = asyncio.Event()

        async def never(request):
            entered.set()
            await asyncio.Event().wait()

        async with Runtime(models=[ScriptedModel(never)]) as runtime:
            handle = await runtime.submit(agents("x"), "go")
            await entered.wait()
            await handle.cancel()
            assert (await handle.rest()).state == "cancelled"
            await handle.cancel()

    async def test_a_parked_run_whose_functions_are_gone(self):
        log, gate = MemoryLog(), Gate()
        async with Runtime(log, services=[gate.service()], grace=0.01) as runtime:
            handle = await runtime.submit(held(), {})
            await gate.entered.wait()
        async with Runtime(log) as runtime:
            with pytest.raises(DefinitionError):
                await runtime.resume(handle.workflow_id)
            await runtime.cancel(handle.workflow_id, "gone")
            events = [e async for e in runtime.events(handle.workflow_id)]
        assert events[-1].type == "workflow.cancelled"
        assert events[-1].data.reason == "gone"
        assert gate.calls == 1
        await log.close()


class TestParking:
    async def test_leaving_parks_the_run_and_resume_finishes_it(self):
        log, gate = MemoryLog(), Gate()
        model = ScriptedModel(lambda r: "answered")
        document = {**agents("one", "two")}
        entered = asyncio.Event()

        async def stuck(request):
            entered.set()
            await asyncio.Event().wait()

        async with Runtime(log, models=[ScriptedModel(stuck)]) as runtime:
            handle = await runtime.submit(document, "go")
            await entered.wait()
        assert (await handle.result()).state == "paused"
        assert gate.calls == 0
        async with Runtime(log, models=[model]) as runtime:
            again = await runtime.resume(handle.workflow_id)
            result = await again.result()
            events = await types(runtime, handle.workflow_id)
        assert result.output == "answered"
        assert events.count("workflow.paused") == events.count("workflow.resumed") == 1
        assert events.count("workflow.completed") == 1
        await log.close()

    @virtual
    async def test_a_tool_at_work_may_finish_before_the_run_is_parked(self):
        log, gate = MemoryLog(), Gate()
        runtime = Runtime(log, services=[gate.service()])
        await runtime.__aenter__()
        handle = await runtime.submit(held(), {})
        await gate.entered.wait()
        closing = asyncio.ensure_future(runtime.__aexit__(None, None, None))
        await run_until_idle()
        assert not closing.done()
        gate.leave.set()
        await closing
        assert (await handle.result()).state == "paused"
        async with Runtime(log, services=[gate.service()]) as other:
            result = await (await other.resume(handle.workflow_id)).result()
        assert result.output == {"held": 1}
        assert gate.calls == 1
        await log.close()


class TestUnknownOutcome:
    async def test_a_person_settles_it(self):
        log, gate = MemoryLog(), Gate()
        async with Runtime(log, services=[gate.service()], grace=0.01) as runtime:
            handle = await runtime.submit(held(), {})
            await gate.entered.wait()
        async with Runtime(log, services=[gate.service()]) as runtime:
            handle = await runtime.resume(handle.workflow_id)
            result = await handle.result()
            assert result.state == "waiting"
            record = await runtime.record(handle.workflow_id)
            (request,) = record.waiting.requests
            with pytest.raises(InvalidAnswer):
                await handle.answer(request, {"choice": "perhaps"})
            with pytest.raises(UnknownRequest):
                await handle.answer("req_none", {"choice": "retry"})
        async with Runtime(log, services=[gate.service()]) as runtime:
            handle = await runtime.answer(
                handle.workflow_id, request, {"choice": "done", "output": {"held": 9}}
            )
            result = await handle.result()
        assert result.output == {"held": 9}
        assert gate.calls == 1
        await log.close()


class Bomb(LoopClock):
    """A clock that raises at chosen readings: a bug at a chosen place of the supervisor."""

    def __init__(self, *readings: int) -> None:
        super().__init__()
        self.left = set(readings)
        self.reading = 0

    def now(self) -> int:
        self.reading += 1
        if self.reading in self.left:
            self.left.discard(self.reading)
            raise RuntimeError("a bug")
        return super().now()


class TestTime:
    """Waits of minutes, at the very second."""

    def failing(self, times: int, error: ModelError, began: list[float]) -> ScriptedModel:
        def answer(request):
            began.append(seconds())
            return error if len(began) <= times else "ok"

        return ScriptedModel(answer)

    @virtual
    async def test_attempts_wait_for_their_backoff(self):
        began: list[float] = []
        info = ErrorInfo(category="transient", code="server_error", message="no", retryable=True)
        retry = {
            "max_attempts": 5,
            "backoff": {"initial": 10, "multiplier": 3, "max": 60},
            "max_elapsed": 1000,
        }
        model = self.failing(4, ModelError(info), began)
        async with Runtime(models=[model], clock=LoopClock()) as runtime:
            result = await runtime.run(agents("x", retry={**retry, "jitter": 0}), "go")
        assert result.output == "ok"
        assert began == pytest.approx([0, 10, 40, 100, 160], abs=0.01)

    @virtual
    async def test_a_provider_says_how_long_to_wait(self):
        began: list[float] = []
        info = ErrorInfo(category="rate_limited", code="rate_limited", message="no", retryable=True)
        model = self.failing(1, ModelError(info, retry_after=33), began)
        async with Runtime(models=[model], clock=LoopClock()) as runtime:
            await runtime.run(agents("x", retry={"max_attempts": 2, "jitter": 0}), "go")
        assert began == pytest.approx([0, 33], abs=0.01)

    @virtual
    async def test_an_attempt_has_its_time_and_no_more(self):
        began: list[float] = []

        async def never(request):
            began.append(seconds())
            await asyncio.Event().wait()

        retry = {
            "max_attempts": 2,
            "timeout": 100,
            "backoff": {"initial": 20},
            "jitter": 0,
            "max_elapsed": 1000,
        }
        async with Runtime(models=[ScriptedModel(never)], clock=LoopClock()) as runtime:
            result = await runtime.run(agents("x", retry=retry), "go", raise_on_failure=False)
            assert result.state == "failed"
            assert began == pytest.approx([0, 120], abs=0.01)
            assert seconds() == pytest.approx(220, abs=0.1)

    @virtual
    async def test_leaving_gives_functions_the_grace_and_no_more(self):
        gate = Gate()
        async with Runtime(services=[gate.service(timeout=1000)], grace=77, clock=LoopClock()) as runtime:
            handle = await runtime.submit(held(), {})
            await gate.entered.wait()
        assert seconds() == pytest.approx(77, abs=0.1)
        assert gate.cancelled.is_set()
        assert (await handle.result()).state == "paused"


class TestSupervision:
    @pytest.mark.parametrize("readings", [(2,), (3,), (4,), (2, 3, 4), (3, 5)])
    @virtual
    async def test_a_supervisor_that_dies_folds_its_log_and_goes_on(self, readings):
        model = ScriptedModel(lambda r: r.messages[-1].content + "!")
        clock = Bomb(*readings)
        async with Runtime(models=[model], clock=clock) as runtime:
            result = await runtime.run(agents("one", "two", "three"), "go")
            rows = await runtime.log.read(result.workflow_id)
            events = [decode(r.body) for r in rows]
        assert not clock.left
        assert result.output == "go!!!"
        assert [e.offset for e in events] == list(range(len(events)))
        assert [e.type for e in events].count("workflow.completed") == 1

    @virtual
    async def test_one_that_keeps_dying_is_left_alone_and_harms_no_other_run(self):
        async def wait(request):
            if request.messages[-1].content == "good":
                await gone.wait()
            return "ok"

        gone = asyncio.Event()
        clock = Bomb()
        async with Runtime(models=[ScriptedModel(wait)], clock=clock) as runtime:
            good = await runtime.submit(agents("x"), "good")
            clock.left = set(range(clock.reading + 2, clock.reading + 60))
            bad = await runtime.submit(agents("x"), "bad")
            with pytest.raises(AgentflowError, match="a bug"):
                await bad.result()
            clock.left.clear()
            gone.set()
            assert (await good.result()).state == "completed"
            assert (await (await runtime.resume(bad.workflow_id)).result()).state == "completed"

    async def test_an_agent_whose_actor_dies_goes_on_from_its_conversation(self):
        entered = asyncio.Event()
        answers = iter([asyncio.Event()])

        async def answer(request):
            gate = next(answers, None)
            if gate is not None:
                entered.set()
                await gate.wait()
            return "ok"

        async with Runtime(models=[ScriptedModel(answer)]) as runtime:
            handle = await runtime.submit(agents("x"), "go")
            await entered.wait()
            runs = next(a for a in runtime.system.tree().children if a.path == "/runs")
            (worker,) = runs.children[0].children
            ref = runtime.system.find(worker.path)
            assert ref is not None
            ref.kill()
            assert (await handle.result()).output == "ok"
            assert (await types(runtime, handle.workflow_id)).count("model.call_failed") == 1
