"""The names of spans, attributes and metrics, and nothing else: the one module that knows them.

`gen_ai.*`, `mcp.*`, `server.*`, `network.*` and `error.type` are those of the OpenTelemetry semantic
conventions for generative AI at their newest state, which is still in development: a new version of them is a
change of this file. OTEL_SEMCONV_STABILITY_OPT_IN pins an earlier one. What they have no name for is
`agentflow.*`. Written out here and not imported: a release of another package must not rename what dashboards
are built on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from agentflow.definition.conversation import Usage

__all__ = [
    "NEWEST",
    "PINNED",
    "SCHEMA_URL",
    "SCOPE",
    "Convention",
    "provider_name",
    "request_attributes",
    "server_attributes",
    "total_attributes",
    "usage_attributes",
]

SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.44.0"
SCOPE: Final = "agentflow"

# -- generative AI and general

OPERATION: Final = "gen_ai.operation.name"
PROVIDER: Final = "gen_ai.provider.name"
REQUEST_MODEL: Final = "gen_ai.request.model"
RESPONSE_MODEL: Final = "gen_ai.response.model"
RESPONSE_ID: Final = "gen_ai.response.id"
FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
TIME_TO_FIRST_CHUNK: Final = "gen_ai.response.time_to_first_chunk"
AGENT_NAME: Final = "gen_ai.agent.name"
CONVERSATION: Final = "gen_ai.conversation.id"
WORKFLOW_NAME: Final = "gen_ai.workflow.name"
TOOL_NAME: Final = "gen_ai.tool.name"
TOOL_CALL: Final = "gen_ai.tool.call.id"
TOOL_TYPE: Final = "gen_ai.tool.type"
TOOL_DESCRIPTION: Final = "gen_ai.tool.description"
OUTPUT_TYPE: Final = "gen_ai.output.type"
REQUEST_STREAM: Final = "gen_ai.request.stream"
REASONING_LEVEL: Final = "gen_ai.request.reasoning.level"
SERVER_ADDRESS: Final = "server.address"
SERVER_PORT: Final = "server.port"
MCP_METHOD: Final = "mcp.method.name"
NETWORK_TRANSPORT: Final = "network.transport"
NETWORK_PROTOCOL: Final = "network.protocol.name"
TOKEN_TYPE: Final = "gen_ai.token.type"
ERROR_TYPE: Final = "error.type"

# Content; recorded only when the user asks for it.
SYSTEM_INSTRUCTIONS: Final = "gen_ai.system_instructions"
INPUT_MESSAGES: Final = "gen_ai.input.messages"
OUTPUT_MESSAGES: Final = "gen_ai.output.messages"
TOOL_ARGUMENTS: Final = "gen_ai.tool.call.arguments"
TOOL_RESULT: Final = "gen_ai.tool.call.result"

# Values of `gen_ai.operation.name`; a span is named by its operation and what it is done to.
INVOKE_WORKFLOW: Final = "invoke_workflow"
INVOKE_AGENT: Final = "invoke_agent"
CHAT: Final = "chat"
EXECUTE_TOOL: Final = "execute_tool"

# Spans that the conventions do not know.
PROCESS: Final = "process"
BUILD: Final = "workflow.build"
SUPERSTEP_SPAN: Final = "superstep"
EDGE_SPAN: Final = "edge_group.process"

_REQUEST = {
    "temperature": "gen_ai.request.temperature",
    "top_p": "gen_ai.request.top_p",
    "top_k": "gen_ai.request.top_k",
    "max_tokens": "gen_ai.request.max_tokens",
    "max_completion_tokens": "gen_ai.request.max_tokens",
    "seed": "gen_ai.request.seed",
    "frequency_penalty": "gen_ai.request.frequency_penalty",
    "presence_penalty": "gen_ai.request.presence_penalty",
    "n": "gen_ai.request.choice.count",
}
_STOP = "gen_ai.request.stop_sequences"

_USAGE = (
    ("input_tokens", "gen_ai.usage.input_tokens"),
    ("output_tokens", "gen_ai.usage.output_tokens"),
    ("cache_read_input_tokens", "gen_ai.usage.cache_read.input_tokens"),
    ("cache_creation_input_tokens", "gen_ai.usage.cache_write.input_tokens"),
    ("reasoning_output_tokens", "gen_ai.usage.reasoning.output_tokens"),
)
_ALWAYS = 2  # input and output are written when they are 0 as well

_PROVIDERS = {"gemini": "gcp.gemini", "vertex": "gcp.vertex_ai", "bedrock": "aws.bedrock", "xai": "x_ai"}


def provider_name(provider: str) -> str:
    """Return the name that the conventions have for a provider of ours; others keep their own."""
    return _PROVIDERS.get(provider, provider)


def request_attributes(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of a model call's parameters has a name; a value of an odd type has none."""
    found: dict[str, Any] = {}
    for key, value in parameters.items():
        name = _REQUEST.get(key)
        if name is not None and isinstance(value, int | float) and not isinstance(value, bool):
            found[name] = value
        elif key == "stop":
            words: Any = [value] if isinstance(value, str) else value
            if isinstance(words, list | tuple) and all(isinstance(word, str) for word in words):  # pyright: ignore[reportUnknownVariableType]
                found[_STOP] = list(words)  # pyright: ignore[reportUnknownArgumentType]
    level = _reasoning_level(parameters)
    if isinstance(level, str):
        found[REASONING_LEVEL] = level
    return found


