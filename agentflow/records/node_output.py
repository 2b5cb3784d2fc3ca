"""What a run of a node graph gave: the output object (page 003 §12) and the run result (page 003 §1).

Values alone, each serialisable. Members can be read as attributes and by name, `output["trace"]`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from agentflow.definition.conversation import Usage
from agentflow.definition.failure import ErrorInfo
from agentflow.records.trace import WorkflowTrace
from agentflow.records.trace_check import ReplayReport

__all__ = [
    "HumanRequest",
    "LlmNodeMetrics",
    "NodeExecution",
    "NodeRunResult",
    "RetryEvent",
    "StepTiming",
    "WorkflowOutput",
]


class _Members(msgspec.Struct, frozen=True, kw_only=True):
    """A Struct whose members can be read by name, too."""

    def __getitem__(self, name: str) -> Any:
        if name not in self.__struct_fields__:
            raise KeyError(name)
        return getattr(self, name)

    def keys(self) -> Iterator[str]:
        """Yield the names of the members, so that `dict(output)` works."""
        yield from self.__struct_fields__


class HumanRequest(_Members, frozen=True, kw_only=True):
    """The question that waits for a person."""

    request_id: str
    node_id: str
    input_type: str
    prompt: str | None = None
    options: list[Any] | None = None
    form_schema: Any = None
    form_data: Any = None


class StepTiming(_Members, frozen=True, kw_only=True):
    """How long one visit of a node took, and the tokens of its model calls; null: unknown, or no call."""

    node_id: str
    node_kind: str
    model_name: str | None = None
    elapsed_ms: int
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None
    reasoning_tokens: int | None = None
    tokens_per_second: float | None = None


class LlmNodeMetrics(_Members, frozen=True, kw_only=True):
    """The model calls of a node, all visits together; `elapsed_ms` is the time of the calls."""

    elapsed_ms: int
    model_calls: int
    prompt_tokens: int | None
    completion_tokens: int | None
    total_tokens: int | None
    reasoning_tokens: int | None
    tokens_per_second: float | None
    ttft_ms: int | None


class WorkflowOutput(_Members, frozen=True, kw_only=True):
    """The output object of a run, for every state (page 003 §12).

    `status` is the state of the run, or `awaiting_human_input`. `trace` has the ids of the nodes in the order
    in which they began. `outputs` has {output, tool_calls?, human_input_metadata?} by node. Totals of tokens
    are null if any model call lacks its usage.
    """

    workflow_id: str
    definition: dict[str, str]
    entry_node: str | None
    status: str
    error: ErrorInfo | None
    terminal_node: str | None
    terminal_output: Any
    trace: list[str]
    outputs: dict[str, dict[str, Any]]
    globals: dict[str, Any]
    human_request: HumanRequest | None
    step_timings: list[StepTiming]
    llm_node_metrics: dict[str, LlmNodeMetrics]
    llm_node_models: dict[str, str]
    total_elapsed_ms: int
    ttft_ms: int | None
    total_input_tokens: int | None
    total_output_tokens: int | None
    total_tokens: int | None
    total_reasoning_tokens: int | None
    tokens_per_second: float | None
    trace_id: str | None
    metadata: dict[str, Any]


class NodeExecution(_Members, frozen=True, kw_only=True):
    """The record of one activation (page 003 §6). `visit` counts from 1; `next` is the port taken."""

    clock: int
    path: str
    step_id: str
    visit: int
    attempts: int
    status: str
    input: Any
    output: Any = None
    next: str | None = None
    error: ErrorInfo | None = None


class RetryEvent(_Members, frozen=True, kw_only=True):
    """One repetition: of a model or tool call, of an answer that was repaired, or of a whole attempt."""

    step_id: str
    operation: str
    next_attempt: int
    delay_ms: int
    reason: str
    message: str


class NodeRunResult(_Members, frozen=True, kw_only=True):
    """The result of a run, also of a failed or cancelled one (page 003 §1): a view of its log."""

    workflow_id: str
    workflow_name: str
    status: str
    terminal_node_id: str | None
    output: Any
    node_outputs: dict[str, Any]
    node_executions: list[NodeExecution]
    retry_events: list[RetryEvent]
    error: ErrorInfo | None
    usage: Usage
    trace: WorkflowTrace
    replay_report: ReplayReport | None = None
