"""What requests carry and what small answers look like: the Structs behind the OpenAPI document.

Results about runs are the Structs of `agentflow.runtime`; what stands here exists on the wire alone.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from agentflow.definition.diagnostics import Diagnostic
from agentflow.runtime.records import RunRecord
from agentflow.runtime.requests import RequestRecord
from agentflow.runtime.views import RunSummary

__all__ = [
    "ApprovalBody",
    "CancelBody",
    "ContextQuery",
    "DefinitionBody",
    "DefinitionInfoView",
    "DefinitionList",
    "DefinitionQuery",
    "DefinitionRef",
    "DrainAnswer",
    "EventsQuery",
    "ExpandQuery",
    "ForkBody",
    "GraphQuery",
    "Health",
    "InputsBody",
    "ListQuery",
    "OffsetQuery",
    "PauseBody",
    "RecordList",
    "RequestList",
    "RequestQuery",
    "ResumeBody",
    "RetryBody",
    "RunList",
    "SignalBody",
    "StepQuery",
    "SubmitBody",
    "SubmitQuery",
    "ToolList",
    "ToolView",
    "Validation",
    "Version",
    "WithdrawBody",
]

RunId = Annotated[str, Meta(pattern=r"^wf_[A-Za-z0-9_-]{1,64}$")]
StepId = Annotated[str, Meta(max_length=1024)]
Offset = Annotated[int, Meta(ge=0, le=2**53)]
Count = Annotated[int, Meta(ge=1, le=500)]
Seconds = Annotated[float, Meta(ge=0, le=3600)]
Text = Annotated[str, Meta(max_length=10_000)]
Position = Annotated[str, Meta(max_length=64)]
Name = Annotated[str, Meta(min_length=1, max_length=256)]


class _Body(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A request body. A member that it does not know is refused."""


class _Command(_Body, frozen=True, kw_only=True, omit_defaults=True):
    """`expected_offset`: do nothing when the log is longer than the caller knew."""

    expected_offset: Offset | None = None


class DefinitionRef(_Body, frozen=True, kw_only=True, omit_defaults=True):
    """A registered definition; without a version the newest one."""

    name: Name
    version: Name | None = None


class InputFrom(_Body, frozen=True, kw_only=True, omit_defaults=True, rename={"as_": "as"}):
    """The output of another run, or of one of its steps; `as` puts it into the named input."""

    workflow_id: RunId
    step_id: StepId | None = None
    as_: Name | None = None


class SubmitBody(_Body, frozen=True, kw_only=True, omit_defaults=True):
    """A submission. `definition` is a JSON object, or the YAML or JSON source as a string.

    `file` is named in diagnostics; `folder` is where Python services are looked up, and is heard from the
    owner of the Unix socket alone.
    """

    definition: dict[str, Any] | str | None = None
    definition_ref: DefinitionRef | Name | None = None
    input: Any = None
    input_from: InputFrom | None = None
    format: Name | None = None
    workflow_id: RunId | None = None
    labels: dict[str, str] | None = None
    options: dict[str, Any] | None = None
    budget: dict[str, Any] | None = None
    file: Text | None = None
    folder: Text | None = None


class ValidateBody(_Body, frozen=True, kw_only=True, omit_defaults=True):
    """As a submission; with `input` that is checked too."""

    definition: dict[str, Any] | str | None = None
    definition_ref: DefinitionRef | Name | None = None
    input: Any | UnsetType = UNSET
    input_from: InputFrom | None = None
    format: Name | None = None
    workflow_id: RunId | None = None
    labels: dict[str, str] | None = None
    options: dict[str, Any] | None = None
    budget: dict[str, Any] | None = None
    file: Text | None = None
    folder: Text | None = None


class CancelBody(_Command, frozen=True, kw_only=True, omit_defaults=True):
    """`soft` lets work in flight finish within `grace_s`; `hard` ends it at once."""

    mode: Literal["soft", "hard"] = "soft"
    grace_s: Seconds = 5.0
    reason: Text | None = None


class PauseBody(_Command, frozen=True, kw_only=True, omit_defaults=True):
    """`drain` lets steps in flight finish, `suspend` only their functions."""

    reason: Text | None = None
    in_flight: Literal["drain", "suspend"] = "drain"


class ResumeBody(_Command, frozen=True, kw_only=True, omit_defaults=True):
    """`budget` raises limits."""

    budget: dict[str, Any] | None = None
    reason: Text | None = None


class RetryBody(_Command, frozen=True, kw_only=True, omit_defaults=True):
    """What becomes of a step that is held after its failure; `output` is the result of one that is `done`."""

    step_id: StepId
    action: Literal["retry", "skip", "done", "fail"] = "retry"
    output: Any = None


class ForkBody(_Body, frozen=True, kw_only=True, omit_defaults=True, rename={"from_": "from"}):
    """Where a new run goes on: at an offset, before a step, or before what failed."""

    offset: Offset | None = None
    from_step: StepId | None = None
    from_: Literal["failure"] | None = None
    workflow_id: RunId | None = None
    labels: dict[str, str] | None = None
    edits: Any = None
    definition: Any = None


class SignalBody(_Command, frozen=True, kw_only=True, omit_defaults=True):
    """One with a known `signal_id` changes nothing."""

    name: Name
    data: Any = None
    signal_id: Name | None = None


