"""Exit codes, and the one place where an exception becomes a message and a code (page 000 §12).

Messages go to stderr: `error CODE: message`, then `  hint: …`. A traceback is shown on `--debug` alone.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import click

from agentflow.cli.output import error_line, say
from agentflow.errors import (
    AgentflowError,
    CommandRefused,
    ConfigurationError,
    DefinitionError,
    Fenced,
    IdempotencyConflict,
    InvalidAnswer,
    InvalidExport,
    OffsetConflict,
    OffsetTrimmed,
    OutputNotReady,
    QueueFull,
    RunExists,
    RunGone,
    RunNotFound,
    RunNotTerminal,
    RunTerminal,
    StoreError,
    UnknownRequest,
    Unsupported,
)

if TYPE_CHECKING:
    from agentflow.definition.diagnostics import Diagnostic

__all__ = ["CommandError", "Exit", "exit_of_diagnostics", "exit_of_final", "exit_of_state", "report"]


class Exit(IntEnum):
    """How a command ended."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    DIAGNOSTICS = 3
    NOT_FOUND = 4
    CONFLICT = 5
    UNREACHABLE = 6
    NOT_AUTHORISED = 7
    CANCELLED = 8
    WAITING = 9
    PARTIAL = 10
    STORAGE = 74
    CONFIGURATION = 78
    INTERRUPTED = 130


class CommandError(Exception):
    """A command cannot do what was asked; `exit` is the code that says so."""

    def __init__(self, exit: Exit, code: str, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.exit = exit
        self.code = code
        self.hint = hint


# The first class that fits decides; subclasses therefore stand before their bases.
_EXITS: tuple[tuple[type[AgentflowError], Exit], ...] = (
    (RunNotFound, Exit.NOT_FOUND),
    (RunGone, Exit.NOT_FOUND),
    (OffsetTrimmed, Exit.NOT_FOUND),
    (InvalidExport, Exit.DIAGNOSTICS),
    (UnknownRequest, Exit.NOT_FOUND),
    (InvalidAnswer, Exit.USAGE),
    (CommandRefused, Exit.CONFLICT),
    (OutputNotReady, Exit.CONFLICT),
    (IdempotencyConflict, Exit.CONFLICT),
    (QueueFull, Exit.UNREACHABLE),
    (RunExists, Exit.CONFLICT),
    (RunTerminal, Exit.CONFLICT),
    (RunNotTerminal, Exit.CONFLICT),
    (Fenced, Exit.CONFLICT),
    (OffsetConflict, Exit.CONFLICT),
    (StoreError, Exit.STORAGE),
    (Unsupported, Exit.CONFIGURATION),
    (ConfigurationError, Exit.CONFIGURATION),
)

# Errors of the daemon and of parts that are imported only where they are needed, by their code.
_BY_CODE = {
    "message_length": Exit.USAGE,
    "unreachable": Exit.UNREACHABLE,
    "draining": Exit.UNREACHABLE,
    "too_many_streams": Exit.UNREACHABLE,
    "too_many_connections": Exit.UNREACHABLE,
    "storage_unavailable": Exit.UNREACHABLE,
    "definition_not_found": Exit.NOT_FOUND,
    "invalid_state_file": Exit.DIAGNOSTICS,
    "template_not_found": Exit.NOT_FOUND,
    "template_exists": Exit.CONFLICT,
    "validation_failed": Exit.DIAGNOSTICS,
    "unauthorized": Exit.NOT_AUTHORISED,
    "forbidden": Exit.NOT_AUTHORISED,
    "host_not_allowed": Exit.NOT_AUTHORISED,
}

# Refusals of commands that are no conflict with the state of a run, by their code.
_REFUSED = {
    "no_plan": Exit.NOT_FOUND,
    "no_resumable_run": Exit.NOT_FOUND,
    "step_not_found": Exit.NOT_FOUND,
    "plan_invalid": Exit.DIAGNOSTICS,
}

# What helps, where the exception does not say it itself.
_HINTS: tuple[tuple[type[AgentflowError], str], ...] = (
    (RunNotFound, "`agentflow list` shows the runs of the store"),
    (OffsetTrimmed, "begin later: `agentflow events ID` gives what is left"),
    (RunExists, "choose another id, or leave --id out"),
    (Fenced, "follow it with `agentflow events ID`, or end that process"),
)

_STATES = {
    "completed": Exit.DONE,
    "failed": Exit.FAILED,
    "cancelled": Exit.CANCELLED,
}


def exit_of_state(state: str) -> Exit:
    """Return the code for a run that has come to rest in this state."""
    return _STATES.get(state, Exit.WAITING)


def exit_of_final(final: Mapping[str, Any]) -> Exit:
    """Return the code for the final output of a request."""
    return {"ready": Exit.DONE, "error": Exit.FAILED}.get(final["status"], Exit.PARTIAL)


def exit_of_diagnostics(diagnostics: Sequence[Diagnostic]) -> Exit:
    """Return 3 if there is an error; 78 if all that is wrong is that there is no model."""
    errors = {d.code for d in diagnostics if d.severity == "error"}
    if not errors:
        return Exit.DONE
    return Exit.CONFIGURATION if errors == {"E_UNKNOWN_MODEL"} else Exit.DIAGNOSTICS


def _problems(error: AgentflowError) -> list[str]:
    """Return what is wrong with a plan that was refused, one line for each problem."""
    if not isinstance(error, CommandRefused) or error.code != "plan_invalid":
        return []
    found: list[Mapping[str, Any]] = error.details.get("diagnostics") or []
    return [
        f"{one['code']} at {one.get('path') or '/'}: {one['message']}"
        + (f" ({one['hint']})" if one.get("hint") else "")
        for one in found
    ]


def report(error: Exception, *, debug: bool = False) -> Exit:
    """Tell the user about `error` on stderr, and give the exit code."""
    if debug:
        import traceback

        traceback.print_exception(error, file=sys.stderr)
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        say(error.format_message())  # the help itself
        return Exit.USAGE
    if isinstance(error, click.UsageError):
        context = error.ctx.command_path if error.ctx is not None else "agentflow"
        say(error_line("usage", error.format_message(), f"{context} --help"))
        return Exit.USAGE
    if isinstance(error, CommandError):
        say(error_line(error.code, str(error), error.hint))
        return error.exit
    if isinstance(error, DefinitionError):
        from agentflow.cli.excerpt import render_diagnostics

        say(render_diagnostics(error.diagnostics))
        return exit_of_diagnostics(error.diagnostics)
    if isinstance(error, AgentflowError):
        hint = error.hint or next((hint for kind, hint in _HINTS if isinstance(error, kind)), None)
        say(error_line(error.code, str(error), hint))
        for problem in _problems(error):
            say(f"  {problem}")
        if isinstance(error, CommandRefused) and error.code in _REFUSED:
            return _REFUSED[error.code]
        known = next((exit for kind, exit in _EXITS if isinstance(error, kind)), None)
        return known or _BY_CODE.get(error.code, Exit.FAILED)
    if isinstance(error, click.ClickException):
        say(error_line("usage", error.format_message()))
        return Exit.USAGE
    hint = None if debug else "this is a defect of agentflow; `--debug` shows where"
    say(error_line("internal_error", f"{type(error).__name__}: {error}", hint))
    return Exit.FAILED
