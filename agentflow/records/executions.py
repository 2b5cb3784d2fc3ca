"""What the steps, agents, models and tools of a run did, as records (page 000 §5, §8). Values alone."""

from __future__ import annotations

from typing import Any

import msgspec

from agentflow.definition.conversation import Message, Usage
from agentflow.definition.failure import ErrorInfo
from agentflow.events import catalogue as ev

__all__ = [
    "AgentContext",
    "AgentExecution",
    "Execution",
    "ModelExecution",
    "Offsets",
    "StepExecution",
    "StepMetadata",
    "StepRecord",
    "ToolExecution",
]


class Offsets(msgspec.Struct, kw_only=True):
    """The first and the last event about something."""

    first: int
    last: int


class Execution(msgspec.Struct, kw_only=True):
    """What all executions say. Times are RFC 3339; `ended_at` is null while it goes on."""

    step_id: str
    iteration: int | None
    activation: str
    attempt: int
    state: str
    started_at: str
    ended_at: str | None = None
    duration_ms: int | None = None
    error: ErrorInfo | None = None
    event_offsets: Offsets


class StepExecution(Execution, kw_only=True):
    """One activation of a step, or one iteration of it. `reason` is why it was skipped."""

    step_index: int
    kind: str | None = None
    agent_name: str | None = None
    input: Any = None
    output: Any = None
    reason: str | None = None


class AgentExecution(Execution, kw_only=True):
    """One context of an agent: every attempt begins a new one. `model` is `provider:model`."""

    context_id: str
    agent_name: str
    model: str
    input: Any = None
    output: Any = None
    turns: int = 0
    usage: Usage | None = None


class ModelExecution(Execution, kw_only=True):
    """One request to a model."""

    model_call_id: str
    agent_name: str | None
    provider: str
    model: str
    turn: int
    finish_reason: str | None = None
    first_token_ms: int | None = None
    usage: Usage | None = None


class ToolExecution(Execution, kw_only=True):
    """One call of a function with all its attempts. `outcome`: succeeded, failed, not_started, unknown."""

    tool_call_id: str
    tool_name: str
    agent_name: str | None
    side_effect: str
    idempotency_key: str
    parameters: Any = None
    output: Any = None
    outcome: str | None = None


class StepMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """Beside the result of a step. `timestamp` is when it ended, or began when it has not ended."""

    agent_name: str | None
    timestamp: str
    duration_ms: int | None


class StepRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The state record of a step; `data` is its output as it is."""

    schema_version: int
    workflow_id: str
    step_id: str
    step_index: int
    iteration: int | None
    attempt: int
    state: str
    input: Any
    data: Any
    metadata: StepMetadata
    event_offsets: Offsets
    error: ErrorInfo | None


class AgentContext(msgspec.Struct, frozen=True, kw_only=True):
    """All that one execution of an agent saw and said. `tools` by name and hash of their schema."""

    context_id: str
    step_id: str
    iteration: int | None
    attempt: int
    agent_name: str
    system_prompt: str
    messages: tuple[Message, ...]
    tools: tuple[ev.ToolDigest, ...]
