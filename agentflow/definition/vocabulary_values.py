"""The value objects that both document formats share (page 001 §1.4, page 000 §9, §10), as data."""

from __future__ import annotations

from agentflow.definition.policy import MAX_SECONDS
from agentflow.definition.shapes import (
    ArrayOf,
    Const,
    Duration,
    Enum,
    ErrorName,
    Field,
    Id,
    Json,
    Map,
    Number,
    OneOf,
    Schema,
    Shape,
    Text,
)

__all__ = [
    "APPROVAL",
    "BUDGET",
    "CACHE",
    "COUNT",
    "DEFAULTS",
    "EXAMPLE",
    "FLAG",
    "INPUT",
    "MODEL",
    "RETRY",
    "RETRY_OF_NODES",
    "SERVICE",
]

COUNT = Number(minimum=1, integer=True)
FLAG = Const((True, False))
_AMOUNT = Number(minimum=0)
_DURATION_HELP = "A duration such as 500ms, 30s, 5m, 1h or 1d, or seconds."

EXAMPLE = Shape(
    "example",
    {
        "input": Field(Json(), "What the agent is given.", required=True),
        "output": Field(Json(), "What it answers: text, or a value by its schema.", required=True),
    },
)

_BACKOFF = Shape(
    "backoff",
    {
        "initial": Field(Duration(), "The wait before the second attempt.", "1s"),
        "multiplier": Field(Number(minimum=1), "By how much each wait is longer than the one before.", 2),
        "max": Field(Duration(), "The longest wait.", "30s"),
    },
    code="E_RETRY_POLICY",
)

_RETRY_POLICY = Shape(
    "retry",
    {
        "max_attempts": Field(COUNT, "How often it is tried, the first attempt included.", 4),
        "backoff": Field(
            OneOf({"string": Duration(), "number": Duration(), "object": _BACKOFF}),
            "The wait between two attempts: growing, or a duration that stays the same.",
        ),
        "jitter": Field(
            Number(minimum=0, maximum=1), "The part of a wait that is drawn by lot, from 0 to 1.", 0.1
        ),
        "max_elapsed": Field(
            Duration(), "From the first failure to the start of the last attempt at most.", "60s"
        ),
        "timeout": Field(Duration(), f"How long one attempt may take. {_DURATION_HELP}", "300s"),
        "retry_on": Field(
            ArrayOf(ErrorName()),
            "The categories or codes of errors after which it is tried again.",
            ("transient", "timeout", "rate_limited"),
        ),
    },
    code="E_RETRY_POLICY",
)

RETRY = OneOf({"boolean": Const((False,)), "object": _RETRY_POLICY}, code="E_RETRY_POLICY")

_TYPED_BACKOFF = Shape(
    "backoff",
    {
        "type": Field(Enum(("exponential", "fixed")), "Whether the wait grows.", "exponential"),
        **_BACKOFF.fields,
    },
)
_RETRY_FIELDS: dict[str, Field] = {
    **_RETRY_POLICY.fields,
    "max_retries": Field(Number(minimum=0, integer=True), "How often it is tried again."),
    "backoff": Field(
        OneOf({"string": Duration(), "number": Duration(), "object": _TYPED_BACKOFF}),
        "The wait between two attempts.",
    ),
}
RETRY_OF_NODES = OneOf({"boolean": Const((False,)), "object": Shape("retry", _RETRY_FIELDS)})
"""The retry of node-graph YAML, whose backoff has a type."""

BUDGET = Shape(
    "budget",
    {
        "max_cost_usd": Field(_AMOUNT, "What all model calls may cost together, in US dollars."),
        "max_tokens": Field(COUNT, "Tokens of all model calls, read and written."),
        "max_model_calls": Field(COUNT, "How many model calls may be made."),
        "max_tool_calls": Field(COUNT, "How many functions may be called."),
        "max_duration_s": Field(
            Number(minimum=0, maximum=MAX_SECONDS), "Seconds of work; time spent paused does not count."
        ),
        "max_steps": Field(COUNT, "How many steps may be started, iterations included."),
        "max_depth": Field(COUNT, "How deep runs may start runs.", 8),
        "on_exceeded": Field(
            Enum(("pause", "ask", "fail")),
            "What happens when a limit is reached: the run pauses, a person is asked, or the run fails.",
            "pause",
        ),
    },
)

APPROVAL = OneOf(
    {
        "boolean": Const((True,)),
        "object": Shape(
            "approval",
            {
                "before": Field(
                    Enum(("step", "calls", "side_effects", "never")),
                    "What a person must allow: the step, each of its function calls, or those calls that may"
                    " change something.",
                    "step",
                ),
                "message": Field(Text(template=True), "What the person is told. A template."),
                "timeout": Field(Duration(), "How long an answer is waited for; without it, for ever."),
                "on_denied": Field(
                    Enum(("fail", "skip")), "What becomes of a step that is not allowed.", "fail"
                ),
            },
        ),
    }
)

CACHE = Shape(
    "cache",
    {
        "ttl": Field(Duration(), f"How long a result may be used again. {_DURATION_HELP}", required=True),
        "key": Field(
            Text(template=True),
            "A template: steps with the same text share results. Without it, all that the agent is given.",
        ),
        "scope": Field(
            Enum(("definition", "global")),
            "Who shares the results: runs of this definition, or of all definitions.",
            "definition",
        ),
    },
)

