"""The toolsets `terminal` and `code_execution`: commands and code in the workspace, under limits."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from agentflow.config import CodeExecutionConfig, TerminalConfig
from agentflow.definition.diagnostics import or_which
from agentflow.errors import ConfigurationError
from agentflow.tools.python import function
from agentflow.tools.service import Service
from agentflow.tools.tool import ToolContext, ToolError
from agentflow.tools.toolsets.confined import Limits, run_confined
from agentflow.tools.toolsets.parts import private_service
from agentflow.tools.toolsets.places import Places
from agentflow.tools.toolsets.workspace import WorkspaceError

__all__ = ["LANGUAGES", "check_languages", "code_service", "terminal_service"]

LANGUAGES: Final[Mapping[str, tuple[str, ...]]] = {
    "python": (sys.executable, "-I", "-"),
    "sh": ("/bin/sh", "-s"),
    "bash": ("bash", "-s"),
    "javascript": ("node", "-"),
}
"""How code of a language is run: it comes by standard input."""

_ANY: Final = "*"
_MAX_TEXT: Final = 1 << 20


def terminal_service(config: TerminalConfig, places: Places) -> Service:
    """Return the service. Unless every command is allowed, one is run without a shell: it must be a program
    that is allowed, by its name alone."""

    @function(side_effect="external", idempotent=False)
    async def run(command: str, ctx: ToolContext, timeout_s: float | None = None) -> dict[str, Any]:
        """Run a command in the workspace; its exit code and output are given."""
        argv = _argv(command, config.allow)
        return await _run(argv, ctx, places, _limits(config, timeout_s))

    service = private_service("terminal", run, timeout_s=config.timeout_s + 30)
    service.needs_trust = True
    return service


def code_service(config: CodeExecutionConfig, places: Places) -> Service:
    """Return the service."""

    @function(side_effect="external", idempotent=False)
    async def run(language: str, code: str, ctx: ToolContext) -> dict[str, Any]:
        """Run code in the workspace; its exit code and output are given."""
        if language not in config.languages:
            raise _refused(
                "code_execution__run", f'"{language[:40]}" is none of {", ".join(config.languages)}'
            )
        argv = [*LANGUAGES[language]]
        return await _run(argv, ctx, places, _limits(config, None), code)

    service = private_service("code_execution", run, timeout_s=config.timeout_s + 30)
    service.needs_trust = True
    return service


def check_languages(config: CodeExecutionConfig) -> None:
    """Raise ConfigurationError for a language that there is not."""
    for language in config.languages:
        if language not in LANGUAGES:
            problem = (
                f'toolsets.code_execution.languages: "{language}" is unknown{or_which(language, LANGUAGES)}'
            )
            raise ConfigurationError(problem, hint=f"the languages are {', '.join(LANGUAGES)}")


def _argv(command: str, allow: tuple[str, ...]) -> list[str]:
    if "\0" in command or not command.strip() or len(command) > _MAX_TEXT:
        raise _refused("terminal__run", "the command is empty or too long")
    if _ANY in allow:
        return ["/bin/sh", "-c", command]
    try:
        argv = shlex.split(command)
    except ValueError:
        raise _refused("terminal__run", "a quotation in the command is not closed") from None
    if not argv or argv[0] not in allow:
        shown = argv[0][:40] if argv else ""
        message = f'terminal__run: "{shown}" is none of the programs that are allowed: {", ".join(allow)}'
        raise ToolError.of("policy", "command_denied", message, executed=False)
    return argv


def _limits(config: TerminalConfig | CodeExecutionConfig, wanted: float | None) -> Limits:
    if wanted is not None and not wanted > 0:
        raise _refused("terminal__run", "timeout_s is no number of seconds above 0")
    return Limits(
        timeout_s=config.timeout_s if wanted is None else min(wanted, config.timeout_s),
        output_bytes=config.max_output_bytes,
        memory_bytes=config.max_memory_bytes,
        processes=config.max_processes,
    )


async def _run(
    argv: list[str], ctx: ToolContext, places: Places, limits: Limits, code: str | None = None
) -> dict[str, Any]:
    workspace = places.of(ctx)
    try:
        workspace.make()
    except WorkspaceError as error:
        raise ToolError.of("tool", "tool_execution_failed", str(error), executed=False) from None
    if not os.path.isabs(argv[0]) and shutil.which(argv[0]) is None:
        raise _refused(f"{ctx.step_id}", f"the program {argv[0][:40]} is not installed")
    stdin = None if code is None else code.encode("utf-8", "replace")
    try:
        found = await run_confined(argv, workspace.root, limits, stdin=stdin)
    except OSError:
        message = "no process could be started"
        raise ToolError.of("tool", "tool_execution_failed", message, executed=False) from None
    return msgspec.to_builtins(found)


def _refused(name: str, reason: str) -> ToolError:
    return ToolError.of("invalid_input", "invalid_tool_input", f"{name}: {reason}", executed=False)
