"""What the folds of several families of events share."""

from __future__ import annotations

from typing import Any, Literal

from agentflow.definition.conversation import Usage, add_usage
from agentflow.engine.state import AgentProgress, OpenCall, RunState, ToolRecord, Unit

__all__ = ["open_call", "progress_of", "record_of", "settle", "unit_of", "use", "was_away"]


def unit_of(state: RunState, data: Any) -> Unit:
    return state.open[data.activation if data.iteration is None else f"{data.activation}[{data.iteration}]"]


def progress_of(state: RunState, data: Any) -> AgentProgress:
    progress = unit_of(state, data).agent
    assert progress is not None
    return progress


def record_of(unit: Unit, call_id: str) -> ToolRecord | None:
    if unit.tool is not None and unit.tool.call.id == call_id:
        return unit.tool
    return unit.agent.tools.get(call_id) if unit.agent is not None else None


def open_call(state: RunState, kind: Literal["model", "tool"], call_id: str, unit: Unit, offset: int) -> None:
    call = OpenCall(kind, call_id, unit, offset)
    state.calls[call_id] = call
    state.fresh.append(call)


def use(state: RunState, unit: Unit, usage: Usage) -> None:
    unit.usage = add_usage(unit.usage, usage)
    state.usage = add_usage(state.usage, usage)


def settle(state: RunState, unit: Unit) -> None:
    unit.result_ready = True
    state.settled[unit.key] = unit


def was_away(state: RunState, unit: Unit, ts: int) -> None:
    """A call of this unit was lost with the process or actor that made it. The time when nobody was at work
    counts against no limit, so that recorded turns survive a long night."""
    unit.interruptions += 1
    gap = ts - state.last_ts
    if gap > 0:
        for key in state.timers:
            if not key.startswith("retry "):
                state.timers[key] += gap
