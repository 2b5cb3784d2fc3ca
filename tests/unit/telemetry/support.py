"""Logs to project: golden ones, and any that a test makes of event data."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from agentflow.events import catalogue as ev
from agentflow.events.envelope import StoredEvent, decode, micros
from agentflow.events.ids import Ids
from agentflow.events.log import Append, EventLog, RunMeta
from agentflow.events.sealing import seal
from agentflow.events.tracing import RunTracer
from agentflow.telemetry.span import Limits, Span

GOLDEN = [
    Path(__file__).parents[2] / "golden" / "logs" / f"{name}.ndjson"
    for name in ("condition_cycle", "failed_step", "triage")
]
LIMITS = Limits(8_192, 128, 128)


def golden(path: Path, workflow_id: str = "wf_1") -> list[StoredEvent]:
    """The log of a golden file, as a Runtime would have stored it."""
    return stored(workflow_id, _read(path))


@cache
def _read(path: Path) -> list[tuple[Any, int]]:
    events = [decode(line) for line in path.read_bytes().splitlines()]
    return [(event.data, micros(event.timestamp)) for event in events]


def stored(
    workflow_id: str, events: Iterable[tuple[Any, int]], *, first: int = 0, traced: bool = True
) -> list[StoredEvent]:
    """(data, µs) as stored events from offset `first` on, with the traces that the EventBus gives."""
    tracer = RunTracer(workflow_id) if traced else None
    ids, found = Ids(), []
    for offset, (data, ts) in enumerate(events, first):
        found += seal([data], workflow_id=workflow_id, first=offset, ts=ts, ids=ids, tracer=tracer)
    return found


async def append(log: EventLog, workflow_id: str, events: list[StoredEvent]) -> None:
    """Put a log, or what comes next in it, into a store."""
    first = events[0].offset
    meta = RunMeta(name="w", definition_hash="h", created_at=events[0].ts) if first == 0 else None
    await log.append(Append(workflow_id, 1, first, events, "running", meta))


def tree(spans: Iterable[Span]) -> dict[str | None, list[Span]]:
    """Children by the id of their parent, in the order in which they began."""
    found: dict[str | None, list[Span]] = {}
    for span in sorted(spans, key=lambda s: (s.start, s.attributes.get("agentflow.offset", 0))):
        found.setdefault(span.parent_id, []).append(span)
    return found


def outline(spans: Iterable[Span], root: str | None = None) -> list[Any]:
    """The names of the spans as nested lists: [name, [children]]."""
    below = tree(spans)

    def under(parent: str | None) -> list[Any]:
        return [[span.name, under(span.span_id)] for span in below.get(parent, [])]

    return under(root)


STARTED = ev.WorkflowStarted(
    definition=ev.DefinitionInfo(id="d", name="flow", version="2", format="ir/v0", hash="h"),
    ir_hash="i",
    source="",
    input={"secret": "s3cr3t"},
    options={},
    labels={"team": "a"},
    schema_version=1,
    runtime_version="0",
    by="test",
)


def completed(**more: Any) -> ev.WorkflowCompleted:
    from agentflow.definition.conversation import Usage

    fields = {
        "output": "s3cr3t",
        "output_size": 8,
        "duration_ms": 7,
        "steps": ev.StepCounts(succeeded=1),
        "skipped": (),
        "usage": Usage(input_tokens=3, output_tokens=2, model_calls=1),
    }
    return ev.WorkflowCompleted(**{**fields, **more})


def scope(step: str = "a", visit: int = 0, iteration: int | None = None) -> dict[str, Any]:
    return {"step_id": step, "iteration": iteration, "activation": f"/{step}#{visit}"}


def step(step_id: str = "a", visit: int = 0, iteration: int | None = None, **more: Any) -> dict[str, Any]:
    fields = {**scope(step_id, visit, iteration), "step_index": 0, "attempt": 1, "path": ""}
    return {**fields, "visit": visit, "clock": 0, **more}


def step_started(step_id: str = "a", **more: Any) -> ev.WorkflowStepStarted:
    own = {
        key: more.pop(key)
        for key in ("visit", "iteration", "attempt", "path", "superstep", "activation")
        if key in more
    }
    return ev.WorkflowStepStarted(**{**step(step_id), **own}, **{"kind": "agent", "input": "s3cr3t", **more})


def step_completed(step_id: str = "a", **more: Any) -> ev.WorkflowStepCompleted:
    own = {
        key: more.pop(key)
        for key in ("visit", "iteration", "attempt", "path", "superstep", "activation")
        if key in more
    }
    done = {"duration_ms": 5, "output": "s3cr3t", "output_size": 8, **more}
    return ev.WorkflowStepCompleted(**{**step(step_id), **own}, **done)
