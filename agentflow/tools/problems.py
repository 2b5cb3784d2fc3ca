"""Diagnostics about one service. `path` is a pointer inside the service's own object; the loader makes it one
of the document, and gives it a place."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence

from agentflow import known_secrets
from agentflow.definition.diagnostics import Diagnostic, did_you_mean
from agentflow.tools.secrets import Values

__all__ = [
    "denied",
    "is_included",
    "is_pattern",
    "missing_secrets",
    "problem",
    "shortened",
    "unavailable",
    "unknown_functions",
]

_MAX_REASON = 300


def problem(code: str, message: str, path: str = "", hint: str | None = None) -> Diagnostic:
    """Return an error at a place of the service."""
    return Diagnostic(code=code, severity="error", message=message, path=path, hint=hint)


def unavailable(service: str, reason: str, path: str = "", hint: str | None = None) -> Diagnostic:
    """E_SERVICE_UNAVAILABLE."""
    return problem("E_SERVICE_UNAVAILABLE", f'service "{service}": {reason}', path, hint)


def denied(service: str, what: str, path: str = "", hint: str | None = None) -> Diagnostic:
    """E_SERVICE_DENIED. `what` ends the sentence that begins with the service."""
    return problem("E_SERVICE_DENIED", f'service "{service}" {what}', path, hint)


def missing_secrets(values: Values, key: str) -> list[Diagnostic]:
    """E_SERVICE_DENIED for each secret that is not set; `key` is `headers`, `env` or `security`."""
    return [
        problem("E_SERVICE_DENIED", str(missing), f"/{key}/{_escape(missing.key)}", missing.hint)
        for missing in values.missing()
    ]


def _escape(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def unknown_functions(
    service: str, named: list[str], known: list[str], refused: dict[str, str], key: str = "functions"
) -> list[Diagnostic]:
    """E_UNKNOWN_FUNCTION for names in the service's own `functions` or `include` that it does not have."""
    found: list[Diagnostic] = []
    for i, name in enumerate(named):
        if name in known or (key == "include" and is_pattern(name) and fnmatch.filter(known, name)):
            continue
        path = f"/{key}/{_escape(name)}" if key == "functions" else f"/{key}/{i}"
        if name in refused:
            message = f'"{service}" cannot offer "{name}": {refused[name]}'
            found.append(problem("E_UNKNOWN_FUNCTION", message, path))
        else:
            hint = "no function has a name that it matches" if is_pattern(name) else did_you_mean(name, known)
            found.append(problem("E_UNKNOWN_FUNCTION", f'"{service}" has no "{name}"', path, hint))
    return found


def is_pattern(name: str) -> bool:
    """Return whether an entry of `include` stands for every function whose name it matches."""
    return "*" in name or "?" in name


def is_included(name: str, include: Sequence[str] | None) -> bool:
    """Return whether a function is offered by a service with this `include`; None: all are."""
    if include is None or name in include:
        return True
    return any(is_pattern(entry) and fnmatch.fnmatchcase(name, entry) for entry in include)


def shortened(text: str) -> str:
    """Return at most 300 characters of a text, on one line and without known secrets, which are hidden first:
    a part of one that was cut in two would not be recognised."""
    text = " ".join(known_secrets.hide(text).split())
    return text if len(text) <= _MAX_REASON else text[: _MAX_REASON - 1] + "…"
