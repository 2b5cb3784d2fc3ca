"""Reports what is wrong with a graph by JSON pointers into its canonical JSON."""

from __future__ import annotations

from typing import Any

from agentflow.definition.report import NOWHERE, Report

__all__ = ["IrReport"]


class IrReport:
    """Reports on a graph, whose place in the whole is `base` (that of an inner graph is not "").

    `failed` is True once an error was recorded through this report; it does not speak for other graphs.
    """

    def __init__(self, report: Report, base: str = "") -> None:
        self.report = report
        self.base = base
        self.failed = False

    def error(self, code: str, message: str, path: str, hint: Any = None) -> None:
        """Record an error at a pointer within the graph."""
        self.failed = True
        self.report.error(code, message, NOWHERE, self.base + path, hint)

    def warning(self, code: str, message: str, path: str, hint: Any = None) -> None:
        """Record a warning at a pointer within the graph."""
        self.report.warning(code, message, NOWHERE, self.base + path, hint)
