"""What every node of a graph may have, whatever its kind (page 003 §2). The kinds stand in `kinds/`.

All Structs are frozen and encode to canonical JSON and back. Durations are seconds.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import msgspec

from agentflow.definition.policy import RetryPolicy

__all__ = [
    "WORKERS",
    "WORKER_PREFIX",
    "AgentExample",
    "AgentSpec",
    "Approval",
    "Binds",
    "Budget",
    "Cache",
    "Capabilities",
    "ErrorRoute",
    "FunctionRef",
    "GlobalUpdate",
    "Join",
    "ModelRef",
    "Needed",
    "NodeBase",
    "Policy",
    "ToolDeclaration",
    "handles_error",
    "next_port",
]

WORKERS = "worker"
"""The service of the handlers that nodes call by name (page 003 §12)."""

WORKER_PREFIX = f"{WORKERS}:"

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


class AgentExample(msgspec.Struct, frozen=True, kw_only=True):
    """An input and the answer to it, as the model is shown them before the input of the step."""

    input: Any
    output: Any


class AgentSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An agent: prompt (a template), model, functions, limits.

    `functions` None = every function that the run may use, () = none. `plain_result` says what an
    answer without `output_schema` becomes: `text` (page 000) or `object` (page 001 §5.5: a JSON object as
    it is, other text as {"text": …}). Without `send_schema` the provider does not get `output_schema`. An
    agent that `exchanges` messages is told the conversation that it is sent, and sends AgentResponse along
    its edges (page 002 §11); others take and give values.
    `handoffs` are those to whom it may hand over, by id, each with what it is good for: a call of
    `handoff_to_<id>` ends its work. With `accept_truncated` the text of an answer that was cut off by its
    length is taken as the answer; calls of functions in it are never executed. A `registered` one is found by
    its name when a run begins; what else is stated here takes the place of what that agent has.
    """

    name: str
    system_prompt: str
    model: ModelRef | str | None = None
    fallback: tuple[ModelRef | str, ...] = ()
    output_schema: dict[str, Any] | bool | None = None
    plain_result: Literal["text", "object"] = "text"
    send_schema: bool = True
    exchanges: Literal["values", "messages"] = "values"
    handoffs: dict[str, str] = {}
    functions: tuple[FunctionRef, ...] | None = ()
    context: Any = None
    tags: dict[str, Any] = {}
    max_turns: int = 10
    max_tool_calls: int = 50
    parallel_tool_calls: bool = True
    examples: tuple[AgentExample, ...] = ()
    accept_truncated: bool = False
    registered: bool = False


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


class ErrorRoute(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where a failure leads: to `next`, if its code is one of `codes` or `codes` is empty."""

    next: str
    codes: tuple[str, ...] = ()


class Capabilities(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a node may do at most (page 003 §3); None: what its kind may.

    `read` has areas: `input`, `nodes`, `globals`, `state`, or finer ones, as `nodes.a`; so has `write`:
    `globals`, `state`. `tools`: `service.function`, `service.*`, `worker:name` or `worker:*`. `models`:
    `provider:model` or `provider:*`.
    """

    read: tuple[str, ...] | None = None
    write: tuple[str, ...] | None = None
    tools: tuple[str, ...] | None = None
    models: tuple[str, ...] | None = None


class GlobalUpdate(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A change of a global value (page 003 §12). `source` (`from` on the wire) is the path of the operand;
    `increment` adds `by` without one."""

    op: Literal["set", "append", "increment", "merge"]
    source: str | None = msgspec.field(name="from", default=None)
    by: int | float = 1


def handles_error(node: NodeBase, code: str) -> bool:
    """Return whether `on_error` of a node says how the run goes on after a failure with this code."""
    handling = node.on_error
    if isinstance(handling, ErrorRoute):
        return not handling.codes or code in handling.codes
    return handling == "skip"


class NodeBase(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type"):
    """What every node has. `index` is the declared position (ties are broken by it).

    A node with `depends_on` is a node of a dependency graph: it is activated once, when its join rule
    says so. A node reached by edges (`next`, `edges[]`) with join `any` is activated once per token.

    Which of the fields a kind takes stands at the kind (`TAKES`); the others are refused by the checks.
    `on_error`: `fail` the run, `skip` with the output null, or go elsewhere. After the output is stored,
    `set_globals` (key to path) and then `update_globals` are applied.
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
    on_error: Literal["fail", "skip"] | ErrorRoute = "fail"
    set_globals: dict[str, str] = {}
    update_globals: dict[str, GlobalUpdate] = {}
    metadata: dict[str, Any] = {}
    capabilities: Capabilities | None = None


class ToolDeclaration(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A function as a node describes it to its model. The registered function of that name is called."""

    name: str
    """`service.function`, or the name of exactly one registered function."""
    input_schema: dict[str, Any] | bool | None = None
    output_schema: dict[str, Any] | bool | None = None
    description: str | None = None


class Needed(NamedTuple):
    """A name that a node has in one of its fields, and that is found when the graph is bound."""

    field: str
    """The path of the field in the node, `tool` or `routes/0/tool`."""
    name: str
    role: str = "executor"
    """What kind of code a callable is; messages say it."""
    file: str | None = None
    """The file beside the document that has a worker handler, if the node names one."""


class Binds(NamedTuple):
    """What a node needs from outside before a run can begin. Binding reads this and asks for no kind."""

    agent: AgentSpec | None = None
    """Its models and the functions that it is offered."""
    agent_field: str = "agent"
    """The path of the agent in the node; "" if the fields of the agent are the node's own."""
    agent_is_pool: bool = False
    """Whether the agents of a graph that becomes known in the run take of its functions what they need."""
    declared: tuple[tuple[int, ToolDeclaration], ...] = ()
    """What the node says itself about functions of its agent, by their position."""
    tools: tuple[Needed, ...] = ()
    """Functions that it calls itself, each as `service.function`."""
    callables: tuple[Needed, ...] = ()
    """Python code that is registered by name."""
    graph: Needed | None = None
    """A graph of the document, or a registered one."""


def next_port(spec: Any) -> tuple[tuple[str, str], ...]:
    """Return the port `next`, if it is set: the ports of most kinds."""
    return () if spec.next is None else (("next", spec.next),)
