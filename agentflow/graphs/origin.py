"""Where the parts of a graph come from that was built in Python: the calls of its builder.

Checks name values by JSON pointers into the graph; a BuilderOrigin knows the call that made each, and the
line of the user's file on which it stands.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import msgspec

from agentflow.definition.diagnostics import Diagnostic, sort_diagnostics
from agentflow.definition.origin import Origin, Words

__all__ = ["BuilderOrigin", "Call", "caller"]

_PACKAGE = __name__.rpartition(".")[0]
_SHOWN = 48


class Call(NamedTuple):
    """A call of a builder's method: `add_edge("intake", "rules")`, with file and line."""

    text: str
    file: str
    line: int


def caller(method: str, *args: Any) -> Call:
    """Return the call of a builder's method that is under way, with the ids of its nodes."""
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(_PACKAGE):
        frame = frame.f_back
    shown = ", ".join(_shown(value) for value in args)
    return Call(f"{method}({shown})", frame.f_code.co_filename, frame.f_lineno)


def _shown(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(_shown(one) for one in value)}]"  # pyright: ignore[reportUnknownVariableType]
    name = value if isinstance(value, str) else getattr(value, "id", None) or getattr(value, "__name__", None)
    text = f'"{name}"' if isinstance(name, str) else type(value).__name__
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


class BuilderOrigin(Origin):
    """The origin of a graph that a builder made. `calls` are by JSON pointer into the graph."""

    hidden = frozenset({"__start", "__end"})
    words = Words(start_hint="call set_start_executor with one of the nodes")

    def __init__(self, whole: Call) -> None:
        self.calls: dict[str, Call] = {"": whole}

    def call_of(self, pointer: str) -> Call:
        """Return the call that made what a pointer names, or the part of the graph around it."""
        while pointer not in self.calls:
            pointer = pointer.rpartition("/")[0]
        return self.calls[pointer]

    def placed(self, diagnostics: list[Diagnostic]) -> list[Diagnostic]:
        """Return diagnostics with file and line of the call that each is about, in the order of the lines."""
        found: list[Diagnostic] = []
        for diagnostic in diagnostics:
            call = self.call_of(diagnostic.path or "")
            message = f"{diagnostic.message}, in {call.text}"
            found.append(msgspec.structs.replace(diagnostic, message=message, file=call.file, line=call.line))
        return sort_diagnostics(found)
