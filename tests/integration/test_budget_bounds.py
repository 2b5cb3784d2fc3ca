"""Budgets are upper bounds that are usable (agents-models-tools D2, durability "Seen later")."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from actors.testing import virtual
from agentflow import Runtime, Service, function
from agentflow.definition.conversation import Message, Usage
from agentflow.definition.failure import ErrorInfo
from agentflow.events import catalogue as ev
from agentflow.events.memory import MemoryLog
from agentflow.models import ModelError, ModelProfile, ModelReply
from tests.integration.support.runs import document, log_of, must_be_sound, step
from tests.integration.virtual import LoopClock

CUT = ErrorInfo(category="transient", code="network_error", message="broke off", retryable=True)


class Model:
    """Answers every request alike; holds what it was sent."""

    name = limiter_key = "m"
    max_concurrency = 64

    def __init__(self, reads: int = 40, writes: int = 11, *, takes: float = 1.0, **profile: Any) -> None:
        self.reads, self.writes, self.takes = reads, writes, takes
        self.requests: list[Any] = []
        self.fails: list[Exception] = []
        self.open = self.most_open = 0
        self.counts = True
        self._profile = ModelProfile(**profile)

    def profile(self, model: str) -> ModelProfile:
        return self._profile

    async def aclose(self) -> None:
        return None

    async def complete(self, request: Any, *, new_call_id: Any, on_delta: Any = None) -> ModelReply:
        self.requests.append(request)
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            await asyncio.sleep(self.takes)
        finally:
            self.open -= 1
        if self.fails:
            raise self.fails.pop(0)
        limit = request.parameters.get("max_tokens", self.writes)
        usage = Usage(input_tokens=self.reads, output_tokens=min(self.writes, limit), model_calls=1)
        return ModelReply(
            message=Message(role="assistant", content='{"ok": true}'),
            finish_reason="length" if limit < self.writes else "stop",
            response_model="m",
            usage=usage if self.counts else Usage(model_calls=1),
        )


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    monkeypatch.setenv("AGENTFLOW_MODEL", "m:m")


def opened(model: Model, *services: Service, log: Any = None) -> Runtime:
    return Runtime(log or MemoryLog(), models=[model], services=services, clock=LoopClock())


async def played(model: Model, graph: Any, *services: Service, **more: Any) -> tuple[Any, list[Any]]:
    """The result of a run and its events' data; its log is sound."""
    async with opened(model, *services) as runtime:
        handle = await runtime.submit(graph, more.pop("input", {}), **more)
        result = await handle.rest()
        events = await must_be_sound(runtime, handle.workflow_id, ended=result.state != "paused")
    return result, [event.data for event in events]


def of(events: list[Any], kind: type[Any]) -> list[Any]:
    return [data for data in events if isinstance(data, kind)]


def five(**more: Any) -> dict[str, Any]:
    return document(*(step(f"s{i}", **more) for i in range(5)), max_parallel=5)


