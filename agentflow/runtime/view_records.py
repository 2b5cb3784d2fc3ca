"""What the views of runs give: summaries, folded states, execution records, definitions. Values alone."""

from __future__ import annotations

from typing import Any

import msgspec

from agentflow.definition.conversation import Usage
from agentflow.definition.failure import ErrorInfo
from agentflow.definition.ir import Workflow
from agentflow.errors import AgentflowError
from agentflow.events.catalogue import DefinitionInfo
from agentflow.runtime.execution_records import (
    AgentExecution,
    ModelExecution,
    StepExecution,
    ToolExecution,
)
from agentflow.runtime.records import BudgetRecord, RunRecord, Waiting

__all__ = [
    "DefinitionView",
    "ExecutionRecord",
    "FoldedState",
    "FoldedStep",
    "RunSummary",
    "StepNotFound",
]


class StepNotFound(AgentflowError):
    """The run has no such step, or it has not begun."""

    code = "step_not_found"


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The members of a run record that the store answers without reading the run's log."""

    workflow_id: str
    name: str | None
    definition_hash: str
    state: str
    labels: dict[str, str]
    created_at: str
    updated_at: str
    ended_at: str | None
    duration_ms: int | None
    last_offset: int
    earliest_offset: int
    parent: str | None
    bytes: int
    archived: bool = False
    usage: Usage | None = None  # of an ended run, if it was asked for
    links: dict[str, str] = {}


class FoldedStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step in a folded state. `output` and `error` {category, code, message} once it has ended; `items`
    counts iterations by state."""

    state: str
    attempt: int
    visits: int
    output: Any = None
    error: Any = None
    items: dict[str, int] | None = None


class FoldedState(msgspec.Struct, frozen=True, kw_only=True):
    """The fold of a run's events up to `offset`: all that the runtime knows of it then.

    `calls` are the open calls of models and tools, `timers` give when they fall due.
    """

    workflow_id: str
    offset: int
    state: str
    input: Any
    output: Any
    error: ErrorInfo | None
    steps: dict[str, FoldedStep]
    calls: dict[str, str]
    waiting: Waiting
    timers: dict[str, str]
    pause: str | None
    cancel_requested: bool
    usage: Usage
    budget: BudgetRecord


class ExecutionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What a run did: its record, and each execution of a step, an agent, a model and a tool."""

    workflow: RunRecord
    steps: list[StepExecution]
    agents: list[AgentExecution]
    models: list[ModelExecution]
    tools: list[ToolExecution]


class DefinitionView(msgspec.Struct, frozen=True, kw_only=True):
    """The definition that a run is pinned to: its source as it was submitted, and its graph."""

    workflow_id: str
    definition: DefinitionInfo
    source: Any
    ir_hash: str
    ir: Workflow
