"""Results of graph runs, with the Python values that the types of the workflow give (page 002 §12)."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import aclosing
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from agentflow.definition.ir import decode_ir
from agentflow.errors import LogCorrupt, OffsetTrimmed
from agentflow.events.catalogue import WorkflowStarted
from agentflow.events.envelope import Event, StoredEvent, decode
from agentflow.events.rows import ENDED
from agentflow.records.graph_results import BASE_TYPES, gives_outputs, graph_result
from agentflow.records.read_model import base_of_fork
from agentflow.records.run_events import LoggedData, RunEvents, peek
from agentflow.records.runs import RunResult

if TYPE_CHECKING:
    from agentflow.events.sealing import UnsealedBatch
    from agentflow.executors.payloads import Payloads
    from agentflow.runtime.run_results import RunResults

__all__ = ["decoded", "full_result"]


async def full_result(
    result: RunResult[Any], runtime: RunResults, payloads_of: Callable[[WorkflowStarted], Payloads]
) -> RunResult[Any]:
    """Return the result of a graph run with outputs, events, requests and checkpoint, as values of the types
    that `payloads_of` gives for its first event. The result of another run, or of one that is trimmed, is
    returned as it is.
    """
    try:
        parts = await _parts(result, runtime)
    except OffsetTrimmed:
        return result
    seen = peek(parts)
    begin = seen[0].data
    if not isinstance(begin, WorkflowStarted):
        return result
    body = await runtime.log.get_definition(begin.ir_hash)
    if body is None:
        raise LogCorrupt(f"the definition {begin.ir_hash} is not in the store")
    workflow = _decoded_graph(body)
    if not gives_outputs(workflow, begin.definition):
        return result
    payloads = payloads_of(begin)
    return graph_result(
        result,
        workflow,
        RunEvents(parts),
        await _base(runtime, seen),
        seen=seen,
        decode=partial(decoded, payloads),
        unpack=payloads.unpack,
    )


async def _parts(result: RunResult[Any], runtime: RunResults) -> list[StoredEvent | UnsealedBatch]:
    """Return the log of a run. Where the store can give batches without bytes, nothing of a run that has
    ended is encoded; one that goes on encodes its log meanwhile."""
    parts = getattr(runtime.log, "parts", None)
    if parts is not None and result.state in ENDED:
        return parts(result.workflow_id)
    async with aclosing(runtime.hub.subscribe(result.workflow_id, follow=False)) as rows:
        return [row async for row in rows]


_decoded_graph = lru_cache(64)(decode_ir)
_has_base_type = re.compile(f'"type":"(?:{"|".join(map(re.escape, sorted(BASE_TYPES)))})"'.encode()).search


async def _base(runtime: RunResults, events: Sequence[LoggedData]) -> list[Event[Any]]:
    """Return those events that a fork begins with that its result is made of; none of another run."""
    if len(events) < 2 or events[1].type != "system.state_saved" or events[1].data.kind != "fork_base":
        return []
    body = await base_of_fork(runtime.log, events[1].data.ref)
    # A line of another type may hold such a text as a value; one of these types always has it.
    found = (decode(line) for line in body.split(b"\n") if _has_base_type(line))
    return [event for event in found if event.type in BASE_TYPES]


def decoded(payloads: Payloads, tag: str, value: Any) -> Any:
    """Return a payload as a value of its type; the JSON itself if it does not fit any more."""
    try:
        return payloads.decode(tag, value)
    except ValueError:
        return value