class TestUsable:
    @virtual
    async def test_five_agents_run_though_each_may_write_a_third_of_the_budget(self):
        model = Model(max_output_tokens=32_768)
        result, events = await played(model, five(), budget={"max_tokens": 100_000})
        assert result.state == "completed"
        assert not of(events, ev.WorkflowPaused)
        assert result.usage.input_tokens + result.usage.output_tokens == 5 * 51
        assert model.most_open == 3
        assert {r.parameters["max_tokens"] for r in model.requests} == {32_768}  # none was cut for the others

    @virtual
    async def test_a_model_that_may_write_more_than_the_budget_is_sent_what_is_left(self):
        model = Model(max_output_tokens=16_384)
        result, events = await played(model, document(step("a")), budget={"max_tokens": 10_000})
        assert result.state == "completed"
        (start,) = of(events, ev.ModelCallStarted)
        assert start.reserved.tokens == 10_000
        assert start.parameters == model.requests[0].parameters
        assert start.parameters["max_tokens"] == 10_000 - 165  # what it may read

    @virtual
    @pytest.mark.parametrize(("asked", "sent"), [({}, 4_096), ({"max_tokens": 7_000}, 7_000)])
    async def test_an_unknown_model_gets_a_limit_too(self, asked, sent):
        graph = document(step("a"))
        graph["workflow"]["steps"][0]["agent"]["model"] = {"model": "m:m", **asked}
        for budget in ({"max_tokens": 100_000}, {"max_cost_usd": 1}):
            model = Model(input_price=1.0, output_price=1.0)
            result, _ = await played(model, graph, budget=budget)
            assert result.state == "completed"
            assert model.requests[0].parameters["max_tokens"] == sent

    @virtual
    @pytest.mark.parametrize("name", ["num_predict", "n_predict", "max_new_tokens", "max_output_tokens"])
    async def test_a_limit_that_a_server_may_not_know_is_sent_under_its_own_name_too(self, name):
        graph = document(step("a"))
        graph["workflow"]["steps"][0]["agent"]["model"] = {"model": "m:m", "extra": {name: 50}}
        model = Model(writes=2_000)
        result, _ = await played(model, graph, budget={"max_tokens": 1_000})
        assert model.requests[0].parameters["max_tokens"] == 50
        assert model.requests[0].extra == {name: 50}
        assert result.usage.input_tokens + result.usage.output_tokens <= 1_000

    @virtual
    @pytest.mark.parametrize("count", [3, 3.0, "3", 2.5, " 3 "])
    async def test_each_of_several_answers_is_reserved_however_their_number_is_written(self, count):
        graph = document(step("a"))
        graph["workflow"]["steps"][0]["agent"]["model"] = {
            "model": "m:m",
            "max_tokens": 100,
            "extra": {"n": count},
        }
        result, events = await played(Model(), graph, budget={"max_tokens": 100_000})
        assert result.state == "completed"
        (start,) = of(events, ev.ModelCallStarted)
        assert start.reserved.tokens >= 3 * 100

    @virtual
    async def test_what_extra_sends_counts_as_input(self):
        graph = document(step("a"))
        functions = [{"type": "function", "function": {"name": f"f{i}" * 50}} for i in range(90)]
        graph["workflow"]["steps"][0]["agent"]["model"] = {"model": "m:m", "extra": {"tools": functions}}
        model = Model(reads=4_500)
        result, _ = await played(model, graph, budget={"max_tokens": 5_000})
        assert (result.state, model.requests) == ("paused", [])

    @virtual
    async def test_without_a_budget_parameters_are_sent_as_they_are(self):
        model = Model()
        await played(model, document(step("a")), budget={"max_model_calls": 3})
        assert model.requests[0].parameters == {}

    @virtual
    async def test_a_call_that_costs_nothing_fits_a_budget_of_nothing(self):
        model = Model(input_price=0.0, output_price=0.0)
        result, _ = await played(model, document(step("a")), budget={"max_cost_usd": 0})
        assert result.state == "completed"

    @virtual
    async def test_waiting_calls_go_in_order_and_their_wait_counts_against_no_limit(self):
        """Fifty calls of 100 s one after another: the last waits for 4,900 s, its attempt has 300."""
        model = Model(takes=100, max_output_tokens=128_000)
        graph = document(*(step(f"s{i:02}") for i in range(50)), max_parallel=50)
        result, events = await played(model, graph, budget={"max_tokens": 10_000})
        assert (result.state, model.most_open) == ("completed", 1)
        assert [s.step_id for s in of(events, ev.ModelCallStarted)] == [f"s{i:02}" for i in range(50)]

    @virtual
    async def test_a_budget_of_calls_waits_for_open_ones_too(self):
        model = Model()
        model.fails = [ModelError(ErrorInfo(category="rate_limited", code="rate_limited", message="later"))]
        graph = document(step("a"), step("b"))
        result, events = await played(model, graph, budget={"max_model_calls": 2})
        assert result.state == "completed"  # the refused call counted as none
        assert not of(events, ev.WorkflowPaused)


