"""What the daemon answers beside records of one run: lists, functions, validations, and how it is itself."""

from __future__ import annotations

from typing import Any

import msgspec

from agentflow.definition.diagnostics import Diagnostic
from agentflow.definition.stage_schemas import Activation
from agentflow.records.checkpoints import Checkpoint
from agentflow.records.closed_requests import ClosedRequest
from agentflow.records.requests import RequestRecord
from agentflow.records.runs import RunRecord, RunSummary

__all__ = [
    "BulkAnswer",
    "BulkResult",
    "CheckpointList",
    "ClosedRequestList",
    "Health",
    "RecordList",
    "RequestAnswer",
    "RequestList",
    "RunList",
    "SessionCode",
    "TemplateList",
    "TemplateView",
    "ToolList",
    "ToolView",
    "ToolsetList",
    "ToolsetView",
    "Totals",
    "Validation",
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


class ClosedRequestList(msgspec.Struct, frozen=True, kw_only=True):
    """Closed questions: of one run in the order of their closing, of all runs the last ones first."""

    items: list[ClosedRequest]


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """What the store and the daemon hold: `runs` by state, and `requests`, the open questions of all runs.

    `started_at` is when the daemon started; the numbers below it count since then.
    """

    runs: dict[str, int]
    requests: int
    started_at: str
    streams_open: int
    runs_accepted: int
    runs_recovered: int
    draining: bool
    read_only: bool


class BulkResult(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a command to one run: its state after it, or the problem's code and detail."""

    workflow_id: str
    state: str | None = None
    code: str | None = None
    detail: str | None = None


class BulkAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a command to many runs, in the order in which they were named."""

    items: list[BulkResult]


class SessionCode(msgspec.Struct, frozen=True, kw_only=True):
    """A code that can be used once, within `expires_in` seconds; `path` is that of the page with the code."""

    code: str
    path: str
    expires_in: int


class RequestAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """How a text was judged, and its run; without one the caller answers the text."""

    activation: Activation
    run: RunRecord | None


class ToolsetView(msgspec.Struct, frozen=True, kw_only=True, rename={"side_effect": "class"}):
    """A toolset that plans may name; `class` is the strongest of its functions."""

    name: str
    description: str
    side_effect: str
    tools: tuple[str, ...]
    aliases: tuple[str, ...]
    enabled: bool
    state: str = "enabled"
    """`enabled`, `disabled`, or `down`: enabled, and what it `needs` is not configured."""
    needs: str | None = None


class TemplateView(msgspec.Struct, frozen=True, kw_only=True):
    """A template of plans. `origin`: workflows, user or built-in."""

    name: str
    description: str
    version: str | None
    origin: str
    hash: str
    inputs: dict[str, Any]
    body: dict[str, Any] | None = None
    """summary, steps and options, of one template."""
    diagnostics: list[Diagnostic] = []


class TemplateList(msgspec.Struct, frozen=True, kw_only=True):
    """The templates by name, and what is wrong with files that are none."""

    items: list[TemplateView]
    diagnostics: list[Diagnostic] = []


class ToolsetList(msgspec.Struct, frozen=True, kw_only=True):
    """All toolsets, enabled or not."""

    items: list[ToolsetView]


class CheckpointList(msgspec.Struct, frozen=True, kw_only=True):
    """The checkpoints of a run, in the order of its log."""

    items: list[Checkpoint]


class ToolView(msgspec.Struct, frozen=True, kw_only=True):
    """A function that documents may name without declaring its service. `timeout` in seconds."""

    name: str
    service: str
    description: str
    side_effect: str
    idempotent: bool
    timeout: float
    input_schema: Any


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


class Validation(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong with a submission; `ir_hash` names its graph when it has one."""

    valid: bool
    diagnostics: list[Diagnostic]
    ir_hash: str | None
