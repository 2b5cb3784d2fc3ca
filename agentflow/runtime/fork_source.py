"""The log of a run up to where a fork goes on: read once, decoded once, and folded only if the fork asks for
the state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

import msgspec

from agentflow.aside import compute_aside, free_in_slices
from agentflow.engine import BaseEvent, Bindings, Graph, IllegalEvent, RunState, evolve
from agentflow.engine.ids import named
from agentflow.errors import LogCorrupt
from agentflow.events.catalogue import ApprovalRequested, InputRequested, SystemStateSaved, WorkflowStarted
from agentflow.events.decoding import decode_page
from agentflow.events.envelope import decode, encode
from agentflow.events.fork_base import lines_of
from agentflow.events.log import EventLog
from agentflow.records.read_model import base_of_fork
from agentflow.runtime.log_replay import LONG_BASE, PAGE_EVENTS, base_event, decode_base

__all__ = ["ForkSource"]

P = ParamSpec("P")
T = TypeVar("T")

_LARGE_BYTES = 256 * 1024


class ForkSource:
    """The events of a run up to an offset, with the base of one that is a fork itself."""

    def __init__(self, workflow_id: str, offset: int) -> None:
        self.workflow_id = workflow_id
        self.offset = offset
        self.bodies: list[bytes] = []
        """The JSON of `events`."""
        self.events: list[BaseEvent] = []
        """What a fork may keep: the base that this run began with, then its own events."""
        self.state: RunState | None = None
        """The state at the offset, once it is folded."""
        self._own: list[BaseEvent] = []
        self._base: list[BaseEvent] = []
        self._bytes = 0

    @classmethod
    async def read(cls, log: EventLog, workflow_id: str, upto: int) -> ForkSource:
        """Read a run up to offset `upto` (inclusive).

        Raises RunNotFound, RunGone, OffsetTrimmed or LogCorrupt.
        """
        source = cls(workflow_id, upto)
        position = 0
        while position <= upto:
            rows = await log.read(workflow_id, position, min(PAGE_EVENTS, upto + 1 - position))
            if not rows:
                break
            for row, event in zip(rows, await decode_page(rows), strict=True):
                own = base_event(event)
                source._own.append(own)
                if isinstance(event.data, SystemStateSaved) and event.data.kind == "fork_base":
                    await source._take_base(await base_of_fork(log, event.data.ref))
                    continue
                source.events.append(own)
                source.bodies.append(row.body)
                source._bytes += row.size
            position = rows[-1].offset + 1
        if not isinstance(source._own[0].data if source._own else None, WorkflowStarted):
            raise LogCorrupt(f"the log of {workflow_id} does not begin with workflow.started")
        return source

    async def _take_base(self, base: bytes) -> None:
        self._bytes += len(base)
        lines, self._base = await self.compute(_decode_lines, base)
        # The edits of a fork apply behind its base.
        self.bodies = [*lines, *self.bodies]
        self.events = [*self._base, *self.events]

    @property
    def begin(self) -> WorkflowStarted:
        """The first event of the run."""
        return self._own[0].data

    def answer(self, answers: Mapping[str, Any]) -> None:
        """Close the open requests to which there is an answer, as if each had come behind the last event.
        `answers`: the data of the event that closed the request where it was answered, by request."""
        asked: dict[str, Any] = {}
        for event in self.events:
            if isinstance(event.data, ApprovalRequested | InputRequested):
                asked[event.data.request_id] = event.data
            else:
                asked.pop(getattr(event.data, "request_id", ""), None)
        for request_id in [r for r in asked if r in answers]:
            at = asked[request_id]
            data = msgspec.structs.replace(
                answers[request_id], step_id=at.step_id, iteration=at.iteration, activation=at.activation
            )
            last = decode(self.bodies[-1])
            closed = msgspec.structs.replace(
                last, id=named("evt_", self.workflow_id, request_id), type=data.event_type, data=data
            )
            self.bodies.append(encode(closed))
            self.events.append(self.events[-1]._replace(data=data))

    async def fold(self, plan: Graph) -> RunState:
        """Return the state at the offset. Raises LogCorrupt."""
        state = RunState(self.workflow_id, plan, Bindings())
        await self.compute(self._fold, state)
        self.state = state
        return state

    def _fold(self, state: RunState) -> None:
        for event in self._own:
            if isinstance(event.data, SystemStateSaved) and event.data.kind == "fork_base":
                state.base = self._base
            assert event.origin is not None
            try:
                evolve(state, event.data, event.origin[1], event.ts)
            except IllegalEvent as illegal:
                raise LogCorrupt(f"{self.workflow_id} at offset {event.origin[1]}: {illegal}") from None

    async def compute(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function whose time grows with this log: in a thread if it is long or large."""
        if len(self.events) > LONG_BASE or self._bytes > _LARGE_BYTES:
            return await compute_aside(function, *args, **kwargs)
        return function(*args, **kwargs)

    def free(self) -> None:
        """Let go of the events; for `compute`."""
        for items in (self.bodies, self.events, self._own, self._base):
            free_in_slices(items)


def _decode_lines(base: bytes) -> tuple[list[bytes], list[BaseEvent]]:
    return list(lines_of(base)), decode_base(base)
