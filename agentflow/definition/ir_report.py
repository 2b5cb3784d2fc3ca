"""Reports what is wrong with a graph by JSON pointers into its canonical JSON."""

from __future__ import annotations

from typing import Any

from agentflow.definition.graph import Workflow
from agentflow.definition.node import Capabilities
from agentflow.definition.origin import Origin
from agentflow.definition.report import Report
from agentflow.definition.source_tree import Place

__all__ = ["IrReport"]


class IrReport:
    """Reports on a graph, whose place in the whole is `base` (that of an inner graph is not "").

    A problem of a value that the origin does not know is not told: the front end made that value itself,
    in the place of one that it has reported. `failed` is True once an error was found in this graph.
    """

    def __init__(self, report: Report, origin: Origin | None = None, base: str = "") -> None:
        self.report = report
        self.origin = origin or Origin()
        self.base = base
        self.failed = False
        self.grants: tuple[Capabilities, ...] = ()
        """What the subgraph nodes around this graph allow."""
        self.graphs: dict[str, Workflow] = {}
        """By name: the graphs that the nodes of this graph may name."""

    def error(self, code: str, message: str, path: str, hint: Any = None) -> None:
        """Record an error at a pointer within the graph."""
        self.failed = True
        found = self.origin.find(self.base + path)
        if found is not None:
            self.report.error(code, message, *found, hint)

    def warning(self, code: str, message: str, path: str, hint: Any = None) -> None:
        """Record a warning at a pointer within the graph."""
        found = self.origin.find(self.base + path)
        if found is not None:
            self.report.warning(code, message, *found, hint)

    def error_at(self, code: str, message: str, place: Place, path: str, hint: Any = None) -> None:
        """Record an error at a place and pointer of the source."""
        self.failed = True
        self.report.error(code, message, place, path, hint)
