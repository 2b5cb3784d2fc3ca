"""Questions of a run that are closed: what was asked, who decided, and what (page 000 §8 /requests)."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET

from agentflow.events import catalogue as ev
from agentflow.events.envelope import Event
from agentflow.events.ids import micros
from agentflow.records.requests import RequestRecord, request_record

__all__ = ["ClosedRequest", "ClosedRequestFold", "Outcome"]

Outcome = Literal["granted", "denied", "answered", "withdrawn"]


class ClosedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A question and how it was closed. `by` is the caller, `claimed_actor` for whom it said that it acts;
    `via` is how the decision came. `response` is the answer, or what was said beside a decision."""

    request: RequestRecord
    outcome: Outcome
    closed_at: str
    offset: int
    by: str | None = None
    claimed_actor: str | None = None
    via: str | None = None
    reason: str | None = None
    response: Any = None


class ClosedRequestFold:
    """Makes the closed questions of a run from its events, in the order in which they were closed."""

    def __init__(self) -> None:
        self.closed: list[ClosedRequest] = []
        self._open: dict[str, RequestRecord] = {}

    def take(self, event: Event[Any]) -> None:
        """Take the next event."""
        data: ev.RunEvent = event.data
        match data:
            case ev.ApprovalRequested() | ev.InputRequested():
                ts = micros(event.timestamp)
                asked = request_record(event.workflow_id, data, event.offset, ts)
                self._open[data.request_id] = asked
            case ev.ApprovalGranted() | ev.ApprovalDenied():
                outcome = "granted" if isinstance(data, ev.ApprovalGranted) else "denied"
                self._close(event, data.request_id, outcome, reason=data.reason, response=data.response)
            case ev.InputReceived():
                self._close(event, data.request_id, "answered", response=data.value)
            case ev.InputCancelled():
                self._close(event, data.request_id, "withdrawn", reason=data.reason)
            case _:
                pass

    def _close(self, event: Event[Any], request_id: str, outcome: Outcome, **more: Any) -> None:
        asked = self._open.pop(request_id, None)
        if asked is None:
            return
        data = event.data
        said = {name: getattr(data, name, UNSET) for name in ("by", "claimed_actor", "via")}
        given = {name: value for name, value in (said | more).items() if value is not UNSET}
        self.closed.append(
            ClosedRequest(
                request=asked, outcome=outcome, closed_at=event.timestamp, offset=event.offset, **given
            )
        )
