"""A registered function, as the API and the command line tell it."""

from __future__ import annotations

from typing import Any

import msgspec

__all__ = ["ToolView"]


class ToolView(msgspec.Struct, frozen=True, kw_only=True):
    """A function that documents may name without declaring its service. `timeout` in seconds."""

    name: str
    service: str
    description: str
    side_effect: str
    idempotent: bool
    timeout: float
    input_schema: Any
