"""A step of a plan that a foreign delegate works on: one call of `delegate_task` (page 004 §8).

The call is in the log as any call of a function, with the class of the step's toolsets: what may have had
effects outside is never repeated without a person's word. Calls that the delegate reports are recorded beside
it and are evidence; its own word is none.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET

from agentflow.definition.conversation import ToolCall
from agentflow.definition.delegates import classified, result_of, usage_of, with_usage
from agentflow.engine.agents.progress import ToolRecord
from agentflow.engine.bindings import ToolInfo
from agentflow.engine.budgets import budget_left, exceeded_moves, tool_calls_exceed, used_up
from agentflow.engine.decisions import Decisions
from agentflow.engine.kinds.kind import Prepared
from agentflow.engine.kinds.stage_agent import PlanStep, end_of_step, task_of
from agentflow.engine.kinds.tool import Tool, first_call
from agentflow.engine.tool_calls import start_tool

if TYPE_CHECKING:
    from agentflow.definition.conversation import Usage
    from agentflow.definition.failure import ErrorInfo
    from agentflow.definition.policy import RetryPolicy
    from agentflow.engine.activation import Activation
    from agentflow.engine.state import RunState
    from agentflow.events import catalogue as ev

__all__ = ["PLAN_STEP_DELEGATE"]

MAX_REPAIRS = 2
_MAY_HAVE_ACTED = frozenset({"transient", "timeout", "rate_limited", "quota", "interrupted"})


class _Reported:
    """What a step keeps beside its own call: calls that its delegate reported, and repairs of its answer."""

    def __init__(self) -> None:
        self.calls: dict[str, ToolRecord] = {}
        self.repairs = 0
        self.problem: str | None = None


class PlanStepDelegate(PlanStep, Tool):
    """Gives the task to the delegate, and holds its answer against the schema of a StepResult."""

    name = "agent"
    ends_itself = True
    is_delegated = True
    judges_calls = True
    said = None

    def compile(self, node: Any) -> Any:
        """Return no template: text of a plan is data."""
        return None

    # -- beginning

    def prepare(self, state: RunState, activation: Activation) -> Prepared | ErrorInfo:
        """Return the task of the delegate."""
        snapshot = activation.snapshot
        task = task_of(state, activation) if snapshot is None else snapshot["input"]
        task = {**task, "deadline": activation.node.retry.timeout, "budget": None}
        data = {"task": {**task, "attempt": activation.attempt}}
        return Prepared(data, {"input": task})

    def started(self, state: RunState, activation: Activation, data: Any, ts: int) -> None:
        """Keep what the expected files were; the call gets the task alone."""
        assert state.pipeline is not None
        state.pipeline.note_start(activation.node.name, data.input)
        activation.input = {"task": data.input.get("task")}
        activation.local = _Reported()

    def start(self, state: RunState, activation: Activation, prepared: Prepared, now: int) -> Decisions:
        """Make the call at once, unless a budget may forbid it."""
        task = {"task": prepared.input["task"]}
        return super().start(state, activation, Prepared(task, prepared.subject), now)

    # -- attempts

    def next(self, state: RunState, activation: Activation, now: int) -> Decisions:
        """Give the task again, with its number and what was wrong with the answer, or do as any tool node."""
        record = activation.tool
        if activation.due_at is not None and now < activation.due_at:
            return []
        if record is not None and record.state != "planned":
            return super().next(state, activation, now)
        over = used_up(state, activation) or (
            tool_calls_exceed(state, activation, 1) if record is None else None
        )
        if over is not None:
            return exceeded_moves(state, activation, over, now)
        left = budget_left(state, activation) or None
        if record is None:
            return first_call(state, activation, {"task": {**activation.input["task"], "budget": left}}, now)
        task: dict[str, Any] = {**record.parameters["task"], "attempt": record.tries + 1, "budget": left}
        problem = activation.local.problem
        if problem is not None:
            task["context"] = {**task["context"], "repair": problem}
        again = copy.copy(record)
        again.parameters = {"task": task}
        return start_tool(state, activation, again, now)

    def call_policy(self, activation: Activation) -> RetryPolicy:
        """Return the policy of the step as it stands."""
        return activation.node.retry

    def judge_answer(self, activation: Activation, answer: Any) -> ErrorInfo | None:
        """Return what the delegate says went wrong, or why its answer is no StepResult of this step."""
        error = result_of(answer, activation.node.name)[1]
        return None if error is None else with_usage(error, answer)

    def classified(self, error: ErrorInfo) -> ErrorInfo:
        """Return the error by its code or HTTP status."""
        return classified(error)

    def is_unknown(self, activation: Activation, error: ErrorInfo) -> bool:
        """Return True where a retry would follow, or a resume, and a call that is not safe has begun."""
        return activation.unsafe and error.category in _MAY_HAVE_ACTED

    def repairs(self, activation: Activation, error: ErrorInfo) -> bool:
        """Return whether an answer that is no result is asked for again: twice, and never if the delegate
        may have had effects outside."""
        is_answer = error.category == "invalid_output"
        return is_answer and not activation.unsafe and activation.local.repairs < MAX_REPAIRS

    def retried(self, state: RunState, activation: Activation, data: Any, ts: int) -> None:
        """Keep what the delegate is told about its answer."""
        is_repair = data.kind == "repair"
        activation.local.repairs += is_repair
        activation.local.problem = data.error.message if is_repair else None

    # -- calls that the delegate reports

    def add_call(self, activation: Activation, call_id: str, name: str) -> ToolRecord:
        """Keep the call of the step, or one that its delegate reports."""
        if activation.tool is None:
            return super().add_call(activation, call_id, name)
        record = ToolRecord(ToolCall(id=call_id, name=name, arguments=""), name)
        activation.local.calls[call_id] = record
        return record

    def call(self, activation: Activation, call_id: str) -> ToolRecord | None:
        """Return the call of the step, or one that its delegate has reported."""
        found = super().call(activation, call_id)
        return found if found is not None or activation.local is None else activation.local.calls.get(call_id)

    def usage_of(self, activation: Activation, answer: Any) -> Usage | None:
        """Return what an answer, or the details of an error, say of the delegate's usage."""
        return usage_of(answer, reported_calls=len(activation.local.calls))

    def info_of(self, data: ev.ToolCallStarted) -> ToolInfo | None:
        """Return a reported call as the delegate declares it."""
        service = "" if data.service is UNSET else data.service
        return ToolInfo(
            name=data.tool_name,
            service=service,
            function=data.tool_name,
            description="",
            input_schema={},
            schema_hash="",
            side_effect=data.side_effect,
            idempotent=False,
            timeout=0.0,
        )

    # -- the end

    def failure(self, activation: Activation, error: ErrorInfo) -> ErrorInfo:
        """Return the failure of the step as the delegate told it."""
        return error

    def end(self, state: RunState, activation: Activation, now: int) -> Decisions:
        """Return the end of the step with its result. What a person reports of an outcome that was unknown
        may be any value."""
        step_id = activation.node.name
        result, _ = result_of(activation.output, step_id)
        if result is not None:
            return end_of_step(state, activation, result, now)
        value = activation.output
        text = value if isinstance(value, str) else msgspec.json.encode(value, order="sorted").decode()
        reported: dict[str, Any] = {
            "step_id": step_id,
            "status": "done",
            "output": "done, as a person reports" if value is None else text,
            "error": None,
            "artifacts": [],
        }
        return end_of_step(state, activation, reported, now)


PLAN_STEP_DELEGATE = PlanStepDelegate()
