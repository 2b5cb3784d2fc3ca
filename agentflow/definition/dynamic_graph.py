"""Graphs that are values of a run, such as a plan: checked like any other definition (page 003 §4)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import msgspec

from agentflow.definition.diagnostics import Diagnostic
from agentflow.definition.graph import Workflow
from agentflow.definition.kinds import kind_of
from agentflow.definition.node import Capabilities, NodeBase

__all__ = ["MAX_NODES", "fitted_graph", "read_graph"]

MAX_NODES = 256
"""Nodes of one graph that a value gives, with those of the graphs inside it; a larger one is refused before
it is checked."""


def read_graph(
    value: Any, grants: tuple[Capabilities, ...] = (), *, in_run: bool = False
) -> Workflow | list[Diagnostic]:
    """Return the graph that a JSON value of format `ir/v0` describes, in normal form, or every problem of it.

    `grants` are the capabilities of the nodes that it runs in: it may call no more than they do. `in_run`: it
    runs in the log of another graph, and may not state what belongs to the whole run.

    The value is read as a graph document is, so that a plan may write what a document may: expressions in
    braces, other names of kinds, durations as text.
    """
    from agentflow.definition.expressions import json_type_of
    from agentflow.definition.loader import load_value
    from agentflow.definition.normal_form import normal_form
    from agentflow.definition.report import NOWHERE, Report
    from agentflow.errors import DefinitionError

    report = Report()
    if not isinstance(value, Mapping):
        hint = "read it with fromJSON(…) first" if isinstance(value, str) else None
        report.error("E_TYPE", f"the graph must be an object, not {json_type_of(value)}", NOWHERE, "", hint)
        return report.diagnostics()
    given = cast("Mapping[str, Any]", value)
    if not _is_small(given):
        message = f"the graph has more than {MAX_NODES} nodes, with those of the graphs inside it"
        report.error("E_VALUE", message, NOWHERE, "/nodes")
        return report.diagnostics()
    try:
        graph = normal_form(load_value(given, format="ir/v0").workflow)
    except DefinitionError as error:
        return list(error.diagnostics)
    return fitted_graph(graph, grants, in_run=in_run)


def _is_small(value: Mapping[str, Any]) -> bool:
    """Return whether a graph and the graphs inside it have no more than MAX_NODES nodes together."""
    count, graphs = 0, [value]
    while graphs:
        graph = graphs.pop()
        nodes, inner = graph.get("nodes"), graph.get("graphs")
        found = list(cast("dict[str, Any]", inner).values()) if isinstance(inner, dict) else []
        if isinstance(nodes, list):
            listed = cast("list[Any]", nodes)
            count += len(listed)
            found += [cast("dict[str, Any]", n).get("inline") for n in listed if isinstance(n, dict)]
        if count > MAX_NODES:
            return False
        graphs += [cast("dict[str, Any]", one) for one in found if isinstance(one, dict)]
    return True


def fitted_graph(
    graph: Workflow, grants: tuple[Capabilities, ...], *, in_run: bool = False
) -> Workflow | list[Diagnostic]:
    """Return a graph that was checked as one that nodes with these grants may run, or every problem of it."""
    from agentflow.definition.ir_checks import check_graph
    from agentflow.definition.ir_report import IrReport
    from agentflow.definition.kinds.subgraph import limiting_fields
    from agentflow.definition.report import NOWHERE, Report

    report = Report()
    for field in limiting_fields(graph) if in_run else ():
        message = f"{field} belongs to the run, in whose log the graph runs"
        hint = 'remove it, or set "isolation": "run" on the subgraph'
        report.error("E_CONFLICTING_FIELDS", message, NOWHERE, f"/{field}", hint)
    if grants:  # a child run has values of its own; functions and models are those of its caller
        checked = IrReport(report)
        checked.grants = grants if in_run else tuple(_of_calls(one) for one in grants)
        check_graph(graph, checked, is_own=True)
        graph = _granted(graph, grants)
    return report.diagnostics() if report.has_errors else graph


def _of_calls(grant: Capabilities) -> Capabilities:
    return Capabilities(tools=grant.tools, models=grant.models)


def _granted(graph: Workflow, grants: tuple[Capabilities, ...]) -> Workflow:
    """Return a graph whose nodes have the grants of those around it, for what they call is known only at run
    time of handlers and inner graphs. The innermost grant counts, because it is a part of the others."""
    calls = {
        field: next((named for one in grants if (named := getattr(one, field)) is not None), None)
        for field in ("tools", "models")
    }

    def bounded(node: NodeBase) -> NodeBase:
        own = node.capabilities or Capabilities()
        kept = {
            field: named if getattr(own, field) is None else getattr(own, field)
            for field, named in calls.items()
        }
        return msgspec.structs.replace(node, capabilities=msgspec.structs.replace(own, **kept))

    nodes = tuple(node if kind_of(node).is_border else bounded(node) for node in graph.nodes)
    return msgspec.structs.replace(graph, nodes=nodes)
