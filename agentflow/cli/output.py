"""Output of the commands: JSON to stdout, text to stdout or stderr, colour on a terminal alone.

Model answers and documents are not trusted: on a terminal their control characters are shown, not obeyed.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from typing import IO, Any

import click

__all__ = [
    "columns",
    "emit",
    "emit_bytes",
    "emit_json",
    "emit_value",
    "error_line",
    "is_terminal",
    "printable",
    "say",
    "styled",
]

_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def is_terminal(stream: IO[Any]) -> bool:
    """Return whether a person looks at this stream now, on a terminal that can do more than print."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def _colour(stream: IO[Any]) -> bool:
    return is_terminal(stream) and not os.environ.get("NO_COLOR")


def styled(text: str, style: str, stream: IO[Any] | None = None) -> str:
    """Return `text` in the colour of an error, a warning, a hint …; plain where colour is not wanted."""
    if not _colour(stream or sys.stderr):
        return text
    if style in ("bold", "dim"):
        return click.style(text, bold=style == "bold" or None, dim=style == "dim" or None)
    return click.style(text, fg=style, bold=True)


def printable(text: str) -> str:
    """Return `text` with control characters (terminal sequences, changes of direction) written as escapes."""
    return _CONTROL.sub(lambda m: f"\\x{ord(m[0]):02x}" if ord(m[0]) < 256 else f"\\u{ord(m[0]):04x}", text)


def error_line(code: str, message: str, hint: str | None = None) -> str:
    """Return `error CODE: message`, and the hint on a line of its own."""
    text = f"{styled('error', 'red')} {code}: {printable(message)}"
    return f"{text}\n  {styled('hint:', 'cyan')} {printable(hint)}" if hint else text


def say(text: str) -> None:
    """Print a line for people, on stderr: never part of the result."""
    click.echo(text, err=True)


def emit(text: str) -> None:
    """Print a line of the result on stdout, as it is: not even terminal sequences are taken out."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def emit_bytes(lines: Sequence[bytes]) -> None:
    """Print lines of NDJSON on stdout as they are, and flush, for a reader of the pipe."""
    sys.stdout.flush()
    out = sys.stdout.buffer
    out.write(b"\n".join(lines) + b"\n")
    out.flush()


def emit_json(value: Any) -> None:
    """Print one JSON value on one line of stdout."""
    import msgspec

    emit_bytes([msgspec.json.encode(value)])


def emit_value(value: Any) -> None:
    """Print a result for reading: a string as it is, anything else as indented JSON."""
    import msgspec

    if isinstance(value, str):
        text = value
    else:
        text = msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
    emit(printable(text) if sys.stdout.isatty() else text)


def columns(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table of plain text; the last column is not padded."""
    table = [list(header), *([printable(cell) for cell in row] for row in rows)]
    widths = [max(len(row[i]) for row in table) for i in range(len(header))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in table
    )
