"""The canonical graph that every front end compiles to and the one engine runs (page 003 §2).

All Structs are frozen, encode to canonical JSON and back, and hold templates and expressions as text;
`agentflow.engine.plan` compiles them. Durations are seconds.
"""

from __future__ import annotations

import hashlib
from typing import Any, Literal

import msgspec

from agentflow.definition.policy import RetryPolicy

__all__ = [
    "AgentNode",
    "AgentSpec",
    "Approval",
    "Budget",
    "Cache",
    "ConditionNode",
    "Edge",
    "EndNode",
    "FunctionRef",
    "InputSpec",
    "Join",
    "ModelRef",
    "Node",
    "NodeBase",
    "Options",
    "Policy",
    "ServiceSpec",
    "StartNode",
    "ToolNode",
    "Workflow",
    "canonical_json",
    "decode_ir",
    "ir_hash",
]

Join = Literal["any", "all_succeeded", "all_terminal"]


class FunctionRef(msgspec.Struct, frozen=True, order=True):
    """A function of a service; `function` may be `*` (every public function of the service)."""

    service: str
    function: str


class ModelRef(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A model by provider and name, with the parameters that go to the provider as they are.

    A document may leave the choice to the binding and still set parameters: `provider` is then "", and
    `model` an alias that the document does not declare, or "" for the default model.
    """

    provider: str
    model: str
    parameters: dict[str, Any] = {}

    @property
    def name(self) -> str:
        """`provider:model`."""
        return f"{self.provider}:{self.model}"


class ServiceSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A declared service (page 001 §1.4). `options` holds the keys of its type (`module` for python)."""

    type: str
    timeout: float = 60.0
    max_concurrency: int = 8
    include: tuple[str, ...] | None = None
    functions: dict[str, dict[str, Any]] = {}
    send_context: bool = True
    options: dict[str, Any] = {}


class InputSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A declared input of the workflow. `default` counts only when `has_default`."""

    schema: dict[str, Any] | bool = True
    required: bool = True
    has_default: bool = False
    default: Any = None
    description: str | None = None


class Policy(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Retry of a node (or of an agent's model calls) and the time-out over all its attempts."""

    retry: RetryPolicy | None = None
    timeout: float | None = None


class Approval(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Who must agree before work is done (page 001 §5.8). `message` is a template; `timeout` in seconds."""

    before: Literal["step", "calls", "side_effects", "never"] = "step"
    message: str | None = None
    timeout: float | None = None
    on_denied: Literal["fail", "skip"] = "fail"


class Cache(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A step whose results of the last `ttl` seconds serve again (page 001 §5.8). `key` is a template."""

    ttl: float
    key: str | None = None
    scope: Literal["definition", "global"] = "definition"


class Budget(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a run, step or agent may use (page 000 §10); None = no limit."""

    max_cost_usd: float | None = None
    max_tokens: int | None = None
    max_model_calls: int | None = None
    max_tool_calls: int | None = None
    max_duration_s: float | None = None
    max_steps: int | None = None
    max_depth: int = 8
    on_exceeded: Literal["pause", "ask", "fail"] = "pause"


class AgentSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An agent: prompt (a template), model, functions, limits.

    `functions` None = every function that the run may use, () = none. `plain_result` says what an
    answer without `output_schema` becomes: `text` (page 000) or `object` (page 001 §5.5: a JSON object as
    it is, other text as {"text": …}).
    """

    name: str
    system_prompt: str
    model: ModelRef | str | None = None
    fallback: tuple[ModelRef | str, ...] = ()
    output_schema: dict[str, Any] | bool | None = None
    plain_result: Literal["text", "object"] = "text"
    functions: tuple[FunctionRef, ...] | None = ()
    context: Any = None
    tags: dict[str, Any] = {}
    max_turns: int = 10
    max_tool_calls: int = 50
    parallel_tool_calls: bool = True


class NodeBase(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type"):
    """What every node has. `index` is the declared position (ties are broken by it).

    A node with `depends_on` is a node of a dependency graph: it is activated once, when its join rule
    says so. A node reached by edges (`next`, `edges[]`) with join `any` is activated once per token.
    """

    id: str
    name: str | None = None
    index: int = 0
    depends_on: tuple[str, ...] = ()
    join: Join = "any"
    guard: str | None = None
    for_each: str | None = None
    max_parallel: int | None = None
    required: bool = True
    policy: Policy | None = None
    approval: Approval | None = None
    cache: Cache | None = None
    budget: Budget | None = None


class StartNode(NodeBase, frozen=True, kw_only=True, omit_defaults=True, tag="start"):
    """Where tokens begin: the run's input goes along `next` and along its `edges[]`."""

    next: str | None = None


class EndNode(NodeBase, frozen=True, kw_only=True, omit_defaults=True, tag="end"):
    """The end. With `drain`, live paths are awaited. `output` is a template; without it the output is
    the payload that arrived, or for a dependency graph `{leaf step: result or null}`."""

    output: Any = msgspec.UNSET
    drain: bool = False


class AgentNode(NodeBase, frozen=True, kw_only=True, omit_defaults=True, tag="agent"):
    """An agent at work. `input` is a template; unset, the input is the payload of the token."""

    agent: AgentSpec
    input: Any = msgspec.UNSET
    next: str | None = None


class ToolNode(NodeBase, frozen=True, kw_only=True, omit_defaults=True, tag="tool"):
    """One function call: `tool` is `service.function`. `input` as for an agent."""

    tool: str
    input: Any = msgspec.UNSET
    next: str | None = None


class ConditionNode(NodeBase, frozen=True, kw_only=True, omit_defaults=True, tag="condition"):
    """Sends its token to `on_true` or `on_false`; its output is the boolean."""

    expression: str
    on_true: str
    on_false: str


Node = StartNode | EndNode | AgentNode | ToolNode | ConditionNode


class Edge(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An edge beside those of the target fields (page 002 §4); `single` is the only kind so far."""

    source: str
    target: str
    kind: Literal["single"] = "single"


class Options(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Limits and policies of a run. `on_failure`: page 000 §2."""

    policy: Literal["eager"] = "eager"
    on_failure: Literal["halt", "continue", "hold"] = "continue"
    max_parallel: int = 8
    max_steps: int = 1_000
    timeout: float | None = None
    budget: Budget | None = None


class Workflow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The whole graph. `inputs` None = not declared (names are inferred from references)."""

    name: str
    nodes: tuple[Node, ...]
    version: Literal["v0"] = "v0"
    edges: tuple[Edge, ...] = ()
    inputs: dict[str, InputSpec] | None = None
    outputs: dict[str, Any] | None = None
    services: dict[str, ServiceSpec] = {}
    models: dict[str, ModelRef] = {}
    options: Options = Options()
    metadata: dict[str, Any] = {}


_encoder = msgspec.json.Encoder(order="sorted")
_decoder = msgspec.json.Decoder(Workflow)


def canonical_json(value: Any) -> bytes:
    """UTF-8, keys by code point, no blanks, integers exact, floats shortest (page 000 §1).

    NaN and Infinity must have been refused before: msgspec would write null.
    """
    return _encoder.encode(value)


def decode_ir(data: bytes) -> Workflow:
    """The Workflow that `canonical_json` wrote. Raises msgspec.ValidationError with the path."""
    return _decoder.decode(data)


def ir_hash(workflow: Workflow) -> str:
    """`sha256:` + hex of the canonical JSON of the graph."""
    return "sha256:" + hashlib.sha256(canonical_json(workflow)).hexdigest()
