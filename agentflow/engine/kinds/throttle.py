"""`throttle`: at most so many tokens in a window (page 003 §4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentflow.definition.failure import ErrorInfo
from agentflow.definition.ir import ThrottleNode
from agentflow.engine.activation import Activation
from agentflow.engine.decisions import Decisions, elapsed_ms, step_failed
from agentflow.engine.durable_timers import is_armed
from agentflow.engine.kinds.rate_gates import Arrival, RateGate, window_of
from agentflow.engine.run_memory import Gate
from agentflow.engine.shared_store import Operation, Take, owner_of
from agentflow.engine.state import RunState

if TYPE_CHECKING:
    from agentflow.engine.graph import Node

__all__ = ["KIND"]


def _spec(node: Node) -> ThrottleNode:
    spec = node.spec
    assert isinstance(spec, ThrottleNode)
    return spec


class Throttle(RateGate):
    """Lets `limit` tokens of a key pass within a window; only those that pass count.

    With mode delay the others wait in a queue. Its first member arms the timer, once it is known when the
    oldest pass leaves the window: after a long stop not all of the queue pass at once.
    """

    name = "throttle"
    timer = "throttle"

    def next(self, state: RunState, activation: Activation, now: int) -> Decisions:
        """Decide at once, or wait for the turn."""
        key = self.key(state, activation)
        if isinstance(key, ErrorInfo):
            return step_failed(activation, key, now)
        arrival: Arrival = activation.local
        gate = self.known(state, activation, key)
        due = _free_at(activation.node, gate)
        if arrival.key is None:
            waits_behind = gate is not None and bool(gate.queue)
            if not waits_behind and (due is None or due <= arrival.place):
                return self._pass(state, activation, key, now)
            if _spec(activation.node).mode == "drop":
                output = {"key": key, "throttled": True, "waited_ms": 0}
                return self.decided(state, activation, "on_throttled", output, now)
            return self.wait(activation, key, None if waits_behind else due)
        if gate is None or not gate.queue or gate.queue[0] is not activation:
            return []
        if due is None or due <= now:
            return self._pass(state, activation, key, now)
        return [] if is_armed(state, activation, self.timer) else [self.arm(activation, due)]

    def _pass(self, state: RunState, activation: Activation, key: str, now: int) -> Decisions:
        output = {"key": key, "throttled": False, "waited_ms": elapsed_ms(activation.started, now)}
        return self.decided(state, activation, "next", output, now)

    def waits(self, state: RunState, activation: Activation, key: str) -> None:
        """Fold that an arrival waits for its turn."""
        if _spec(activation.node).scope == "run":
            self.gate(state, activation, key).queue.append(activation)

    def closed(self, state: RunState, activation: Activation) -> None:
        """Leave the queue; the next one in it is asked."""
        arrival: Arrival = activation.local
        gate = None if arrival.key is None else self.known(state, activation, arrival.key)
        if gate is not None and activation in gate.queue:
            gate.queue.remove(activation)
            if gate.queue:
                first = gate.queue[0]
                first.local.is_due = True
                state.changed[first.key] = first

    def remember(self, state: RunState, activation: Activation, data: Any, ts: int) -> None:
        """Keep where a token passed: where it came or, if it had waited, when it went."""
        spec, output = _spec(activation.node), data.output
        if output["throttled"] or spec.scope == "definition":
            return
        gate, arrival = self.gate(state, activation, output["key"]), activation.local
        gate.passes.append(arrival.place if arrival.key is None else ts)
        gate.passes.sort()
        del gate.passes[: -spec.limit]

    # -- of all runs of a definition ------------------------------------------------------------

    def operation(self, state: RunState, activation: Activation, arrival: Arrival) -> Operation:
        """Return the wish to pass: now, or once its time has come."""
        node = activation.node
        spec, has_turn = _spec(node), arrival.key is not None
        at = arrival.fired_at if has_turn else activation.started
        delays = spec.mode == "delay"
        return Take(owner_of(state, activation), at, window_of(node), spec.limit, delays, has_turn)

    def store_answered(self, state: RunState, activation: Activation, answer: Any, now: int) -> Decisions:
        """Pass, wait until the time that the store gave, or be dropped."""
        key = self.key(state, activation)
        assert isinstance(key, str)
        arrival: Arrival = activation.local
        due: int | None = answer
        if due is None:
            output = {"key": key, "throttled": True, "waited_ms": 0}
            return self.decided(state, activation, "on_throttled", output, now)
        if due <= (activation.started if arrival.key is None else arrival.fired_at):
            return self._pass(state, activation, key, now)
        return self.wait(activation, key, due) if arrival.key is None else [self.arm(activation, due)]


def _free_at(node: Node, gate: Gate | None) -> int | None:
    """Return the place from which on a token may pass; None if any may."""
    limit = _spec(node).limit
    if gate is None or len(gate.passes) < limit:
        return None
    return gate.passes[-limit] + window_of(node)


KIND = Throttle()
