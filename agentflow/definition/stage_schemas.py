"""Values of the stages of the request pipeline: Structs, JSON Schemas and their rules (page 004 §3).

One value has one Struct, which refuses unknown fields, and one schema in draft 2020-12, which also states
the rules between the fields: an answer of a model is held against the schema alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar, cast

import msgspec
from msgspec import UNSET, UnsetType

__all__ = [
    "ACTIVATION",
    "ARTIFACT",
    "ARTIFACT_TYPES",
    "CHECK",
    "CHECK_KEYS",
    "EXECUTOR_OUTPUT",
    "EXPECTED",
    "FINAL_OUTPUT",
    "MAX_STEPS",
    "NORMALIZED_REQUEST",
    "PLAN",
    "SCHEMAS",
    "STEP",
    "STEP_RESULT",
    "VERIFIER_OUTPUT",
    "Activation",
    "ApprovalStatus",
    "Artifact",
    "ArtifactType",
    "Call",
    "Check",
    "ExecutorOutput",
    "Expected",
    "FinalOutput",
    "FinalStep",
    "Matched",
    "NormalizedRequest",
    "Plan",
    "StageStruct",
    "Step",
    "StepResult",
    "Verdict",
    "VerifierOutput",
    "as_expected",
    "problems_of",
    "read",
    "to_value",
]

MAX_STEPS = 100

ArtifactType = Literal["file", "url", "email", "message", "json", "markdown", "other"]
ARTIFACT_TYPES: tuple[str, ...] = ("file", "url", "email", "message", "json", "markdown", "other")
ApprovalStatus = Literal["not_required", "pending", "approved", "rejected"]


class StageStruct(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Base of the values of a stage."""


class NormalizedRequest(StageStruct, frozen=True, kw_only=True):
    """Result of stage 1: what is asked for, as a contract."""

    status: Literal["ready", "blocked"]
    objective: str
    constraints: tuple[str, ...]
    context: dict[str, Any]
    success_criteria: tuple[str, ...]
    blockers: tuple[str, ...]


class Expected(StageStruct, frozen=True, kw_only=True):
    """An artifact that a step shall produce."""

    type: ArtifactType
    uri: str
    required: bool = True
    description: str | UnsetType = UNSET


class Check(StageStruct, frozen=True, kw_only=True):
    """Deterministic checks of one target; all keys that are set must hold."""

    target: str | UnsetType = UNSET
    """`output` or the uri of an artifact; unset: the only artifact of the step, else its output."""
    exists: bool | UnsetType = UNSET
    min_bytes: int | UnsetType = UNSET
    max_bytes: int | UnsetType = UNSET
    contains: tuple[str, ...] | UnsetType = UNSET
    not_contains: tuple[str, ...] | UnsetType = UNSET
    min_urls: int | UnsetType = UNSET
    headings: tuple[str, ...] | UnsetType = UNSET
    json_schema: dict[str, Any] | bool | UnsetType = UNSET
    equals: Any = UNSET
    sha256: str | UnsetType = UNSET


CHECK_KEYS: tuple[str, ...] = tuple(k for k in Check.__struct_fields__ if k != "target")


class Call(StageStruct, frozen=True, kw_only=True):
    """The one call that a step is: no model decides about it. `parameters` are data, as all of a plan."""

    tool: str
    """`toolset.function`, of one of the toolsets of the step."""
    parameters: dict[str, Any]


class Step(StageStruct, frozen=True, kw_only=True):
    """One step of a plan."""

    id: str
    title: str
    action: str
    owner: str
    depends_on: tuple[str, ...]
    toolsets: tuple[str, ...] = ()
    expected_artifacts: tuple[str | Expected, ...] = ()
    verification: Any = ()
    """Text, a Check, or a list of both."""
    requires_approval: bool | UnsetType = UNSET
    approval_status: ApprovalStatus | UnsetType = UNSET
    call: Call | UnsetType = UNSET
    """Set: the runtime makes this call, and no delegate is asked."""

    @property
    def expected(self) -> tuple[Expected, ...]:
        """The expected artifacts, those that are given as a uri too."""
        return tuple(as_expected(one) for one in self.expected_artifacts)

    @property
    def checks(self) -> tuple[Check, ...]:
        """The Check objects of `verification`."""
        return tuple(read(Check, one) for one in _as_list(self.verification) if not isinstance(one, str))

    @property
    def free_text(self) -> tuple[str, ...]:
        """The strings of `verification`, which no program can check."""
        return tuple(one for one in _as_list(self.verification) if isinstance(one, str))


