"""How the events of tool calls change the state."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from agentflow.engine.activation import Activation
from agentflow.engine.agents.function_search import is_search, merge_found
from agentflow.engine.folds.common import (
    open_call,
    record_of,
    settle_tool,
    use,
    use_tool,
    wake,
    was_away,
)
from agentflow.engine.folds.slots import insist
from agentflow.engine.machine import at_work
from agentflow.engine.state import RunState
from agentflow.events import catalogue as ev

__all__ = ["FOLDS"]


def _tool_started(state: RunState, data: ev.ToolCallStarted, offset: int, ts: int) -> None:
    activation = at_work(state, data)
    record = record_of(activation, data.tool_call_id)
    if record is None:  # a tool node's own call, or the recorded call of a handler
        record = activation.node.kind.add_call(activation, data.tool_call_id, data.tool_name)
    tools = state.bindings.of_node(activation.node).tools
    record.info = tools.get(data.tool_name)
    if record.info is None and activation.node.kind.judges_calls:
        record.info = activation.node.kind.info_of(data)
    record.parameters = data.parameters
    # A declaration that became harmless since the call was recorded does not make that call harmless.
    harmless = record.info is not None and record.info.side_effect in ("none", "read")
    # One that was not attached was never executed, and is recorded as what cannot do any harm.
    record.safe = data.side_effect in ("none", "read") if record.info is None else record.info.safe
    if harmless and data.side_effect not in ("none", "read"):
        record.safe = False
    record.state = "open"
    record.tries += 1
    if record.tries == 1:
        activation.tool_calls += 1
        use_tool(state, activation)
    if not record.safe and record.info is not None:
        activation.unsafe = True
        if activation.tool is not None:  # a reported call of a delegate: the task must not be given again
            activation.tool.safe = False
    activation.due_at = None
    if state.timers:
        state.timers.disarm(f"retry {activation.key}")
    limit = activation.node.retry.timeout
    if record is activation.tool and limit is not None:
        state.timers[f"attempt {activation.key}"] = ts + round(limit * 1e6)
    if state.returning:
        insist(state, activation, ts)
    open_call(state, "tool", data.tool_call_id, activation, offset)
    wake(state, activation)


def _tool_completed(state: RunState, data: ev.ToolCallCompleted, offset: int, ts: int) -> None:
    state.calls.pop(data.tool_call_id, None)
    activation = at_work(state, data)
    record = record_of(activation, data.tool_call_id)
    assert record is not None
    record.state, record.executed = "done", True
    record.output, record.output_size = data.output, data.output_size
    if data.usage is not UNSET:
        use(state, activation, data.usage)
    if activation.agent is not None and is_search(record.info):
        activation.agent.found = merge_found(activation.agent.found, data.output)
    activation.interruptions = 0
    if activation.node.kind.judges_calls and record is activation.tool and data.replayed is UNSET:
        _bill(state, activation, data.output)
    if state.pipeline is not None and record.info is not None:
        state.pipeline.note_call(activation, record, offset)
    settle_tool(state, activation, record)


def _tool_failed(state: RunState, data: ev.ToolCallFailed, offset: int, ts: int) -> None:
    state.calls.pop(data.tool_call_id, None)
    activation = at_work(state, data)
    record = record_of(activation, data.tool_call_id)
    assert record is not None
    record.error, record.executed, record.outcome = data.error, data.executed, data.outcome
    if activation.node.kind.judges_calls and record is activation.tool and data.replayed is UNSET:
        _bill(state, activation, data.error.details)
    if data.usage is not UNSET:
        use(state, activation, data.usage)
    if data.error.category == "interrupted":
        was_away(state, activation, data.error, ts)
    if data.will_retry:
        record.state = "planned"
        wake(state, activation)
    elif data.outcome == "unknown":
        record.state = "unknown"
        wake(state, activation)
    else:
        record.state = "failed"
        settle_tool(state, activation, record)


def _bill(state: RunState, activation: Activation, answer: Any) -> None:
    """Count what the answer of a delegate says that it has used."""
    usage = activation.node.kind.usage_of(activation, answer)
    if usage is not None:
        use(state, activation, usage)


FOLDS: dict[type, Any] = {
    ev.ToolCallStarted: _tool_started,
    ev.ToolCallCompleted: _tool_completed,
    ev.ToolCallFailed: _tool_failed,
}
