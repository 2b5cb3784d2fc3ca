"""What the services of the built-in toolsets have in common."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from agentflow.definition.ir import ServiceSpec
from agentflow.tools.python import make_tool, mark_of
from agentflow.tools.service import Service
from agentflow.tools.tool import Tool, ToolContext, ToolError

__all__ = ["ToolsetService", "private_service"]


class ToolsetService(Service):
    """A service of functions of the product: a ToolError of theirs keeps its code and its outcome, where that
    of a function of a user is one of many exceptions. `closer` gives back what they hold."""

    closer: Callable[[], Awaitable[None]] | None = None
    configured: Callable[[], bool] | None = None
    """Whether what it needs is configured now; None: it needs nothing."""

    def is_available(self) -> bool:
        """Return whether it is configured: a secret may have gone since it was opened."""
        return self.configured is None or self.configured()

    async def call(self, tool: Tool, arguments: dict[str, Any], ctx: ToolContext) -> Any:
        """Call a function and return its result as JSON-able builtins. Raises ToolError."""
        try:
            return await super().call(tool, arguments, ctx)
        except ToolError as error:
            if isinstance(error.__cause__, ToolError):
                raise error.__cause__ from None
            raise

    async def aclose(self) -> None:
        """Close the connections; a later call opens them again."""
        if self.closer is not None:
            await self.closer()


def private_service(name: str, *functions: Callable[..., Any], timeout_s: float = 60.0) -> ToolsetService:
    """Return a service whose functions are offered only where they are named: an agent that may call "all"
    functions does not get them because an operator enabled a toolset for plans."""
    names = [(mark.name if (mark := mark_of(f)) else None) or f.__name__ for f in functions]
    spec = ServiceSpec(
        type="python",
        max_concurrency=8,
        timeout=timeout_s,
        functions={function: {"private": True} for function in names},
    )
    tools = [make_tool(name, f, spec) for f in functions]
    return ToolsetService(name, spec, {tool.function: tool for tool in tools})
