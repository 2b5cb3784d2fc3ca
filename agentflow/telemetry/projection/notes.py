"""Which events become span events, and with what: retries, waits, approvals, timers, pauses.

Never content: what was asked, answered or sent stays in the log.
"""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from agentflow.events import catalogue as ev
from agentflow.telemetry import conventions as c

__all__ = ["NOTES", "note_attributes"]

NOTES: dict[type, tuple[str, tuple[str, ...]]] = {
    ev.AgentRetrying: (c.RETRY_EVENT, ("kind", "next_attempt", "delay_ms", "model")),
    ev.WorkflowStepRetrying: (c.RETRY_EVENT, ("kind", "next_attempt", "delay_ms")),
    ev.WorkflowStepWaiting: ("agentflow.step_waiting", ("step_id", "for_", "ref", "deadline")),
    ev.WorkflowStepSkipped: (c.STEP_SKIPPED_EVENT, ("step_id", "iteration", "reason")),
    ev.WorkflowWaiting: ("agentflow.waiting", ()),
    ev.WorkflowPaused: ("agentflow.paused", ("reason", "resume_after")),
    ev.WorkflowResumed: ("agentflow.resumed", ("reason",)),
    ev.WorkflowCancelRequested: ("agentflow.cancel_requested", ("mode", "grace_ms")),
    ev.ApprovalRequested: ("agentflow.approval_requested", ("request_id", "kind", "side_effect", "deadline")),
    ev.ApprovalGranted: ("agentflow.approval_granted", ("request_id", "by", "via")),
    ev.ApprovalDenied: ("agentflow.approval_denied", ("request_id", "by", "via")),
    ev.InputRequested: ("agentflow.input_requested", ("request_id", "request_type", "deadline")),
    ev.InputReceived: ("agentflow.input_received", ("request_id", "by", "via")),
    ev.InputCancelled: ("agentflow.input_cancelled", ("request_id",)),
    ev.TimerScheduled: ("agentflow.timer_scheduled", ("timer_id", "purpose", "due_at")),
    ev.TimerFired: ("agentflow.timer_fired", ("timer_id", "purpose")),
    ev.TimerCancelled: ("agentflow.timer_cancelled", ("timer_id", "purpose")),
    ev.SignalReceived: ("agentflow.signal_received", ("name",)),
    ev.MessageUndelivered: ("agentflow.message_undelivered", ("type", "reason")),
    ev.NodeHealed: ("agentflow.answer_healed", ()),
    ev.SystemError: ("agentflow.system_error", ("severity", "component", "fatal")),
    ev.PlanProposed: ("agentflow.plan_proposed", ("source",)),
    ev.PlanAccepted: ("agentflow.plan_accepted", ("automatic",)),
    ev.PlanRejected: ("agentflow.plan_rejected", ("by",)),
    ev.VerificationStepVerdict: ("agentflow.verdict", ("step_id", "verdict")),
}
"""Type of event to the name of its span event and the fields that go with it."""


_NAMES = {"step_id": c.STEP_ID}


def note_attributes(data: Any) -> dict[str, Any]:
    """Return the attributes of the span event of `data`: its plain fields, and the code of its error."""
    found: dict[str, Any] = {}
    for field in NOTES[data.__class__][1]:
        value = getattr(data, field)
        if value is not UNSET and value is not None:
            found[_NAMES.get(field) or f"agentflow.{field.rstrip('_')}"] = value
    error: Any = getattr(data, "error", None)
    if error is not None:
        found[c.ERROR_TYPE] = error.code
        found[c.ERROR_CATEGORY] = error.category
    return found
