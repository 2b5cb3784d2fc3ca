"""`event_trigger`: a signal from outside, or the name of an event in a value (page 003 §4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from agentflow.definition.expressions import EvaluationError, Expression
from agentflow.definition.failure import ErrorInfo
from agentflow.definition.kinds.event_trigger import EventTriggerNode
from agentflow.engine.activation import Activation
from agentflow.engine.decisions import Decisions, step_completed, step_failed, step_fields
from agentflow.engine.durable_timers import cancelled, is_armed, scheduled
from agentflow.engine.kinds.kind import TIMER_EVENTS, Kind
from agentflow.engine.state import RunState
from agentflow.engine.templates import ROOTS, expression, expression_error, is_true, path_expression
from agentflow.events import catalogue as ev
from agentflow.events.envelope import iso

if TYPE_CHECKING:
    from agentflow.engine.graph import Node

__all__ = ["KIND"]

_TIMER = "event"
_ROOTS = ROOTS | {"signal"}


class _Program(NamedTuple):
    """The compiled fields; None where the node has none."""

    path: Expression | None
    match: Expression | None


class _Found(NamedTuple):
    """What ended the wait: a signal, the time, or a `match` that cannot be evaluated."""

    signal: ev.SignalReceived | None = None
    error: ErrorInfo | None = None


class EventTrigger(Kind):
    """Takes the oldest signal of its name that fits and that no other node has taken, now or later."""

    name = "event_trigger"
    is_passive = True
    events = TIMER_EVENTS

    def compile(self, node: Node) -> Any:
        """Return the path and the expression."""
        spec = _spec(node)
        return _Program(
            path=None if spec.event_path is None else path_expression(spec.event_path),
            match=None if spec.match is None else expression(spec.match, node.expression_room, _ROOTS),
        )

    def started(self, state: RunState, activation: Activation, data: Any, ts: int) -> None:
        """Take a signal that came earlier."""
        if activation.node.program.path is not None:
            return
        for signal in state.signals.values():
            if _takes(state, activation, signal):
                return

    def signalled(self, state: RunState, activation: Activation, data: ev.SignalReceived) -> bool:
        """Take a signal that has just come, if it fits; return whether it was taken."""
        return activation.local is None and _takes(state, activation, data)

    def is_idle(self, activation: Activation) -> bool:
        """Return whether it waits."""
        return activation.status == "waiting" and activation.local is None

    def fold(self, state: RunState, activation: Activation, data: Any, ts: int) -> None:
        """Fold that it waits, and the end of its time."""
        if isinstance(data, ev.WorkflowStepWaiting):
            activation.status = "waiting"
            state.awaited[activation.key] = f"signal {_spec(activation.node).event}"
        elif isinstance(data, ev.TimerFired) and activation.local is None:
            activation.local = _Found()

    def closed(self, state: RunState, activation: Activation) -> None:
        """Wait no more."""
        state.awaited.pop(activation.key, None)

    def next(self, state: RunState, activation: Activation, now: int) -> Decisions:
        """Compare, wait, or go on with what came."""
        spec = _spec(activation.node)
        if activation.node.program.path is not None:
            return _compare(state, activation, now)
        found: _Found | None = activation.local
        if found is None:
            return [] if self.is_idle(activation) else _wait(state, activation, now)
        moves = cancelled(state, activation, _TIMER)
        if found.error is not None:
            return moves + step_failed(activation, found.error, now)
        if found.signal is None:
            return moves + _expired(state, activation, now)
        signal = found.signal
        output = {
            "event": spec.event,
            "matched": True,
            "data": signal.data,
            "signal_id": signal.signal_id,
        }
        return moves + step_completed(state, activation, now, output=output)

    def abort(self, state: RunState, activation: Activation, error: ErrorInfo, now: int) -> Decisions:
        """Disarm the timer."""
        return cancelled(state, activation, _TIMER)


def _spec(node: Node) -> EventTriggerNode:
    assert isinstance(node.spec, EventTriggerNode)
    return node.spec


def _takes(state: RunState, activation: Activation, signal: ev.SignalReceived) -> bool:
    """Take a signal for an activation if it fits and is unused; return whether the wait is over."""
    if signal.name != _spec(activation.node).event or signal.signal_id in state.used_signals:
        return False
    match: Expression | None = activation.node.program.match
    if match is not None:
        view = {"signal_id": signal.signal_id, "name": signal.name, "data": signal.data}
        try:
            if not is_true(match.evaluate({**state.scope(activation), "signal": view})):
                return False
        except EvaluationError as error:
            activation.local = _Found(error=expression_error(error, "/match"))
            return True
    activation.local = _Found(signal)
    state.used_signals[signal.signal_id] = None
    return True


def _wait(state: RunState, activation: Activation, now: int) -> Decisions:
    spec = _spec(activation.node)
    moves: Decisions = []
    more: dict[str, Any] = {}
    if spec.timeout is not None and not is_armed(state, activation, _TIMER):
        due = activation.started + round(spec.timeout * 1e6)
        moves.append(scheduled(activation, _TIMER, "event", due))
        more["deadline"] = iso(due)
    return [*moves, ev.WorkflowStepWaiting(**step_fields(activation), for_="signal", ref=spec.event, **more)]


def _compare(state: RunState, activation: Activation, now: int) -> Decisions:
    node, spec = activation.node, _spec(activation.node)
    try:
        actual = node.program.path.evaluate(state.scope(activation))
    except EvaluationError as error:
        return step_failed(activation, expression_error(error, "/event_path"), now)
    if not isinstance(actual, str):
        message = f"event_path of {node.id} is {'null' if actual is None else 'not a text'}"
        error = ErrorInfo(category="invalid_input", code="invalid_event_value", message=message)
        return step_failed(activation, error, now)
    matched = actual == spec.event
    output = {"event": spec.event, "matched": matched, "actual": actual}
    port = "next" if matched or not node.targets("on_mismatch") else "on_mismatch"
    return step_completed(state, activation, now, output=output, next_port=port)


def _expired(state: RunState, activation: Activation, now: int) -> Decisions:
    node, event = activation.node, _spec(activation.node).event
    if node.targets("on_timeout"):
        output = {"event": event, "matched": False, "data": None, "signal_id": None}
        return step_completed(state, activation, now, output=output, next_port="on_timeout")
    message = f"no signal {event} came in time"
    return step_failed(activation, ErrorInfo(category="timeout", code="event_timeout", message=message), now)


KIND = EventTrigger()
