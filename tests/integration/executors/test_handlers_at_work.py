"""Handlers of executors run in the Runtime: messages, types, state, failures (page 002 §3, §7, §8)."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from agentflow import Runtime, Service, WorkflowFailed
from agentflow.definition.ir import Edge
from agentflow.definition.policy import Backoff, RetryPolicy
from agentflow.errors import DefinitionError, MessageTypeUndeclared
from agentflow.events.memory import MemoryLog
from agentflow.executors import Executor, Never, WorkflowContext, executor, handler, response_handler
from tests.integration.executors.crashes import at_every_event, cut_log
from tests.integration.executors.graphs import build, completed, events, outputs, types
from tests.integration.support.runs import must_be_sound

BOTH = pytest.mark.parametrize("policy", ["superstep", "eager"])
STORES = pytest.mark.parametrize("store", ["memory:", "sqlite"])


class Claim(msgspec.Struct, frozen=True):
    id: str
    amount: int


class Risk(msgspec.Struct):
    claim: str
    value: float


class Box(msgspec.Struct):
    items: list[int]


class Intake(Executor):
    @handler
    async def on_claim(self, claim: Claim, ctx: WorkflowContext[Claim]) -> None:
        ctx.set_shared_state("claim", claim)
        await ctx.send_message(claim)


@executor(id="rules")
def rules(claim: Claim) -> Risk:
    return Risk(claim.id, 0.9 if claim.amount > 10_000 else 0.1)


class Assess(Executor):
    @handler
    async def on_risk(self, risk: Risk, ctx: WorkflowContext[Never, Any]) -> None:
        await ctx.yield_output([risk.claim, risk.value, ctx.get_shared_state("claim").amount])


CHAIN = [("intake", "rules"), ("rules", "assess")]


@STORES
@BOTH
async def test_messages_go_from_handler_to_handler_with_their_types(policy: str, store: str, tmp_path):
    built = build(Intake("intake"), rules, Assess("assess"), edges=CHAIN, options={"policy": policy})
    async with Runtime(f"sqlite:{tmp_path}/runs.db" if store == "sqlite" else store) as runtime:
        assert await completed(runtime, built, Claim("c-7", 12_000)) == [["c-7", 0.9, 12_000]]


async def test_two_runs_of_one_workflow_at_once_share_nothing():
    class Counts(Executor):
        def __init__(self, id: str) -> None:
            super().__init__(id)
            self.seen: list[int] = []

        @handler
        async def on_number(self, number: int, ctx: WorkflowContext[int, list[int]]) -> None:
            self.seen.append(number)
            await asyncio.sleep(0)
            await ctx.yield_output(list(self.seen))
            if number % 10 < 3:
                await ctx.send_message(number + 1)

    template = Counts("counts")
    built = build(template, edges=[("counts", "counts")])
    async with Runtime() as runtime:
        found = await asyncio.gather(completed(runtime, built, 0), completed(runtime, built, 10))
    assert [each[-1] for each in found] == [[0, 1, 2, 3], [10, 11, 12, 13]]
    assert template.seen == []


async def test_targets_of_a_fan_out_never_share_a_mutable_object():
    @executor(id="a")
    async def a(box: Box, ctx: WorkflowContext[Box]) -> None:
        await ctx.send_message(box)
        box.items.append(99)

    @executor(id="b")
    async def b(box: Box, ctx: WorkflowContext[Never, list[int]]) -> None:
        box.items.append(1)
        await ctx.yield_output(box.items)

    @executor(id="c")
    async def c(box: Box, ctx: WorkflowContext[Never, list[int]]) -> None:
        box.items.append(2)
        await ctx.yield_output(box.items)

    edges = [Edge(source="a", target=t, kind="fan_out", group="f") for t in "bc"]
    async with Runtime() as runtime:
        assert await completed(runtime, build(a, b, c, edges=edges), Box([0])) == [[0, 1], [0, 2]]


async def test_true_reaches_the_bool_handler():
    class Sorts(Executor):
        @handler
        async def a_number(self, value: int, ctx: WorkflowContext[Never, str]) -> None:
            await ctx.yield_output("int")

        @handler
        async def b_truth(self, value: bool, ctx: WorkflowContext[Never, str]) -> None:
            await ctx.yield_output("bool")

    @executor(id="start")
    async def start(value: Any, ctx: WorkflowContext[bool | int]) -> None:
        await ctx.send_message(value)

    built = build(start, Sorts("sorts"), edges=[("start", "sorts")])
    async with Runtime() as runtime:
        assert await completed(runtime, built, True) == ["bool"]
        assert await completed(runtime, built, 1) == ["int"]
        assert await completed(runtime, build(Sorts("sorts")), True) == ["bool"]


async def test_two_approvals_in_one_node_do_not_collide():
    class Desk(Executor):
        @handler
        async def on_claims(self, claims: list[Claim], ctx: WorkflowContext) -> None:
            for claim in claims:
                await ctx.request_info(claim, bool)

        @response_handler
        async def on_answer(self, claim: Claim, pay: bool, ctx: WorkflowContext[Never, str]) -> None:
            await ctx.yield_output(f"{claim.id} {pay}")

    async with Runtime() as runtime:
        handle = await runtime.submit(build(Desk("desk")), [Claim("a", 1), Claim("b", 2)])
        await handle.result(raise_on_failure=False)
        first, second = await runtime.requests(handle.workflow_id)
        await runtime.answer(handle.workflow_id, second.request_id, False)
        await handle.result(raise_on_failure=False)
        await runtime.answer(handle.workflow_id, first.request_id, True)
        await handle.result()
        assert await outputs(runtime, handle.workflow_id) == ["b False", "a True"]

    def answers(request: Any) -> bool:
        return request["id"] == "a"

    whole = await at_every_event(lambda: build(Desk("desk")), [Claim("a", 1), Claim("b", 2)], answers=answers)
    assert whole.outputs == ["a True", "b False"]


async def test_cancel_reaches_a_running_handler_and_leaves_a_closed_history():
    began, ended = asyncio.Event(), asyncio.Event()

    @executor(id="slow")
    async def slow(value: int, ctx: WorkflowContext[Never, int]) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.01)  # its end is awaited
            ended.set()

    async with Runtime() as runtime:
        handle = await runtime.submit(build(slow), 1)
        await began.wait()
        await handle.cancel("enough")
        result = await handle.result(raise_on_failure=False)
        assert result.state == "cancelled"
        assert ended.is_set()
        log = await must_be_sound(runtime, handle.workflow_id)
        assert [e.type for e in log][-2:] == ["workflow.step_failed", "workflow.cancelled"]


async def test_a_failed_branch_leaves_its_siblings():
    @executor(id="bad", on_error="skip")
    async def bad(value: int, ctx: WorkflowContext[int]) -> None:
        raise ValueError("no")

    @executor(id="good")
    async def good(value: int, ctx: WorkflowContext[Never, int]) -> None:
        await asyncio.sleep(0.01)
        await ctx.yield_output(value)

    @executor(id="start")
    def start(value: int) -> int:
        return value

    edges = [Edge(source="start", target=t, kind="fan_out", group="f") for t in ("bad", "good")]
    async with Runtime() as runtime:
        assert await completed(runtime, build(start, bad, good, edges=edges), 5) == [5]


async def failure(built: Any, message: Any) -> Any:
    async with Runtime() as runtime:
        handle = await runtime.submit(built, message)
        with pytest.raises(WorkflowFailed):
            await handle.result()
        log = await must_be_sound(runtime, handle.workflow_id)
        (failed,) = [e.data for e in log if e.type == "workflow.step_failed"]
        return failed.error


@pytest.mark.parametrize("kind", [ValueError, SystemExit, asyncio.CancelledError, GeneratorExit])
async def test_whatever_a_handler_raises_fails_its_step_and_no_actor(kind: type[BaseException]):
    @executor(id="bad")
    async def bad(value: int) -> None:
        raise kind("no")

    error = await failure(build(bad), 1)
    assert (error.code, error.category) == ("executor_failed", "agent")
    assert error.details["type"] == kind.__name__
    assert "bad raised" in error.message


async def test_misuse_of_the_context_names_node_types_and_fix():
    @executor(id="a")
    async def a(value: int, ctx: WorkflowContext[str]) -> None:
        if value == 0:
            with pytest.raises(MessageTypeUndeclared):
                await ctx.send_message(b"x")  # type: ignore[arg-type]
            return
        if value == 1:
            await ctx.send_message(1.5)  # type: ignore[arg-type]
        elif value == 2:
            await ctx.send_message("x", target_id="nowhere")
        elif value == 3:
            await ctx.request_info("x", bool)
        else:
            ctx.set_state("x", object())

    @executor(id="b")
    async def b(value: str) -> None: ...

    built = build(a, b, edges=[("a", "b")])
    async with Runtime() as runtime:
        assert await completed(runtime, built, 0) == []
    error = await failure(built, 1)
    assert error.code == "message_type_undeclared"
    assert error.message == 'a of "a" sends a float, and declares str'
    assert error.details["hint"] == "add float to its WorkflowContext[Out]"
    assert (await failure(built, 2)).details["valid_targets"] == ["b"]
    assert (await failure(built, 3)).code == "no_response_handler"
    assert (await failure(built, 4)).code == "message_not_encodable"


async def test_an_attempt_that_is_late_is_cancelled_and_the_next_begins_with_the_kept_state():
    attempts: list[tuple[int, list[int]]] = []
    cancelled: list[int] = []

    class Slow(Executor):
        def __init__(self, id: str, **options: Any) -> None:
            super().__init__(id, **options)
            self.state: list[int] = []

        @handler
        async def on_value(self, value: int, ctx: WorkflowContext[Never, int]) -> None:
            self.state = [*self.state, ctx.attempt]
            attempts.append((ctx.attempt, self.state))
            if ctx.attempt == 1:
                try:
                    await asyncio.Event().wait()
                finally:
                    cancelled.append(1)
            await ctx.yield_output(value)

    policy = RetryPolicy(max_attempts=2, timeout=0.05, backoff=Backoff(initial=0.001), jitter=0)
    async with Runtime() as runtime:
        assert await completed(runtime, build(Slow("slow", retry=policy)), 4) == [4]
    assert attempts == [(1, [1]), (2, [2])]
    assert cancelled == [1]
    error = await failure(build(Slow("slow", timeout=0.05)), 4)
    assert error.code == "step_deadline"


async def test_private_state_survives_a_wait_and_another_process(tmp_path):
    class Keeps(Executor):
        def __init__(self, id: str) -> None:
            super().__init__(id)
            self.claims: list[Claim] = []

        def snapshot_state(self) -> Any:
            return self.claims

        def restore_state(self, value: Any) -> None:
            self.claims = value

        @handler
        async def on_claim(self, claim: Claim, ctx: WorkflowContext) -> None:
            self.claims.append(claim)
            await ctx.request_info("more?", bool)

        @response_handler
        async def on_more(self, asked: str, more: bool, ctx: WorkflowContext[Never, int]) -> None:
            await ctx.yield_output(sum(claim.amount for claim in self.claims))

    store = f"sqlite:{tmp_path}/runs.db"
    async with Runtime(store) as runtime:
        handle = await runtime.submit(build(Keeps("keeps")), Claim("a", 5))
        assert (await handle.result(raise_on_failure=False)).state == "waiting"
    async with Runtime(store) as runtime:
        runtime.register(build(Keeps("keeps")))
        (asked,) = await runtime.requests(handle.workflow_id)
        again = await runtime.answer(handle.workflow_id, asked.request_id, True)
        await again.result()
        assert await outputs(runtime, handle.workflow_id) == [5]


async def test_a_run_without_its_code_pauses_and_goes_on_once_it_is_registered():
    @executor(id="gives")
    async def gives(value: int, ctx: WorkflowContext[Never, int]) -> None:
        await ctx.yield_output(value)

    log, built = MemoryLog(), build(gives)
    async with Runtime(log) as runtime:
        handle = await runtime.submit(built, 3)
        await handle.result()
    rows = await log.read(handle.workflow_id, 0, 3)
    assert rows[-1].type == "workflow.step_started"
    async with Runtime(await cut_log(handle.workflow_id, built, rows)) as runtime:
        await runtime.recover()
        await (await runtime.attach(handle.workflow_id)).result(raise_on_failure=False)
        last = (await events(runtime, handle.workflow_id))[-1]
        assert (last.type, last.data.reason) == ("workflow.paused", "definition_unavailable")
        with pytest.raises(DefinitionError, match="E_UNREGISTERED_CALLABLE"):
            await runtime.resume(handle.workflow_id)
        runtime.register(built)
        assert (await (await runtime.resume(handle.workflow_id)).result()).state == "completed"
        assert await outputs(runtime, handle.workflow_id) == [3]


async def test_a_drain_cuts_handlers_off_and_they_begin_again():
    gate, began = asyncio.Event(), asyncio.Event()

    @executor(id="waits")
    async def waits(value: int, ctx: WorkflowContext[Never, int]) -> None:
        began.set()
        await gate.wait()
        await ctx.yield_output(value)

    log, built = MemoryLog(), build(waits)
    async with asyncio.timeout(4), Runtime(log) as runtime:
        handle = await runtime.submit(built, 3)
        await began.wait()
    gate.set()
    async with Runtime(log) as runtime:
        runtime.register(built)
        await runtime.recover()
        assert (await (await runtime.attach(handle.workflow_id)).result()).state == "completed"
        assert await outputs(runtime, handle.workflow_id) == [3]


async def test_a_call_whose_outcome_is_unknown_is_not_repeated_unless_that_is_harmless():
    made: list[str] = []

    def with_effect(effect: Any, idempotent: bool | None) -> Any:
        async def pay() -> str:
            made.append("paid")
            if len(made) == 1:
                await asyncio.Event().wait()
            return "ok"

        policy = RetryPolicy(max_attempts=3, timeout=0.05, backoff=Backoff(initial=0.001), jitter=0)

        @executor(id="payer", retry=policy)
        async def payer(value: int, ctx: WorkflowContext[Never, str]) -> None:
            await ctx.yield_output(await ctx.run_once("pay", pay, side_effect=effect, idempotent=idempotent))

        return build(payer)

    async with Runtime() as runtime:
        result = await (await runtime.submit(with_effect("external", None), 1)).result()
        assert [one.request_type for one in result.pending_requests] == ["outcome_unknown"]
        assert made == ["paid"]
    for effect, idempotent in (("read", None), ("external", True)):
        made.clear()
        async with Runtime() as runtime:
            assert await completed(runtime, with_effect(effect, idempotent), 1) == ["ok"]
        assert made == ["paid", "paid"]


async def test_a_function_of_a_service_is_called_once_for_equal_calls_of_later_attempts():
    made: list[int] = []

    def double(number: int) -> int:
        made.append(number)
        return 2 * number

    policy = RetryPolicy(max_attempts=2, backoff=Backoff(initial=0.001), jitter=0)

    @executor(id="a", retry=policy)
    async def a(value: int, ctx: WorkflowContext[Never, list[int]]) -> None:
        found = [await ctx.call_tool("maths.double", {"number": n}) for n in (value, value, 7)]
        if ctx.attempt == 1:
            raise ValueError("behind the calls")
        await ctx.yield_output(found)

    @executor(id="b")
    async def b(value: int, ctx: WorkflowContext) -> None:
        await ctx.call_tool("maths.double", {"number": "x"})

    @executor(id="c")
    async def c(value: int, ctx: WorkflowContext) -> None:
        await ctx.call_tool("maths.half", {})

    async with Runtime(services=[Service.of("maths", double)]) as runtime:
        assert await completed(runtime, build(a), 4) == [[8, 8, 14]]
        assert made == [4, 4, 7]
        for wrong, code in ((b, "invalid_tool_input"), (c, "tool_not_found")):
            handle = await runtime.submit(build(wrong), 1)
            with pytest.raises(WorkflowFailed):
                await handle.result()
            log = await must_be_sound(runtime, handle.workflow_id)
            (failed,) = [e.data for e in log if e.type == "workflow.step_failed"]
            assert (failed.error.code, failed.error.cause.code) == ("executor_failed", code)


async def test_predicates_and_selections_route_and_name_what_is_wrong():
    @executor(id="start")
    def start(claim: Claim) -> Claim:
        return claim

    def gives(id: str) -> Any:
        @executor(id=id)
        async def give(claim: Claim, ctx: WorkflowContext[Never, str]) -> None:
            await ctx.yield_output(f"{id} {claim.id}")

        return give

    def large(claim: Claim) -> bool:
        return claim.amount > 100

    def is_new(claim: Claim, shared: Any) -> bool:
        assert "seen" not in shared
        return claim.id != "bad" or claim.amount / 0 > 1

    def chooses(claim: Claim, targets: list[str]) -> list[str]:
        return targets if claim.amount > 100 else ["nowhere"] if claim.amount < 0 else targets[:1]

    cases = [
        Edge(source="start", target="a", kind="switch", group="s", predicate="large", name="large"),
        Edge(source="start", target="b", kind="switch", group="s", predicate="is_new", name="is_new"),
        Edge(source="start", target="c", kind="switch", group="s", name="default"),
    ]
    three = [gives(id) for id in "abc"]
    built = build(start, *three, edges=cases, predicates={"large": large, "is_new": is_new})
    async with Runtime() as runtime:
        assert await completed(runtime, built, Claim("x", 200)) == ["a x"]
        assert await completed(runtime, built, Claim("y", 20)) == ["b y"]
    error = await failure(built, Claim("bad", 1))
    assert error.code == "routing_failed"
    assert error.details["edge"] == "is_new"
    assert error.details["reason"] == "is_new raised ZeroDivisionError: division by zero"
    multi = [Edge(source="start", target=t, kind="multi", group="m", selection="chooses") for t in "abc"]
    built = build(start, *three, edges=multi, selections={"chooses": chooses})
    async with Runtime() as runtime:
        assert await completed(runtime, built, Claim("x", 200)) == ["a x", "b x", "c x"]
        assert await completed(runtime, built, Claim("x", 2)) == ["a x"]
    error = await failure(built, Claim("x", -1))
    assert (error.code, error.details["valid_targets"]) == ("routing_failed", ["a", "b", "c"])


async def test_events_of_users_are_in_the_log_when_the_call_returns():
    @executor(id="a")
    async def a(value: int, ctx: WorkflowContext) -> None:
        await ctx.add_event("looked_up", {"rows": value})

    async with Runtime() as runtime:
        handle = await runtime.submit(build(a), 4)
        await handle.result()
        assert "custom.looked_up" in await types(runtime, handle.workflow_id)
