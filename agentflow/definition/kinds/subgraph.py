"""`subgraph`: another graph as one node; so far one that is given inline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec

from agentflow.definition.graph import Workflow
from agentflow.definition.node import NodeBase, next_port

if TYPE_CHECKING:
    from agentflow.definition.node_report import NodeReport

SHAPE = "box"
TAKES = frozenset({"approval", "budget", "dependency"})
STRUCTURAL = frozenset({"next", "on_error", "inline"})


class SubgraphNode(NodeBase, frozen=True, kw_only=True, omit_defaults=True, tag="subgraph"):
    """Runs the graph `inline` in the same log; the ids of its nodes are `<id>/<node>`.

    `input` is a template; unset, the graph gets the input of the run. `graph` (a registered name),
    `graph_path` and `isolation: run` need child runs, and are refused so far.
    """

    inline: Workflow | None = None
    graph: str | None = None
    graph_path: str | None = None
    next: str | None = None
    input: Any = msgspec.UNSET
    isolation: Literal["run", "inline"] | None = None


Spec = SubgraphNode
ports = next_port

_EMPTY = Workflow(name="", nodes=())
_OF_THE_RUN = ("inputs", "outputs", "services", "models", "options", "globals", "shared")


def structure(spec: SubgraphNode) -> dict[str, Any]:
    """Return the signature of the inner graph."""
    from agentflow.definition.compare import signature

    return {"inline": None if spec.inline is None else signature(spec.inline)}


def inner(spec: SubgraphNode) -> Workflow | None:
    """Return the graph that is given inline."""
    return spec.inline


def check(spec: SubgraphNode, at: NodeReport) -> None:
    """Check the inner graph like any other; refuse what needs child runs."""
    at.template("input", spec.input)
    hint = 'give the graph itself as "inline"'
    for field in ("graph", "graph_path"):
        if getattr(spec, field) is not None:
            at.error("E_VALUE", f"{field} of a subgraph is not supported yet by this version", field, hint)
    if spec.isolation == "run":
        message = 'isolation "run" of a subgraph is not supported yet by this version'
        at.error("E_VALUE", message, "isolation", 'write "inline"')
    if spec.inline is not None:
        at.graph("inline", spec.inline)
        for field in _OF_THE_RUN:
            if getattr(spec.inline, field) != getattr(_EMPTY, field):
                at.conflict(
                    f"inline/{field}", "an inline graph belongs to the run", "set it on the whole graph"
                )
    elif spec.graph is None and spec.graph_path is None:
        at.error("E_EMPTY_FIELD", f'"{spec.id}" has no graph', "inline", hint)
