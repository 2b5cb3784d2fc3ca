"""Results of graph runs with their Python values: outputs, requests, the whole log (page 002 §12, §16)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentflow.records.graph_results import PendingRequest
from agentflow.records.runs import RunResult, raise_for_failure
from agentflow.runtime import RunHandle, Runtime
from agentflow.runtime.graph_results import decoded, full_result

if TYPE_CHECKING:
    from agentflow.executors.payloads import Payloads

__all__ = ["PendingRequest", "decoded", "result_of_handle"]


async def result_of_handle(
    handle: RunHandle[Any], runtime: Runtime, payloads: Payloads, *, raise_on_failure: bool
) -> RunResult[Any]:
    """Wait until a run rests and return its result with all that a graph run has.

    Raises WorkflowFailed or WorkflowCancelled, with that result, unless `raise_on_failure` is false.
    """
    result = await full_result(await handle.rest(), runtime, lambda _: payloads)
    if raise_on_failure:
        raise_for_failure(result)
    return result
