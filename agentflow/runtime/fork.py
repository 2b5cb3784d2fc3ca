"""The command `fork`: a new run that goes on from a point of another one (page 000 §8).

It begins with the part of the old run's log that it keeps, which is stored once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from msgspec import UNSET

from agentflow.definition.diagnostics import or_which
from agentflow.engine import BaseEvent, Graph, RunState, base_of, cut_of
from agentflow.errors import CommandRefused, RunExists, RunNotFound
from agentflow.events.catalogue import ForkOrigin, SystemStateSaved
from agentflow.events.envelope import decode, micros
from agentflow.events.log import EventLog
from agentflow.records.read_model import base_of_fork
from agentflow.runtime.binding import Bound
from agentflow.runtime.log_replay import decode_base
from agentflow.runtime.recovery import RecoveryCommands
from agentflow.runtime.submission import checked_labels

if TYPE_CHECKING:
    from agentflow.runtime.run_handle import RunHandle

__all__ = ["ForkBase", "ForkCommand", "fork_base"]

_PAGE_EVENTS = 512


class ForkBase(NamedTuple):
    """The events that a fork begins with, and the event that names them."""

    events: list[BaseEvent]
    saved: SystemStateSaved


async def fork_base(
    log: EventLog, source: RunState, plan: Graph, *, offset: int, from_step: str | None, from_failure: bool
) -> ForkBase:
    """Store the base of a fork of `source` at `offset`, or before a step (or the failed steps) and all that
    follows.

    Raises CommandRefused if there is no such step or failure.
    """
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
    """Return the events up to an offset, with the base of a run that is a fork itself."""
    bodies: list[bytes] = []
    events: list[BaseEvent] = []
    position = 0
    while position <= upto and (rows := await log.read(workflow_id, position, _PAGE_EVENTS)):
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


class ForkCommand(RecoveryCommands):
    """All commands of a Runtime."""

    async def _prepare(self, workflow_id: str, bound: bool, *, trusted: bool = True) -> tuple[Graph, Bound]:
        """Return a stored run's graph, and what it was bound to when it began."""
        raise NotImplementedError

    def _run_id(self, wanted: str | None) -> str:
        """Return the id of a new run. Raises ConfigurationError if `wanted` is no id."""
        raise NotImplementedError

    async def fork(
        self,
        workflow_id: str,
        *,
        offset: int | None = None,
        from_step: str | None = None,
        from_failure: bool = False,
        as_id: str | None = None,
        labels: Mapping[str, str] | None = None,
        by: str = "local",
        trusted: bool = True,
    ) -> RunHandle:
        """Begin a new run that goes on from a point of another: from an offset of its log (by default its
        end), or before a step, or before the steps that failed, and all that comes after them.

        Recorded results are kept and not repeated; the old log stays as it is. The fork is trusted if both
        the caller and the old run are. Raises RunNotFound,
        RunExists, CommandRefused (invalid_parameter, step_not_found, not_failed), DefinitionError.
        """
        if sum((offset is not None, from_step is not None, from_failure)) > 1:
            raise CommandRefused("give one of offset, from_step and from_failure", code="invalid_parameter")
        row = await self.log.run(workflow_id)
        if offset is not None and not 0 <= offset <= row.last_offset:
            message = f"{workflow_id} has offsets 0 to {row.last_offset}"
            raise CommandRefused(message, code="invalid_parameter", details={"last_offset": row.last_offset})
        upto = row.last_offset if offset is None else offset
        begin = await self._begin(workflow_id)
        plan, bound = await self._prepare(workflow_id, True, trusted=trusted)
        source = await self.fold(workflow_id, at=upto)
        base = await fork_base(
            self.log, source, plan, offset=upto, from_step=from_step, from_failure=from_failure
        )
        origin = ForkOrigin(workflow_id=workflow_id, offset=upto, from_step=from_step or UNSET)
        kept = begin.labels if labels is None else checked_labels(labels)
        started = msgspec.structs.replace(
            begin,
            forked_from=origin,
            by=by,
            labels=dict(kept),
            options=begin.options if trusted else {**begin.options, "trusted": False},
            idempotency_key=UNSET,
            body_hash=UNSET,
        )
        run_id = self._run_id(as_id)
        async with self._registry.exclusive(run_id):
            if as_id is not None and await self._taken(run_id):
                raise RunExists(f"{run_id} exists already")
            launch = await self._registry.begin(
                run_id, plan, bound, [started, base.saved], base=base.events, labels=dict(kept)
            )
        return self._handle(run_id, launch)

    async def _taken(self, run_id: str) -> bool:
        try:
            await self.log.run(run_id)
        except RunNotFound:
            return False
        return True
