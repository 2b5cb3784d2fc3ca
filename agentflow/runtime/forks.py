"""What a fork begins with: the part of the old run's log that it keeps, stored once (page 000 §8)."""

from __future__ import annotations

import hashlib
from typing import NamedTuple

from agentflow.definition.diagnostics import or_which
from agentflow.engine import BaseEvent, Graph, RunState, base_of, cut_of
from agentflow.errors import CommandRefused
from agentflow.events.catalogue import SystemStateSaved
from agentflow.events.envelope import decode, micros
from agentflow.events.log import EventLog
from agentflow.records.read_model import base_of_fork
from agentflow.runtime.log_replay import decode_base

__all__ = ["ForkBase", "fork_base"]

_PAGE = 512


class ForkBase(NamedTuple):
    """The events that a fork begins with, and the event that names them."""

    events: list[BaseEvent]
    saved: SystemStateSaved


async def fork_base(
    log: EventLog, source: RunState, plan: Graph, *, offset: int, from_step: str | None, from_failure: bool
) -> ForkBase:
    """The base of a fork of `source` at `offset`, or before a step (or the steps that failed) and all that
    comes after. Stores it. CommandRefused: there is no such offset, step or failure."""
    steps = [from_step] if from_step is not None else list(source.failed_steps) if from_failure else []
    if from_failure and not steps:
        raise CommandRefused(f"no step of {source.workflow_id} has failed", code="not_failed")
    try:
        cut = cut_of(plan, steps)
    except KeyError:
        which = or_which(from_step or "", plan.step_ids)
        raise CommandRefused(f'there is no step "{from_step}"{which}', code="step_not_found") from None
    bodies, events = await _read(log, source.workflow_id, offset)
    kept = base_of(events, cut)
    blob = b"\n".join(bodies[i] for i in kept)
    ref = await log.put_blob(blob)
    saved = SystemStateSaved(
        kind="fork_base",
        covers=offset,
        ref=ref,
        schema_version=1,
        size=len(blob),
        sha256=hashlib.sha256(blob).hexdigest(),
    )
    return ForkBase([events[i] for i in kept], saved)


async def _read(log: EventLog, workflow_id: str, upto: int) -> tuple[list[bytes], list[BaseEvent]]:
    """The events up to an offset. Those of a fork include what it began with itself."""
    bodies: list[bytes] = []
    events: list[BaseEvent] = []
    position = 0
    while position <= upto and (rows := await log.read(workflow_id, position, _PAGE)):
        for row in rows:
            if row.offset > upto:
                break
            event = decode(row.body)
            if isinstance(event.data, SystemStateSaved) and event.data.kind == "fork_base":
                inner = await base_of_fork(log, event.data.ref)
                bodies += [line for line in inner.split(b"\n") if line]
                events += decode_base(inner)
                continue
            bodies.append(row.body)
            events.append(BaseEvent(event.data, micros(event.timestamp)))
        position = rows[-1].offset + 1
    return bodies, events
