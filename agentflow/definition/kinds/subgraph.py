"""`subgraph`: another graph as one node, in the same log or as a run of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec

from agentflow.definition.graph import Workflow
from agentflow.definition.node import AgentSpec, Binds, Needed, NodeBase, next_port
from agentflow.definition.pipeline_nodes import TOOLS

if TYPE_CHECKING:
    from agentflow.definition.node_report import NodeReport

SHAPE = "box"
TAKES = frozenset({"approval", "budget", "dependency"})
STRUCTURAL = frozenset(
    {"next", "on_error", "inline", "graph", "graph_path", "isolation", "exchange", "accepts"}
)


class SubgraphNode(NodeBase, frozen=True, kw_only=True, omit_defaults=True, tag="subgraph"):
    """Runs another graph: `inline`, one of `graphs` or registered (`graph`), or the value at `graph_path`.

    `isolation` is `run`: a linked child run with its own log (the default for `graph`); or `inline`: in the
    same log, where the ids of its nodes are `<id>/<node>` (the default for the others). `input` is a
    template; unset, the graph gets the input of the run. With `exchange` its input is the message that
    arrives, one run for each, and what the run gives out becomes messages along `edges[]`, or outputs of this
    run. `accepts` are the type tags of the messages that it takes; empty, any type.
    """

    inline: Workflow | None = None
    graph: str | None = None
    graph_path: str | None = None
    next: str | None = None
    input: Any = msgspec.UNSET
    isolation: Literal["run", "inline"] | None = None
    exchange: Literal["message", "output"] | None = None
    accepts: tuple[str, ...] = ()
    grants: AgentSpec | None = None
    """The models and functions that the agents of a graph may use which becomes known in the run."""


Spec = SubgraphNode
ports = next_port

_EMPTY = Workflow(name="", nodes=())
_OF_THE_RUN = ("inputs", "outputs", "services", "models", "options", "globals", "shared", "graphs")
_SOURCES = ("inline", "graph", "graph_path")


def is_run(spec: SubgraphNode) -> bool:
    """Return whether the graph runs as a run of its own."""
    return spec.isolation == "run" or (spec.isolation is None and spec.graph is not None)


starts_run = is_run


def brings_graph(spec: SubgraphNode) -> bool:
    """Return whether its graph becomes known in the run, in whose log it runs."""
    return not is_run(spec) and spec.inline is None


def binds(spec: SubgraphNode) -> Binds:
    """Return the graph that it names, and the models and functions for the agents of a graph that becomes
    known in the run."""
    functions: tuple[str, ...] = tuple(spec.metadata.get(TOOLS) or ())
    needed = tuple(Needed("grants", name) for name in functions)
    graph = None if spec.graph is None else Needed("graph", spec.graph)
    return Binds(agent=spec.grants, agent_field="grants", agent_is_pool=True, tools=needed, graph=graph)


def structure(spec: SubgraphNode) -> dict[str, Any]:
    """Return where the inner graph comes from, and the signature of one that is given inline."""
    from agentflow.definition.signature import signature

    found: dict[str, Any] = {"inline": None if spec.inline is None else signature(spec.inline)}
    if is_run(spec):
        found |= {"graph": spec.graph, "graph_path": spec.graph_path, "isolation": "run"}
    elif spec.graph is not None:
        found |= {"graph": spec.graph}
    if spec.exchange is not None:
        found |= {"exchange": spec.exchange, "accepts": tuple(sorted(spec.accepts))}
    return found


def inner(spec: SubgraphNode) -> Workflow | None:
    """Return the graph that runs in the same log."""
    return None if is_run(spec) else spec.inline


def check(spec: SubgraphNode, at: NodeReport) -> None:
    """Check that there is one graph, and that one which is given inline is right."""
    at.template("input", spec.input)
    given = [field for field in _SOURCES if getattr(spec, field) is not None]
    if not given:
        hint = 'give the graph as "inline", or name one as "graph"'
        at.error("E_EMPTY_FIELD", f'"{spec.id}" has no graph', "inline", hint)
    for field in given[1:]:
        at.conflict(field, f'"{spec.id}" has {given[0]}', "keep one of inline, graph and graph_path")
    if spec.graph is not None:
        at.not_blank("graph", spec.graph)
        named = at.named_graph(spec.graph)
        if named is not None and not is_run(spec):
            for field in limiting_fields(named):
                message = f'"{spec.id}" runs graph "{spec.graph}" in the log of this run, and it has {field}'
                hint = f'remove {field} from the graph, or write "isolation": "run"'
                at.error("E_CONFLICTING_FIELDS", message, "graph", hint)
    if spec.graph_path is not None:
        at.path("graph_path", spec.graph_path)
    if spec.exchange is not None and given and not is_run(spec):
        message = f'exchange of "{spec.id}" needs a run of its own'
        at.error("E_VALUE", message, "exchange", 'write "isolation": "run"')
    for i, tag in enumerate(spec.accepts):
        at.not_blank(f"accepts/{i}", tag)
    if spec.inline is not None:
        at.graph("inline", spec.inline)
        if not is_run(spec):
            _check_inline(spec.inline, at)


def _check_inline(graph: Workflow, at: NodeReport) -> None:
    for field in fields_of_the_run(graph):
        at.conflict(f"inline/{field}", "an inline graph belongs to the run", "set it on the whole graph")


def limiting_fields(graph: Workflow) -> list[str]:
    """Return what a graph of a format of its own states for a whole run; the limit of its expressions is that
    of its format."""
    options = msgspec.structs.replace(graph.options, max_expression_scope_bytes=None)
    return fields_of_the_run(msgspec.structs.replace(graph, options=options))


def fields_of_the_run(graph: Workflow) -> list[str]:
    """Return the fields that a graph states which only the graph of a whole run may."""
    return [field for field in _OF_THE_RUN if getattr(graph, field) != getattr(_EMPTY, field)]
