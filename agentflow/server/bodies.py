"""What the bodies of requests hold: the Structs behind the OpenAPI document."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from agentflow.server.fields import Name, Offset, RunId, Seconds, StepId, Text

__all__ = [
    "ApprovalBody",
    "CancelBody",
    "DefinitionBody",
    "DefinitionRef",
    "ForkBody",
    "GcBody",
    "InputFrom",
    "InputsBody",
    "PauseBody",
    "ResumeAllBody",
    "ResumeBody",
    "RetryBody",
    "SignalBody",
    "SubmitBody",
    "ValidateBody",
    "WithdrawBody",
]


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


class ResumeAllBody(_Body, frozen=True, kw_only=True, omit_defaults=True):
    """Which paused runs are to go on: those that paused for `reason`. `budget` raises the limits of each."""

    reason: Text
    budget: dict[str, Any] | None = None


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
    """Answers by request id: all of them are taken, or none. `actor` is kept as a claim of the caller."""

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


class GcBody(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """`dry_run` only says what would go."""

    dry_run: bool = False
