"""Open questions of a run, as people see them (page 000 §8 /requests, /inbox)."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET

from agentflow.events.catalogue import ApprovalRequested, InputRequested
from agentflow.events.ids import iso

__all__ = ["RequestRecord", "request_record"]


class RequestRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A question that waits for a person. `kind`: `step` and `tool` are approvals, which are granted or
    denied (`digest` names what exactly); `input` wants a value that satisfies `response_schema`."""

    request_id: str
    workflow_id: str
    kind: str
    step_id: str
    iteration: int | None
    subject: Any
    asked_at: str
    deadline: str | None = None
    request_type: str | None = None
    response_schema: Any = None
    side_effect: str | None = None
    digest: str | None = None
    offset: int


def request_record(
    workflow_id: str, data: ApprovalRequested | InputRequested, offset: int, ts: int
) -> RequestRecord:
    """Return the question that an event at `offset` asks; it was written at `ts` (µs)."""
    more: dict[str, Any]
    if isinstance(data, ApprovalRequested):
        effect = None if data.side_effect is UNSET else data.side_effect
        more = {"kind": data.kind, "subject": data.subject, "side_effect": effect, "digest": data.digest}
    else:
        kind = None if data.request_type is UNSET else data.request_type
        more = {
            "kind": "input",
            "subject": data.request,
            "request_type": kind,
            "response_schema": data.response_schema,
        }
    return RequestRecord(
        request_id=data.request_id,
        workflow_id=workflow_id,
        step_id=data.step_id,  # type: ignore[arg-type]
        iteration=data.iteration,  # type: ignore[arg-type]
        asked_at=iso(ts),
        deadline=None if data.deadline is UNSET else data.deadline,
        offset=offset,
        **more,
    )