def _reasoning_level(parameters: Mapping[str, Any]) -> Any:
    """Return the effort of reasoning that is asked for, in the words of whichever provider."""
    if "reasoning_effort" in parameters:
        return parameters["reasoning_effort"]
    for place, member in (
        ("reasoning", "effort"),
        ("output_config", "effort"),
        ("thinking_config", "thinkingLevel"),
    ):
        inner = parameters.get(place)
        if isinstance(inner, Mapping) and member in inner:
            return inner[member]  # pyright: ignore[reportUnknownVariableType]
    return None


def server_attributes(address: str | None) -> dict[str, Any]:
    """Return the attributes of a server, by its host and port ("api.example.com:443")."""
    host, _, port = (address or "").rpartition(":")
    if not host or not port.isdecimal():
        return {}
    return {SERVER_ADDRESS: host.strip("[]"), SERVER_PORT: int(port)}


def usage_attributes(usage: Usage) -> dict[str, Any]:
    """Return tokens that were paid for, and their price when it is known.

    What a provider did not report is an upper bound, not a count: it stands under a name of our own.
    """
    if usage.estimated is True:
        return {"agentflow.usage.at_most_tokens": usage.input_tokens + usage.output_tokens}
    found: dict[str, Any] = {}
    for i, (field, name) in enumerate(_USAGE):
        count: int = getattr(usage, field)
        if count or i < _ALWAYS:
            found[name] = count
    if usage.cost_usd:
        found[COST] = usage.cost_usd
    return found


def total_attributes(usage: Usage) -> dict[str, Any]:
    """Return the usage of a whole run, under names of our own, so that a sum over `gen_ai.usage.*` counts
    nothing twice."""
    found: dict[str, Any] = {
        "agentflow.usage.input_tokens": usage.input_tokens,
        "agentflow.usage.output_tokens": usage.output_tokens,
        "agentflow.usage.model_calls": usage.model_calls,
        "agentflow.usage.tool_calls": usage.tool_calls,
    }
    if usage.cost_usd:
        found[COST] = usage.cost_usd
    return found


# -- agentflow

WORKFLOW_ID: Final = "agentflow.run.id"
STEP_ID: Final = "agentflow.step.id"
MESSAGE_TYPE: Final = "agentflow.message.type"
MESSAGE_INDEX: Final = "agentflow.message.index"
EDGE: Final = "agentflow.edge"
EDGE_KIND: Final = "agentflow.edge.kind"
EDGE_TARGET: Final = "agentflow.edge.target"
DELIVERY_STATUS: Final = "agentflow.delivery_status"
STEP_KIND: Final = "agentflow.step_kind"
ACTIVATION: Final = "agentflow.activation"
ITERATION: Final = "agentflow.iteration"
ITEMS: Final = "agentflow.items"
ATTEMPT: Final = "agentflow.attempt"
ATTEMPTS: Final = "agentflow.attempts"
SUPERSTEP: Final = "agentflow.superstep"
OFFSET: Final = "agentflow.offset"
STATE: Final = "agentflow.state"
STATUS: Final = "agentflow.status"
RETRY_KIND: Final = "agentflow.retry_kind"
FORMAT: Final = "agentflow.definition.format"
DEFINITION: Final = "agentflow.definition.id"
VERSION: Final = "agentflow.definition.version"
SIGNATURE: Final = "agentflow.graph.signature"
DEFINITION_HASH: Final = "agentflow.definition.hash"
LABEL: Final = "agentflow.label."
TAG: Final = "agentflow.tag."
TURN: Final = "agentflow.turn"
TURNS: Final = "agentflow.turns"
TOOL_CALLS: Final = "agentflow.tool_calls"
SERVICE: Final = "agentflow.service"
SIDE_EFFECT: Final = "agentflow.side_effect"
OUTCOME: Final = "agentflow.outcome"
WILL_RETRY: Final = "agentflow.will_retry"
ERROR_CATEGORY: Final = "agentflow.error.category"
OUTPUT_SIZE: Final = "agentflow.output_size"
NEXT: Final = "agentflow.next"
COST: Final = "agentflow.cost_usd"
REPLAYED_FROM: Final = "agentflow.replayed_from"
CACHED_FROM: Final = "agentflow.cached_from"
REPLAY_OF: Final = "agentflow.replay_of"
FORKED_FROM: Final = "agentflow.forked_from"
PARENT_RUN: Final = "agentflow.parent"
CLOCK_STEPPED: Final = "agentflow.clock_stepped"
START_UNKNOWN: Final = "agentflow.start_unknown"
UNFINISHED: Final = "agentflow.unfinished"
INPUT: Final = "agentflow.input"
OUTPUT: Final = "agentflow.output"
LINK: Final = "agentflow.link"

