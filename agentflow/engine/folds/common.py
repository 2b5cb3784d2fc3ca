"""What the folds of several families of events share."""

from __future__ import annotations

from typing import Any, Literal

from agentflow.definition.conversation import Usage, add_usage
from agentflow.definition.failure import ErrorInfo
from agentflow.engine import conversation
from agentflow.engine.state import OpenCall, RunState, ToolRecord, Unit

__all__ = [
    "WALL_CLOCK",
    "extend_attempt",
    "open_call",
    "record_of",
    "settle",
    "settle_tool",
    "unit_of",
    "use",
    "was_away",
]


WALL_CLOCK = ("retry ", "approval ")
"""Timers that stand for a time of day and so run on while the run stands still."""


def unit_of(state: RunState, data: Any) -> Unit:
    key = data.activation if data.iteration is None else f"{data.activation}[{data.iteration}]"
    unit = state.open[key]
    unit.touched = state.next_offset - 1
    return unit


def record_of(unit: Unit, call_id: str) -> ToolRecord | None:
    if unit.tool is not None and unit.tool.call.id == call_id:
        return unit.tool
    return unit.agent.tools.get(call_id) if unit.agent is not None else None


def open_call(
    state: RunState, kind: Literal["model", "tool"], call_id: str, unit: Unit, offset: int
) -> OpenCall:
    call = OpenCall(kind, call_id, unit, offset)
    state.calls[call_id] = call
    state.fresh.append(call)
    return call


def use(state: RunState, unit: Unit, usage: Usage) -> None:
    unit.usage = add_usage(unit.usage, usage)
    state.usage = add_usage(state.usage, usage)
    if state.step_budgets and unit.node.id in state.step_budgets:
        node = state.nodes[unit.node.id]
        node.usage = add_usage(node.usage, usage)


def settle(state: RunState, unit: Unit) -> None:
    unit.result_ready = True
    state.settled[unit.key] = unit


def extend_attempt(state: RunState, unit: Unit, ts: int) -> None:
    """Extend the limits of an attempt and of its retries by the time for which a model call waited for room
    in a budget: otherwise agents that take turns would run out of time without having worked."""
    progress = unit.agent
    if progress is None or progress.asked_at is None or not (state.budget or state.step_budgets):
        return
    waited = max(0, ts - progress.asked_at)
    key = f"attempt {unit.key}"
    if key in state.timers:
        state.timers[key] += waited
    if progress.first_failure is not None:
        progress.first_failure += waited
    if unit.first_failure is not None:
        unit.first_failure += waited


def was_away(state: RunState, unit: Unit, error: ErrorInfo, ts: int) -> None:
    """Note that a call of this unit was lost with the process or the actor that made it.

    Extends running time limits by the downtime, except those of `WALL_CLOCK`. Only an actor's death counts
    against the unit: who caused the death of a process is judged by the ledger of recovery.
    """
    if error.code not in ("interrupted", "stopped"):
        unit.interruptions += 1
    gap = ts - state.last_ts
    if gap > 0 and error.code == "interrupted":
        for key in state.timers:
            if not key.startswith(WALL_CLOCK):
                state.timers[key] += gap


def settle_tool(state: RunState, unit: Unit, record: ToolRecord) -> None:
    """A call has its end: the agent goes on when all of its round have, a tool node ends with it."""
    if record is unit.tool:
        if record.state == "done":
            unit.output = record.output
            settle(state, unit)
        else:
            unit.error = record.error
        state.stirred[unit.key] = unit
        return
    progress = unit.agent
    assert progress is not None
    if all(r.state in ("done", "failed") for r in progress.tools.values()):
        progress.pending = [conversation.tool_message(r) for r in progress.tools.values()]
        progress.tools = {}
        progress.settled_tools += 1
    state.stirred[unit.key] = unit
