"""Open and closed questions of a run, as people see them (page 000 §8 /requests, /inbox)."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET

from agentflow.engine.state import RunState
from agentflow.events.catalogue import ApprovalRequested
from agentflow.events.envelope import iso

__all__ = ["RequestRecord", "open_requests"]


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


def open_requests(state: RunState) -> list[RequestRecord]:
    """The open questions of a folded run, oldest first."""
    found: list[RequestRecord] = []
    for request in state.requests.values():
        data, unit = request.data, request.activation
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
        found.append(
            RequestRecord(
                request_id=request.request_id,
                workflow_id=state.workflow_id,
                step_id=unit.node.id,
                iteration=unit.iteration,
                asked_at=iso(request.ts),
                deadline=None if data.deadline is UNSET else data.deadline,
                offset=request.offset,
                **more,
            )
        )
    return found
