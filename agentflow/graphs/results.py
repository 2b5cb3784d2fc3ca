"""Results of graph runs with their Python values: outputs, requests, the whole log (page 002 §12, §16)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from agentflow.engine.run_end import outputs_of
from agentflow.errors import OffsetTrimmed
from agentflow.events import catalogue as ev
from agentflow.events.envelope import Event
from agentflow.records.checkpoints import checkpoints_of
from agentflow.records.requests import RequestRecord
from agentflow.records.runs import RunResult, raise_for_failure
from agentflow.runtime import RunHandle, Runtime

if TYPE_CHECKING:
    from agentflow.executors.payloads import Payloads

__all__ = ["PendingRequest", "decoded", "full_result", "result_of_handle"]


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


async def result_of_handle(
    handle: RunHandle[Any], runtime: Runtime, payloads: Payloads, *, raise_on_failure: bool
) -> RunResult[Any]:
    """Wait until a run rests and return its result with all that a graph run has.

    Raises WorkflowFailed or WorkflowCancelled, with that result, unless `raise_on_failure` is false.
    """
    result = await full_result(await handle.rest(), runtime, payloads)
    if raise_on_failure:
        raise_for_failure(result)
    return result


async def full_result(result: RunResult[Any], runtime: Runtime, payloads: Payloads) -> RunResult[Any]:
    """Return a result with outputs, events, requests and checkpoint, values decoded.

    Of a trimmed run, whose events are gone, the result is returned as it is.
    """
    try:
        events: list[Event[Any]] = []
        state = await runtime.fold(result.workflow_id, events=events)
    except OffsetTrimmed:
        return result
    given = outputs_of(state)
    outputs = tuple(decoded(payloads, o.type, o.value) for o in given if o.kind == "output")
    others = tuple(decoded(payloads, o.type, o.value) for o in given if o.kind != "output")
    points = checkpoints_of(events, state.graph.workflow)
    begin = events[0].data
    return msgspec.structs.replace(
        result,
        output=outputs[-1] if outputs else result.output,
        outputs=outputs,
        intermediate_outputs=others,
        events=tuple(events),
        undelivered=tuple(e.data for e in events if isinstance(e.data, ev.MessageUndelivered)),
        checkpoint=points[-1].id if points else None,
        forked_from=begin.forked_from or None,
        pending_requests=tuple(_pending(r, events, payloads) for r in result.pending_requests),
    )


def _pending(request: RequestRecord, events: list[Event[Any]], payloads: Payloads) -> RequestRecord:
    asked = next((e.data for e in events if getattr(e.data, "request_id", None) == request.request_id), None)
    fields = {name: getattr(request, name) for name in RequestRecord.__struct_fields__}
    return PendingRequest(
        **fields,
        activation=getattr(asked, "activation", ""),
        data=payloads.unpack(request.subject),
    )


def decoded(payloads: Payloads, tag: str, value: Any) -> Any:
    """Return a payload as a value of its type; the JSON itself if it does not fit any more."""
    try:
        return payloads.decode(tag, value)
    except ValueError:
        return value
