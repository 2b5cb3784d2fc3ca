"""Structs of small answers that no client reads; the others stand in `agentflow.records`."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

__all__ = [
    "DefinitionInfoView",
    "DefinitionList",
    "DrainAnswer",
    "Home",
]


class DefinitionInfoView(msgspec.Struct, frozen=True, kw_only=True):
    """A version of a registered definition; `source` when one was asked for.

    `by` registered it; `trusted` is true if that client may run code of the daemon's machine.
    """

    name: str
    version: str
    format: str
    hash: str
    ir_hash: str
    created_at: str
    by: str
    trusted: bool
    source: str | UnsetType = UNSET


class DefinitionList(msgspec.Struct, frozen=True, kw_only=True):
    """The newest version of each registered definition, by name."""

    items: list[DefinitionInfoView]


class DrainAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The daemon parks its runs and ends."""

    status: str


class Home(msgspec.Struct, frozen=True, kw_only=True):
    """Where things are."""

    name: str
    version: str
    api: str
    documentation: str
    links: dict[str, str]
