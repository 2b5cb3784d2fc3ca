"""List of registered functions for the API and the command line."""

from __future__ import annotations

from agentflow.records.answers import ToolView
from agentflow.tools.registry import ToolRegistry

__all__ = ["listed_tools"]


def listed_tools(registry: ToolRegistry) -> list[ToolView]:
    """Return the functions by service and name."""
    found = [
        ToolView(
            name=tool.name,
            service=tool.service,
            description=tool.description,
            side_effect=tool.side_effect,
            idempotent=tool.idempotent,
            timeout=tool.timeout,
            input_schema=tool.input_schema,
        )
        for service in registry.services.values()
        for tool in service.tools.values()
    ]
    return sorted(found, key=lambda tool: (tool.service, tool.name))