MODEL = OneOf(
    {
        "string": Text(max=256),
        "object": Shape(
            "model",
            {
                "use": Field(Id(), "An alias of `models`, whose keys count where this object has none."),
                "provider": Field(Text(max=64), "The provider, such as openai, anthropic, gemini or local."),
                "model": Field(Text(max=256), "The provider's name of the model, or provider:model."),
                "temperature": Field(_AMOUNT, "How freely the model words its answers."),
                "max_tokens": Field(COUNT, "Tokens of one answer at most."),
            },
            other=Json(),
            refused=frozenset({"api_key", "base_url"}),
        ),
    }
)

DEFAULTS = Shape(
    "defaults",
    {
        "retry": Field(RETRY, "The retry of steps; a step's own keys win."),
        "timeout": Field(Duration(), "The time-out of steps that have none."),
        "max_turns": Field(COUNT, "The turns of agents that do not say how many."),
    },
)

_SECRET = Shape(
    "secret",
    {"$secret": Field(Text(max=128), "The name of a secret that the daemon knows.", required=True)},
)
_VALUES = Map(OneOf({"string": Text(blank=True), "object": _SECRET}), any_key=True)
_HEADERS = Field(_VALUES, "Headers of every request; a value may be {$secret: NAME}.")

_FUNCTION_OPTIONS: dict[str, Field] = {
    "side_effect": Field(
        Enum(("none", "read", "write", "external", "irreversible")),
        "What a call may change. Undeclared: external, where a call might be repeated.",
    ),
    "idempotent": Field(FLAG, "Whether a repeated call with the same key does no harm."),
    "description": Field(Text(blank=True), "What the model is told about the function."),
    "timeout": Field(Duration(), "How long one call may take."),
    "approval": Field(FLAG, "Whether a person must allow each call.", False),
    "private": Field(FLAG, "Whether only agents that name the function may call it.", False),
}
_FUNCTIONS = Field(
    Map(Shape("function", _FUNCTION_OPTIONS), any_key=True), "What is declared of functions, by name."
)
_HTTP_FUNCTION = Shape(
    "function",
    {
        **_FUNCTION_OPTIONS,
        "method": Field(
            Enum(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")), "The HTTP method.", required=True
        ),
        "path": Field(Text(), "The path below base_url; {arg} stands for an argument.", required=True),
        "query": Field(ArrayOf(Text()), "The arguments that go into the query."),
        "input_schema": Field(Schema(), "The JSON Schema of the arguments."),
        "output_schema": Field(Schema(), "The JSON Schema of the result."),
    },
)

SERVICE = Shape(
    "service",
    {
        "type": Field(
            Enum(("python", "mcp", "openapi", "http", "workflow")),
            "What the functions come from.",
            required=True,
        ),
        "timeout": Field(Duration(), f"How long one call may take. {_DURATION_HELP}", "60s"),
        "max_concurrency": Field(COUNT, "How many calls may be open at once.", 8),
        "include": Field(
            ArrayOf(Text()),
            "The only functions that are offered: names, patterns as repos/*, and for openapi tag:NAME.",
        ),
        "search": Field(
            FLAG, "Whether its functions are offered only when find_functions has found them.", False
        ),
        "functions": _FUNCTIONS,
        "send_context": Field(FLAG, "Whether functions are given the agent's context.", True),
    },
    by="type",
    variants={
        "python": {
            "module": Field(
                Text(), "The module, looked up in the document's folder, then on sys.path.", required=True
            )
        },
        "mcp": {
            "transport": Field(
                Enum(("stdio", "streamable_http")), "How the MCP server is reached.", required=True
            ),
            "command": Field(Text(), "stdio: the program of the server."),
            "args": Field(ArrayOf(Text(blank=True)), "stdio: its arguments."),
            "env": Field(_VALUES, "stdio: its environment; a value may be {$secret: NAME}."),
            "cwd": Field(Text(), "stdio: the folder that it runs in."),
            "url": Field(Text(), "streamable_http: the address of the server."),
            "headers": _HEADERS,
            "trust_hints": Field(
                FLAG, "Whether what the server says of its functions makes calls repeatable.", False
            ),
        },
        "openapi": {
            "document": Field(Text(), "Path or URL of the OpenAPI document, 3.0 to 3.2.", required=True),
            "base_url": Field(Text(), "Where the API is, if its document does not say so."),
            "headers": _HEADERS,
            "security": Field(
                Map(_SECRET, any_key=True),
                "The credentials of the document's security schemes, by their names: {$secret: NAME}.",
            ),
        },
        "workflow": {
            "workflows": Field(
                Map(Text(), any_key=True),
                "By the name of each function its workflow: a file beside the document, or the name of a"
                " registered one.",
                required=True,
            ),
        },
        "http": {
            "base_url": Field(Text(), "What the paths of the functions stand below.", required=True),
            "headers": _HEADERS,
            "functions": Field(Map(_HTTP_FUNCTION, any_key=True), "The functions, by name.", required=True),
        },
    },
)

INPUT = Shape(
    "input",
    {
        "schema": Field(Schema(), "The JSON Schema of the input."),
        "type": Field(Json(types=("string", "array")), "Short for a schema that has only this type."),
        "default": Field(Json(), "The value of runs that do not give the input."),
        "required": Field(FLAG, "Whether every run must give it; true unless there is a default."),
        "description": Field(Text(blank=True), "What the input is, for people."),
    },
)