class ApprovalBody(_Command, frozen=True, kw_only=True, omit_defaults=True):
    """A decision; with `digest` only what was seen is granted. `actor` is kept as a claim of the caller."""

    decision: Literal["grant", "deny"]
    request_id: Name | None = None
    step_id: StepId | None = None
    digest: Name | None = None
    reason: Text | None = None
    actor: Name | None = None


class InputsBody(_Command, frozen=True, kw_only=True, omit_defaults=True):
    """Answers by request id: all of them are taken, or none."""

    responses: Annotated[dict[str, Any], Meta(min_length=1, max_length=1000)]
    actor: Name | None = None


class WithdrawBody(_Body, frozen=True, kw_only=True, omit_defaults=True):
    """Why the question is taken back."""

    reason: Text = "withdrawn"


class DefinitionBody(_Body, frozen=True, kw_only=True, omit_defaults=True):
    """A definition to register; name and version are those of the document unless given."""

    definition: dict[str, Any] | str
    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$")] | None = None
    version: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.+-]{0,127}$")] | None = None
    format: Name | None = None


# -- query parameters


class _Query(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Query parameters: text on the wire."""


class SubmitQuery(_Query, frozen=True, kw_only=True):
    """`wait`: seconds to wait for the run to come to rest before the answer."""

    wait: Annotated[float, Meta(ge=0, le=600)] | None = None


class ListQuery(_Query, frozen=True, kw_only=True):
    """`state` may name several with commas; `label` is KEY=VALUE; times are RFC 3339, `until` excluded."""

    state: Text | None = None
    name: Text | None = None
    label: Text | None = None
    since: Text | None = None
    until: Text | None = None
    limit: Count = 50
    cursor: Text | None = None
    order: Literal["asc", "desc"] = "desc"
    full: bool = False


class OffsetQuery(_Query, frozen=True, kw_only=True):
    """`offset`: the state as of this event."""

    offset: Offset | None = None


class ExpandQuery(_Query, frozen=True, kw_only=True):
    """`expand`: values that are stored beside the log are put in their place."""

    expand: bool = False


class StepQuery(_Query, frozen=True, kw_only=True):
    """Which execution of a step; the last one that fits."""

    iteration: Offset | None = None
    attempt: Annotated[int, Meta(ge=1, le=2**31)] | None = None


ContextQuery = StepQuery


class GraphQuery(_Query, frozen=True, kw_only=True):
    """The drawing's language."""

    format: Literal["json", "mermaid", "dot"] = "json"


class RequestQuery(_Query, frozen=True, kw_only=True):
    """`kind`: step, tool or input; `open=false` lists those that are closed too."""

    kind: Literal["step", "tool", "human", "input"] | None = None
    open: bool = True


class DefinitionQuery(_Query, frozen=True, kw_only=True):
    """`version`: the newest one when absent."""

    version: Name | None = None


class EventsQuery(_Query, frozen=True, kw_only=True):
    """Where a stream begins, what it shows and when it ends (page 000 §8.1). `deltas` is understood; models
    hand none on yet, so none come."""

    offset: Position | None = None
    after: Position | None = None
    from_: Position | None = msgspec.field(default=None, name="from")
    type: Text | None = None
    view: Literal["workflow", "all"] = "all"
    step: Text | None = None
    since: Text | None = None
    until: Text | None = None
    follow: bool = True
    limit: Annotated[int, Meta(ge=1, le=2**53)] | None = None
    timeout: Annotated[float, Meta(gt=0, le=86_400)] | None = None
    expand: bool = False
    heartbeat: Text | None = None
    format: Literal["ndjson", "sse"] | None = None
    named: bool = True
    deltas: bool = False


class AllEventsQuery(_Query, frozen=True, kw_only=True):
    """The events of all runs in the order of their commits; `cursor` continues behind an earlier one."""

    cursor: Text | None = None
    type: Text | None = None
    since: Text | None = None
    until: Text | None = None
    follow: bool = True
    limit: Annotated[int, Meta(ge=1, le=2**53)] | None = None
    timeout: Annotated[float, Meta(gt=0, le=86_400)] | None = None
    heartbeat: Text | None = None
    format: Literal["ndjson", "sse"] | None = None
    named: bool = True


# -- answers


class RunList(msgspec.Struct, frozen=True, kw_only=True):
    """A page of runs. `next_cursor` null: nothing comes after it."""

    items: list[RunSummary]
    next_cursor: str | None


class RecordList(msgspec.Struct, frozen=True, kw_only=True):
    """The same with whole run records."""

    items: list[RunRecord]
    next_cursor: str | None


class RequestList(msgspec.Struct, frozen=True, kw_only=True):
    """Open questions, oldest first."""

    items: list[RequestRecord]


class Validation(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong with a submission; `ir_hash` names its graph when it has one."""

    valid: bool
    diagnostics: list[Diagnostic]
    ir_hash: str | None


class DefinitionInfoView(msgspec.Struct, frozen=True, kw_only=True):
    """A version of a registered definition; `source` when one was asked for."""

    name: str
    version: str
    format: str
    hash: str
    ir_hash: str
    created_at: str
    by: str
    source: str | UnsetType = UNSET


class DefinitionList(msgspec.Struct, frozen=True, kw_only=True):
    """The newest version of each registered definition, by name."""

    items: list[DefinitionInfoView]


class ToolView(msgspec.Struct, frozen=True, kw_only=True):
    """A function that is registered with the daemon."""

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


class GcBody(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """`dry_run` only says what would go."""

    dry_run: bool = False


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
