"""The keys of the step document and of the agent list (page 001 §1, page 000 §2, §3), as data."""

from __future__ import annotations

from agentflow.definition.shapes import (
    ArrayOf,
    Const,
    Duration,
    Enum,
    Field,
    Id,
    Json,
    Kind,
    Map,
    Number,
    OneOf,
    Shape,
    Text,
)

__all__ = ["AGENT_LIST", "MAX_STEPS", "STEP_DOCUMENT"]

MAX_STEPS = 1_000

_COUNT = Number(minimum=1, integer=True)
_AMOUNT = Number(minimum=0)
_SCHEMA = Json(types=("object", "boolean"))

_RETRY_POLICY = Shape(
    "retry",
    {
        "max_attempts": Field(_COUNT),
        "backoff": Field(
            OneOf(
                {
                    "string": Duration(),
                    "number": Duration(),
                    "object": Shape(
                        "backoff",
                        {
                            "initial": Field(Duration()),
                            "multiplier": Field(Number(minimum=1)),
                            "max": Field(Duration()),
                        },
                        code="E_RETRY_POLICY",
                    ),
                }
            )
        ),
        "jitter": Field(Number(minimum=0, maximum=1)),
        "max_elapsed": Field(Duration()),
        "timeout": Field(Duration()),
        "retry_on": Field(ArrayOf(Text(max=64))),
    },
    code="E_RETRY_POLICY",
)
_RETRY = OneOf({"boolean": Const((False,)), "object": _RETRY_POLICY}, code="E_RETRY_POLICY")

_BUDGET = Shape(
    "budget",
    {
        "max_cost_usd": Field(_AMOUNT),
        "max_tokens": Field(_COUNT),
        "max_model_calls": Field(_COUNT),
        "max_tool_calls": Field(_COUNT),
        "max_duration_s": Field(Number(minimum=0)),
        "max_steps": Field(_COUNT),
        "max_depth": Field(_COUNT),
        "on_exceeded": Field(Enum(("pause", "ask", "fail"))),
    },
)

_APPROVAL = OneOf(
    {
        "boolean": Const((True,)),
        "object": Shape(
            "approval",
            {
                "before": Field(Enum(("step", "calls", "side_effects", "never"))),
                "message": Field(Text(template=True)),
                "timeout": Field(Duration()),
                "on_denied": Field(Enum(("fail", "skip"))),
            },
        ),
    }
)

_CACHE = Shape(
    "cache",
    {
        "ttl": Field(Duration(), required=True),
        "key": Field(Text(template=True)),
        "scope": Field(Enum(("definition", "global"))),
    },
)

_MODEL = OneOf(
    {
        "string": Text(max=256),
        "object": Shape(
            "model",
            {
                "use": Field(Id()),
                "provider": Field(Text(max=64)),
                "model": Field(Text(max=256)),
                "temperature": Field(_AMOUNT),
                "max_tokens": Field(_COUNT),
            },
            other=Json(),
            refused=frozenset({"api_key", "base_url"}),
        ),
    }
)

_DEFAULTS = Shape(
    "defaults",
    {"retry": Field(_RETRY), "timeout": Field(Duration()), "max_turns": Field(_COUNT)},
)

_SECRET = Shape("secret", {"$secret": Field(Text(max=128), required=True)})
_VALUES = Map(OneOf({"string": Text(blank=True), "object": _SECRET}), any_key=True)

