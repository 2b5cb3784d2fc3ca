"""What the events of a request pipeline tell: its phase, and the compact output (page 004 §14). Pure."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, cast

import msgspec
from msgspec import UNSET, UnsetType

from agentflow.events import catalogue as ev
from agentflow.records.requests import RequestRecord

__all__ = ["PLAN_STEPS", "REQUESTER_LABEL", "PipelineFold", "PlanView", "RequestRecordView", "requester_of"]

PLAN_STEPS = "execute/"
"""What the ids of the steps of a plan begin with in events."""


REQUESTER_LABEL = "agentflow.requester"
"""Label of the index of the store: who submitted a request."""


def requester_of(actor: str) -> str:
    """Return who an actor is among those that submit requests: the ways by which the owner of this process
    reaches it, in Python, by the command line and by the Unix socket, are one."""
    return "owner" if actor in ("local", "cli", f"uid:{os.geteuid()}") else actor


class PlanView(msgspec.Struct, frozen=True, kw_only=True):
    """The plan of a request as it stands."""

    plan: dict[str, Any]
    plan_digest: str
    accepted: bool
    diagnostics: tuple[Any, ...] = ()


class RequestRecordView(msgspec.Struct, frozen=True, kw_only=True):
    """What the record of a run of format `pipeline` says beside that of any run."""

    phase: str
    status: str
    activation_trigger: str
    execution_mode: str
    execution_requested: bool
    plan_digest: str | None = None
    accepted: bool = False
    blocked_reason: str | None = None


class PipelineFold:
    """The stages of one run as its events tell them; `take` them in order."""

    def __init__(self) -> None:
        self.activated: ev.PlanActivated | None = None
        self.mode: str | None = None
        self.normalized: dict[str, Any] | None = None
        self.plan: dict[str, Any] | None = None
        self.digest: str | None = None
        self.diagnostics: tuple[Any, ...] = ()
        self.adjustments: tuple[Any, ...] = ()
        self.accepted = False
        self.rejected: str | None = None
        self.cancelled: str | None = None
        self.done: dict[str, dict[str, Any]] = {}
        self.executor_output: dict[str, Any] | None = None
        self.verifier_output: dict[str, Any] | None = None
        self.final_output: dict[str, Any] | None = None
        self.pause_detail: str | None = None
        self.errors: list[str] = []

    def take(self, data: Any) -> None:
        """Fold the data of an event."""
        project = self._PROJECTIONS.get(data.__class__)
        if project is not None:
            project(self, data)

    def _activated(self, data: ev.PlanActivated) -> None:
        self.activated, self.mode = data, data.execution_mode

    def _started(self, data: ev.WorkflowStepStarted) -> None:
        input: Any = data.input
        if data.step_id.startswith(PLAN_STEPS) and isinstance(input, dict):
            self.mode = cast("dict[str, Any]", input).get("execution_mode") or self.mode

    def _normalized(self, data: ev.PlanNormalized) -> None:
        self.normalized = data.normalized_request

    def _proposed(self, data: ev.PlanProposed) -> None:
        self.plan, self.digest = data.plan, data.plan_digest
        self.diagnostics, self.adjustments = data.diagnostics, data.adjustments

    def _edited(self, data: ev.PlanEdited) -> None:
        self.plan, self.digest, self.diagnostics = data.plan, data.plan_digest, ()

    def _accepted(self, data: ev.PlanAccepted) -> None:
        self.accepted = True

    def _rejected(self, data: ev.PlanRejected) -> None:
        self.rejected = data.reason or "no reason given"

    def _executed(self, data: ev.PlanExecuted) -> None:
        self.executor_output = data.executor_output
        results: list[dict[str, Any]] = data.executor_output["step_results"]
        if any(result.get("code") == "delegate_unavailable" for result in results):
            self.mode = "standalone"

    def _step_completed(self, data: ev.WorkflowStepCompleted) -> None:
        if data.step_id.startswith(PLAN_STEPS) and data.iteration is None:
            self.done[data.step_id] = data.output

    def _verified(self, data: ev.VerificationCompleted) -> None:
        self.verifier_output = data.verifier_output

    def _finalized(self, data: ev.PlanFinalized) -> None:
        self.final_output = data.final_output

    def _paused(self, data: ev.WorkflowPaused) -> None:
        self.pause_detail = data.detail

    def _cancelled(self, data: ev.WorkflowCancelled) -> None:
        self.cancelled = data.reason

    _PROJECTIONS: ClassVar[dict[type, Callable[[PipelineFold, Any], None]]] = {
        ev.PlanActivated: _activated,
        ev.WorkflowStepStarted: _started,
        ev.PlanNormalized: _normalized,
        ev.PlanProposed: _proposed,
        ev.PlanEdited: _edited,
        ev.PlanAccepted: _accepted,
        ev.PlanRejected: _rejected,
        ev.WorkflowStepCompleted: _step_completed,
        ev.PlanExecuted: _executed,
        ev.VerificationCompleted: _verified,
        ev.PlanFinalized: _finalized,
        ev.WorkflowPaused: _paused,
        ev.WorkflowCancelled: _cancelled,
    }

    # -- what it means --------------------------------------------------------------------------

    def phase(self, state: str, requests: Iterable[RequestRecord], pause: str | None) -> str:
        """Return the phase of a run in this state."""
        if state in ("pending", "running"):
            return "verifying" if self.executor_output is not None else self._before_verification()
        if state == "waiting":
            return _awaited(list(requests))
        if state == "paused":
            return "paused_quota" if pause == "quota" else "paused"
        if state == "completed":
            status = (self.final_output or {}).get("status")
            return status if status in ("partial", "blocked") else "completed"
        if state == "failed":
            return "failed"
        return "rejected" if self.rejected is not None else "cancelled"

    def _before_verification(self) -> str:
        return "executing" if self.accepted else "planning"

    def status(self, phase: str) -> str:
        """Return the word of document 004 for a phase."""
        if phase in ("planning", "executing", "verifying"):
            return "initialized"
        if phase == "awaiting_review":
            return "ready"
        if phase == "completed":
            return cast("str", (self.final_output or {}).get("status") or "ready")
        return {"partial": "partial", "failed": "error", "cancelled": "error"}.get(phase, "blocked")

    def view(
        self, state: str, requests: Iterable[RequestRecord], pause: str | None
    ) -> RequestRecordView | UnsetType:
        """Return what the record of the run says of its pipeline; UNSET before its activation."""
        said = self.activated
        if said is None:
            return UNSET
        phase = self.phase(state, requests, pause)
        return RequestRecordView(
            phase=phase,
            status=self.status(phase),
            activation_trigger=str(said.trigger),
            execution_mode=self.mode or said.execution_mode,
            execution_requested=said.execution_requested,
            plan_digest=self.digest,
            accepted=self.accepted,
            blocked_reason=(self.pause_detail or pause) if state == "paused" else None,
        )

    def plan_view(self) -> PlanView | None:
        """Return the plan as it stands; None before there is one."""
        if self.plan is None or self.digest is None:
            return None
        return PlanView(
            plan=self.plan, plan_digest=self.digest, accepted=self.accepted, diagnostics=self.diagnostics
        )

    def compact(
        self, workflow_id: str, state: str, requests: Iterable[RequestRecord], pause: str | None
    ) -> dict[str, Any]:
        """Return the compact output of document 004; internal traces are never in it."""
        final = self.final_output
        if final is not None:
            return {"workflow_id": workflow_id, **final, "final_output": final}
        open_requests = list(requests)
        phase = self.phase(state, open_requests, pause)
        plan: Mapping[str, Any] = self.plan or {}
        normalized: Mapping[str, Any] = self.normalized or {}
        verified: Mapping[str, Any] = self.verifier_output or {}
        said = self.activated
        found: dict[str, Any] = {
            "workflow_id": workflow_id,
            "status": self.status(phase),
            "objective": normalized.get("objective") or "",
            "summary": plan.get("summary") or "",
            "steps": list(plan.get("steps") or ()),
            "risks": list(plan.get("risks") or ()),
            "blockers": self._blockers(phase, open_requests),
            "errors": self._errors(phase),
            "executor_output": self._shown_results(open_requests),
            "verifier_status": verified.get("status"),
            "verifier_summary": verified.get("summary"),
            "verifier_output": self.verifier_output,
            "activation_trigger": None if said is None else said.trigger,
            "execution_mode": self.mode,
            "execution_requested": None if said is None else said.execution_requested,
        }
        if state == "paused":
            found["blocked_reason"] = self.pause_detail or pause
        return found

    def _blockers(self, phase: str, requests: list[RequestRecord]) -> list[str]:
        found: list[str] = [*(self.normalized or {}).get("blockers", ())]
        found += (self.plan or {}).get("blockers", ())
        for request in requests:
            if request.kind == "step" and request.step_id.startswith(PLAN_STEPS):
                found.append(f"{request.step_id.removeprefix(PLAN_STEPS)}: approval required")
            elif request.request_type == "clarification":
                found += cast("Mapping[str, Any]", request.subject).get("blockers", ())
        if phase == "rejected":
            found.append(f"plan rejected: {self.rejected}")
        return list(dict.fromkeys(found))

    def _errors(self, phase: str) -> list[str]:
        return [f"workflow cancelled: {self.cancelled or 'no reason given'}"] if phase == "cancelled" else []

    def _shown_results(self, requests: list[RequestRecord]) -> dict[str, Any] | None:
        """Return the executor output; while there is none, the results that are there, if steps wait for an
        approval: those are shown as skipped."""
        if self.executor_output is not None:
            return self.executor_output
        waiting = [r.step_id.removeprefix(PLAN_STEPS) for r in requests if r.kind == "step"]
        if not waiting:
            return None
        results: list[dict[str, Any]] = []
        for step in (self.plan or {}).get("steps") or ():
            step_id: str = step["id"]
            if step_id in waiting:
                skipped: dict[str, Any] = {
                    "step_id": step_id,
                    "status": "skipped",
                    "output": "",
                    "artifacts": [],
                }
                results.append({**skipped, "error": "approval required", "code": "approval_required"})
            elif (done := self.done.get(f"{PLAN_STEPS}{step_id}")) is not None:
                results.append(done)
        blockers = [f"{step_id}: approval required" for step_id in waiting]
        return {"status": "blocked", "step_results": results, "blockers": blockers}


def _awaited(requests: list[RequestRecord]) -> str:
    kinds = {(request.kind, request.request_type) for request in requests}
    if ("input", "clarification") in kinds:
        return "awaiting_clarification"
    if ("input", "review") in kinds:
        return "awaiting_review"
    if any(kind in ("step", "tool") for kind, _ in kinds):
        return "awaiting_approval"
    return "awaiting_input"
