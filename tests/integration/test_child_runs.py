"""Child runs: a step whose work is a run of its own, through the real Runtime (page 003 §4, page 002 §11)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from actors.testing import run_until_idle, virtual
from agentflow import Runtime, Service, function
from agentflow.definition.ir import (
    Approval,
    Budget,
    EndNode,
    Options,
    ParallelNode,
    StartNode,
    SubgraphNode,
    ToolNode,
    WaitNode,
    Workflow,
)
from agentflow.errors import DefinitionError
from agentflow.events.memory import MemoryLog
from tests.integration.support.runs import Desk, log_of, must_be_sound, types_of
from tests.integration.virtual import LoopClock


@function(side_effect="read")
async def fail() -> dict[str, Any]:
    """Fails."""
    raise ValueError("broken")


BAD = Service.of("bad", fail)


def whole(*nodes: Any, name: str = "w", **more: Any) -> Workflow:
    """A graph from its first node to an end that drains; the nodes say where they lead."""
    import msgspec

    placed = tuple(msgspec.structs.replace(node, index=i) for i, node in enumerate(nodes))
    start, end = StartNode(id="__start", next=nodes[0].id), EndNode(id="__end", index=99, drain=True)
    return Workflow(name=name, nodes=(start, *placed, end), **more)


def does(tool: str, id: str = "t", next: str = "__end", **more: Any) -> ToolNode:
    return ToolNode(id=id, tool=f"desk.{tool}", input={}, next=next, **more)


def parent(inner: Workflow, *, options: Options | None = None, **fields: Any) -> Workflow:
    """A parent whose node `sub` runs `inner` as a child run, and then the function `look`."""
    sub = SubgraphNode(id="sub", graph="inner", next="after", **fields)
    return whole(sub, does("look", "after"), graphs={"inner": inner}, options=options or Options())


def child_of(events: list[Any]) -> str:
    (started,) = [e.data for e in events if e.type == "workflow.step_started" and e.step == "sub"]
    return started.child["workflow_id"]


async def settled(runtime: Runtime, workflow_id: str) -> Any:
    """Return where a run stands when nothing moves any more."""
    await run_until_idle()
    return await runtime.record(workflow_id)


class TestEnds:
    @virtual
    async def test_a_child_is_an_ordinary_run_with_a_log_of_its_own(self):
        desk = Desk()
        async with Runtime(services=[desk.service(), BAD], clock=LoopClock()) as runtime:
            result = await runtime.run(parent(whole(does("pay"))), {"n": 1})
            assert result.state == "completed"
            events = await log_of(runtime.log, result.workflow_id)
            child = child_of(events)
            record = await runtime.record(child)
            assert record.state == "completed"
            assert record.parent is not None
            assert (record.parent.workflow_id, record.parent.step_id) == (result.workflow_id, "sub")
            assert (await runtime.record(result.workflow_id)).children == (child,)
            output = next(e.data.output for e in events if e.type == "workflow.step_completed")
            assert output["workflow_id"] == child
            assert output["terminal_node_id"] == "__end"
            assert output["output"] == record.output
            assert set(output["node_outputs"]) == {"t"}
            await must_be_sound(runtime.log, result.workflow_id)
            await must_be_sound(runtime.log, child)

    @virtual
    async def test_the_failure_of_a_child_is_the_cause_of_that_of_its_step(self):
        desk = Desk()
        inner = whole(ToolNode(id="t", tool="bad.fail", input={}, next="__end"))
        async with Runtime(services=[desk.service(), BAD], clock=LoopClock()) as runtime:
            result = await runtime.run(parent(inner), {}, raise_on_failure=False)
            assert result.state == "failed"
            events = await log_of(runtime.log, result.workflow_id)
            error = next(e.data.error for e in events if e.type == "workflow.step_failed")
            child = child_of(events)
            assert error.code == "subgraph_failed"
            assert error.cause.code == "tool_execution_failed"
            assert error.cause.details["workflow_id"] == child
            assert error.cause.details["activation"] == "/t#0"
            assert error.details["usage"]["tool_calls"] == 1
            assert result.usage.tool_calls == 1

    @virtual
    async def test_a_name_that_nothing_is_registered_under_is_refused(self):
        graph = whole(SubgraphNode(id="sub", graph="missing", next="__end"))
        async with Runtime(clock=LoopClock()) as runtime:
            with pytest.raises(DefinitionError) as refused:
                await runtime.submit(graph, {})
            assert not (await runtime.log.runs()).items
        (found,) = refused.value.diagnostics
        assert (found.code, found.path) == ("E_UNKNOWN_SUBGRAPH", "/nodes/1/graph")

    @virtual
    async def test_a_graph_that_is_not_registered_any_more_fails_the_step(self):
        wait = WaitNode(id="rest", duration=60.0, next="sub")
        graph = whole(wait, SubgraphNode(id="sub", graph="missing", next="__end"))
        log = MemoryLog()
        async with Runtime(log, clock=LoopClock()) as runtime:
            runtime.register("missing", whole(does("look")))
            handle = await runtime.submit(graph, {})
        async with Runtime(log, clock=LoopClock()) as runtime:
            await runtime.resume(handle.workflow_id)
            result = await runtime.result(handle.workflow_id, raise_on_failure=False)
            assert result.state == "waiting"
            await asyncio.sleep(61)
            await run_until_idle()
            events = await log_of(runtime.log, result.workflow_id)
            error = next(e.data.error for e in events if e.type == "workflow.step_failed")
            assert error.code == "subgraph_not_found"

    @virtual
    async def test_a_registered_definition_is_found_by_its_name(self):
        desk = Desk()
        async with Runtime(services=[desk.service(), BAD], clock=LoopClock()) as runtime:
            runtime.register("missing", whole(does("look")))
            graph = whole(SubgraphNode(id="sub", graph="missing", next="__end"))
            assert (await runtime.run(graph, {})).state == "completed"

    @virtual
    async def test_graphs_that_call_themselves_end_at_the_depth_of_the_budget(self):
        again = whole(SubgraphNode(id="sub", graph="inner", next="__end"))
        options = Options(budget=Budget(max_depth=3))
        graph = whole(
            SubgraphNode(id="sub", graph="inner", next="__end"), graphs={"inner": again}, options=options
        )
        async with Runtime(clock=LoopClock()) as runtime:
            result = await runtime.run(graph, {}, raise_on_failure=False)
            assert result.state == "failed"
            assert len((await runtime.records()).items) == 4
            events = await log_of(runtime.log, result.workflow_id)
            error = next(e.data.error for e in events if e.type == "workflow.step_failed")
            codes = []
            while error is not None:
                codes.append(error.code)
                error = error.cause
            assert codes[-1] == "depth_exceeded"

    @virtual
    async def test_the_usage_of_a_child_counts_for_its_parent_and_its_budget_is_what_is_left(self):
        desk = Desk()
        inner = whole(does("look", "t", "u"), does("look", "u"))
        options = Options(budget=Budget(max_tool_calls=3, on_exceeded="fail"))
        graph = whole(
            SubgraphNode(id="sub", graph="inner", next="again"),
            SubgraphNode(id="again", graph="inner", next="__end"),
            graphs={"inner": inner},
            options=options,
        )
        async with Runtime(services=[desk.service(), BAD], clock=LoopClock()) as runtime:
            result = await runtime.run(graph, {}, raise_on_failure=False)
            assert result.state == "failed"
            assert result.usage.tool_calls == 3
            assert sum(desk.executions.values()) == 3

    @virtual
    async def test_the_deadline_of_the_parent_is_that_of_its_child(self):
        inner = whole(WaitNode(id="rest", duration=3600.0, next="__end"))
        async with Runtime(services=[Desk().service()], clock=LoopClock()) as runtime:
            handle = await runtime.submit(parent(inner, options=Options(timeout=60.0)), {})
            await run_until_idle()
            child = child_of(await log_of(runtime.log, handle.workflow_id))
            await asyncio.sleep(61)
            assert (await settled(runtime, handle.workflow_id)).state == "failed"
            record = await settled(runtime, child)
            assert record.state in ("failed", "cancelled")

    @virtual
    async def test_the_trace_of_the_parent_goes_on_in_the_child(self):
        desk = Desk()
        async with Runtime(services=[desk.service(), BAD], clock=LoopClock()) as runtime:
            result = await runtime.run(parent(whole(does("look"))), {})
            events = await log_of(runtime.log, result.workflow_id)
            below = await log_of(runtime.log, child_of(events))
            step = next(e for e in events if e.type == "workflow.step_started")
            assert below[0].trace.trace_id == events[0].trace.trace_id
            assert below[0].trace.parent_span_id == step.trace.span_id

    @virtual
    async def test_a_graph_from_a_value_runs_when_it_is_valid(self):
        import msgspec

        desk = Desk()
        node = SubgraphNode(id="sub", graph_path="input.plan", next="__end")
        plan = msgspec.to_builtins(whole(does("look")))
        async with Runtime(services=[desk.service(), BAD], clock=LoopClock()) as runtime:
            assert (await runtime.run(whole(node), {"plan": plan})).state == "completed"
            for bad in (
                None,
                {"name": "x"},
                {"name": "x", "nodes": []},
                {**plan, "nodes": plan["nodes"] * 90},
            ):
                result = await runtime.run(whole(node), {"plan": bad}, raise_on_failure=False)
                events = await log_of(runtime.log, result.workflow_id)
                error = next(e.data.error for e in events if e.type == "workflow.step_failed")
                assert error.code == "dynamic_graph_invalid"
                assert error.details["diagnostics"]


ASKING = whole(does("pay", approval=Approval(before="step")))


class TestRequests:
    @virtual
    @pytest.mark.parametrize("of_parent", [True, False], ids=["parent", "child"])
    async def test_what_a_child_asks_is_answered_through_either_id(self, of_parent):
        desk = Desk()
        async with Runtime(services=[desk.service(), BAD], clock=LoopClock()) as runtime:
            handle = await runtime.submit(parent(ASKING), {})
            assert (await settled(runtime, handle.workflow_id)).state == "waiting"
            child = child_of(await log_of(runtime.log, handle.workflow_id))
            assert runtime._registry.launches == {}
            (asked,) = await runtime.requests(handle.workflow_id)
            (below,) = await runtime.requests(child)
            assert asked.request_id == below.request_id
            assert asked.digest == below.digest
            to = handle.workflow_id if of_parent else child
            await runtime.decide(to, granted=True, request_id=asked.request_id, by="ada")
            assert (await settled(runtime, handle.workflow_id)).state == "completed"
            assert (await runtime.record(child)).state == "completed"
            for run in (handle.workflow_id, child):
                assert (await types_of(runtime, run)).count("approval.granted") == 1
                await must_be_sound(runtime.log, run)
            assert set(desk.executions.values()) == {1}

    @virtual
    async def test_a_child_that_waits_for_a_timer_wakes_its_parent_when_it_ends(self):
        inner = whole(WaitNode(id="rest", duration=3600.0, next="__end"))
        desk = Desk()
        async with Runtime(services=[desk.service(), BAD], clock=LoopClock()) as runtime:
            handle = await runtime.submit(parent(inner), {})
            record = await settled(runtime, handle.workflow_id)
            assert record.state == "waiting"
            assert runtime._registry.launches == {}
            await asyncio.sleep(3601)
            assert (await settled(runtime, handle.workflow_id)).state == "completed"

    @virtual
    async def test_children_take_no_slot_beside_that_of_their_parent(self):
        desk = Desk()
        async with Runtime(
            services=[desk.service(), BAD], clock=LoopClock(), max_concurrent_runs=1
        ) as runtime:
            handle = await runtime.submit(parent(ASKING), {})
            await settled(runtime, handle.workflow_id)
            (asked,) = await runtime.requests(handle.workflow_id)
            await runtime.decide(handle.workflow_id, granted=True, request_id=asked.request_id)
            assert (await settled(runtime, handle.workflow_id)).state == "completed"


class TestCancel:
    @virtual
    @pytest.mark.parametrize("mode", ["soft", "hard"])
    async def test_a_cancelled_run_ends_after_its_children(self, mode):
        desk = Desk(pay=True)
        async with Runtime(services=[desk.service(), BAD], clock=LoopClock()) as runtime:
            handle = await runtime.submit(parent(whole(does("pay"))), {})
            await run_until_idle()
            child = child_of(await log_of(runtime.log, handle.workflow_id))
            await runtime.cancel(handle.workflow_id, "enough", mode=mode, grace=1.0)
            result = await handle.rest()
            assert result.state == "cancelled"
            record = await runtime.record(child)
            assert record.state == "cancelled"
            mine = (await log_of(runtime.log, handle.workflow_id))[-1]
            theirs = (await log_of(runtime.log, child))[-1]
            assert theirs.timestamp <= mine.timestamp

    @virtual
    async def test_a_waiting_parent_cancels_its_waiting_child(self):
        desk = Desk()
        async with Runtime(services=[desk.service(), BAD], clock=LoopClock()) as runtime:
            handle = await runtime.submit(parent(ASKING), {})
            await settled(runtime, handle.workflow_id)
            child = child_of(await log_of(runtime.log, handle.workflow_id))
            await runtime.cancel(handle.workflow_id)
            assert (await settled(runtime, handle.workflow_id)).state == "cancelled"
            assert (await runtime.record(child)).state == "cancelled"
            assert not desk.executions

    @virtual
    async def test_the_child_of_a_branch_that_is_given_up_is_cancelled_and_awaited(self):
        desk = Desk(pay=True)
        graph = whole(
            ParallelNode(id="fork", branches=("sub", "bad"), next="__end"),
            SubgraphNode(id="sub", graph="inner", next="__end"),
            ToolNode(id="bad", tool="bad.fail", input={}, next="__end"),
            graphs={"inner": whole(does("pay"))},
        )
        async with Runtime(services=[desk.service(), BAD], clock=LoopClock()) as runtime:
            result = await runtime.run(graph, {}, raise_on_failure=False)
            assert result.state == "failed"
            child = child_of(await log_of(runtime.log, result.workflow_id))
            assert (await runtime.record(child)).state == "cancelled"
            await must_be_sound(runtime.log, child)

    @virtual
    async def test_a_child_that_is_cancelled_by_itself_fails_its_step(self):
        desk = Desk()
        async with Runtime(services=[desk.service(), BAD], clock=LoopClock()) as runtime:
            handle = await runtime.submit(parent(ASKING), {})
            await settled(runtime, handle.workflow_id)
            child = child_of(await log_of(runtime.log, handle.workflow_id))
            await runtime.cancel(child)
            assert (await settled(runtime, handle.workflow_id)).state == "failed"
            events = await log_of(runtime.log, handle.workflow_id)
            error = next(e.data.error for e in events if e.type == "workflow.step_failed")
            assert (error.code, error.cause.code) == ("subgraph_failed", "cancelled")


@virtual
async def test_a_limit_of_steps_of_a_subgraph_bounds_its_child_run():
    desk = Desk()
    budget = Budget(max_steps=1, on_exceeded="fail")
    two = whole(does("look", next="u"), does("look", id="u"))
    graph = whole(SubgraphNode(id="sub", inline=two, isolation="run", budget=budget, next="__end"))
    async with Runtime(services=[desk.service()], clock=LoopClock()) as runtime:
        result = await runtime.run(graph, {}, raise_on_failure=False)
        assert result.state == "failed"
        child = child_of(await log_of(runtime.log, result.workflow_id))
        assert (await runtime.record(child)).error.code == "budget_exceeded"
        assert desk.calls == 1
