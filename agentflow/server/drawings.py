"""Graphs as answers: data, drawings, and the positions of a drawing."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from starlette.responses import Response

from agentflow.aside import compute_aside
from agentflow.definition.dot import to_dot
from agentflow.definition.ir import Workflow
from agentflow.definition.layout import lay_out
from agentflow.definition.mermaid import to_mermaid
from agentflow.definition.svg import to_svg
from agentflow.server.operations import JSON, json_response

__all__ = ["DRAWINGS", "drawn"]

DRAWINGS = (JSON, "text/vnd.mermaid", "text/vnd.graphviz", "image/svg+xml")
_LARGE = 200
"""Nodes from which on a graph is laid out beside the event loop: it takes 10 ms and more."""


async def drawn(workflow: Workflow, format: str, states: Mapping[str, str] | None = None) -> Response:
    """Return a graph in one of the formats of `GraphQuery`."""
    headers = {"Cache-Control": "no-store"}
    match format:
        case "mermaid":
            return Response(to_mermaid(workflow, states), headers=headers, media_type=DRAWINGS[1])
        case "dot":
            return Response(to_dot(workflow, states), headers=headers, media_type=DRAWINGS[2])
        case "svg":
            # Shown as a page of its own it could do nothing: no script, no request.
            headers["Content-Security-Policy"] = "default-src 'none'; style-src 'unsafe-inline'; sandbox"
            work = partial(to_svg, workflow, states)
        case "layout":
            work = partial(lay_out, workflow)
        case _:
            return json_response(workflow)
    found = await compute_aside(work) if len(workflow.nodes) > _LARGE else work()
    if isinstance(found, str):
        return Response(found, headers=headers, media_type=DRAWINGS[3])
    return json_response(found)
