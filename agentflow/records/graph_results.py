"""What the result of a graph run has beside that of every run: outputs, events, checkpoint (page 002 §12)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec import UNSET

from agentflow.definition.ir import Workflow
from agentflow.definition.kinds import has_handlers
from agentflow.events import catalogue as ev
from agentflow.events.catalogue import DefinitionInfo
from agentflow.events.envelope import Event
from agentflow.records.checkpoints import last_checkpoint
from agentflow.records.outputs import FOLDED_TYPES, OutputFold
from agentflow.records.requests import RequestRecord
from agentflow.records.run_events import LoggedData
from agentflow.records.runs import RunResult

__all__ = ["BASE_TYPES", "Decode", "PendingRequest", "gives_outputs", "graph_result", "plain"]

Decode = Callable[[str, Any], Any]
"""Returns the value of a payload, by its type tag."""


class PendingRequest(RequestRecord, frozen=True, kw_only=True):
    """An open request of a graph run. `data` is what is asked, as a value of its type."""

    activation: str
    data: Any

    @property
    def response_type(self) -> str | None:
        """Tag of the type of the answer."""
        return self.request_type

    @property
    def created_at(self) -> str:
        """When it was asked."""
        return self.asked_at


def gives_outputs(workflow: Workflow, info: DefinitionInfo | None = None) -> bool:
    """Return whether nodes of a graph give out outputs while it runs: it was built in Python (its runs have a
    signature), or has executors or nested workflows that exchange messages."""
    if info is not None and info.signature is not UNSET:
        return True
    return has_handlers(workflow)


def plain(tag: str, value: Any) -> Any:
    """Return a payload as its JSON, where the types of the workflow are not known."""
    return value


def graph_result(
    result: RunResult[Any],
    workflow: Workflow,
    events: Sequence[Event[Any]],
    base: Sequence[Event[Any]] = (),
    *,
    seen: Sequence[LoggedData] | None = None,
    decode: Decode = plain,
    unpack: Callable[[Any], Any] = lambda value: value,
) -> RunResult[Any]:
    """Return a result with all that the log of a graph run says. `base` is what a fork began with; `seen` are
    the events as `peek` gives them, if they are not decoded yet."""
    rows: Sequence[LoggedData] = events if seen is None else seen
    fold = OutputFold()
    for event in base:
        fold.take(event.data, 0)
    for row in rows:
        if row.type in FOLDED_TYPES:
            fold.take(row.data, row.offset)
    given = fold.outputs()
    outputs = tuple(decode(one.type, one.value) for one in given if one.kind == "output")
    others = tuple(decode(one.type, one.value) for one in given if one.kind != "output")
    begin: ev.WorkflowStarted = rows[0].data
    asked: dict[str, Any] = {}
    if result.pending_requests:
        asked = {e.data.request_id: e.data for e in (*base, *rows) if e.type in _ASK}
    return msgspec.structs.replace(
        result,
        output=outputs[-1] if outputs else result.output,
        outputs=outputs,
        intermediate_outputs=others,
        events=tuple(events) if seen is None else events,
        undelivered=tuple(row.data for row in rows if row.type == ev.MessageUndelivered.EVENT_TYPE),
        checkpoint=last_checkpoint(result.workflow_id, rows, workflow),
        forked_from=begin.forked_from or None,
        pending_requests=tuple(_pending(r, asked, unpack) for r in result.pending_requests),
    )


_ASK = ("input.requested", "approval.requested")
BASE_TYPES = FOLDED_TYPES.union(_ASK)
"""Types of the events of `base` that `graph_result` reads; others may be left out."""


def _pending(request: RequestRecord, asked: dict[str, Any], unpack: Callable[[Any], Any]) -> RequestRecord:
    fields = {name: getattr(request, name) for name in RequestRecord.__struct_fields__}
    activation: str = getattr(asked.get(request.request_id), "activation", "")
    return PendingRequest(**fields, activation=activation, data=unpack(request.subject))
