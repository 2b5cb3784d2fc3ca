"""The acceptance facts of the document that page 003 answers, with the Runtime."""

from __future__ import annotations

from typing import Any

import pytest

from agentflow import Runtime, Service, function
from agentflow.definition import load_value
from agentflow.events.envelope import Event
from agentflow.records.trace import WorkflowTrace, trace_of
from agentflow.records.trace_check import replay_trace
from agentflow.testing import ScriptedModel

QUICK = {"retry": {"max_attempts": 3, "backoff": {"initial": "1ms"}, "jitter": 0}}


class World:
    """Functions that fail so many times first, by name, and a model."""

    def __init__(self, **failures: int) -> None:
        self.failures = failures
        self.calls: list[str] = []

    def answer(self, name: str, value: Any) -> Any:
        self.calls.append(name)
        if self.failures.get(name, 0) > 0:
            self.failures[name] -= 1
            raise RuntimeError("not yet")
        return value

    def service(self) -> Service:
        @function(side_effect="read")
        async def look(n: int = 0) -> int:
            """Look."""
            return self.answer("look", n * 10)

        @function(side_effect="external", idempotent=True)
        async def book() -> str:
            """Book."""
            return self.answer("book", "booked")

        @function(side_effect="external", idempotent=True)
        async def undo() -> str:
            """Undo."""
            return self.answer("undo", "undone")

        return Service.of("s", look, book, undo)

    def runtime(self) -> Runtime:
        return Runtime(models=[ScriptedModel(lambda request: "Hello")], services=[self.service()])


def document(*nodes: dict[str, Any], **more: Any) -> Any:
    first = {"id": "start", "type": "start", "next": nodes[0]["id"]}
    last = [] if any(node["type"] == "end" for node in nodes) else [{"id": "end", "type": "end"}]
    return load_value({"name": "w", "nodes": [first, *nodes, *last], **more})


def look(id: str, next: str | None = None, **more: Any) -> dict[str, Any]:
    node = {"id": id, "type": "tool", "tool": "s.look", "input": {"n": 1}, **more}
    return node if next is None else {**node, "next": next}


async def played(
    definition: Any, input: Any = None, *, world: World | None = None, answers: Any = None
) -> tuple[Any, list[Event[Any]]]:
    """Run a definition to its end; `answers` is called with the runtime whenever the run rests."""
    async with (world or World()).runtime() as runtime:
        handle = await runtime.submit(definition, {} if input is None else input, workflow_id="wf_1")
        for _ in range(100):
            result = await handle.rest()
            if result.state != "waiting":
                break
            if answers is not None:
                await answers(runtime)
        return result, [event async for event in runtime.events("wf_1", follow=False)]


def executions(events: list[Event[Any]]) -> list[str]:
    return [
        e.data.step_id for e in events if e.type == "workflow.step_completed" and e.data.iteration is None
    ]


def out(events: list[Event[Any]], step: str) -> Any:
    return [e.data.output for e in events if e.type == "workflow.step_completed" and e.data.step_id == step][
        -1
    ]


def trace(events: list[Event[Any]]) -> WorkflowTrace:
    return trace_of(events, "logical")


CHAIN = (
    {"id": "ask", "type": "llm", "model": "scripted:m", "prompt": "Greet {{ input.name }}", "next": "look"},
    look("look", "end"),
)


async def test_a_linear_chain_has_4_executions_and_a_trace_of_9_events():
    result, events = await played(document(*CHAIN), {"name": "Ann"})
    assert result.output == 10
    assert executions(events) == ["start", "ask", "look", "end"]
    found = trace(events)
    assert len(found.events) == 9
    assert [e.seq for e in found.events] == list(range(9))
    kinds = [e.event for e in found.events]
    assert kinds == ["node_enter", "node_exit"] * 4 + ["terminal"]
    report = replay_trace(found, document(*CHAIN).workflow)
    assert (report.total_events, report.terminal_status) == (9, "completed")


@pytest.mark.parametrize(("failures", "state"), [(0, "completed"), (2, "completed"), (3, "failed")])
async def test_retries_are_counted_and_visible(failures: int, state: str):
    world = World(look=failures)
    async with world.runtime() as runtime:
        handle = await runtime.submit(document(look("look", "end", policy=QUICK)), {}, workflow_id="wf_1")
        assert (await handle.rest()).state == state
        timeline = await runtime.timeline("wf_1")
    retries = min(failures, 2)
    assert len(world.calls) == retries + 1
    assert sum(entry.event == "node_retrying" for entry in timeline.items) == retries
    assert sum(summary.retries for summary in timeline.retries) == retries


