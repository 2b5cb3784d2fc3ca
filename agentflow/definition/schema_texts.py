"""Short texts and pointers for what is said about schemas and values."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

__all__ = ["escape", "json_short", "pointer", "shorten"]


def json_short(value: Any) -> str:
    return shorten(msgspec.json.encode(value).decode())


def shorten(message: str) -> str:
    return message if len(message) <= 300 else f"{message[:200]} … {message[-80:]}"


def pointer(steps: Iterable[Any]) -> str:
    return "".join(f"/{escape(step)}" for step in steps)


def escape(token: object) -> str:
    return str(token).replace("~", "~0").replace("/", "~1")