class TestBounds:
    @virtual
    async def test_bytes_are_counted_and_not_characters(self):
        """4,000 characters of three bytes each under a limit of 1,500."""
        model = Model(reads=4_000)
        graph = document(step("a", input="${{ inputs.text }}"))
        result, events = await played(
            model, graph, input={"text": "票" * 4_000}, budget={"max_tokens": 1_500}
        )
        assert (result.pause, model.requests) == ("budget", [])
        (pause,) = of(events, ev.WorkflowPaused)
        assert pause.budget["requested"] > 12_000
        assert (pause.budget["used"], pause.budget["reserved"]) == (0, 0)

    @virtual
    async def test_schemas_of_functions_are_counted(self):
        def made(number: int) -> Any:
            @function(name=f"f{number}", side_effect="read")
            def look(first: str, second: int = 1) -> dict:
                """Looks at something."""
                return {}

            return look

        service = Service.of("desk", *(made(number) for number in range(90)))
        names = [f"f{number}" for number in range(90)]
        model = Model(reads=13_565)
        result, _ = await played(
            model, document(step("a", functions=names)), service, budget={"max_tokens": 5_000}
        )
        assert (result.pause, model.requests) == ("budget", [])

    @virtual
    async def test_from_the_second_call_on_the_reported_tokens_bound_the_input(self):
        """So that bytes do not make a long conversation look several times as large as it is."""
        model = Model(reads=100, max_output_tokens=50)
        schema = {"type": "object", "required": ["never"]}
        result, events = await played(
            model,
            document(step("a", schema=schema, input="x" * 3_000, retry=False)),
            budget={"max_tokens": 50_000},
        )
        assert result.error is not None  # every answer fails the schema: two repairs, then the end
        bounds = [start.reserved.tokens - 50 for start in of(events, ev.ModelCallStarted)]
        assert bounds[0] > 3_000
        assert all(100 < bound < 600 for bound in bounds[1:]), bounds

    @virtual
    async def test_a_tokenizer_of_the_provider_counts(self):
        for tokenizer, bound in ((lambda text: len(text) // 4, 1_100), (lambda text: 1 // 0, 4_100)):
            model = Model(count_tokens=tokenizer, max_output_tokens=10)
            graph = document(step("a", input="x" * 4_000))
            _, events = await played(model, graph, budget={"max_tokens": 50_000})
            (start,) = of(events, ev.ModelCallStarted)
            assert bound < start.reserved.tokens < bound + 300

    @virtual
    async def test_every_name_of_the_limit_is_bounded_and_every_answer_counted(self):
        graph = document(step("a"))
        asked = {"max_completion_tokens": 9_000, "n": 3}
        graph["workflow"]["steps"][0]["agent"]["model"] = {"model": "m:m", **asked}
        model = Model()
        _, events = await played(model, graph, budget={"max_tokens": 3_000})
        (start,) = of(events, ev.ModelCallStarted)
        assert start.parameters.keys() == asked.keys()
        assert 900 < start.parameters["max_completion_tokens"] < 1_000
        assert start.reserved.tokens <= 3_000

    @virtual
    async def test_an_answer_that_the_budget_cut_exceeds_it_instead_of_failing_the_agent(self):
        model = Model(writes=700, max_output_tokens=2_000)
        log = MemoryLog()
        async with opened(model, log=log) as runtime:
            handle = await runtime.submit(document(step("a")), {}, budget={"max_tokens": 500})
            result = await handle.result()
            assert (result.state, result.pause) == ("paused", "budget")
            failed = next(
                e.data for e in await log_of(log, handle.workflow_id) if e.type == "model.call_failed"
            )
            assert (failed.error.category, failed.error.code) == ("budget", "output_truncated")
            assert failed.usage.output_tokens < 500
            await runtime.resume(handle.workflow_id)  # the same again is not paid for again
            assert (await handle.result()).pause == "budget"
            assert len(model.requests) == 1
            await runtime.resume(handle.workflow_id, budget={"max_tokens": 5_000})
            assert (await handle.result()).state == "completed"
            await must_be_sound(log, handle.workflow_id)
        assert model.requests[1].parameters["max_tokens"] == 2_000

    @virtual
    async def test_a_guessed_maximum_that_cuts_an_answer_is_raised_once(self):
        """An unknown model is sent 4,096, which is no reason to lose a longer answer that fits the budget."""
        model = Model(writes=9_000)
        result, _ = await played(model, document(step("a")), budget={"max_tokens": 100_000})
        assert result.state == "completed"
        assert [r.parameters["max_tokens"] for r in model.requests] == [4_096, 16_384]
        model = Model(writes=9_000)
        result, _ = await played(model, document(step("a")), budget={"max_tokens": 6_000})
        assert (result.pause, len(model.requests)) == ("budget", 1)
        model = Model(writes=9_000)
        result, _ = await played(model, document(step("a")))  # without a budget nothing is guessed
        assert (result.state, model.requests[0].parameters) == ("completed", {})

    @virtual
    async def test_a_fallback_is_bounded_by_its_own_terms(self):
        first, second = Model(max_output_tokens=100), Model(max_output_tokens=200)
        second.name = second.limiter_key = "n"
        first.fails = [ModelError(ErrorInfo(category="auth", code="model_not_found", message="gone"))]
        agents = {"name": "a", "system_prompt": "p", "model": "m:m", "fallback": ["n:n"]}
        document = {"agents": [agents], "budget": {"max_tokens": 1_000}}
        async with Runtime(MemoryLog(), models=[first, second], clock=LoopClock()) as runtime:
            result = await runtime.run(document, "go")
        assert result.state == "completed"
        assert [m.requests[0].parameters["max_tokens"] for m in (first, second)] == [100, 200]
        assert result.usage.model_calls == 1

    @virtual
    async def test_the_time_of_a_step_is_bounded_by_its_budget(self):
        model = Model(takes=50)
        graph = document(step("a", budget={"max_duration_s": 30}), step("b", budget={"max_duration_s": 60}))
        result, _ = await played(model, graph)
        assert [result.steps[k].state for k in ("a", "b")] == ["failed", "succeeded"]
        assert "within 30 s" in result.error.message


class TestCharges:
    @virtual
    async def test_a_server_that_does_not_count_is_charged_what_was_reserved(self):
        model = Model(max_output_tokens=100)
        model.counts = False
        graph = document(*(step(f"s{i:02}") for i in range(20)))
        result, events = await played(model, graph, budget={"max_tokens": 1_000})
        assert result.pause == "budget"
        usages = [done.usage for done in of(events, ev.ModelCallCompleted)]
        assert all(usage.estimated is True for usage in usages)
        assert [usage.output_tokens for usage in usages] == [100, 100, 100, 32]
        starts = of(events, ev.ModelCallStarted)
        assert [u.input_tokens + u.output_tokens for u in usages] == [s.reserved.tokens for s in starts]
        assert 900 < result.usage.input_tokens + result.usage.output_tokens <= 1_000
        assert result.usage.estimated is True

    @virtual
    @pytest.mark.parametrize(
        "error", [CUT, msgspec.structs.replace(CUT, category="timeout")], ids=["cut", "late"]
    )
    async def test_a_call_that_broke_off_is_charged(self, error):
        model = Model(max_output_tokens=1_000, input_price=10.0, output_price=100.0)
        model.fails = [ModelError(error, partial="hal") for _ in range(9)]
        graph = document(step("a", retry={"max_attempts": 9}))
        for budget in ({"max_tokens": 2_700}, {"max_cost_usd": 0.25}):
            model.fails = [ModelError(error, partial="hal") for _ in range(9)]
            result, events = await played(model, graph, budget=budget)
            assert result.pause == "budget"
            failures = of(events, ev.ModelCallFailed)
            assert len(failures) == 3  # two whole ones, and one with what was left
            assert all(f.usage.estimated is True for f in failures)
            assert sum(f.usage.cost_usd for f in failures) == pytest.approx(result.usage.cost_usd)
            assert result.usage.model_calls == 3

    @virtual
    @pytest.mark.parametrize("category", ["rate_limited", "auth", "invalid_input", "transient"])
    async def test_a_refusal_is_not_charged(self, category):
        model = Model()
        info = ErrorInfo(category=category, code="refused", message="no", retryable=True)
        model.fails = [ModelError(info, uncharged=category == "transient")]
        _, events = await played(model, document(step("a")), budget={"max_tokens": 5_000})
        (failure,) = of(events, ev.ModelCallFailed)
        assert failure.usage is msgspec.UNSET

    @virtual
    async def test_a_call_that_a_crash_cut_off_is_charged_and_made_again(self):
        model, log = Model(takes=50, max_output_tokens=100), MemoryLog()
        async with opened(model, log=log) as runtime:
            handle = await runtime.submit(document(step("a")), {}, budget={"max_tokens": 1_000})
            await asyncio.sleep(10)
        async with opened(model, log=log) as runtime:
            result = await (await runtime.resume(handle.workflow_id)).result()
            events = [e.data for e in await must_be_sound(log, handle.workflow_id)]
        assert result.state == "completed"
        (failure,) = of(events, ev.ModelCallFailed)
        first, _ = of(events, ev.ModelCallStarted)
        assert failure.usage.input_tokens + failure.usage.output_tokens == first.reserved.tokens
        assert (failure.usage.estimated, result.usage.model_calls) == (True, 2)

    @virtual
    async def test_a_fork_does_not_pay_for_the_open_calls_of_the_other_run(self):
        model = Model(takes=50)
        async with opened(model) as runtime:
            handle = await runtime.submit(document(step("a")), {}, budget={"max_tokens": 5_000})
            await asyncio.sleep(10)
            fork = await runtime.fork(handle.workflow_id)
            result = await fork.result()
        assert (result.usage.model_calls, result.usage.estimated) == (1, msgspec.UNSET)

    @virtual
    async def test_cost_is_computed_when_the_adapter_gives_none(self):
        model = Model(reads=1_000, writes=10, input_price=3.0, output_price=15.0)
        result, _ = await played(model, document(step("a")), budget={"max_cost_usd": 1})
        assert result.usage.cost_usd == pytest.approx((1_000 * 3 + 10 * 15) / 1e6)


class TestWhileCallsWait:
    @virtual
    @pytest.mark.parametrize("how", ["cancel", "pause", "suspend", "restart"])
    async def test_the_run_ends_or_goes_on_as_ever(self, how):
        model, log = Model(takes=10, max_output_tokens=128_000), MemoryLog()
        async with opened(model, log=log) as runtime:
            handle = await runtime.submit(five(), {}, budget={"max_tokens": 60_000})
            await asyncio.sleep(15)
            assert model.open == 1
            if how == "cancel":
                await handle.cancel()
                assert (await handle.rest()).state == "cancelled"
            elif how != "restart":
                await runtime.pause(handle.workflow_id, in_flight="suspend" if how == "suspend" else "drain")
                assert (await handle.result()).state == "paused"
                await asyncio.sleep(1_000)
                # A suspended call was charged all that was left.
                await runtime.resume(handle.workflow_id, budget={"max_tokens": 120_000})
                assert (await handle.result()).state == "completed"
        if how == "restart":
            async with opened(model, log=log) as runtime:
                await runtime.recover()
                await (await runtime.attach(handle.workflow_id)).result()
                await runtime.resume(handle.workflow_id, budget={"max_tokens": 120_000})
                assert (await handle_of(runtime, handle).result()).state == "completed"
        await must_be_sound(log, handle.workflow_id)
        assert model.most_open == 1

    @virtual
    async def test_an_answer_with_a_larger_budget_lets_the_waiting_ones_go_on(self):
        model, log = Model(writes=400, max_output_tokens=500), MemoryLog()
        budget = {"max_tokens": 1_000, "on_exceeded": "ask"}
        async with opened(model, log=log) as runtime:
            handle = await runtime.submit(five(), {}, budget=budget)
            for _ in range(20):
                result = await handle.result()
                if result.state != "waiting":
                    break
                asked, *_ = await runtime.requests(handle.workflow_id)
                answer = {
                    "choice": "raise",
                    "limit": asked.subject["used"] + asked.subject["requested"] + 500,
                }
                await runtime.answer(handle.workflow_id, asked.request_id, answer)
            assert result.state == "completed"
            await must_be_sound(log, handle.workflow_id)

    @virtual
    async def test_a_later_answer_with_less_takes_nothing_back(self):
        model = Model()
        async with opened(model) as runtime:
            graph = document(step("a"), step("b"), max_parallel=2)
            handle = await runtime.submit(graph, {}, budget={"max_model_calls": 0, "on_exceeded": "ask"})
            await handle.result()
            first, second = await runtime.requests(handle.workflow_id)
            await runtime.answer(handle.workflow_id, first.request_id, {"choice": "raise", "limit": 9})
            await runtime.answer(handle.workflow_id, second.request_id, {"choice": "raise", "limit": 1})
            assert (await handle.result()).state == "completed"

    @virtual
    async def test_one_that_cannot_fit_fails_and_the_others_go_on(self):
        model = Model(max_output_tokens=100)
        graph = document(step("big", input="x" * 5_000), step("a"), step("b"), max_parallel=3)
        budget = {"max_tokens": 1_000, "on_exceeded": "fail"}
        result, _ = await played(model, graph, budget=budget)
        assert result.state == "failed"
        assert {k: s.state for k, s in result.steps.items()} == {
            "big": "failed",
            "a": "succeeded",
            "b": "succeeded",
        }

    @virtual
    async def test_the_budget_of_a_step_bounds_its_iterations_together(self):
        model = Model(max_output_tokens=100)
        graph = document(
            step("a", for_each="${{ inputs.all }}", input="${{ item }}", budget={"max_tokens": 600}),
            step("b"),
        )
        result, events = await played(
            model, graph, input={"all": list(range(8))}, budget={"max_tokens": 9_000}
        )
        assert (result.state, result.steps["b"].state) == ("completed", "succeeded")
        assert not of(events, ev.WorkflowPaused)

    @virtual
    async def test_a_raise_to_a_cost_that_has_no_price_is_refused(self):
        from agentflow.errors import CommandRefused

        model = Model()
        async with opened(model) as runtime:
            handle = await runtime.submit(document(step("a")), {}, budget={"max_model_calls": 0})
            await handle.result()
            with pytest.raises(CommandRefused) as caught:
                await runtime.resume(handle.workflow_id, budget={"max_cost_usd": 1})
            assert caught.value.code == "budget_unpriced"
            with pytest.raises(CommandRefused) as caught:
                await runtime.submit(document(step("a")), {}, budget={"max_cost_usd": 0})
            assert caught.value.code == "budget_unpriced"

    @virtual
    async def test_a_raise_to_a_cost_asks_for_the_price_in_a_graph_that_became_known_in_the_run(self):
        from agentflow.errors import CommandRefused

        limits = {"max_tokens": 1, "on_exceeded": "pause"}
        asks = {"id": "a", "type": "llm", "model": "m:m", "prompt": "p", "next": "end"}
        sub = {"id": "sub", "type": "subgraph", "graph_path": "input", "next": "end"}

        def graph(node: dict[str, Any]) -> dict[str, Any]:
            ends = [{"id": "start", "type": "start", "next": node["id"]}, {"id": "end", "type": "end"}]
            return {"name": "w", "nodes": [*ends, node]}

        async with opened(Model()) as runtime:
            handle = await runtime.submit(graph(sub), graph({**asks, "budget": limits}))
            assert (await handle.result()).state == "paused"
            with pytest.raises(CommandRefused) as caught:
                await runtime.resume(handle.workflow_id, budget={"max_cost_usd": 1})
            assert caught.value.code == "budget_unpriced"
            again = await runtime.resume(handle.workflow_id, budget={"max_tokens": 1_000_000})
            assert (await again.result()).state == "completed"


def handle_of(runtime: Runtime, handle: Any) -> Any:
    return runtime._handle(handle.workflow_id)


class Hesitant(Model):
    """Takes 10 s for its first answer."""

    async def complete(self, request: Any, **more: Any) -> ModelReply:
        self.takes = 0.5 if self.requests else 10.0
        return await super().complete(request, **more)


class TestBetweenAttempts:
    @virtual
    async def test_an_agent_under_a_budget_makes_no_call_before_its_next_attempt(self):
        """agents D2: seed 2934 of the simulation. After an attempt that took too long the old context made a
        call at once; its answer was paid for and dropped, and the run never moved again."""
        model = Hesitant()
        slow = step("a", retry={"max_attempts": 2, "backoff": "5s", "timeout": "3s"})
        result, events = await played(model, document(slow), budget={"max_model_calls": 10})
        assert result.state == "completed"
        assert len(model.requests) == 2
        kinds = [type(data) for data in events]
        retrying = kinds.index(ev.AgentRetrying)
        assert kinds[retrying + 1] is ev.AgentInitialized