class Plan(StageStruct, frozen=True, kw_only=True):
    """Result of stage 2."""

    status: Literal["ready", "blocked"]
    summary: str
    steps: tuple[Step, ...]
    risks: tuple[str, ...]
    artifacts: tuple[str, ...]
    blockers: tuple[str, ...]


class Artifact(StageStruct, frozen=True, kw_only=True):
    """What a step says that it produced; `verified` is a claim and no evidence."""

    type: ArtifactType
    uri: str
    status: Literal["created", "verified", "pending", "missing"]
    description: str | UnsetType = UNSET
    id: str | UnsetType = UNSET
    """The id of the message that was sent."""


class StepResult(StageStruct, frozen=True, kw_only=True):
    """What a step came to. `step_id` is the id in the plan."""

    step_id: str
    status: Literal["done", "failed", "skipped"]
    output: str
    error: str | None
    artifacts: tuple[Artifact, ...] = ()
    code: str | UnsetType = UNSET


class ExecutorOutput(StageStruct, frozen=True, kw_only=True):
    """Result of stage 3."""

    status: Literal["ready", "partial", "blocked"]
    step_results: tuple[StepResult, ...]
    blockers: tuple[str, ...]


class Verdict(StageStruct, frozen=True, kw_only=True):
    """What verification says of one step. `step_id` is the id in the plan."""

    step_id: str
    verdict: Literal["pass", "fail", "skipped"]
    reason: str


class VerifierOutput(StageStruct, frozen=True, kw_only=True):
    """Result of stage 4."""

    status: Literal["ready", "partial", "blocked"]
    verdicts: tuple[Verdict, ...]
    summary: str
    blockers: tuple[str, ...]


class FinalStep(StageStruct, frozen=True, kw_only=True):
    """One step in the final output."""

    step_id: str
    status: Literal["done", "failed", "skipped"]
    verdict: Literal["pass", "fail", "skipped"]
    output: str


class FinalOutput(StageStruct, frozen=True, kw_only=True):
    """Result of stage 5, and of the run."""

    status: Literal["ready", "partial", "blocked", "error"]
    objective: str
    summary: str
    plan_summary: str
    execution_summary: str
    verification_summary: str
    steps: tuple[FinalStep, ...]
    blockers: tuple[str, ...]
    errors: tuple[str, ...]
    execution_mode: Literal["standalone", "delegated"]
    stage3_available: bool
    partial_reason: str


class Matched(StageStruct, frozen=True, kw_only=True):
    """The terms of the tables that a text has."""

    intent: tuple[str, ...]
    action: tuple[str, ...]
    review: tuple[str, ...]


class Activation(StageStruct, frozen=True, kw_only=True):
    """What a text asks for: a workflow, or an answer."""

    mode: Literal["workflow", "direct_answer"]
    trigger: Literal["explicit_prefix", "semantic_detector", "template", "api", "none"]
    matched: Matched
    execution_requested: bool
    user_input: str


# -- schemas ------------------------------------------------------------------------------------

Schema = dict[str, Any]
_TEXT: Schema = {"type": "string"}
_FILLED: Schema = {"type": "string", "pattern": r"\S"}
_FLAG: Schema = {"type": "boolean"}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_NONE: Schema = {"maxItems": 0}
_SOME: Schema = {"minItems": 1}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _enum(*values: str) -> Schema:
    return {"type": "string", "enum": list(values)}


def _object(fields: dict[str, Schema], optional: tuple[str, ...] = (), *rules: Schema) -> Schema:
    found: Schema = {
        "type": "object",
        "properties": fields,
        "required": [name for name in fields if name not in optional],
        "additionalProperties": False,
    }
    return {**found, "allOf": list(rules)} if rules else found


def _when(status: str, **then: Schema) -> Schema:
    """Return the rule that holds for values with this status."""
    said = {"properties": {"status": {"const": status}}, "required": ["status"]}
    return {"if": said, "then": {"properties": then}}


