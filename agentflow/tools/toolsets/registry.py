"""Which toolsets there are, which are enabled, and which can be used (page 004 §5, §15).

Nothing is enabled unless `[toolsets] enabled` or AGENTFLOW_TOOLSETS names it. A toolset that is enabled and
not configured is down: a step that names it is skipped, and no service is made for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from agentflow.config import ToolsetsConfig
from agentflow.definition.diagnostics import or_which
from agentflow.definition.toolsets import SideEffectClass, ToolEntry, Toolset
from agentflow.errors import ConfigurationError
from agentflow.tools.service import Service
from agentflow.tools.toolsets.command_services import check_languages, code_service, terminal_service
from agentflow.tools.toolsets.file_service import file_service
from agentflow.tools.toolsets.messaging_service import check_messaging, is_configured, messaging_service
from agentflow.tools.toolsets.places import Places
from agentflow.tools.toolsets.web_service import web_service

__all__ = ["BUILT_IN", "State", "ToolsetRegistry", "ToolsetView"]

State = Literal["enabled", "disabled", "down"]


class _BuiltIn(NamedTuple):
    name: str
    description: str
    tools: tuple[tuple[str, SideEffectClass], ...]
    aliases: tuple[str, ...] = ()
    needs: str | None = None
    """What must be configured for it."""


BUILT_IN = (
    _BuiltIn("web", "Fetches pages of the web.", (("fetch", "read"),)),
    _BuiltIn(
        "file",
        "Reads and writes text files in the workspace.",
        (("append", "write"), ("list", "read"), ("read", "read"), ("write", "write")),
    ),
    _BuiltIn(
        "messaging",
        "Sends mail, or messages to a webhook.",
        (("send", "external"),),
        ("discord", "discord_admin", "telegram", "slack", "send_message"),
        "[toolsets.messaging] smtp_url and from, or webhook",
    ),
    _BuiltIn(
        "terminal",
        "Runs commands in the workspace.",
        (("run", "external"),),
        needs="[toolsets.terminal] allow",
    ),
    _BuiltIn(
        "code_execution",
        "Runs code in the workspace.",
        (("run", "external"),),
        ("execute_code",),
        "[toolsets.code_execution] languages",
    ),
)


class ToolsetView(msgspec.Struct, frozen=True, kw_only=True, rename={"side_effect": "class"}):
    """A toolset as the API and the command line show it. `needs`: what a toolset that is down waits for."""

    name: str
    description: str
    side_effect: SideEffectClass
    tools: tuple[str, ...]
    aliases: tuple[str, ...]
    enabled: bool
    state: State
    needs: str | None = None


class ToolsetRegistry:
    """The built-in toolsets under one configuration, and registered services that it enables by name.

    `roots` are the folders below which workspaces lie. Raises ConfigurationError if an enabled name is
    unknown, or a table of `[toolsets]` cannot hold.
    """

    def __init__(
        self, config: ToolsetsConfig, roots: Sequence[Path], *, services: Iterable[Service] = ()
    ) -> None:
        self._config = config
        self._places = Places(roots)
        self._others = {service.name: service for service in services}
        self._enabled = frozenset(self._canonical(name) for name in config.enabled)
        check_messaging(config.messaging)
        check_languages(config.code_execution)
        self._made: list[Service] | None = None

    def _canonical(self, name: str) -> str:
        names = {one.name: one.name for one in BUILT_IN} | {name: name for name in self._others}
        names |= {alias: one.name for one in BUILT_IN for alias in one.aliases if alias not in names}
        if name not in names:
            problem = f'[toolsets] enabled: there is no toolset "{name}"{or_which(name, list(names))}'
            raise ConfigurationError(
                problem, hint=f"the toolsets are {', '.join(dict.fromkeys(names.values()))}"
            )
        return names[name]

    def state_of(self, name: str) -> State:
        """Return the state of a toolset by its name: that of the configuration and the secrets of now."""
        if name not in self._enabled:
            return "disabled"
        config = self._config
        configured = {
            "messaging": lambda: is_configured(config.messaging),
            "terminal": lambda: bool(config.terminal.allow),
            "code_execution": lambda: bool(config.code_execution.languages),
        }.get(name)
        return "enabled" if configured is None or name in self._others or configured() else "down"

    def views(self) -> list[ToolsetView]:
        """Return every toolset with class and state, the built-in ones first."""
        needs = {one.name: one.needs for one in BUILT_IN}
        found: list[ToolsetView] = []
        for toolset in self._all():
            state = self.state_of(toolset.name)
            found.append(
                ToolsetView(
                    name=toolset.name,
                    description=toolset.description,
                    side_effect=toolset.side_effect,
                    tools=tuple(tool.name for tool in toolset.tools),
                    aliases=toolset.aliases,
                    enabled=state != "disabled",
                    state=state,
                    needs=needs.get(toolset.name) if state == "down" else None,
                )
            )
        return found

    def toolsets(self) -> tuple[Toolset, ...]:
        """Return every toolset as plans name them. One that is down is not enabled: its steps are skipped."""
        return tuple(
            msgspec.structs.replace(one, enabled=self.state_of(one.name) == "enabled") for one in self._all()
        )

    def services(self) -> list[Service]:
        """Return the services of the built-in toolsets that can be used, to register with a Runtime."""
        if self._made is None:
            config, places = self._config, self._places
            makers = {
                "web": lambda: web_service(config.web),
                "file": lambda: file_service(config.file, places),
                "messaging": lambda: messaging_service(config.messaging),
                "terminal": lambda: terminal_service(config.terminal, places),
                "code_execution": lambda: code_service(config.code_execution, places),
            }
            usable = (name for name in makers if name not in self._others)
            self._made = [makers[name]() for name in usable if self.state_of(name) == "enabled"]
        return self._made

    def _all(self) -> list[Toolset]:
        found: list[Toolset] = []
        for one in BUILT_IN:
            if one.name not in self._others:
                tools = tuple(ToolEntry(name=f"{one.name}.{name}", side_effect=c) for name, c in one.tools)
                found.append(
                    Toolset(name=one.name, description=one.description, tools=tools, aliases=one.aliases)
                )
        for service in self._others.values():
            functions = sorted(service.tools.values(), key=lambda tool: tool.function)
            described = (tool.description.split("\n")[0] for tool in functions if tool.description)
            found.append(
                Toolset(
                    name=service.name,
                    description=" ".join(described)[:500],
                    tools=tuple(
                        ToolEntry(name=f"{tool.service}.{tool.function}", side_effect=tool.side_effect)
                        for tool in functions
                    ),
                )
            )
        return found
