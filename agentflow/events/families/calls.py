"""Events of agents, model calls, tool calls and LLM nodes: `agent.*`, `model.*`, `tool.*`, `node.*`."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import msgspec
from msgspec import UNSET, UnsetType

from agentflow.definition.conversation import Message, Usage
from agentflow.definition.failure import Category, ErrorInfo
from agentflow.events.families.base import StepEvent

__all__ = [
    "AgentCompleted",
    "AgentEvent",
    "AgentFailed",
    "AgentInitialized",
    "AgentInput",
    "AgentInputMetadata",
    "AgentOutput",
    "AgentOutputMetadata",
    "AgentProcessing",
    "AgentRetrying",
    "Binding",
    "ModelCallCompleted",
    "ModelCallFailed",
    "ModelCallStarted",
    "ModelEvent",
    "NodeHealed",
    "NodeLlmInputResolved",
    "NodeStreamDisabled",
    "Reserved",
    "SideEffect",
    "ToolCallCompleted",
    "ToolCallFailed",
    "ToolCallStarted",
    "ToolDigest",
    "ToolEvent",
]

SideEffect = Literal["none", "read", "write", "external", "irreversible"]


class AgentEvent(StepEvent, frozen=True, kw_only=True):
    """What all `agent.*` hold; every execution of an agent has its own context."""

    agent_name: str
    context_id: str


class AgentInputMetadata(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Where an input came from; never shown to the model."""

    step_index: int
    previous_agent: str | None


class AgentInput(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What an agent is given; only `data` becomes the user message."""

    data: Any
    metadata: AgentInputMetadata


class ToolDigest(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A tool as it was offered: its name and the hash of its schema."""

    name: str
    schema_hash: str


class AgentInitialized(AgentEvent, frozen=True, kw_only=True):
    """A fresh context: all that the agent can see. `model` is `provider:model`."""

    EVENT_TYPE: ClassVar[str] = "agent.initialized"

    system_prompt: str
    model: str
    input: AgentInput
    tools: tuple[ToolDigest, ...]


class AgentProcessing(AgentEvent, frozen=True, kw_only=True):
    """A model turn begins; once per turn, counted from 1."""

    EVENT_TYPE: ClassVar[str] = "agent.processing"

    turn: int
    messages_count: int


class AgentRetrying(AgentEvent, frozen=True, kw_only=True):
    """Something failed and the agent tries again at `due_at`; `model` is the one it falls back to."""

    EVENT_TYPE: ClassVar[str] = "agent.retrying"

    kind: Literal["model", "repair", "fallback", "restart"]
    next_attempt: int
    delay_ms: int
    due_at: str
    category: Category
    error: ErrorInfo
    model: str | UnsetType = UNSET


class AgentOutputMetadata(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How an output was made."""

    agent_name: str
    execution_time_ms: int
    tool_calls_count: int


class AgentOutput(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What an agent answered; `data` is the input of the next step, unchanged."""

    data: Any
    metadata: AgentOutputMetadata


class AgentCompleted(AgentEvent, frozen=True, kw_only=True):
    """The agent answered. `output_size` is in bytes of canonical `data`."""

    EVENT_TYPE: ClassVar[str] = "agent.completed"

    duration_ms: int
    output_size: int
    output: AgentOutput
    turns: int
    usage: Usage


class AgentFailed(AgentEvent, frozen=True, kw_only=True):
    """The agent failed and its retries are used up."""

    EVENT_TYPE: ClassVar[str] = "agent.failed"

    duration_ms: int
    error: ErrorInfo
    turns: int
    tool_calls_count: int
    usage: Usage


class ModelEvent(StepEvent, frozen=True, kw_only=True):
    """What all `model.*` hold; `agent_name` is null for nodes that call a model without an agent."""

    model_call_id: str
    agent_name: str | None


class Reserved(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The worst case that a call may cost, held back from the budget until it ends."""

    tokens: int
    cost_usd: float | None


class ModelCallStarted(ModelEvent, frozen=True, kw_only=True):
    """A request is about to be sent. `messages` holds only those new since the context's previous call,
    `messages_from` the index of the first of them. `server` is host and port of a provider that has one."""

    EVENT_TYPE: ClassVar[str] = "model.call_started"

    provider: str
    model: str
    turn: int
    parameters: dict[str, Any]
    messages_from: int
    messages: tuple[Message, ...]
    request_hash: str
    reserved: Reserved
    server: str | UnsetType = UNSET


class ModelCallCompleted(ModelEvent, frozen=True, kw_only=True):
    """The model answered; never paid for twice."""

    EVENT_TYPE: ClassVar[str] = "model.call_completed"

    duration_ms: int
    first_token_ms: int | UnsetType = UNSET
    message: Message
    finish_reason: str
    response_model: str
    response_id: str | UnsetType = UNSET
    usage: Usage


class ModelCallFailed(ModelEvent, frozen=True, kw_only=True):
    """The call failed; `partial` is the text that had arrived."""

    EVENT_TYPE: ClassVar[str] = "model.call_failed"

    duration_ms: int
    error: ErrorInfo
    will_retry: bool
    partial: Any | UnsetType = UNSET
    usage: Usage | UnsetType = UNSET


class ToolEvent(StepEvent, frozen=True, kw_only=True):
    """What all `tool.*` hold; the call id is the same for all attempts."""

    tool_call_id: str
    tool_name: str


class ToolCallStarted(ToolEvent, frozen=True, kw_only=True):
    """A tool is about to be executed."""

    EVENT_TYPE: ClassVar[str] = "tool.call_started"

    service: str | UnsetType = UNSET
    parameters: Any
    agent_name: str | None
    side_effect: SideEffect
    idempotency_key: str
    request_id: str | UnsetType = UNSET
    once: bool | UnsetType = UNSET


class ToolCallCompleted(ToolEvent, frozen=True, kw_only=True):
    """The tool answered; never executed again. `usage` is that of the run which the call began."""

    EVENT_TYPE: ClassVar[str] = "tool.call_completed"

    duration_ms: int
    success: bool = True
    status: Literal["success", "success_no_data"]
    output: Any
    output_size: int
    usage: Usage | UnsetType = UNSET


class ToolCallFailed(ToolEvent, frozen=True, kw_only=True):
    """The call failed; outcome `unknown` means that it may have happened."""

    EVENT_TYPE: ClassVar[str] = "tool.call_failed"

    duration_ms: int
    success: bool = False
    error: ErrorInfo
    executed: bool
    outcome: Literal["not_started", "failed", "unknown"]
    will_retry: bool
    usage: Usage | UnsetType = UNSET


class Binding(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One expression of a prompt template and what it gave."""

    index: int
    expression: str
    source_path: str | None
    resolved: Any
    resolved_type: str
    missing: bool


class NodeLlmInputResolved(StepEvent, frozen=True, kw_only=True, rename={"schema_": "schema"}):
    """The prompt of an LLM node as it will be sent (page 003 §14)."""

    EVENT_TYPE: ClassVar[str] = "node.llm_input_resolved"

    prompt: str | None
    template: str | None
    system: str | None
    messages_count: int
    model: str
    schema_: Any
    stream: bool
    heal: bool
    bindings: tuple[Binding, ...]


class NodeHealed(StepEvent, frozen=True, kw_only=True):
    """An answer was parsed leniently and coerced; what was changed."""

    EVENT_TYPE: ClassVar[str] = "node.healed"

    changes: Any


class NodeStreamDisabled(StepEvent, frozen=True, kw_only=True):
    """Streaming is off for this node."""

    EVENT_TYPE: ClassVar[str] = "node.stream_disabled"

    reason: str
    message: str
