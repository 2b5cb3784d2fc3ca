"""Results of graph runs, with the Python values that the types of the workflow give (page 002 §12)."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from agentflow.definition.ir import decode_ir
from agentflow.errors import LogCorrupt, OffsetTrimmed
from agentflow.events.catalogue import WorkflowStarted
from agentflow.events.envelope import Event, decode
from agentflow.records.graph_results import gives_outputs, graph_result
from agentflow.records.read_model import base_of_fork
from agentflow.records.runs import RunResult

if TYPE_CHECKING:
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
        rows = [row async for row in runtime.events(result.workflow_id, follow=False)]
    except OffsetTrimmed:
        return result
    begin = rows[0].data
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
        rows,
        await _base(runtime, rows),
        decode=partial(decoded, payloads),
        unpack=payloads.unpack,
    )


_decoded_graph = lru_cache(64)(decode_ir)


async def _base(runtime: RunResults, events: list[Event[Any]]) -> list[Event[Any]]:
    """Return the events that a fork begins with; none of another run."""
    if len(events) < 2 or events[1].type != "system.state_saved" or events[1].data.kind != "fork_base":
        return []
    body = await base_of_fork(runtime.log, events[1].data.ref)
    return [decode(line) for line in body.split(b"\n") if line]


def decoded(payloads: Payloads, tag: str, value: Any) -> Any:
    """Return a payload as a value of its type; the JSON itself if it does not fit any more."""
    try:
        return payloads.decode(tag, value)
    except ValueError:
        return value
