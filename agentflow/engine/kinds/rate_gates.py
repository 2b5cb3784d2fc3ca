"""What `debounce` and `throttle` have in common: the key and the place of an arrival (page 003 §4).

A place is the time at which the step began or, for a window of steps, how many steps had begun on its path.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentflow.definition.failure import ErrorInfo
from agentflow.definition.kinds.rate_gates import RateGateNode
from agentflow.engine.activation import Activation
from agentflow.engine.decisions import Decisions, step_completed, step_fields
from agentflow.engine.durable_timers import cancelled, scheduled
from agentflow.engine.kinds.keys import key_of
from agentflow.engine.kinds.kind import TIMER_EVENTS, Kind
from agentflow.engine.run_memory import Gate
from agentflow.engine.shared_store import Operation, StoreAccess, access_key, answer_prefix
from agentflow.engine.state import RunState
from agentflow.engine.templates import path_expression
from agentflow.events import catalogue as ev

if TYPE_CHECKING:
    from agentflow.engine.graph import Node

__all__ = ["Arrival", "RateGate", "spec_of", "window_of"]

_WAITS_FOR = "window"


class Arrival:
    """One token at a gate. `key` is known once it waits."""

    __slots__ = ("fired", "fired_at", "is_due", "key", "place")

    def __init__(self, place: int) -> None:
        self.place = place
        self.key: str | None = None
        self.fired = 0
        """How often its timer has fired."""
        self.fired_at = 0
        self.is_due = False
        """True if it waits no more, or must be asked whether it does."""


def spec_of(node: Node) -> RateGateNode:
    """Return the node of the IR."""
    spec = node.spec
    assert isinstance(spec, RateGateNode)
    return spec


def window_of(node: Node) -> int:
    """Return the window: in steps, or in µs."""
    spec = spec_of(node)
    return spec.window_steps or round((spec.window or 0) * 1e6)


class RateGate(Kind):
    """Lets a token through or not. It carries on what it got, because the gate only chooses its way."""

    is_passive = True
    uses_store = True
    remembers = True
    events = TIMER_EVENTS
    timer = ""

    def compile(self, node: Node) -> Any:
        """Return the path of the key."""
        return path_expression(spec_of(node).key_path)

    def started(self, state: RunState, activation: Activation, data: Any, ts: int) -> None:
        """Note the place of the arrival."""
        path = activation.path
        counts = spec_of(activation.node).window_steps is not None
        activation.local = Arrival(path.steps if counts else activation.started)

    def gate(self, state: RunState, activation: Activation, key: str) -> Gate:
        """Return what is remembered of a key; made at its first use, by a fold."""
        node = activation.node
        counts = spec_of(node).window_steps is not None
        gates = activation.path.gates if counts else state.memory.gates
        name = (node.id, key)
        found = gates.get(name)
        if found is None:
            found = gates[name] = Gate()
        return found

    def known(self, state: RunState, activation: Activation, key: str) -> Gate | None:
        """Return what is remembered of a key, None if it never came."""
        node = activation.node
        counts = spec_of(node).window_steps is not None
        return (activation.path.gates if counts else state.memory.gates).get((node.id, key))

    def key(self, state: RunState, activation: Activation) -> str | ErrorInfo:
        """Return the key of the arrival, or why there is none."""
        arrival: Arrival = activation.local
        if arrival.key is not None:
            return arrival.key
        return key_of(state, activation, activation.node.program, "key_path")

    # -- waiting --------------------------------------------------------------------------------

    def wait(self, activation: Activation, key: str, due: int | None) -> Decisions:
        """Return the events of an arrival that waits: for a time, or (None) for those before it."""
        fields = step_fields(activation)
        if due is None:
            return [ev.WorkflowStepWaiting(**fields, for_=_WAITS_FOR, ref=key)]
        timer = self.arm(activation, due)
        return [timer, ev.WorkflowStepWaiting(**fields, for_=_WAITS_FOR, ref=key, deadline=timer.due_at)]

    def arm(self, activation: Activation, due: int) -> ev.TimerScheduled:
        """Return the event that arms its timer."""
        return scheduled(activation, self.timer, self.timer, due)

    def is_idle(self, activation: Activation) -> bool:
        """Return whether it waits for a time, or for those before it."""
        arrival: Arrival = activation.local
        return arrival.key is not None and not arrival.is_due

    def fold(self, state: RunState, activation: Activation, data: Any, ts: int) -> None:
        """Keep the key of an arrival that waits, and that its time has come."""
        arrival: Arrival = activation.local
        if isinstance(data, ev.WorkflowStepWaiting):
            arrival.key = data.ref
            self.waits(state, activation, data.ref)
        elif isinstance(data, ev.TimerFired):
            arrival.fired += 1
            arrival.fired_at = ts
            arrival.is_due = True
        elif isinstance(data, ev.TimerScheduled):
            arrival.is_due = False

    def waits(self, state: RunState, activation: Activation, key: str) -> None:
        """Fold that an arrival waits."""

    def abort(self, state: RunState, activation: Activation, error: ErrorInfo, now: int) -> Decisions:
        """Disarm the timer."""
        return cancelled(state, activation, self.timer)

    def decided(
        self, state: RunState, activation: Activation, port: str, output: dict[str, Any], now: int
    ) -> Decisions:
        """Return the end of the arrival, by `next` where the other port leads nowhere."""
        moves = cancelled(state, activation, self.timer)
        way = port if activation.node.targets(port) else "next"
        return moves + step_completed(state, activation, now, output=output, next_port=way)

    def payload(self, activation: Activation) -> Any:
        """Return the payload that it got."""
        return activation.input

    # -- of all runs of a definition ------------------------------------------------------------

    def access(self, state: RunState, activation: Activation) -> StoreAccess | None:
        """Return the question to the store; None for a gate of the run, or while the arrival waits."""
        node = activation.node
        spec = spec_of(node)
        arrival: Arrival = activation.local
        if spec.scope == "run" or (arrival.key is not None and not arrival.is_due):
            return None
        key = self.key(state, activation)
        if isinstance(key, ErrorInfo):
            return None
        name = f"{answer_prefix(activation.key)}{arrival.fired}"
        kept = "gate/" + access_key(state, spec.scope, node.id, key)
        return StoreAccess(name, kept, self.operation(state, activation, arrival))

    def operation(self, state: RunState, activation: Activation, arrival: Arrival) -> Operation:
        """Return the question to the store."""
        raise NotImplementedError
