"""Graphs that are values of a run, such as a plan: checked like any other definition (page 003 §4)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from agentflow.definition.diagnostics import Diagnostic
from agentflow.definition.graph import Workflow

__all__ = ["MAX_NODES", "read_graph"]

MAX_NODES = 256
"""Nodes of one graph that a value gives; a larger one is refused."""


def read_graph(value: Any) -> Workflow | list[Diagnostic]:
    """Return the graph that a JSON value of format `ir/v0` describes, in normal form, or every problem of it.

    The value is read as a graph document is, so that a plan may write what a document may: expressions in
    braces, other names of kinds, durations as text.
    """
    from agentflow.definition.loader import load_value
    from agentflow.definition.normal_form import normal_form
    from agentflow.definition.report import NOWHERE, Report
    from agentflow.errors import DefinitionError

    report = Report()
    if not isinstance(value, Mapping):
        report.error("E_TYPE", "the graph must be an object", NOWHERE, "")
        return report.diagnostics()
    given = cast("Mapping[str, Any]", value)
    nodes = given.get("nodes")
    if isinstance(nodes, list) and len(cast("list[Any]", nodes)) > MAX_NODES:
        message = f"the graph has {len(cast('list[Any]', nodes))} nodes, the limit is {MAX_NODES}"
        report.error("E_VALUE", message, NOWHERE, "/nodes")
        return report.diagnostics()
    try:
        return normal_form(load_value(given, format="ir/v0").workflow)
    except DefinitionError as error:
        return list(error.diagnostics)