_FUNCTION_OPTIONS: dict[str, Field] = {
    "side_effect": Field(Enum(("none", "read", "write", "external", "irreversible"))),
    "idempotent": Field(Const((True, False))),
    "description": Field(Text(blank=True)),
    "timeout": Field(Duration()),
    "approval": Field(Const((True, False))),
    "private": Field(Const((True, False))),
}
_FUNCTIONS = Field(Map(Shape("function", _FUNCTION_OPTIONS), any_key=True))
_HTTP_FUNCTION = Shape(
    "function",
    {
        **_FUNCTION_OPTIONS,
        "method": Field(Enum(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")), required=True),
        "path": Field(Text(), required=True),
        "query": Field(ArrayOf(Text())),
        "input_schema": Field(_SCHEMA),
        "output_schema": Field(_SCHEMA),
    },
)

_SERVICE = Shape(
    "service",
    {
        "type": Field(Enum(("python", "mcp", "openapi", "http")), required=True),
        "timeout": Field(Duration()),
        "max_concurrency": Field(_COUNT),
        "include": Field(ArrayOf(Text())),
        "functions": _FUNCTIONS,
        "send_context": Field(Const((True, False))),
    },
    by="type",
    variants={
        "python": {"module": Field(Text(), required=True)},
        "mcp": {
            "transport": Field(Enum(("stdio", "streamable_http")), required=True),
            "command": Field(Text()),
            "args": Field(ArrayOf(Text(blank=True))),
            "env": Field(_VALUES),
            "cwd": Field(Text()),
            "url": Field(Text()),
            "headers": Field(_VALUES),
        },
        "openapi": {
            "document": Field(Text(), required=True),
            "base_url": Field(Text()),
            "headers": Field(_VALUES),
        },
        "http": {
            "base_url": Field(Text(), required=True),
            "headers": Field(_VALUES),
            "functions": Field(Map(_HTTP_FUNCTION, any_key=True), required=True),
        },
    },
)

_INPUT = Shape(
    "input",
    {
        "schema": Field(_SCHEMA),
        "type": Field(Json(types=("string", "array"))),
        "default": Field(Json()),
        "required": Field(Const((True, False))),
        "description": Field(Text(blank=True)),
    },
)

_FUNCTION = Shape(
    "function", {"service": Field(Id(), required=True), "function": Field(Text(max=128), required=True)}
)

_SCALAR: Kind = Json(template=True, types=("string", "number", "boolean", "null"))

_STEP_AGENT = Shape(
    "agent",
    {
        "systemPrompt": Field(Text(template=True), required=True),
        "input": Field(Json(template=True)),
        "resultSchema": Field(_SCHEMA),
        "attachedFunctions": Field(OneOf({"array": ArrayOf(_FUNCTION), "string": Enum(("none",))})),
        "tags": Field(Map(_SCALAR, any_key=True)),
        "context": Field(Json(template=True, types=("object",))),
        "name": Field(Text(max=128)),
        "model": Field(_MODEL),
        "fallback": Field(ArrayOf(_MODEL)),
        "max_turns": Field(_COUNT),
        "max_tool_calls": Field(_COUNT),
    },
)

_STEP = Shape(
    "step",
    {
        "type": Field(Enum(("run",)), required=True),
        "id": Field(Id(), required=True),
        "agent": Field(_STEP_AGENT, required=True),
        "depends_on": Field(ArrayOf(Text())),
        "if": Field(OneOf({"string": Text(blank=True, template=True), "boolean": Const((True, False))})),
        "for_each": Field(Text(blank=True, template=True)),
        "required": Field(Const((True, False))),
        "max_parallel": Field(_COUNT),
        "timeout": Field(Duration()),
        "retry": Field(_RETRY),
        "approval": Field(_APPROVAL),
        "cache": Field(_CACHE),
        "budget": Field(_BUDGET),
    },
)

_WORKFLOW = Shape(
    "workflow",
    {
        "steps": Field(ArrayOf(_STEP, max=MAX_STEPS), required=True),
        "max_parallel": Field(_COUNT),
        "fail_fast": Field(Const((True, False))),
        "timeout": Field(Duration()),
        "budget": Field(_BUDGET),
    },
)

_COMMON: dict[str, Field] = {
    "format": Field(Text()),
    "name": Field(Text(max=128)),
    "description": Field(Text(blank=True)),
    "$schema": Field(Text(blank=True)),
    "services": Field(Map(_SERVICE)),
    "models": Field(Map(_MODEL)),
    "defaults": Field(_DEFAULTS),
}

STEP_DOCUMENT = Shape(
    "document",
    {
        **_COMMON,
        "version": Field(Json()),
        "workflow": Field(_WORKFLOW, required=True),
        "inputs": Field(Map(_INPUT)),
        "outputs": Field(Map(Json(template=True))),
    },
)

_LIST_AGENT = Shape(
    "agent",
    {
        "name": Field(Text(max=128), required=True, code="E_AGENT_FIELD"),
        "system_prompt": Field(Text(), required=True, code="E_AGENT_FIELD"),
        "tools": Field(ArrayOf(Text(max=129))),
        "model": Field(_MODEL),
        "id": Field(Id(max=128)),
        "output_schema": Field(_SCHEMA),
        "max_turns": Field(_COUNT),
        "max_tool_calls": Field(_COUNT),
        "parallel_tool_calls": Field(Const((True, False))),
        "timeout": Field(Duration()),
        "retry": Field(_RETRY),
        "budget": Field(_BUDGET),
        "fallback": Field(ArrayOf(_MODEL)),
    },
)

AGENT_LIST = Shape(
    "document",
    {
        **_COMMON,
        "version": Field(Text(max=128)),
        "agents": Field(ArrayOf(_LIST_AGENT, max=MAX_STEPS), required=True),
        "retry": Field(_RETRY),
        "budget": Field(_BUDGET),
        "timeout": Field(Duration()),
        "on_failure": Field(Enum(("halt", "continue", "hold"))),
    },
)
