"""What small answers hold that exist on the wire alone; those about runs stand in `agentflow.runtime`."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from agentflow.records.functions import ToolView
from agentflow.records.requests import RequestRecord
from agentflow.records.runs import RunRecord, RunSummary

__all__ = [
    "DefinitionInfoView",
    "DefinitionList",
    "DrainAnswer",
    "Health",
    "Home",
    "RecordList",
    "RequestList",
    "RunList",
    "ToolList",
    "Version",
]


class RunList(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A page of runs. `next_cursor` null: nothing comes after it."""

    items: list[RunSummary]
    next_cursor: str | None
    damaged: list[str] = []
    """Runs that cannot be shown, because what the store holds of them is damaged."""


class RecordList(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The same with whole run records."""

    items: list[RunRecord]
    next_cursor: str | None
    damaged: list[str] = []
    """As in RunList."""


class RequestList(msgspec.Struct, frozen=True, kw_only=True):
    """Open questions, oldest first."""

    items: list[RequestRecord]


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


class ToolList(msgspec.Struct, frozen=True, kw_only=True):
    """All registered functions, by service and name."""

    items: list[ToolView]


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """`status`: ok, draining or failed. `durable`: whether acknowledged events outlive a power failure."""

    status: str
    durable: bool
    store: str
    detail: str | None = None


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """What runs here."""

    name: str
    version: str
    python: str
    schema_version: int


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
