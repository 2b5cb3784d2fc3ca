"""`wait`: a durable timer (page 003 §4)."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from agentflow.definition.expressions import EvaluationError, Template
from agentflow.definition.failure import ErrorInfo
from agentflow.definition.ir import WaitNode
from agentflow.engine.activation import Activation
from agentflow.engine.decisions import Decisions, step_completed, step_failed
from agentflow.engine.durable_timers import cancelled, scheduled, waits_for_timer
from agentflow.engine.kinds.kind import TIMER_EVENTS, Kind
from agentflow.engine.state import RunState
from agentflow.engine.templates import expression_error, value_template
from agentflow.events import catalogue as ev
from agentflow.events.envelope import iso, micros

if TYPE_CHECKING:
    from agentflow.engine.graph import Node

__all__ = ["KIND"]

_TIMER = "wait"


class _Alarm(NamedTuple):
    """The timer of an activation; `fired_at` is None until it has fired."""

    due_at: str
    fired_at: str | None = None


class Wait(Kind):
    """Goes on `duration` seconds after it began, or at the moment `until`; one in the past is no wait."""

    name = "wait"
    is_passive = True
    tells_time = True
    events = TIMER_EVENTS

    def compile(self, node: Node) -> Template | None:
        """Return the template of the moment; None for a duration."""
        spec = node.spec
        assert isinstance(spec, WaitNode)
        return None if spec.until is None else value_template(spec.until)

    def next(self, state: RunState, activation: Activation, now: int) -> Decisions:
        """Arm the timer; once it has fired, go on."""
        alarm: _Alarm | None = activation.local
        if alarm is None:
            due = _due(state, activation)
            if isinstance(due, ErrorInfo):
                return step_failed(activation, due, now)
            if due > now:
                timer = scheduled(activation, _TIMER, "wait", due)
                return [timer, waits_for_timer(activation, timer)]
            alarm = _Alarm(iso(due), iso(now))
        if alarm.fired_at is None:
            return []
        return step_completed(state, activation, now, output=alarm._asdict())

    def waits_until(self, activation: Activation) -> bool:
        """Return True for `until`: it is a time of the wall clock, however that steps."""
        return activation.node.program is not None

    def is_idle(self, activation: Activation) -> bool:
        """Return whether the timer is armed."""
        alarm: _Alarm | None = activation.local
        return alarm is not None and alarm.fired_at is None

    def fold(self, state: RunState, activation: Activation, data: Any, ts: int) -> None:
        """Keep the time at which the timer is due, then that at which it fired."""
        if not isinstance(data, ev.WorkflowStepWaiting):
            activation.local = _Alarm(data.due_at, iso(ts) if isinstance(data, ev.TimerFired) else None)

    def abort(self, state: RunState, activation: Activation, error: ErrorInfo, now: int) -> Decisions:
        """Disarm the timer."""
        return cancelled(state, activation, _TIMER)


def _due(state: RunState, activation: Activation) -> int | ErrorInfo:
    spec = activation.node.spec
    assert isinstance(spec, WaitNode)
    template: Template | None = activation.node.program
    if template is None:
        assert spec.duration is not None
        return activation.started + round(spec.duration * 1e6)
    try:
        text = template.evaluate(state.scope(activation))
    except EvaluationError as error:
        return expression_error(error, "/until")
    try:
        if isinstance(text, str) and datetime.fromisoformat(text).tzinfo is not None:
            return micros(text)
    except ValueError:
        pass
    message = f"until of {activation.node.id} is not a time with its zone, such as 2030-01-31T08:00:00Z"
    return ErrorInfo(category="invalid_input", code="invalid_until", message=message)


KIND = Wait()
