"""Checkpoints: the positions of a run's log at which it can be forked well (page 002 §9).

A checkpoint is an offset; nothing is written to make one. Pure: events in, checkpoints out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import msgspec

from agentflow.definition.ir import Workflow
from agentflow.definition.signature import signature
from agentflow.events.catalogue import TERMINAL_TYPES, SuperstepCompleted, WorkflowStarted
from agentflow.events.envelope import Event
from agentflow.records.run_events import LoggedData

__all__ = ["Cause", "Checkpoint", "checkpoint_id", "checkpoints_of", "last_checkpoint", "parse_checkpoint"]

Cause = Literal["start", "superstep", "step", "input", "terminal"]

_CAUSES: dict[str, Cause] = {
    "workflow.started": "start",
    "input.received": "input",
    **dict.fromkeys(TERMINAL_TYPES, "terminal"),
}


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A position of a run. `superstep` is the last one that was completed, None under policy eager."""

    id: str
    workflow_id: str
    offset: int
    superstep: int | None
    signature: str
    definition_hash: str
    at: str
    cause: Cause


def checkpoint_id(workflow_id: str, offset: int) -> str:
    """Return the id of a position: `<workflow_id>@<offset>`."""
    return f"{workflow_id}@{offset}"


def parse_checkpoint(id: str) -> tuple[str, int] | None:
    """Return run and offset of a checkpoint id; None if it is none."""
    workflow_id, at, offset = id.rpartition("@")
    if not at or not workflow_id or not offset.isascii() or not offset.isdigit():
        return None
    return workflow_id, int(offset)


def checkpoints_of(events: Iterable[Event[Any]], workflow: Workflow) -> list[Checkpoint]:
    """Return the checkpoints among the events of a run, in the order of its log.

    Under `superstep` they are the start, each `superstep.completed`, each answer and the end; under `eager`
    each `workflow.step_completed` in place of the barriers.
    """
    steps = workflow.options.policy == "superstep"
    sign = signature(workflow)
    found: list[Checkpoint] = []
    superstep: int | None = 0 if steps else None
    digest = ""
    for event in events:
        if isinstance(event.data, WorkflowStarted):
            digest = event.data.definition.hash
        if isinstance(event.data, SuperstepCompleted):
            superstep = event.data.superstep
        cause = _cause(event, steps)
        if cause is None:
            continue
        checkpoint = Checkpoint(
            id=checkpoint_id(event.workflow_id, event.offset),
            workflow_id=event.workflow_id,
            offset=event.offset,
            superstep=superstep,
            signature=sign,
            definition_hash=digest,
            at=event.timestamp,
            cause=cause,
        )
        if found and cause == "start":  # a fork begins behind what it was forked from
            found[-1] = checkpoint
        else:
            found.append(checkpoint)
    return found


def last_checkpoint(workflow_id: str, events: Sequence[LoggedData], workflow: Workflow) -> str | None:
    """Return the id of the last checkpoint among the events of a run."""
    steps = workflow.options.policy == "superstep"
    for event in reversed(events):
        if _cause(event, steps) is not None:
            return checkpoint_id(workflow_id, event.offset)
    return None


def _cause(event: LoggedData, steps: bool) -> Cause | None:
    if event.type in _CAUSES:
        return _CAUSES[event.type]
    if event.type == "system.state_saved" and event.data.kind == "fork_base":
        return "start"
    if event.type == ("superstep.completed" if steps else "workflow.step_completed"):
        return "superstep" if steps else "step"
    return None
