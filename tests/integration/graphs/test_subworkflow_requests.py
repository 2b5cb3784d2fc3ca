"""Requests of nested workflows that nodes of the parent answer or forward (page 002 §11, §16)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from agentflow import (
    Executor,
    Runtime,
    SubWorkflowRequest,
    SubWorkflowResponse,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowExecutor,
    executor,
    handler,
    response_handler,
)
from agentflow.errors import WorkflowValidationError
from agentflow.events.envelope import decode
from agentflow.events.memory import MemoryLog
from agentflow.executors import Never
from tests.integration.executors.graphs import outputs
from tests.integration.graphs.families import family_at_every_event, rows_of
from tests.integration.support.runs import must_be_sound

POLICIES = pytest.mark.parametrize("policy", ["superstep", "eager"])


class Order(msgspec.Struct, frozen=True):
    id: int


class Approved(msgspec.Struct, frozen=True):
    ok: bool


class Ask(Executor):
    @handler
    async def on_order(self, order: Order, ctx: WorkflowContext) -> None:
        await ctx.request_info(order, Approved)

    @response_handler
    async def on_answer(self, order: Order, answer: Approved, ctx: WorkflowContext[Never, str]) -> None:
        await ctx.yield_output(f"{order.id} {'yes' if answer.ok else 'no'}")


class Split(Executor):
    @handler
    async def on_count(self, count: int, ctx: WorkflowContext[Order]) -> None:
        for number in range(count):
            await ctx.send_message(Order(number))


class Clerk(Executor):
    """Grants even orders, and leaves odd ones to the caller."""

    @handler
    async def on_request(
        self, request: SubWorkflowRequest, ctx: WorkflowContext[SubWorkflowResponse]
    ) -> None:
        order = request.data
        assert isinstance(order, Order)
        response = request.forward() if order.id % 2 else request.answer(Approved(True))
        await ctx.send_message(response, target_id=request.executor_id)


@executor(id="sink")
async def sink(text: str, ctx: WorkflowContext[Never, str]) -> None:
    await ctx.yield_output(text)


def asking(name: str = "asking") -> Workflow:
    return WorkflowBuilder(name).set_start_executor(Ask("ask")).build()


def office(policy: Any = "superstep", clerk: Any = None, inner: Workflow | None = None) -> Workflow:
    """Split the input into orders; each is asked about by a nested run, whose requests the clerk gets."""
    clerk = Clerk("clerk") if clerk is None else clerk
    return (
        WorkflowBuilder("office", policy=policy)
        .set_start_executor(Split("split"))
        .add_edge("split", WorkflowExecutor(inner or asking(), "orders"))
        .add_edge("orders", sink)
        .add_edge("orders", clerk)
        .add_edge(clerk, "orders")
        .build()
    )


def clerk_who(act: Any) -> Executor:
    """A clerk whose response is what `act` makes of the request."""

    @executor(id="clerk")
    async def clerk(request: SubWorkflowRequest, ctx: WorkflowContext[SubWorkflowResponse]) -> None:
        for response in act(request):
            await ctx.send_message(response)

    return clerk


async def events_of(runtime: Runtime, run_id: str) -> list[Any]:
    return [decode(row.body) for row in await runtime.log.read(run_id, 0, 10_000)]


@POLICIES
async def test_a_node_answers_the_request_of_a_nested_run_and_nobody_else_is_asked(policy: str):
    async with Runtime(MemoryLog()) as runtime:
        result = await runtime.run(office(policy), 1)
        found = await outputs(runtime, result.workflow_id)
        events = await events_of(runtime, result.workflow_id)
        for row in await rows_of(runtime):
            await must_be_sound(runtime, row.workflow_id)
    assert (result.state, found) == ("completed", ["0 yes"])
    assert not [e for e in events if e.type == "input.requested"]
    (received,) = [e.data for e in events if e.type == "input.received"]
    assert (received.activation, received.by, received.via) == ("/orders#0", "/clerk#0", "message")


@POLICIES
async def test_a_forwarded_request_is_asked_of_the_caller_under_the_same_id(policy: str):
    async with Runtime(MemoryLog()) as runtime:
        handle = await runtime.submit(office(policy), 2)
        result = await handle.result()
        assert result.state == "waiting"
        (asked,) = result.pending_requests
        assert asked.subject == {"$type": "Order", "id": 1}
        children = [row.workflow_id for row in await rows_of(runtime) if row.parent]
        of_children = [r.request_id for c in children for r in await runtime.requests(c)]
        assert of_children == [asked.request_id]
        await runtime.answer_all(handle.workflow_id, {asked.request_id: {"ok": False}})
        result = await handle.result()
        assert sorted(await outputs(runtime, handle.workflow_id)) == ["0 yes", "1 no"]
        await must_be_sound(runtime, handle.workflow_id)
    assert result.state == "completed"


async def test_without_an_edge_that_names_the_type_the_caller_is_asked():
    @executor(id="all")
    async def everything(message: Any, ctx: WorkflowContext[Never, str]) -> None:
        await ctx.yield_output(str(message))

    outer = (
        WorkflowBuilder("outer")
        .set_start_executor(WorkflowExecutor(asking(), "orders"))
        .add_edge("orders", everything)
        .build()
    )
    async with Runtime(MemoryLog()) as runtime:
        result = await runtime.run(outer, Order(4))
        assert [r.step_id for r in result.pending_requests] == ["orders"]


async def test_a_condition_that_is_false_leaves_the_request_to_the_caller():
    def is_even(message: Any) -> bool:
        return message.data.id % 2 == 0

    outer = (
        WorkflowBuilder("outer")
        .set_start_executor(WorkflowExecutor(asking(), "orders", "output"))
        .add_edge("orders", Clerk("clerk"), is_even)
        .add_edge("clerk", "orders")
        .build()
    )
    async with Runtime(MemoryLog()) as runtime:
        assert (await runtime.run(outer, Order(4))).state == "completed"
        assert (await runtime.run(outer, Order(5))).state == "waiting"


async def test_a_request_of_a_run_two_levels_below_is_answered_at_each_level_that_takes_it():
    middle = (
        WorkflowBuilder("middle")
        .set_start_executor(WorkflowExecutor(asking(), "deep", "output"))
        .add_edge("deep", Clerk("lower"))
        .add_edge("lower", "deep")
        .build()
    )

    def refuse(request: SubWorkflowRequest) -> list[SubWorkflowResponse]:
        assert isinstance(request.data, Order)
        return [request.answer(Approved(False))]

    async with Runtime(MemoryLog()) as runtime:
        result = await runtime.run(office(clerk=clerk_who(refuse), inner=middle), 2)
        assert sorted(await outputs(runtime, result.workflow_id)) == ["0 yes", "1 no"]
        for row in await rows_of(runtime):
            assert row.state == "completed"
            await must_be_sound(runtime, row.workflow_id)


WRONG = {
    "invalid": (lambda r: [msgspec.structs.replace(r.answer(None), value={"ok": "?"})], "invalid_response"),
    "unknown": (
        lambda r: [msgspec.structs.replace(r.answer(Approved(True)), request_id="req_0")],
        "unknown_request",
    ),
    "twice": (lambda r: [r.answer(Approved(True)), r.answer(Approved(False))], "already_answered"),
}


@POLICIES
@pytest.mark.parametrize("wrong", WRONG)
async def test_a_wrong_response_fails_its_activation_with_the_reason(wrong: str, policy: str):
    act, code = WRONG[wrong]
    async with Runtime(MemoryLog()) as runtime:
        handle = await runtime.submit(office(policy, clerk_who(act)), 1)
        result = await handle.result(raise_on_failure=False)
        if result.state == "waiting":  # under eager other branches go on, and the caller is asked
            asked = {r.request_id: {"ok": True} for r in result.pending_requests}
            await runtime.answer_all(handle.workflow_id, asked)
            result = await handle.result(raise_on_failure=False)
        events = await events_of(runtime, result.workflow_id)
        states = {row.state for row in await rows_of(runtime)}
    first = next(e.data for e in events if e.type == "workflow.step_failed")
    assert (first.step_id, first.error.code) == ("orders", code)
    assert first.error.details["step_id"] == "orders"
    assert result.state == "failed"
    assert states <= {"failed", "cancelled", "completed"}


async def test_an_equal_answer_twice_changes_nothing():
    twice = clerk_who(lambda r: [r.answer(Approved(True)), r.answer(Approved(True))])
    async with Runtime(MemoryLog()) as runtime:
        result = await runtime.run(office(clerk=twice), 1)
        assert await outputs(runtime, result.workflow_id) == ["0 yes"]


@POLICIES
async def test_what_no_node_answers_is_asked_of_the_caller_once_nothing_else_moves(policy: str):
    async with Runtime(MemoryLog()) as runtime:
        handle = await runtime.submit(office(policy, clerk_who(lambda _: [])), 2)
        result = await handle.result()
        assert (result.state, len(result.pending_requests)) == ("waiting", 2)
        await runtime.answer_all(
            handle.workflow_id, {r.request_id: {"ok": True} for r in result.pending_requests}
        )
        await handle.result()
        assert sorted(await outputs(runtime, handle.workflow_id)) == ["0 yes", "1 yes"]
        await must_be_sound(runtime, handle.workflow_id)


class Chief(Executor):
    """Asks a person before it answers."""

    @handler
    async def on_request(
        self, request: SubWorkflowRequest, ctx: WorkflowContext[SubWorkflowResponse]
    ) -> None:
        await ctx.request_info(request, bool)

    @response_handler
    async def on_word(
        self, request: SubWorkflowRequest, word: bool, ctx: WorkflowContext[SubWorkflowResponse]
    ) -> None:
        assert isinstance(request.data, Order)
        await ctx.send_message(request.answer(Approved(word)))


@POLICIES
async def test_a_node_may_ask_a_person_before_it_answers(policy: str):
    async with Runtime(MemoryLog()) as runtime:
        handle = await runtime.submit(office(policy, Chief("clerk")), 2)
        result = await handle.result()
        assert [r.step_id for r in result.pending_requests] == ["clerk", "clerk"]
        # Under eager nothing orders the two nested runs.
        words = {r.request_id: r.subject["data"]["id"] == 0 for r in result.pending_requests}
        await runtime.answer_all(handle.workflow_id, words)
        await handle.result()
        assert sorted(await outputs(runtime, handle.workflow_id)) == ["0 yes", "1 no"]
        await must_be_sound(runtime, handle.workflow_id)


@POLICIES
async def test_cancelling_while_a_node_has_the_request_leaves_closed_histories(policy: str):
    async with Runtime(MemoryLog()) as runtime:
        handle = await runtime.submit(office(policy, Chief("clerk")), 2)
        result = await handle.result()
        assert result.state == "waiting"
        await handle.cancel("enough")
        await handle.result(raise_on_failure=False)
        for row in await rows_of(runtime):
            assert row.state == "cancelled"
            await must_be_sound(runtime, row.workflow_id)


async def test_an_edge_that_can_carry_neither_outputs_nor_requests_is_refused():
    class Deaf(Executor):
        @handler
        async def on_number(self, number: float, ctx: WorkflowContext) -> None: ...

    builder = WorkflowBuilder("w").set_start_executor(WorkflowExecutor(asking(), "orders"))
    with pytest.raises(WorkflowValidationError, match=r"orders.*deaf"):
        builder.add_edge("orders", Deaf("deaf")).build()


async def test_the_cycle_of_request_and_response_needs_no_other_bound():
    assert [d.code for d in office().diagnostics] == []


@POLICIES
@pytest.mark.parametrize("children", ["as they were", "whole"])
async def test_answers_and_forwards_survive_a_crash_at_every_event(policy: str, children: Any):
    outcome = await family_at_every_event(
        lambda: office(policy), 2, children=children, answers=lambda _: {"ok": False}
    )
    assert (outcome.state, sorted(outcome.outputs)) == ("completed", ["0 yes", "1 no"])