RETRY_EVENT: Final = "agentflow.retry"
STEP_SKIPPED_EVENT: Final = "agentflow.step_skipped"

# -- metrics

TOKEN_USAGE: Final = "gen_ai.client.token.usage"
FIRST_CHUNK: Final = "gen_ai.client.operation.time_to_first_chunk"
OPERATION_DURATION: Final = "gen_ai.client.operation.duration"
TOKEN_BUCKETS: Final = tuple(float(4**n) for n in range(14))
CHUNK_BUCKETS: Final = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
    10.0,
)
DURATION_BUCKETS: Final = tuple(0.01 * 2**n for n in range(14))

RUN_DURATION: Final = "agentflow.run.duration"
TOOL_DURATION: Final = "agentflow.tool.duration"
NODE_DURATION: Final = "agentflow.node.duration"
NODE_EXECUTIONS: Final = "agentflow.node.executions"
NODE_RETRIES: Final = "agentflow.node.retries"
SUPERSTEP_DURATION: Final = "agentflow.superstep.duration"
COMMIT_DURATION: Final = "agentflow.log.commit.duration"
EVENTS: Final = "agentflow.log.events"
MAILBOX_DEPTH: Final = "agentflow.mailbox.depth"
DEAD_LETTERS: Final = "agentflow.dead_letters"
QUEUE_DEPTH: Final = "agentflow.queue.depth"
WORKER_HEALTH: Final = "agentflow.worker.health"
SPANS_EXPORTED: Final = "agentflow.spans.exported"
SPANS_REFUSED: Final = "agentflow.spans.refused"
EXPORT_FAILURES: Final = "agentflow.spans.export_failures"
COMMIT_BUCKETS: Final = (0.0001, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
RUN_BUCKETS: Final = (0.01, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 3600.0, 21600.0, 86400.0)

# -- versions


class Convention(NamedTuple):
    """A version of the conventions: what it calls differently, and what it does not have."""

    schema_url: str
    renamed: Mapping[str, str]
    unknown: frozenset[str]

    def names(self, attributes: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the attributes by the names of this version."""
        if not self.renamed and not self.unknown:
            return attributes
        renamed = self.renamed
        return {
            renamed.get(name, name): value for name, value in attributes.items() if name not in self.unknown
        }


_CACHE_WRITE: Final = {"gen_ai.usage.cache_write.input_tokens": "gen_ai.usage.cache_creation.input_tokens"}

NEWEST: Final = Convention(SCHEMA_URL, {}, frozenset())
PINNED: Final[Mapping[str, Convention]] = {
    "gen_ai_latest_experimental": NEWEST,
    "gen_ai/1.41": Convention(
        "https://opentelemetry.io/schemas/1.41.0", _CACHE_WRITE, frozenset({REASONING_LEVEL})
    ),
    "gen_ai/1.36": Convention(
        "https://opentelemetry.io/schemas/1.36.0",
        {PROVIDER: "gen_ai.system"},
        frozenset(
            {
                REASONING_LEVEL,
                REQUEST_STREAM,
                TIME_TO_FIRST_CHUNK,
                WORKFLOW_NAME,
                SYSTEM_INSTRUCTIONS,
                INPUT_MESSAGES,
                OUTPUT_MESSAGES,
                TOOL_ARGUMENTS,
                TOOL_RESULT,
                *(name for _, name in _USAGE[_ALWAYS:]),
            }
        ),
    ),
}
"""The versions that OTEL_SEMCONV_STABILITY_OPT_IN can name; without it the newest holds."""
