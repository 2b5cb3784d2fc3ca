"""`executor`: Python code with typed handlers, reached by messages (page 002).

The handler itself runs in the runtime: `workflow.step_started` has it begin, `handler_results` turns what
came of it into events.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentflow.definition.conversation import ToolCall
from agentflow.definition.ir import ExecutorNode
from agentflow.definition.policy import RetryPolicy
from agentflow.engine.activation import Activation
from agentflow.engine.agents.progress import ToolRecord
from agentflow.engine.kinds.kind import Kind
from agentflow.engine.kinds.stated_retry import stated_retry
from agentflow.engine.mail import Handling
from agentflow.engine.messages import takes_type
from agentflow.engine.state import RunState
from agentflow.events import catalogue as ev

if TYPE_CHECKING:
    from agentflow.engine.graph import Node

__all__ = ["KIND"]


class Executor(Kind):
    """One handling of one message, or of one round; a node handles one message at a time."""

    name = "executor"
    events = frozenset(
        {
            *(ev.InputRequested, ev.Output),
            *(ev.ToolCallStarted, ev.ToolCallCompleted, ev.ToolCallFailed),
            *(ev.ModelCallStarted, ev.ModelCallCompleted, ev.ModelCallFailed),
        }
    )
    sends = True
    yields = True
    one_at_a_time = True

    def makes_plain_call(self, node: Node) -> bool:
        """Return whether the node has no gate, limit, cache or write of its own."""
        return self.is_bare(node)

    def started(self, state: RunState, activation: Activation, data: Any, ts: int) -> None:
        """Note the version of the shared state that the handler reads, and limit its attempt. One that was
        held before has the calls that were recorded."""
        held: Handling | None = activation.local
        activation.local = Handling(state.shared.version, ts, activation.key)
        if held is not None:
            activation.local.calls, activation.local.origin = held.calls, held.origin
        state.mail.open[activation.key] = activation
        state.changed.pop(activation.key, None)  # nothing follows until the handler has returned
        limit = activation.node.retry.timeout
        if limit is not None:
            state.timers[f"attempt {activation.key}"] = ts + round(limit * 1e6)

    def retried(self, state: RunState, activation: Activation, data: Any, ts: int) -> None:
        """Begin anew: the handler itself waits for the end of the backoff, and reads the same state."""
        state.timers.disarm(f"retry {activation.key}")
        state.mail.outputs.pop(activation.key, None)
        assert activation.due_at is not None
        activation.local.due_at = activation.due_at
        limit = activation.node.retry.timeout
        if limit is not None:
            state.timers[f"attempt {activation.key}"] = activation.due_at + round(limit * 1e6)

    def closed(self, state: RunState, activation: Activation) -> None:
        """Let the next message have its turn."""
        state.mail.open.pop(activation.key, None)
        state.mail.end_turn(activation, state.node_of(activation))

    def add_call(self, activation: Activation, call_id: str, name: str) -> ToolRecord:
        """Keep one more recorded call of the handler."""
        record = ToolRecord(ToolCall(id=call_id, name=name, arguments=""), name)
        activation.local.calls[call_id] = record
        return record

    def call(self, activation: Activation, call_id: str) -> ToolRecord | None:
        """Return a recorded call of the handler."""
        return None if activation.local is None else activation.local.calls.get(call_id)

    def is_idle(self, activation: Activation) -> bool:
        """Return True: only its handler can go on."""
        return True

    def retry_of(self, node: Node) -> RetryPolicy:
        """Return its policy; one that names no categories repeats all that another attempt may mend."""
        return stated_retry(node.retry)

    def absorbs(self, node: Node) -> bool:
        """Return whether an error edge takes the failure, or `on_error: skip` leaves it out."""
        return node.spec.on_error == "skip" or super().absorbs(node)

    def accepts(self, node: Node, tags: tuple[str, ...], *, element: bool = False) -> bool:
        """Return whether one of its handlers takes a message of these types, or a list of such."""
        spec = node.spec
        assert isinstance(spec, ExecutorNode)
        return takes_type(spec.accepts, tags, element=element)


KIND = Executor()
