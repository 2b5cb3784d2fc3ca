"""What the folds of several families of events share."""

from __future__ import annotations

from typing import Literal

from agentflow.definition.conversation import Usage, add_tool_call, add_usage
from agentflow.definition.failure import ErrorInfo
from agentflow.engine.activation import NO_USAGE, Activation
from agentflow.engine.agents.progress import ToolRecord
from agentflow.engine.agents.tool_loops import note_round
from agentflow.engine.agents.tool_messages import tool_message
from agentflow.engine.bounding_steps import bounding_steps
from agentflow.engine.call_queue import bounds_calls
from agentflow.engine.state import OpenCall, RunState

__all__ = [
    "WALL_CLOCK",
    "extend_attempt",
    "open_call",
    "record_of",
    "settle",
    "settle_tool",
    "use",
    "use_tool",
    "wake",
    "wake_after",
    "was_away",
]


WALL_CLOCK = ("retry ", "approval ", "input ", "timer ")
"""Timers that stand for a time of day and so run on while the run stands still."""


def wake(state: RunState, activation: Activation) -> None:
    """Let an open activation be asked what follows, unless it only waits for what is under way outside.

    An agent whose next model call a budget bounds waits in the queue of calls, too, but not between two
    attempts: the next one begins with a new context. One that waits for a slot is not asked.
    """
    if state.returning and activation.key in state.returning:
        return
    if activation.node.kind.is_idle(activation):
        state.changed.pop(activation.key, None)
        return
    state.changed[activation.key] = activation
    progress = activation.agent
    if progress is None:
        return
    if progress.wants_call and activation.due_at is None:
        if bounds_calls(state, activation):
            state.call_queue[activation.key] = activation
    elif state.call_queue:
        state.call_queue.pop(activation.key, None)


def wake_after(state: RunState, activation: Activation, delay_ms: float) -> None:
    """Let an activation be asked what follows now, or once its backoff is over."""
    wake(state, activation)
    if delay_ms:
        state.changed.pop(activation.key, None)


def record_of(activation: Activation, call_id: str) -> ToolRecord | None:
    return activation.node.kind.call(activation, call_id)


def open_call(
    state: RunState, kind: Literal["model", "tool"], call_id: str, activation: Activation, offset: int
) -> OpenCall:
    call = OpenCall(kind, call_id, activation, offset)
    state.calls[call_id] = call
    return call


def use(state: RunState, activation: Activation, usage: Usage) -> None:
    activation.usage = add_usage(activation.usage, usage)
    state.usage = add_usage(state.usage, usage)
    for step in bounding_steps(state, activation):
        state.step_usage[step] = add_usage(state.step_usage.get(step, NO_USAGE), usage)


def use_tool(state: RunState, activation: Activation) -> None:
    """Count the call of a function."""
    activation.usage = add_tool_call(activation.usage)
    state.usage = add_tool_call(state.usage)
    if not state.step_budgets:
        return
    for step in bounding_steps(state, activation):
        state.step_usage[step] = add_tool_call(state.step_usage.get(step, NO_USAGE))


def settle(state: RunState, activation: Activation) -> None:
    activation.result_ready = True
    state.settled[activation.key] = activation


def extend_attempt(state: RunState, activation: Activation, ts: int) -> None:
    """Extend the limits of an attempt and of its retries by the time for which a model call waited for room
    in a budget: otherwise agents that take turns would run out of time without having worked."""
    progress = activation.agent
    if progress is None or progress.asked_at is None or not (state.budget or state.step_budgets):
        return
    waited = max(0, ts - progress.asked_at)
    key = f"attempt {activation.key}"
    if key in state.timers:
        state.timers[key] += waited
    if progress.first_failure is not None:
        progress.first_failure += waited
    if activation.first_failure is not None:
        activation.first_failure += waited


def was_away(state: RunState, activation: Activation, error: ErrorInfo, ts: int) -> None:
    """Note that a call of this activation was lost with the process or the actor that made it.

    Extends running time limits by the downtime, except those of `WALL_CLOCK`. Only an actor's death counts
    against the activation: who caused the death of a process is judged by the ledger of recovery.
    """
    if error.code not in ("interrupted", "stopped"):
        activation.interruptions += 1
    gap = ts - state.last_ts
    if gap > 0 and error.code == "interrupted":
        for key in state.timers:
            if not key.startswith(WALL_CLOCK):
                state.timers[key] += gap


def settle_tool(state: RunState, activation: Activation, record: ToolRecord) -> None:
    """Let an agent go on once all calls of its round have ended; end a tool node with its call."""
    if record is activation.tool and activation.node.kind.takes_calls:
        activation.node.kind.call_settled(state, activation, record)
        _ask_next(state, activation)
        return
    if record is activation.tool:
        if record.state == "done":
            activation.output = record.output
            settle(state, activation)
        else:
            activation.error = record.error
        _ask_next(state, activation)
        return
    progress = activation.agent
    if progress is None:
        return  # a recorded call of a handler, which goes on by itself
    if all(r.state in ("done", "failed") for r in progress.tools.values()):
        activation.node.kind.calls_settled(progress)
        answered = [(r, tool_message(r)) for r in progress.tools.values()]
        progress.pending = [message for _, message in answered]
        told = note_round(progress, answered)
        if told is not None:
            progress.pending.append(told)
        progress.tools = {}
    wake(state, activation)


def _ask_next(state: RunState, activation: Activation) -> None:
    if activation.key not in state.returning:
        state.changed[activation.key] = activation
