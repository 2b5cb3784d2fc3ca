"""Structs of request bodies, from which the OpenAPI document is made.

Those of commands to runs stand in `agentflow.records.commands`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from agentflow.records.fields import Name, RunId, StepId, Text

__all__ = [
    "BulkBody",
    "ClassifyBody",
    "DefinitionBody",
    "DefinitionRef",
    "GcBody",
    "InputFrom",
    "RequestBody",
    "SessionBody",
    "SubmitBody",
    "TemplateBody",
    "TemplateRunBody",
    "TemplateTextsBody",
    "ValidateBody",
]


class _Body(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A request body. A member that it does not know is refused."""


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
    state_from: Name | None = None
    format: Name | None = None
    workflow_id: RunId | None = None
    labels: dict[str, str] | None = None
    options: dict[str, Any] | None = None
    budget: dict[str, Any] | None = None
    file: Text | None = None
    folder: Text | None = None


class RequestBody(_Body, frozen=True, kw_only=True, omit_defaults=True):
    """A request in natural language.

    `mode`: `workflow` skips the judgement of the text, `direct` never begins a pipeline. `answer`: a text
    that asks for no workflow is answered by a run of one agent.
    """

    message: str
    mode: Literal["auto", "workflow", "direct"] = "auto"
    review: bool = False
    answer: bool = False
    workspace: Text | None = None
    options: dict[str, Any] | None = None
    budget: dict[str, Any] | None = None
    labels: dict[str, str] | None = None
    workflow_id: RunId | None = None


class ClassifyBody(_Body, frozen=True, kw_only=True, omit_defaults=True):
    """A text to judge."""

    message: str


class TemplateRunBody(_Body, frozen=True, kw_only=True, omit_defaults=True):
    """Inputs of a template, and how its run is begun."""

    inputs: dict[str, Any] = {}
    review: bool = False
    workspace: Text | None = None
    options: dict[str, Any] | None = None
    budget: dict[str, Any] | None = None
    labels: dict[str, str] | None = None


class TemplateBody(_Body, frozen=True, kw_only=True, omit_defaults=True):
    """A template: its `source` in YAML or JSON, or an https `url` with its `sha256`."""

    source: str | None = None
    url: Text | None = None
    sha256: Text | None = None
    overwrite: bool = False


class TemplateTextsBody(_Body, frozen=True, kw_only=True, omit_defaults=True):
    """The texts of a template that can be changed."""

    description: str | None = None
    summary: str | None = None


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


class DefinitionBody(_Body, frozen=True, kw_only=True, omit_defaults=True):
    """A definition to register; name and version are those of the document unless given."""

    definition: dict[str, Any] | str
    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$")] | None = None
    version: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.+-]{0,127}$")] | None = None
    format: Name | None = None


class GcBody(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """`dry_run` only says what would go."""

    dry_run: bool = False


class SessionBody(_Body, frozen=True, kw_only=True, omit_defaults=True):
    """What a browser session begins with: a one-time `code`, or a bearer `token`."""

    code: Text | None = None
    token: Text | None = None


class BulkBody(_Body, frozen=True, kw_only=True, omit_defaults=True):
    """A command to many runs, each for itself. `reason` goes into the events of those that take it."""

    command: Literal["cancel", "pause", "resume", "delete"]
    workflow_ids: Annotated[list[RunId], Meta(min_length=1, max_length=500)]
    reason: Text | None = None
