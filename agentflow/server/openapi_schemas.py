"""What the schemas of the OpenAPI document say beside what the Structs do: one schema for each event, enums
of states, either-or rules, examples. Written so that generated clients need no cast: members that may be left
out are optional and not null, members that are always there are required.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from itertools import combinations
from typing import Any

import msgspec

from agentflow.events.catalogue import TYPES
from agentflow.events.deltas import ModelDelta
from agentflow.events.envelope import Trace

__all__ = ["EXAMPLES", "event_components", "refine"]

_RUN_STATES = ["pending", "running", "waiting", "paused", "completed", "failed", "cancelled"]
_STEP_STATES = ["pending", "running", "waiting", "succeeded", "failed", "skipped", "cancelled"]
_ENUMS: dict[tuple[str, str], list[str]] = {
    ("RunRecord", "state"): _RUN_STATES,
    ("RunSummary", "state"): _RUN_STATES,
    ("FoldedState", "state"): _RUN_STATES,
    ("BulkResult", "state"): _RUN_STATES,
    ("StepSummary", "state"): _STEP_STATES,
    ("FoldedStep", "state"): _STEP_STATES,
    ("StepExecution", "state"): _STEP_STATES,
    ("StepRecord", "state"): _STEP_STATES,
    ("RequestRecord", "kind"): ["step", "tool", "human", "input"],
    ("Health", "status"): ["ok", "draining", "failed"],
    ("ToolsetView", "state"): ["enabled", "disabled", "down"],
}
_EITHER: dict[str, tuple[str, str]] = {
    "SubmitBody": ("definition", "definition_ref"),
    "ValidateBody": ("definition", "definition_ref"),
    "ApprovalBody": ("request_id", "step_id"),
    "SessionBody": ("code", "token"),
}
_AT_MOST_ONE: dict[str, tuple[str, ...]] = {
    "ForkBody": ("offset", "from_step", "from"),
}
_BY_NAME: dict[str, Any] = {"type": "object", "additionalProperties": {}}
_COUNT = {"type": "integer", "minimum": 0}
_BUDGET: dict[str, Any] = {
    "type": "object",
    "properties": {
        "max_cost_usd": {"type": "number", "minimum": 0},
        "max_tokens": _COUNT,
        "max_model_calls": _COUNT,
        "max_tool_calls": _COUNT,
        "max_duration_s": {"type": "number", "minimum": 0},
        "max_steps": _COUNT,
        "max_depth": _COUNT,
        "on_exceeded": {"enum": ["pause", "ask", "fail"], "type": "string"},
    },
}
_SHAPES: dict[tuple[str, str], dict[str, Any]] = {
    ("ForkBody", "edits"): {
        "type": "object",
        "properties": {
            "input": {},
            "outputs": {**_BY_NAME, "description": "Outputs by step."},
            "shared": {**_BY_NAME, "description": "Shared values by key."},
            "state": {**_BY_NAME, "description": "Private values by node."},
            "messages": {**_BY_NAME, "description": "Waiting messages by node."},
        },
        "additionalProperties": False,
        "minProperties": 1,
    },
    ("ForkBody", "definition"): {"anyOf": [{"type": "object"}, {"type": "string"}]},
    ("ForkBody", "definition_ref"): {
        "anyOf": [{"$ref": "#/components/schemas/DefinitionRef"}, {"type": "string"}]
    },
    **{(body, "budget"): _BUDGET for body in ("SubmitBody", "ResumeBody")},
}
"""Members whose Struct says less than the daemon takes: they are checked where their meaning is known."""
_ECHO = {"agents": [{"name": "helper", "system_prompt": "Answer in one line.", "model": "openai:gpt-5-mini"}]}

_PLAN = {
    "status": "ready",
    "summary": "Collect the open tickets and sum them up.",
    "steps": [
        {
            "id": "collect",
            "title": "Collect the tickets",
            "action": "Read the tickets of this week.",
            "owner": "agent",
            "depends_on": [],
            "toolsets": ["web"],
        }
    ],
    "risks": [],
    "artifacts": [],
    "blockers": [],
}
_DIGEST = "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"

EXAMPLES: dict[str, dict[str, Any]] = {
    "resume_all": {"crash": {"reason": "the cause of the crashes is mended"}},
    "resume": {"budget": {"budget": {"max_tokens": 50_000}, "reason": "worth it"}},
    "replay": {"fresh": {"policy": "Always", "input": {"ticket": "4711"}}},
    "put_plan": {"edited": {"plan": _PLAN, "plan_digest": _DIGEST}},
    "execute": {"as_seen": {"plan_digest": _DIGEST}, "edited": {"plan": _PLAN}},
    "reject": {"reason": {"reason": "too many tickets at once"}},
    "withdraw": {"reason": {"reason": "answered by phone"}},
    "request": {"review": {"message": "workflow: sum up the tickets of this week", "review": True}},
    "classify": {"text": {"message": "build a workflow that sums up my tickets"}},
    "install_template": {"text": {"source": "template: tickets\n", "overwrite": True}},
    "set_template": {"texts": {"summary": "Sums up the tickets of a week."}},
    "run_template": {"inputs": {"inputs": {"week": "2026-W05"}, "review": True}},
    "begin_session": {"link": {"code": "gA3…"}, "form": {"token": "a token of the daemon"}},
    "gc": {"look": {"dry_run": True}},
    "submit": {
        "document": {"definition": _ECHO, "input": "Is the shop open?"},
        "registered": {"definition_ref": {"name": "triage", "version": "1.2"}, "input": {"ticket": "4711"}},
    },
    "validate": {"document": {"definition": _ECHO}},
    "register": {"document": {"definition": _ECHO, "name": "helper", "version": "1"}},
    "cancel": {"soft": {"reason": "not needed any more", "grace_s": 5}},
    "pause": {"drain": {"reason": "maintenance"}},
    "retry": {"again": {"step_id": "fetch", "action": "retry"}},
    "fork": {
        "from a step": {"from_step": "draft"},
        "another input": {"offset": 0, "edits": {"input": {"ticket": "4712"}}},
    },
    "approve": {"grant": {"step_id": "send", "decision": "grant"}},
    "answer": {"one": {"responses": {"req_1": "XL"}}},
    "signal": {"payment": {"name": "paid", "data": {"amount": 12.5}}},
    "bulk_command": {
        "cancel": {"command": "cancel", "workflow_ids": ["wf_1", "wf_2"], "reason": "wrong input"}
    },
}
"""Bodies by operationId."""


def refine(name: str, schema: dict[str, Any], *, is_body: bool) -> None:
    """Change a component in place. `is_body`: it is sent by clients, and not only read."""
    properties: dict[str, dict[str, Any]] = schema.get("properties", {})
    for member, inner in properties.items():
        if (name, member) in _ENUMS:
            _set_enum(inner, _ENUMS[name, member])
        if is_body and (name, member) in _SHAPES:
            properties[member] = deepcopy(_SHAPES[name, member])
    for part in _objects(schema):
        if part.get("type") == "object" and "properties" not in part:
            part.setdefault("additionalProperties", True)
        if part.get("type") == "array" and not {"items", "prefixItems"} & part.keys():
            part["items"] = {}
    if is_body:
        needed = set(schema.get("required", ()))
        for member, inner in properties.items():
            if member not in needed:
                properties[member] = _optional(inner)
    else:
        # What is read is written with its defaults: a member that has one is always there.
        given = [member for member, inner in properties.items() if "default" in inner]
        for member in given:
            del properties[member]["default"]
        if given and not _omits(name):
            schema["required"] = [*schema.get("required", ()), *given]
    if name in _EITHER:
        one, other = _EITHER[name]
        both = {"required": [one, other]}
        neither = {"not": {"anyOf": [{"required": [one]}, {"required": [other]}]}}
        schema["not"] = {"anyOf": [both, neither]}  # which generators leave alone, unlike `oneOf`
    if name in _AT_MOST_ONE:
        pairs = combinations(_AT_MOST_ONE[name], 2)
        schema["not"] = {"anyOf": [{"required": list(pair)} for pair in pairs]}


_OMITTING = ("ErrorInfo", "Message", "ReasoningPart", "Problem", "RunList", "RecordList", "RetentionPolicy")


def _omits(name: str) -> bool:
    """Return whether a Struct leaves members out that have their default: those of documents do too."""
    return name in _OMITTING or name not in _ALWAYS_WHOLE


_ALWAYS_WHOLE = frozenset(
    {
        "RunRecord",
        "RunSummary",
        "StepSummary",
        "Waiting",
        "Usage",
        "BudgetRecord",
        "FoldedState",
        "FoldedStep",
        "RequestRecord",
        "ClosedRequest",
        "StepExecution",
        "AgentExecution",
        "ModelExecution",
        "ToolExecution",
        "ModelCallView",
        "DrawnNode",
        "DrawnEdge",
        "BulkResult",
    }
)


def _set_enum(schema: dict[str, Any], values: list[str]) -> None:
    choices: list[dict[str, Any]] = schema.get("anyOf", [schema])
    for choice in choices:
        if choice.get("type") == "string":
            choice["enum"] = values


def _optional(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a member that may be left out: without null and without a default, which
    generators take for a promise that it is there."""
    kept = {key: value for key, value in schema.items() if key not in ("anyOf", "default")}
    default = schema.get("default")
    if default is not None:
        text = msgspec.json.encode(default).decode()
        kept["description"] = " ".join([kept.get("description", ""), f"Default: {text}."]).strip()
    choices = [choice for choice in schema.get("anyOf", ()) if choice.get("type") != "null"]
    if len(choices) == 1:
        return {**choices[0], **kept}
    if "enum" in kept:
        kept["enum"] = [value for value in kept["enum"] if value is not None]
    return {**kept, "anyOf": choices} if choices else kept


