"""Delegates that are programs of their own: a service of type mcp, http or openapi with a function
`delegate_task` (page 004 §8)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, cast

import msgspec

from agentflow.definition.delegates import DELEGATE_TASK, PING
from agentflow.definition.diagnostics import Diagnostic
from agentflow.definition.ir import ServiceSpec
from agentflow.definition.loader import load_value
from agentflow.errors import ConfigurationError, DefinitionError
from agentflow.tools.loading import declared_service
from agentflow.tools.service import Service
from agentflow.tools.tool import SideEffect, Tool, ToolContext, ToolError

__all__ = ["remote_delegate"]

_TASK: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"task": {"type": "object"}},
    "required": ["task"],
    "additionalProperties": False,
}
_NOTHING: Final[dict[str, Any]] = {"type": "object", "additionalProperties": False}
_LIMIT_S: Final = 600.0
_START_TIMEOUT_S: Final = 30.0
_MAX_CALLS: Final = 1_000
"""Calls that one answer may report."""


class _Report(msgspec.Struct, frozen=True, kw_only=True):
    """A call that a program has made: `tool_calls` of its answer has these."""

    name: str
    parameters: Any = None
    output: Any = None
    side_effect: SideEffect = "external"
    error: str | None = None


class _RemoteDelegate(Service):
    """Connects to the program with the first ping or task, and again when it has gone. What it takes to start
    a program of this machine is no part of the time of a ping."""

    def __init__(self, name: str, program: Service) -> None:
        task = Tool(
            service=name,
            function=DELEGATE_TASK,
            description="Do one step of a plan.",
            input_schema=_TASK,
            private=True,
            timeout=_LIMIT_S,
        )
        ping = Tool(
            service=name,
            function=PING,
            description="Say whether the program is there.",
            input_schema=_NOTHING,
            side_effect="none",
            idempotent=True,
            private=True,
        )
        self._program = program
        super().__init__(name, program.spec, {DELEGATE_TASK: task, PING: ping})

    def _identify(self) -> tuple[Any, ...]:
        return (self.name, id(self))

    async def open(self) -> list[Diagnostic]:
        """Start the program, if this machine has to, within 30 s."""
        if self._program.spec.options.get("transport") == "stdio":
            with suppress(TimeoutError):
                async with asyncio.timeout(_START_TIMEOUT_S):
                    return await self._program.open()
        return []

    async def call(self, tool: Tool, arguments: dict[str, Any], ctx: ToolContext) -> Any:
        """Call the program; calls that its answer reports are recorded before it is given on.

        Raises ToolError (`delegate_unavailable`, not executed) if it cannot be reached.
        """
        problems = await self._program.open()
        offered = self._program.tools.get(tool.function)
        if tool.function == PING and offered is None and not problems:
            return DELEGATE_TASK in self._program.tools
        if offered is None:
            why = problems[0].message if problems else f"it has no function {tool.function}"
            message = f"the delegate {self.name} cannot be used: {why}"
            raise ToolError.of("transient", "delegate_unavailable", message, executed=False)
        answer = await self._program.call(offered, arguments, ctx)
        return await _recorded(answer, ctx) if tool.function == DELEGATE_TASK else answer

    async def aclose(self) -> None:
        """Give back the connection or the process; idempotent. A later call opens it again."""
        await self._program.aclose()


async def _recorded(answer: Any, ctx: ToolContext) -> Any:
    """Record the calls that an answer reports, and return it without them."""
    if isinstance(answer, str):
        try:
            answer = msgspec.json.decode(answer)
        except (msgspec.DecodeError, RecursionError):
            return answer
    if not isinstance(answer, dict) or "tool_calls" not in answer:
        return cast("Any", answer)
    members = dict(cast("dict[str, Any]", answer))
    try:
        reports = msgspec.convert(members.pop("tool_calls"), list[_Report])
        if len(reports) > _MAX_CALLS:
            raise msgspec.ValidationError(f"more than {_MAX_CALLS:,} calls")
    except msgspec.ValidationError as error:
        message = f"tool_calls of the answer cannot be recorded: {error}"
        raise ToolError.of("invalid_output", "invalid_output", message) from None
    for one in reports:
        await ctx.record_tool_call(
            one.name, one.parameters, one.output, side_effect=one.side_effect, error=one.error
        )
    return members


def remote_delegate(name: str, declaration: Mapping[str, Any], folder: Path | None = None) -> Service:
    """Return a delegate that is a program, to register with a Runtime and name as `pipeline.delegate`.

    `declaration` is that of a service as documents have it under `services`, of type mcp, http or openapi,
    with a function `delegate_task` that takes {task} and answers as `delegate_service` says; `tool_calls`
    [{name, parameters, output, side_effect, error}] of a DelegateResult are the calls that it reports. A
    program without `ping` is there if it can be connected to. `folder`: where a program is started.

    Raises ConfigurationError for a declaration that cannot be run.
    """
    spec = _spec_of(name, declaration)
    return _RemoteDelegate(name, declared_service(name, spec, folder))


def _spec_of(name: str, declaration: Mapping[str, Any]) -> ServiceSpec:
    if declaration.get("type") not in ("mcp", "http", "openapi"):
        hint = "write type = mcp, http or openapi; in Python use delegate_service"
        raise ConfigurationError(f"delegate {name}: its type is none of a program", hint=hint)
    document = {
        "name": "delegate",
        "agents": [{"name": "a", "system_prompt": "-"}],
        "services": {name: dict(declaration)},
    }
    try:
        return load_value(document).workflow.services[name]
    except DefinitionError as error:
        found = error.diagnostics[0]
        at = (found.path or "").removeprefix(f"/services/{name}")
        raise ConfigurationError(f"delegate {name}{at}: {found.message}", hint=found.hint) from None
