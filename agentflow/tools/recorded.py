"""Services as a recorded run had them: what their functions were, and nothing to call (page 003 §9).

A replay that is served from its record opens no service and imports no module.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

import msgspec

from agentflow.definition.ir import ServiceSpec
from agentflow.tools.service import Service
from agentflow.tools.tool import Tool, ToolContext, ToolError

__all__ = ["RecordedTool", "recorded_service", "tools_from_record", "tools_to_record"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RecordedTool(Tool):
    """A function of a recorded run. `called` is its name for models."""

    called: str
    was_self_checked: bool

    def __post_init__(self) -> None:
        Tool.__post_init__(self)
        object.__setattr__(self, "name", self.called)

    @property
    def self_checked(self) -> bool:
        return self.was_self_checked


class _RecordedService(Service):
    async def call(self, tool: Tool, arguments: dict[str, Any], ctx: ToolContext) -> Any:
        """Refuse: a run that is served from its record calls nothing."""
        message = f"{tool.name} is that of a recorded run; nothing was sent"
        raise ToolError.of("system", "replay_miss", message, executed=False)

    def _identify(self) -> tuple[Any, ...]:
        return (self.name, "recorded", tuple(sorted((tool.name, id(tool)) for tool in self.tools.values())))


_FIELDS = tuple(field.name for field in fields(Tool) if field.init)


def tools_to_record(tools: Iterable[Tool]) -> bytes:
    """Return functions as JSON, by service and name, as a run keeps them."""
    ordered = sorted(tools, key=lambda tool: (tool.service, tool.function))
    found = [
        {**{name: getattr(tool, name) for name in _FIELDS}, "called": tool.name, "checked": tool.self_checked}
        for tool in ordered
    ]
    return msgspec.json.encode(found)


def tools_from_record(body: bytes) -> list[RecordedTool]:
    """Return the functions that `tools_to_record` kept; fields of later versions are left out."""
    found: list[dict[str, Any]] = msgspec.json.decode(body)
    return [
        RecordedTool(
            **{name: one[name] for name in _FIELDS if name in one},
            called=one["called"],
            was_self_checked=one["checked"],
        )
        for one in found
    ]


def recorded_service(name: str, spec: ServiceSpec, tools: Iterable[RecordedTool]) -> Service:
    """Return a service that has the functions of the record that are its own."""
    return _RecordedService(name, spec, {tool.function: tool for tool in tools if tool.service == name})
