"""The laws that every log keeps (page 000 §2, §4, §6, §11), read off its events alone.

`assert_log_invariants` knows neither the workflow nor what happened to the process that wrote the log.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentflow.events.envelope import Event

__all__ = ["TERMINAL", "assert_log_invariants"]

TERMINAL = ("workflow.completed", "workflow.failed", "workflow.cancelled")
_STEP_ENDS = ("workflow.step_completed", "workflow.step_failed", "workflow.step_skipped")
_ASKED = ("approval.requested", "input.requested")
_ANSWERED = ("approval.granted", "approval.denied", "input.received", "input.cancelled")


def assert_log_invariants(
    events: Sequence[Event[Any]], base: Sequence[Event[Any]] = (), *, ended: bool = True
) -> None:
    """Raise AssertionError, with the offset, unless the log of a run keeps every law.

    `base` holds the events that a fork begins with. `ended`: the run must have come to its end.
    """
    assert [e.offset for e in events] == list(range(len(events))), "the offsets have a gap"
    assert events[0].type == "workflow.started", "the log does not begin with workflow.started"
    assert len({e.workflow_id for e in events}) == 1, "events of two runs"
    ids = [e.id for e in events]
    assert len(set(ids)) == len(ids), "an event id is used twice"
    ends = [e.offset for e in events if e.type in TERMINAL]
    assert len(ends) <= 1, f"{len(ends)} terminal events"
    assert not ends or ends[0] == len(events) - 1, "events behind the terminal one"
    assert not ended or ends, f"the run has not ended: {events[-1].type}"
    reader = _Reader()
    for event in (*base, *events):
        if event.type == "workflow.started" and event.offset == 0 and event not in events[:1]:
            continue  # that of the run which was forked
        try:
            reader.take(event)
        except AssertionError as error:
            raise AssertionError(f"offset {event.offset}, {event.type}: {error}") from None
    if ends:
        reader.assert_closed()


class _Reader:
    """Walks a log and keeps what is open."""

    def __init__(self) -> None:
        self.open: set[tuple[str, int | None]] = set()
        self.ended: set[tuple[str, int | None]] = set()
        self.answered: set[tuple[str, int | None]] = set()  # agents that are done
        self.contexts: dict[tuple[str, int | None], str] = {}
        self.calls: dict[str, tuple[str, int | None]] = {}
        self.done: set[str] = set()
        self.requests: set[str] = set()
        self.paused = False

    def take(self, event: Event[Any]) -> None:
        data, kind = event.data, event.type
        unit = (getattr(data, "activation", ""), getattr(data, "iteration", None))
        duration = getattr(data, "duration_ms", 0)
        assert duration >= 0, f"it lasted {duration} ms"
        if kind.startswith("workflow.step_"):
            self._step(kind, unit)
        elif kind.startswith("agent."):
            self._agent(kind, unit, data)
        elif kind.startswith(("model.call_", "tool.call_")):
            self._call(kind, unit, data)
        elif kind in _ASKED:
            assert data.request_id not in self.requests, "asked twice"
            self.requests.add(data.request_id)
        elif kind in _ANSWERED:
            assert data.request_id in self.requests, "answered what is not open"
            self.requests.discard(data.request_id)
        elif kind == "system.state_saved" and data.kind == "step":
            assert unit in self.answered, "a state record before agent.completed"
        elif kind == "workflow.paused":
            # Calls in flight may meet a limit of their own, which the run waits for from then on.
            assert not self.paused or data.reason in ("quota", "budget"), "paused while paused"
            self.paused = True
        elif kind == "workflow.resumed":
            assert self.paused, "resumed without a pause"
            self.paused = False

    def _step(self, kind: str, unit: tuple[str, int | None]) -> None:
        if kind == "workflow.step_started":
            assert unit not in self.open, "started twice"
            assert unit not in self.ended, "started after its end"
            self.open.add(unit)
        elif kind == "workflow.step_retrying":
            if unit in self.ended:  # a held step is tried again in place
                self.ended = {u for u in self.ended if u[0] != unit[0]}
        elif kind in _STEP_ENDS:
            assert unit not in self.ended, "ended twice"
            assert unit not in self.calls.values(), "ended with an open call"
            if kind == "workflow.step_completed":
                assert unit in self.open, "completed without a start"
                assert unit not in self.contexts or unit in self.answered, "completed before its agent"
            if unit[1] is None:
                left = [u for u in self.open if u[0] == unit[0] and u != unit]
                assert not left, f"ended before its iterations {left}"
            self.open.discard(unit)
            self.ended.add(unit)
            self.contexts.pop(unit, None)
            self.answered.discard(unit)

    def _agent(self, kind: str, unit: tuple[str, int | None], data: Any) -> None:
        assert unit in self.open, "of a step that is not open"
        if kind == "agent.initialized":
            self.contexts[unit] = data.context_id
            return
        assert unit in self.contexts, "before agent.initialized"
        if kind in ("agent.completed", "agent.failed"):
            assert unit not in self.answered, "the agent ended twice"
            assert unit not in self.calls.values(), "the agent ended with an open call"
            self.answered.add(unit)

    def _call(self, kind: str, unit: tuple[str, int | None], data: Any) -> None:
        call = getattr(data, "tool_call_id", None) or data.model_call_id
        if kind.endswith("started"):
            assert unit in self.open, "of a step that is not open"
            assert call not in self.calls, "begun twice at once"
            assert call not in self.done, "its result is recorded, and it was begun again"
            assert kind[0] != "m" or unit in self.contexts, "a model call before agent.initialized"
            self.calls[call] = unit
            return
        assert self.calls.pop(call, None) == unit, "ended without a start"
        if kind.endswith("completed"):
            self.done.add(call)

    def assert_closed(self) -> None:
        """Nothing is open at the end of a run."""
        assert not self.calls, f"calls without an end: {sorted(self.calls)}"
        assert not self.open, f"steps without an end: {sorted(map(str, self.open))}"
        assert not self.requests, f"requests without an end: {sorted(self.requests)}"
