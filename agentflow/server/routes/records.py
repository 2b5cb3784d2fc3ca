"""The record of a run as the API gives it: with the paths that lead on from it."""

from __future__ import annotations

import msgspec

from agentflow.records.runs import RunRecord
from agentflow.server.operations import Call

__all__ = ["links_of", "record_of"]


def links_of(call: Call, workflow_id: str) -> dict[str, str]:
    """Return the paths that lead on from a run, with that where the API is mounted."""
    # An id has no character that a path would have to escape.
    base = f"{call.request.scope.get('root_path', '')}/workflows/{workflow_id}"
    return {
        "self": base,
        "events": f"{base}/events",
        "log": f"{base}/log",
        "history": f"{base}/history",
        "state": f"{base}/state",
        "definition": f"{base}/definition",
        "graph": f"{base}/graph",
        "requests": f"{base}/requests",
    }


async def record_of(call: Call, workflow_id: str) -> RunRecord:
    """Return the run record with its links."""
    record = await call.service.runtime.record(workflow_id)
    return msgspec.structs.replace(record, links=links_of(call, workflow_id))
