"""Which services there are, and which functions a reference means (page 001 §3 phase B, §5.6)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from agentflow.definition.diagnostics import Diagnostic, did_you_mean
from agentflow.definition.ir import FunctionRef
from agentflow.tools.service import Service
from agentflow.tools.tool import Tool
from agentflow.tools.workers import WorkerTool, worker_tools

__all__ = ["ToolRegistry"]


class ToolRegistry:
    """Services by name, and worker handlers by theirs. A declared service hides a registered one of the same
    name."""

    def __init__(
        self, services: Iterable[Service] = (), workers: Mapping[str, Callable[..., Any]] | None = None
    ) -> None:
        self.services: dict[str, Service] = {s.name: s for s in services}
        self.workers: dict[str, WorkerTool] = worker_tools(workers or {})

    def copy(self) -> ToolRegistry:
        """Return a registry of the same services and workers, to add those of one document to."""
        made = ToolRegistry(self.services.values())
        made.workers.update(self.workers)
        return made

    def add_workers(self, workers: Mapping[str, Callable[..., Any]]) -> None:
        """Register worker handlers, in the place of others of their names. Raises TypeError for what cannot
        be called with `context` and `payload`; then none is registered."""
        self.workers.update(worker_tools(workers))

    def add(self, service: Service) -> None:
        """Register a service, in the place of another one of its name."""
        self.services[service.name] = service

    def all_public(self) -> list[Tool]:
        """Return every function that is not private, by service and declaration order."""
        return [t for s in self.services.values() for t in s.tools.values() if not t.private]

    def resolve(self, ref: FunctionRef) -> tuple[list[Tool], list[Diagnostic]]:
        """Return the functions that a reference means, and what is wrong with it.

        `service` may be empty: then the function name must be that of exactly one function.
        """
        if not ref.service:
            return self._by_name(ref.function)
        service = self.services.get(ref.service)
        if service is None:
            hint = did_you_mean(ref.service, list(self.services)) or "declare it under services"
            return [], [_error("E_UNKNOWN_SERVICE", f'no service "{ref.service}"', hint)]
        if ref.function == "*":
            return [t for t in service.tools.values() if not t.private], []
        tool = service.tools.get(ref.function)
        if tool is None:
            reason = service.refused.get(ref.function)
            if reason is not None:
                message = f'"{ref.service}" cannot offer "{ref.function}": {reason}'
                return [], [_error("E_UNKNOWN_FUNCTION", message, None)]
            known = list(service.tools)
            hint = did_you_mean(ref.function, known) or f"it has {', '.join(known)}"
            return [], [_error("E_UNKNOWN_FUNCTION", f'"{ref.service}" has no "{ref.function}"', hint)]
        return [tool], []

    def _by_name(self, name: str) -> tuple[list[Tool], list[Diagnostic]]:
        found = [s.tools[name] for s in self.services.values() if name in s.tools]
        if len(found) == 1:
            return found, []
        if found:
            where = " and ".join(t.service for t in found)
            hint = f"write {found[0].service}.{name}"
            return [], [_error("E_TOOL_UNKNOWN", f'"{name}" is in {where}', hint)]
        known = [t.function for t in self.all_public()]
        return [], [_error("E_TOOL_UNKNOWN", f'no tool "{name}"', did_you_mean(name, known))]

    @staticmethod
    def duplicates(tools: Iterable[Tool]) -> list[tuple[Tool, Diagnostic]]:
        """Return E_TOOL_DUPLICATE for functions of different identity that a model would see under one name,
        with the later one of each pair."""
        seen: dict[str, Tool] = {}
        problems: list[tuple[Tool, Diagnostic]] = []
        for tool in tools:
            other = seen.setdefault(tool.name, tool)
            if (other.service, other.function) != (tool.service, tool.function):
                one, two = f"{other.service}.{other.function}", f"{tool.service}.{tool.function}"
                message = f'{one} and {two} are both "{tool.name}"'
                problems.append((tool, _error("E_TOOL_DUPLICATE", message, "rename a service")))
        return problems


def _error(code: str, message: str, hint: str | None) -> Diagnostic:
    return Diagnostic(code=code, severity="error", message=message, hint=hint)