def _objects(schema: Any) -> Iterator[dict[str, Any]]:
    if isinstance(schema, dict):
        yield schema
        for value in schema.values():  # pyright: ignore[reportUnknownVariableType]
            yield from _objects(value)
    elif isinstance(schema, list):
        for value in schema:  # pyright: ignore[reportUnknownVariableType]
            yield from _objects(value)


def event_components(ref: str) -> dict[str, Any]:
    """Return a schema of each event, as `<Data>Event`, their union `RunEvent`, and `StreamItem`: a line of a
    stream."""
    kinds = list(TYPES.values())
    made, found = msgspec.json.schema_components([*kinds, ModelDelta, Trace], ref_template=ref)
    mapping: dict[str, str] = {}
    for kind, data in zip(kinds, made, strict=False):
        name = f"{kind.__name__}Event"
        found[name] = _envelope({"const": kind.EVENT_TYPE, "type": "string"}, data, kind.__doc__, ref)
        mapping[kind.EVENT_TYPE] = ref.format(name=name)
    custom = {"type": "string", "pattern": "^custom\\."}
    found["CustomEvent"] = _envelope(custom, {"type": "object"}, "An event of a handler's own.", ref)
    found["RunEvent"] = {
        "description": "An event of a run, by its `type`.",
        "oneOf": [{"$ref": target} for target in mapping.values()],
        "discriminator": {"propertyName": "type", "mapping": mapping},
    }
    found["Heartbeat"] = {
        "description": "A sign of life, with `heartbeat=event`: `offset` is the last one that was looked at.",
        "type": "object",
        "properties": {
            "type": {"const": "heartbeat", "type": "string"},
            "workflow_id": {"type": "string"},
            "offset": {"type": "integer"},
            "timestamp": {"type": "string"},
        },
        "required": ["type"],
    }
    lines = ("RunEvent", "CustomEvent", "ModelDelta", "Heartbeat")
    found["StreamItem"] = {
        "description": "One line of NDJSON, or the data of one Server-Sent Event.",
        "anyOf": [{"$ref": ref.format(name=name)} for name in lines],
    }
    return found


def _envelope(type: dict[str, Any], data: Any, about: str | None, ref: str) -> dict[str, Any]:
    return {
        "description": (about or "").strip(),
        "type": "object",
        "properties": {
            "id": {"type": "string"},
            "offset": {"type": "integer", "minimum": 0},
            "timestamp": {"type": "string"},
            "type": type,
            "workflow_id": {"type": "string"},
            "data": data,
            "trace": {"$ref": ref.format(name="Trace")},
            "step": {"type": "string"},
            "attempt": {"type": "integer"},
            "schema_version": {"type": "integer"},
        },
        "required": ["id", "offset", "timestamp", "type", "workflow_id", "data"],
    }
