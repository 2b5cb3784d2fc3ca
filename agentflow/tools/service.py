"""A service: functions under one name, and how they are called, whatever kind it is of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agentflow.definition.diagnostics import Diagnostic
from agentflow.definition.ir import ServiceSpec, canonical_json
from agentflow.tools.invoke import invoke
from agentflow.tools.python import make_tool
from agentflow.tools.tool import PythonTool, Tool, ToolContext

__all__ = ["Service"]


class Service:
    """Functions under one name, called by one actor with at most `spec.max_concurrency` at once.

    This class itself is a service of Python functions; those of other kinds derive from it. `tools` may be
    replaced as a whole when a server changes what it offers. `refused` says of functions that exist and
    cannot be offered why not. `identity` is equal for two objects that are the same service: they share an
    actor.
    """

    needs_trust = False
    """True: it runs code of this machine, which a submission that is not trusted may not."""

    def __init__(
        self,
        name: str,
        spec: ServiceSpec,
        tools: dict[str, Tool],
        *,
        refused: dict[str, str] | None = None,
    ) -> None:
        self.name = name
        self.spec = spec
        self.tools = tools
        self.refused = refused or {}
        self.identity: tuple[Any, ...] = self._identify()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}: {', '.join(self.tools)}>"

    def _identify(self) -> tuple[Any, ...]:
        """Return what tells services apart: the functions, so that an edited module is another one."""
        calls = tuple(sorted((name, id(getattr(tool, "call", tool))) for name, tool in self.tools.items()))
        return (self.name, canonical_json(self.spec), calls)

    async def open(self) -> list[Diagnostic]:
        """Connect to the service; returns when it can be called, with `tools` as they are offered now.

        Problems are told and nothing is raised; the path of one is a pointer inside the declaration.
        """
        return []

    def is_available(self) -> bool:
        """Return whether its functions can be used now; it must not block."""
        return True

    async def call(self, tool: Tool, arguments: dict[str, Any], ctx: ToolContext) -> Any:
        """Call a function and give its result as JSON-able builtins. The caller sets the time limit.

        Raises ToolError; CancelledError only when the caller itself is cancelled.
        """
        assert isinstance(tool, PythonTool)
        return await invoke(tool, arguments, ctx)

    async def aclose(self) -> None:
        """Give back connections and processes; idempotent. A later call opens them again."""

    @staticmethod
    def of(name: str, *functions: Callable[..., Any], max_concurrency: int = 8) -> Service:
        """Return a service of Python functions, for registering with a Runtime. Raises TypeError for a
        function whose parameters cannot be described by a JSON Schema."""
        tools = [make_tool(name, f) for f in functions]
        spec = ServiceSpec(type="python", max_concurrency=max_concurrency)
        return Service(name, spec, {t.function: t for t in tools})
