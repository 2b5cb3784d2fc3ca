"""Structs of small answers that no client reads; the others stand in `agentflow.records`."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from agentflow.server.tokens import Scope

__all__ = [
    "DefinitionInfoView",
    "DefinitionList",
    "DocumentationList",
    "DocumentationPage",
    "DocumentationTopic",
    "DrainAnswer",
    "Home",
    "SessionView",
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


class SessionView(msgspec.Struct, frozen=True, kw_only=True):
    """The caller: its name, as it stands in events, and what it may do."""

    actor: str
    scopes: list[Scope]


class DocumentationTopic(msgspec.Struct, frozen=True, kw_only=True):
    """A page of the documentation; `group` is its kind."""

    topic: str
    title: str
    group: str


class DocumentationList(msgspec.Struct, frozen=True, kw_only=True):
    """The pages of the documentation, in their order."""

    items: list[DocumentationTopic]


class DocumentationPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of the documentation, as Markdown that begins with the title."""

    topic: str
    title: str
    text: str