async def test_parallel_branches_are_merged_in_the_order_of_the_sources():
    nodes = (
        {"id": "split", "type": "parallel", "branches": ["a", "b"], "next": "join"},
        look("a", "join", input={"n": 1}),
        look("b", "join", input={"n": 2}),
        {"id": "join", "type": "merge", "sources": ["b", "a"], "policy": "all", "next": "end"},
    )
    result, events = await played(document(*nodes))
    assert result.output == [20, 10]
    assert sorted(executions(events)) == ["a", "b", "end", "join", "split", "start"]


async def test_items_are_mapped_and_reduced():
    nodes = (
        {
            "id": "each",
            "type": "map",
            "items_path": "input.n",
            "tool": "s.look",
            "input": {"n": "{{ item }}"},
            "next": "sum",
        },
        {"id": "sum", "type": "reduce", "source": "each", "operation": "sum", "next": "count"},
        {"id": "count", "type": "reduce", "source": "each", "operation": "count", "next": "end"},
    )
    result, events = await played(document(*nodes), {"n": [1, 2, 3]})
    assert (out(events, "each"), out(events, "sum"), result.output) == ([10, 20, 30], 60, 3)


@pytest.mark.parametrize(("kind", "flag"), [("debounce", "suppressed"), ("throttle", "throttled")])
async def test_a_gate_in_a_loop_passes_the_first_and_not_the_rest(kind: str, flag: str):
    nodes = (
        {
            "id": "again",
            "type": "loop",
            "condition": "nodes.again.count < 3",
            "body": "gate",
            "next": "end",
            "max_iterations": 5,
        },
        {
            "id": "gate",
            "type": kind,
            "key_path": "input.k",
            "window_steps": 50,
            "next": "again",
            f"on_{flag}": "again",
        },
    )
    _, events = await played(document(*nodes), {"k": "a"})
    gates = [
        e.data.output for e in events if e.type == "workflow.step_completed" and e.data.step_id == "gate"
    ]
    assert [one[flag] for one in gates] == [False, True, True]


@pytest.mark.parametrize(("failures", "status"), [(0, "ok"), (1, "ok"), (2, "compensated")])
async def test_what_fails_is_compensated(failures: int, status: str):
    node = {
        "id": "pay",
        "type": "retry_compensate",
        "tool": "s.book",
        "input": {},
        "max_retries": 1,
        "compensate_tool": "s.undo",
        "compensate_input": {},
        "next": "end",
        "policy": {"retry": {"backoff": {"initial": "1ms"}, "jitter": 0}},
    }
    world = World(book=failures)
    result, events = await played(document(node), world=world)
    assert (result.output["status"], out(events, "pay")) == (status, result.output)
    assert world.calls == ["book"] * (min(failures, 1) + 1) + (["undo"] if status == "compensated" else [])


ROUTED = (
    {"id": "event", "type": "event_trigger", "event": "order", "next": "known"},
    {"id": "known", "type": "cache_read", "key": "k", "next": "route", "on_miss": "keep"},
    {
        "id": "keep",
        "type": "cache_write",
        "key": "k",
        "value_path": "nodes.event.output.data",
        "next": "known",
    },
    {
        "id": "route",
        "type": "router",
        "default": "done",
        "routes": [{"when": "nodes.known.output.value.total > 100", "next": "person"}],
    },
    {"id": "person", "type": "human_in_the_loop", "on_approve": "done", "on_reject": "done"},
    {
        "id": "done",
        "type": "transform",
        "next": "end",
        "value": {
            "total": "{{ nodes.known.output.value.total }}",
            "approved": "{{ nodes.person.output.approved }}",
        },
    },
)


async def test_an_event_goes_by_cache_router_and_person_to_a_transform():
    async def answer(runtime: Runtime) -> None:
        (row,) = await runtime.rows()
        events = [event async for event in runtime.events(row.workflow_id, follow=False)]
        if any(event.type == "approval.requested" for event in events):
            await runtime.decide("wf_1", granted=True, step_id="person")
        else:
            await runtime.signal("wf_1", "order", {"total": 120}, signal_id="sig_1")

    result, events = await played(document(*ROUTED), answers=answer)
    assert result.output == {"total": 120, "approved": True}
    way = ["start", "event", "known", "keep", "known", "route", "person", "done", "end"]
    assert executions(events) == way
    assert replay_trace(trace(events)).terminal_status == "completed"
