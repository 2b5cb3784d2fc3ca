"""Strict JSON: UTF-8, no NaN and no Infinity, no key twice, in bounded time and memory.

A document above 1 MiB is read by a process of its own, because the parser holds the interpreter until it is
done, and because what a hostile document expands to has a limit there: 2 GiB and 30 s. This module is that
process too, and imports nothing but the standard library at its top.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any, Final, NoReturn

__all__ = ["InvalidJson", "check_json", "parse_json"]

_HERE_BYTES: Final = 1 << 20
_MEMORY_BYTES: Final = 2 << 30
_TIMEOUT_S: Final = 30.0


class InvalidJson(ValueError):
    """The text is no strict JSON; the message says why without a word of the text."""


def check_json(body: bytes) -> str | None:
    """Return what is wrong with a JSON document, None if it is valid. Blocking: for a thread."""
    if len(body) <= _HERE_BYTES:
        return _problem(body)
    command = [sys.executable, "-I", "-S", str(Path(__file__))]
    try:
        done = subprocess.run(
            command, input=body, capture_output=True, timeout=_TIMEOUT_S, env={}, check=False
        )
    except subprocess.TimeoutExpired:
        return f"it was not read within {_TIMEOUT_S:g} s"
    except OSError:
        return "no process could be started to read it"
    if done.returncode == 0:
        return None
    return done.stdout.decode("utf-8", "replace").strip() or "it is too large once it is parsed"


def parse_json(body: bytes) -> Any:
    """Return the value of a JSON document. Raises InvalidJson."""
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError:
        raise InvalidJson("it is not UTF-8") from None
    try:
        return json.loads(
            text, object_pairs_hook=_object, parse_constant=_constant, parse_float=_float, parse_int=_int
        )
    except InvalidJson:
        raise
    except json.JSONDecodeError as error:
        raise InvalidJson(f"line {error.lineno}, column {error.colno} is no JSON") from None
    except RecursionError:
        raise InvalidJson("it is nested too deeply") from None


def _problem(body: bytes) -> str | None:
    try:
        parse_json(body)
    except InvalidJson as error:
        return str(error)
    except MemoryError:
        return "it is too large once it is parsed"
    return None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise InvalidJson("an object has a key twice")
    return found


def _constant(name: str) -> NoReturn:
    raise InvalidJson(f"{name} is no JSON")


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise InvalidJson("a number is beyond 64-bit floats")
    return value


def _int(text: str) -> int:
    if len(text) > 4_000:  # the conversion takes time by the square
        raise InvalidJson("a number has more than 4,000 digits")
    return int(text)


def _main() -> int:
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    problem = _problem(sys.stdin.buffer.read())
    if problem is not None:
        sys.stdout.write(problem)
    return problem is not None


if __name__ == "__main__":
    sys.exit(_main())
