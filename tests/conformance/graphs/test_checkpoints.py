"""§9 and §12: checkpoints, forks with edits, signatures, resume; results, views and streams."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import UNSET

from agentflow import (
    CheckpointNotFound,
    Edits,
    GraphSignatureMismatch,
    InvalidEdit,
    NodeFailure,
    Runtime,
    Workflow,
    WorkflowCancelled,
    WorkflowFailed,
    reducers,
)
from agentflow.errors import CommandRefused, InvalidAnswer, RunExists, UnknownRequest
from agentflow.events.memory import MemoryLog
from agentflow.graphs import close_runtimes
from tests.conformance.graphs.rows import (
    BOTH,
    Policy,
    asks,
    built,
    emits,
    fails,
    gathers,
    gives,
    node,
    relays,
)
from tests.integration.support.runs import log_of

POLICIES = pytest.mark.parametrize("policy", BOTH)


@pytest.fixture(autouse=True)
async def homes():
    yield
    await close_runtimes()


class Claim(msgspec.Struct, frozen=True):
    amount: int


async def keeps(value: int, ctx: Any) -> None:
    ctx.set_shared_state("history", value)
    ctx.set_state("last", value)
    await ctx.yield_output(value)
    await ctx.send_message(value + 1)


def line(policy: Policy, *, length: int = 3, store: Any = None) -> Workflow:
    nodes = [node(f"n{i}", keeps, takes=(int,), sends=(int,), gives=(int,)) for i in range(length)]
    flow = built(policy, nodes[0]).add_shared("history", list[int], reducer=reducers.append).add_chain(nodes)
    return (flow if store is None else flow.with_checkpointing(store)).build()


# -- the list --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "causes"),
    [
        ("superstep", ["start", *["superstep"] * 3, "terminal"]),
        ("eager", ["start", *["step"] * 3, "terminal"]),
    ],
)
async def test_checkpoints_are_positions_of_the_log_with_their_causes(policy: Policy, causes: list[str]):
    flow = line(policy)
    result = await flow.run(0)
    points = await flow.list_checkpoints(result.workflow_id)
    assert [point.cause for point in points] == causes
    for point in points:
        assert point.id == f"{result.workflow_id}@{point.offset}"
        assert point.signature == flow.signature
    assert [point.superstep for point in points if point.cause == "superstep"] == (
        [1, 2, 3] if policy == "superstep" else []
    )


@POLICIES
async def test_an_answer_is_a_checkpoint(policy: Policy):
    flow = built(policy, asks("a")).build()
    result = await flow.run(1)
    (asked,) = result.pending_requests
    result = await flow.send_responses(result.workflow_id, {asked.request_id: 2})
    causes = [point.cause for point in await flow.list_checkpoints(result.workflow_id)]
    assert "input" in causes


@POLICIES
async def test_the_state_of_a_checkpoint_is_the_fold_of_the_log_up_to_it(policy: Policy):
    flow = line(policy)
    run = await flow.start(0)
    result = await run.result()
    cause = "superstep" if policy == "superstep" else "step"
    points = [p for p in await flow.list_checkpoints(result.workflow_id) if p.cause == cause]
    runtime = await flow.runtime()
    for number, point in enumerate(points, 1):
        state = await runtime.fold(result.workflow_id, at=point.offset)
        assert state.shared.values == {"history": list(range(number))}
        assert state.shared.private == {f"n{i}": {"last": i} for i in range(number)}


@pytest.mark.parametrize("id", ["", "wf_x", "wf_x@", "wf_x@y", "wf_x@-1", "wf_nothing@0"])
async def test_an_unknown_checkpoint_is_not_found(id: str):
    flow = line("superstep")
    with pytest.raises(CheckpointNotFound):
        await flow.run_from_checkpoint(id)


async def test_an_offset_behind_the_end_is_no_checkpoint():
    flow = line("superstep")
    result = await flow.run(0)
    with pytest.raises(CheckpointNotFound, match="offsets 0 to"):
        await flow.run_from_checkpoint(f"{result.workflow_id}@{result.events[-1].offset + 1}")


# -- forks -----------------------------------------------------------------------------------------


@POLICIES
async def test_a_fork_at_every_offset_comes_to_the_same_and_leaves_the_old_log(policy: Policy):
    flow = line(policy)
    old = await flow.run(0)
    runtime = await flow.runtime()
    before = [(e.offset, e.type) for e in await log_of(runtime, old.workflow_id)]
    for event in old.events:
        fork = await flow.run_from_checkpoint(f"{old.workflow_id}@{event.offset}")
        assert (fork.state, fork.forked_from.offset) == ("completed", event.offset), event.type
        assert fork.get_outputs() == old.get_outputs(), event.type
        assert [e.type for e in fork.events][:2] == ["workflow.started", "system.state_saved"]
        assert (await runtime.fold(fork.workflow_id)).shared.values == {"history": [0, 1, 2]}, event.type
    assert [(e.offset, e.type) for e in await log_of(runtime, old.workflow_id)] == before


@POLICIES
async def test_a_fork_of_a_failed_run_does_not_repeat_what_completed(policy: Policy):
    seen: list[str] = []
    broken = [True]

    async def good(value: int, ctx: Any) -> None:
        seen.append("good")
        await ctx.send_message(value)

    async def bad(value: int, ctx: Any) -> None:
        seen.append("bad")
        if broken[0]:
            raise ValueError("no")
        await ctx.yield_output(value)

    flow = built(policy, node("good", good, takes=(int,), sends=(int,)))
    flow.add_edge("good", node("bad", bad, takes=(int,), gives=(int,)))
    workflow = flow.build()
    with pytest.raises(WorkflowFailed) as failed:
        await workflow.run(7)
    old = failed.value.result
    assert old is not None
    before = next(e.offset for e in old.events if e.type == "workflow.step_failed") - 1
    broken[0] = False
    fork = await workflow.run_from_checkpoint(f"{old.workflow_id}@{before}")
    assert (fork.state, fork.get_outputs(), seen) == ("completed", [7], ["good", "bad", "bad"])


@POLICIES
async def test_a_fork_asks_open_questions_again_under_new_ids(policy: Policy):
    flow = built(policy, asks("a")).build()
    old = await flow.run(1)
    last = f"{old.workflow_id}@{old.events[-1].offset}"
    fork = await flow.run_from_checkpoint(last)
    (of_old,), (of_fork,) = old.pending_requests, fork.pending_requests
    assert of_old.request_id != of_fork.request_id
    answered = await flow.run_from_checkpoint(last, responses={of_old.request_id: 9})
    assert (answered.state, answered.get_outputs()) == ("completed", [9])
    with pytest.raises(UnknownRequest):
        await flow.run_from_checkpoint(last, responses={of_fork.request_id: 9})
    with pytest.raises(InvalidAnswer):
        await flow.run_from_checkpoint(last, responses={of_old.request_id: "nine"})


@POLICIES
async def test_a_fork_keeps_recorded_calls_of_work_in_flight(policy: Policy):
    calls: list[int] = []

    async def pays(value: int) -> int:
        calls.append(value)
        return value * 100

    async def work(value: int, ctx: Any) -> None:
        await ctx.yield_output(await ctx.run_once("pay", pays, value))

    flow = built(policy, node("a", work, takes=(int,), gives=(int,))).build()
    old = await flow.run(3)
    behind = next(e.offset for e in old.events if e.type == "tool.call_completed")
    fork = await flow.run_from_checkpoint(f"{old.workflow_id}@{behind}")
    assert (fork.get_outputs(), calls) == ([300], [3])


# -- edits -----------------------------------------------------------------------------------------


def edited() -> Workflow:
    async def first(claim: Claim, ctx: Any) -> None:
        ctx.set_shared_state("limit", 100)
        ctx.set_state("n", 1)
        await ctx.send_message(claim)

    async def second(claim: Claim, ctx: Any) -> None:
        await ctx.yield_output([claim.amount, ctx.get_shared_state("limit"), ctx.get_state("m", 0)])

    flow = built("superstep", node("first", first, takes=(Claim,), sends=(Claim,)))
    flow.add_shared("limit", int, default=0)
    return flow.add_edge("first", node("second", second, takes=(Claim,), gives=(list,))).build()


async def test_edits_change_input_messages_shared_and_private_state():
    flow = edited()
    old = await flow.run(Claim(5))
    start, first, *_ = await flow.list_checkpoints(old.workflow_id)
    assert old.get_outputs() == [[5, 100, 0]]
    fork = await flow.run_from_checkpoint(start.id, edits=Edits(input=Claim(6)))
    assert fork.get_outputs() == [[6, 100, 0]]
    edits = Edits(messages={"second": [Claim(7)]}, shared={"limit": 1}, state={"second": {"m": 3}})
    fork = await flow.run_from_checkpoint(first.id, edits=edits)
    assert fork.get_outputs() == [[7, 1, 3]]
    assert fork.events[0].data.edits["shared"] == {"limit": 1}


@pytest.mark.parametrize(
    "edits",
    [
        Edits(shared={"limit": "much"}),
        Edits(shared={"limit": object()}),
        Edits(state={"nobody": {"x": 1}}),
        Edits(messages={"second": []}),
        Edits(messages={"second": ["text"]}),
        Edits(messages={"first": [Claim(1)]}),
        Edits(outputs={"second": 1}),
        Edits(input=Claim(1)),
    ],
    ids=["type", "no json", "no node", "too few", "wrong type", "none waits", "not ended", "too late"],
)
async def test_an_edit_that_does_not_fit_begins_no_run(edits: Edits):
    flow = edited()
    old = await flow.run(Claim(5))
    point = (await flow.list_checkpoints(old.workflow_id))[1]
    with pytest.raises(InvalidEdit) as refused:
        await flow.run_from_checkpoint(point.id, edits=edits)
    assert "edit" in (refused.value.details or {})
    assert len(await (await flow.runtime()).rows()) == 1


# -- signatures and resume -------------------------------------------------------------------------


def variant(name: str, store: Any = None) -> Workflow:
    """The graph `a → b`, changed in one respect."""
    takes = Any if name == "type" else int
    b = gives("c" if name == "id" else "b", takes)
    flow = built("superstep", asks("a", sends=True))
    flow.description = name
    if name == "condition":
        flow.add_edge("a", b, "message > 0")
    elif name == "join":
        flow.add_fan_in_edges(["a", relays("x")], gathers("b")).add_edge("a", "x")
    else:
        flow.add_edge("a", b)
    if name == "reducer":
        flow.add_shared("k", list, reducer=reducers.append)
    if name == "limit":
        flow.max_iterations = 7
    return (flow if store is None else flow.with_checkpointing(store)).build()


@pytest.mark.parametrize("name", ["type", "id", "condition", "join", "reducer"])
async def test_another_graph_does_not_go_on(name: str, tmp_path: Path):
    store = f"sqlite:{tmp_path}/runs.db"
    old = await variant("", store).run(1)
    other = variant(name, store)
    with pytest.raises(GraphSignatureMismatch) as refused:
        await other.run_from_checkpoint(f"{old.workflow_id}@0")
    assert set(refused.value.details or {}) == {"added", "removed", "changed"}
    with pytest.raises((GraphSignatureMismatch, CommandRefused)):
        await other.resume(old.workflow_id)


@pytest.mark.parametrize("name", ["limit", "description"])
async def test_a_graph_that_is_joined_alike_goes_on(name: str, tmp_path: Path):
    store = f"sqlite:{tmp_path}/runs.db"
    old = await variant("", store).run(1)
    other = variant(name, store)
    assert other.signature == variant("").signature
    assert (await other.run_from_checkpoint(f"{old.workflow_id}@{old.events[-1].offset}")).state == "waiting"


@pytest.mark.parametrize("rests", ["waiting", "paused"])
@pytest.mark.parametrize("name", ["limit", "description"])
async def test_a_run_goes_on_with_another_definition_of_an_equal_graph(name: str, rests: str, tmp_path: Path):
    store = f"sqlite:{tmp_path}/runs.db"
    async with Runtime(store) as runtime:  # the process that knew the first definition
        old = await (await runtime.submit(variant(""), 1)).result()
        if rests == "paused":
            await (await (await runtime.attach(old.workflow_id)).pause()).result()
    other = variant(name, store)
    same = other.definition.hash == old.events[0].data.definition.hash
    again = await other.resume(old.workflow_id)
    assert again.state == "waiting"
    answers = {request.request_id: 5 for request in again.pending_requests}
    ended = await other.send_responses(old.workflow_id, answers)
    assert ended.outputs == (5,)
    resumed = [event.data for event in ended.events if event.type == "workflow.resumed"]
    pinned = [data.definition_hash for data in resumed if data.definition_hash is not UNSET]
    assert pinned == ([] if same else [other.definition.hash])


async def test_a_terminal_run_is_final():
    flow = line("superstep")
    result = await flow.run(0)
    run = await flow.attach(result.workflow_id)
    await run.cancel("too late")
    assert len((await run.result()).events) == len(result.events)


# -- requests over the handle (§10) ----------------------------------------------------------------


async def waiting(*values: int) -> tuple[Workflow, Any]:
    flow = built("superstep", emits("s", *values)).add_edge("s", asks("a")).build()
    return flow, await flow.run(0)


async def test_one_bad_answer_consumes_none():
    flow, result = await waiting(1, 2)
    first, second = result.pending_requests
    for bad, error in (("text", InvalidAnswer), (None, InvalidAnswer), (True, InvalidAnswer)):
        with pytest.raises(error):
            await flow.send_responses(result.workflow_id, {first.request_id: 1, second.request_id: bad})
    with pytest.raises(UnknownRequest):
        await flow.send_responses(result.workflow_id, {first.request_id: 1, "req_unknown": 2})
    again = await flow.send_responses(result.workflow_id, {})
    assert [r.request_id for r in again.pending_requests] == [first.request_id, second.request_id]
    assert len(again.events) == len(result.events)


async def test_the_same_answer_again_is_no_event_and_another_is_refused():
    flow, result = await waiting(1, 2)
    first, _ = result.pending_requests
    one = await flow.send_responses(result.workflow_id, {first.request_id: 7})
    again = await flow.send_responses(result.workflow_id, {first.request_id: 7})
    assert len(again.events) == len(one.events)
    with pytest.raises(CommandRefused) as refused:
        await flow.send_responses(result.workflow_id, {first.request_id: 8})
    assert refused.value.code == "already_answered"


# -- runs and results (§8, §12) --------------------------------------------------------------------


@POLICIES
async def test_run_raises_with_the_partial_result(policy: Policy):
    flow = built(policy, emits("s", 1)).add_edge("s", fails("a")).add_edge("s", gives("b")).build()
    with pytest.raises(WorkflowFailed) as failed:
        await flow.run(0)
    result = failed.value.result
    assert result is not None
    assert (result.state, result.get_outputs()) == ("failed", [1])
    assert result.events[-1].type == "workflow.failed"
    kept = await flow.run(0, raise_on_failure=False)
    assert (kept.state, kept.error.code) == ("failed", "executor_failed")


async def test_a_cancelled_run_raises_with_its_result():
    began = asyncio.Event()

    async def work(value: int, ctx: Any) -> None:
        await ctx.yield_output("begun")
        began.set()
        await asyncio.Event().wait()

    flow = built("superstep", node("a", work, takes=(int,), gives=(str,))).build()
    run = await flow.start(0)
    await began.wait()
    await run.cancel("enough", mode="hard")
    with pytest.raises(WorkflowCancelled) as cancelled:
        await run.result()
    assert cancelled.value.result is not None
    assert cancelled.value.result.get_outputs() == ["begun"]


async def test_a_paused_run_begins_nothing_until_it_is_resumed():
    began, gate = asyncio.Event(), asyncio.Event()

    async def work(value: int, ctx: Any) -> None:
        began.set()
        await gate.wait()
        await ctx.send_message(value)

    flow = built("eager", node("a", work, takes=(int,), sends=(int,))).add_edge("a", gives("b")).build()
    run = await flow.start(0)
    await began.wait()
    await run.pause()
    gate.set()
    result = await run.result()
    assert (result.state, result.get_outputs()) == ("paused", [])
    result = await (await run.resume()).result()
    assert (result.state, result.get_outputs()) == ("completed", [0])


async def test_a_repeated_id_with_another_input_is_refused():
    flow = line("superstep")
    one = await flow.run(0, workflow_id="wf_mine")
    assert (await flow.run(0, workflow_id="wf_mine")).events[-1].id == one.events[-1].id
    with pytest.raises(RunExists):
        await flow.run(1, workflow_id="wf_mine")


@POLICIES
async def test_a_view_skips_offsets_and_never_renumbers(policy: Policy):
    flow = line(policy)
    everything = [e async for e in flow.run_stream(0, view="all")]
    assert [e.offset for e in everything] == list(range(len(everything)))
    shown = [e async for e in flow.run_stream(0, view="workflow")]
    types = {e.type.partition(".")[0] for e in shown}
    assert types == ({"workflow", "superstep", "output"} if policy == "superstep" else {"workflow", "output"})
    assert not [e for e in shown if e.type.startswith("workflow.step_")]
    assert [e.offset for e in shown] == sorted({e.offset for e in shown})


async def test_a_held_run_goes_on_when_its_step_is_tried_again():
    broken = [True]

    async def work(value: int, ctx: Any) -> None:
        if broken[0]:
            raise ValueError("no")
        await ctx.yield_output(value)

    log = MemoryLog()
    async with Runtime(log) as runtime:
        flow = built("superstep", node("a", work, takes=(int,), gives=(int,)), on_failure="hold")
        workflow = flow.with_checkpointing(runtime).build()
        result = await workflow.run(4)
        assert result.state == "paused"
        broken[0] = False
        await runtime.retry(result.workflow_id, "a")
        result = await (await workflow.attach(result.workflow_id)).result()
    assert (result.state, result.get_outputs()) == ("completed", [4])


async def test_a_node_failure_is_a_value_with_activation_error_and_input():
    seen: list[NodeFailure] = []

    async def takes(failure: NodeFailure, ctx: Any) -> None:
        seen.append(failure)

    flow = built("superstep", emits("s", Claim(3)))
    flow.add_edge("s", fails("a", takes=Claim, sends=Claim)).add_error_edge(
        "a", node("e", takes, takes=(NodeFailure,))
    )
    await flow.build().run(0)
    (failure,) = seen
    assert (failure.activation, failure.error.code) == ("/a#0", "executor_failed")
    assert failure.input in (Claim(3), {"amount": 3})