_TYPE = _enum(*ARTIFACT_TYPES)

NORMALIZED_REQUEST: Schema = _object(
    {
        "status": _enum("ready", "blocked"),
        "objective": _TEXT,
        "constraints": _list(_TEXT),
        "context": {"type": "object"},
        "success_criteria": _list(_TEXT),
        "blockers": _list(_FILLED),
    },
    (),
    _when("ready", blockers=_NONE, objective={"pattern": r"\S"}),
    _when("blocked", blockers=_SOME),
)

EXPECTED: Schema = _object(
    {"type": _TYPE, "uri": _FILLED, "required": _FLAG, "description": _TEXT}, ("required", "description")
)

CHECK: Schema = {
    **_object(
        {
            "target": _FILLED,
            "exists": _FLAG,
            "min_bytes": _COUNT,
            "max_bytes": _COUNT,
            "contains": _list(_TEXT),
            "not_contains": _list(_TEXT),
            "min_urls": _COUNT,
            "headings": _list(_TEXT),
            "json_schema": {"type": ["object", "boolean"]},
            "equals": {},
            "sha256": {"type": "string", "pattern": "^[0-9a-fA-F]{64}$"},
        },
        ("target", *CHECK_KEYS),
    ),
    "anyOf": [{"required": [key]} for key in CHECK_KEYS],
}

STEP: Schema = _object(
    {
        "id": _TEXT,
        "title": _TEXT,
        "action": _TEXT,
        "owner": _TEXT,
        "depends_on": _list(_TEXT),
        "toolsets": _list(_TEXT),
        "expected_artifacts": _list({"anyOf": [_FILLED, EXPECTED]}),
        "verification": {"anyOf": [_TEXT, CHECK, _list({"anyOf": [_TEXT, CHECK]})]},
        "requires_approval": _FLAG,
        "approval_status": _enum("not_required", "pending", "approved", "rejected"),
        "call": _object({"tool": _FILLED, "parameters": {"type": "object"}}),
    },
    ("toolsets", "expected_artifacts", "verification", "requires_approval", "approval_status", "call"),
)

PLAN: Schema = _object(
    {
        "status": _enum("ready", "blocked"),
        "summary": _TEXT,
        "steps": {**_list(STEP), "maxItems": MAX_STEPS},
        "risks": _list(_TEXT),
        "artifacts": _list(_TEXT),
        "blockers": _list(_FILLED),
    },
    (),
    _when("ready", blockers=_NONE, steps=_SOME),
    _when("blocked", blockers=_SOME),
)

ARTIFACT: Schema = _object(
    {
        "type": _TYPE,
        "uri": _FILLED,
        "status": _enum("created", "verified", "pending", "missing"),
        "description": _TEXT,
        "id": _TEXT,
    },
    ("description", "id"),
)

_UNDONE: Schema = {"properties": {"error": _FILLED}}
STEP_RESULT: Schema = _object(
    {
        "step_id": _TEXT,
        "status": _enum("done", "failed", "skipped"),
        "output": _TEXT,
        "error": {"type": ["string", "null"]},
        "artifacts": _list(ARTIFACT),
        "code": _TEXT,
    },
    ("artifacts", "code"),
    {**_when("done", error={"type": "null"}), "else": _UNDONE},
)

_NOT_DONE: Schema = {"contains": {"properties": {"status": {"enum": ["failed", "skipped"]}}}}
_ALL_DONE: Schema = {"items": {"properties": {"status": {"const": "done"}}}}
EXECUTOR_OUTPUT: Schema = _object(
    {
        "status": _enum("ready", "partial", "blocked"),
        "step_results": _list(STEP_RESULT),
        "blockers": _list(_FILLED),
    },
    (),
    _when("ready", blockers=_NONE, step_results=_ALL_DONE),
    _when("partial", blockers=_SOME, step_results=_NOT_DONE),
    _when("blocked", blockers=_SOME),
)

_VERDICT = _enum("pass", "fail", "skipped")
_NOT_PASSED: Schema = {"contains": {"properties": {"verdict": {"enum": ["fail", "skipped"]}}}}
_ALL_PASSED: Schema = {"items": {"properties": {"verdict": {"const": "pass"}}}}
VERIFIER_OUTPUT: Schema = _object(
    {
        "status": _enum("ready", "partial", "blocked"),
        "verdicts": _list(_object({"step_id": _TEXT, "verdict": _VERDICT, "reason": _FILLED})),
        "summary": _FILLED,
        "blockers": _list(_FILLED),
    },
    (),
    _when("ready", blockers=_NONE, verdicts=_ALL_PASSED),
    _when("partial", verdicts=_NOT_PASSED),
    _when("blocked", blockers=_SOME),
)

FINAL_OUTPUT: Schema = _object(
    {
        "status": _enum("ready", "partial", "blocked", "error"),
        "objective": _TEXT,
        "summary": _TEXT,
        "plan_summary": _TEXT,
        "execution_summary": _TEXT,
        "verification_summary": _TEXT,
        "steps": _list(
            _object(
                {
                    "step_id": _TEXT,
                    "status": _enum("done", "failed", "skipped"),
                    "verdict": _VERDICT,
                    "output": _TEXT,
                }
            )
        ),
        "blockers": _list(_TEXT),
        "errors": _list(_TEXT),
        "execution_mode": _enum("standalone", "delegated"),
        "stage3_available": _FLAG,
        "partial_reason": _TEXT,
    },
    (),
    _when("ready", errors=_NONE, blockers=_NONE),
    _when("error", errors=_SOME),
    _when("blocked", blockers=_SOME),
)

ACTIVATION: Schema = _object(
    {
        "mode": _enum("workflow", "direct_answer"),
        "trigger": _enum("explicit_prefix", "semantic_detector", "template", "api", "none"),
        "matched": _object({"intent": _list(_TEXT), "action": _list(_TEXT), "review": _list(_TEXT)}),
        "execution_requested": _FLAG,
        "user_input": _TEXT,
    }
)

SCHEMAS: Mapping[str, Schema] = {
    "normalized_request": NORMALIZED_REQUEST,
    "plan": PLAN,
    "step": STEP,
    "expected": EXPECTED,
    "check": CHECK,
    "artifact": ARTIFACT,
    "step_result": STEP_RESULT,
    "executor_output": EXECUTOR_OUTPUT,
    "verifier_output": VERIFIER_OUTPUT,
    "final_output": FINAL_OUTPUT,
    "activation": ACTIVATION,
}

_BY_TYPE: Mapping[type, Schema] = {
    NormalizedRequest: NORMALIZED_REQUEST,
    Plan: PLAN,
    Step: STEP,
    Expected: EXPECTED,
    Check: CHECK,
    Artifact: ARTIFACT,
    StepResult: STEP_RESULT,
    ExecutorOutput: EXECUTOR_OUTPUT,
    VerifierOutput: VERIFIER_OUTPUT,
    FinalOutput: FINAL_OUTPUT,
    Activation: ACTIVATION,
}

S = TypeVar("S", bound=StageStruct)


def problems_of(type: type[StageStruct], value: Any) -> list[tuple[str, str]]:
    """Return what is wrong with a JSON value by schema and rules, as (JSON pointer, message)."""
    from agentflow.definition.schemas import validate

    return [(issue.path, issue.message) for issue in validate(_BY_TYPE[type], value)]


def read(type: Callable[..., S], value: Any) -> S:
    """Return the Struct of a JSON value. Raises msgspec.ValidationError if it has another shape."""
    return msgspec.convert(value, cast("type[S]", type))


def to_value(struct: StageStruct) -> dict[str, Any]:
    """Return the JSON value of a Struct, without optional fields that are not given."""
    return msgspec.json.decode(msgspec.json.encode(struct))


def as_expected(one: str | Expected) -> Expected:
    """Return an expected artifact; the type of a bare uri follows from its form (page 004 §3)."""
    if isinstance(one, Expected):
        return one
    lower = one.lower()
    kind: ArtifactType = "file"
    if lower.startswith(("http:", "https:")):
        kind = "url"
    elif lower.startswith("mailto:"):
        kind = "email"
    elif lower.endswith(".json"):
        kind = "json"
    elif lower.endswith(".md"):
        kind = "markdown"
    return Expected(type=kind, uri=one)


def _as_list(value: Any) -> list[Any]:
    return list(cast("list[Any]", value)) if isinstance(value, (list, tuple)) else [value]
