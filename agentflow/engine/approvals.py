"""Consent: what a person is asked before work is done, and what follows from the answer (page 001 §5.8).

A step that needs consent is asked about once, with the snapshot that it will run with; a call of a function
with its arguments. Pure: asking, deciding and expiring only give the events that say so.
"""

from __future__ import annotations

import hashlib
from typing import Any

from msgspec import UNSET

from agentflow.definition.expressions import EvaluationError, Template
from agentflow.definition.failure import ErrorInfo
from agentflow.definition.ir import canonical_json
from agentflow.definition.pipeline_nodes import PLAN_STEP
from agentflow.engine.activation import Activation
from agentflow.engine.agents.failure import fault
from agentflow.engine.agents.progress import ToolRecord
from agentflow.engine.bindings import ToolInfo
from agentflow.engine.decisions import Decisions, scope_fields, skipped, step_failed, step_fields
from agentflow.engine.ids import derive
from agentflow.engine.state import OpenRequest, RunState
from agentflow.events import catalogue as ev
from agentflow.events.envelope import iso

__all__ = [
    "ask_anew",
    "ask_call",
    "ask_person",
    "ask_step",
    "call_needs_consent",
    "decided",
    "expired",
    "refusal_moves",
    "withdrawn",
]


def ask_step(state: RunState, activation: Activation, subject: dict[str, Any], now: int) -> Decisions:
    """Ask whether a step may start, with all that it will start with."""
    policy = activation.node.spec.approval
    assert policy is not None
    kind = activation.node.kind
    if kind.approves:
        subject, digest, said = kind.approval_subject(state, activation)
        effect = said["class"]
        return _ask(
            state,
            activation,
            "step",
            subject,
            now,
            seed=activation.key,
            digest=digest,
            policy=said,
            side_effect=effect,
        )
    shown = {"before": policy.before, "on_denied": policy.on_denied}
    return _ask(state, activation, "step", subject, now, seed=activation.key, policy=shown)


def ask_anew(state: RunState, activation: Activation, now: int) -> Decisions:
    """Return the question that takes the place of one whose subject has changed."""
    old = next(r for r in state.requests.values() if r.activation is activation)
    subject, digest, said = activation.node.kind.approval_subject(state, activation)
    moves = _ask(
        state,
        activation,
        "step",
        subject,
        now,
        seed=f"{activation.key} {digest}",
        digest=digest,
        policy=said,
        side_effect=said["class"],
        supersedes=old.request_id,
    )
    return moves[:1]


def ask_call(
    state: RunState, activation: Activation, record: ToolRecord, parameters: Any, now: int
) -> Decisions:
    """Ask whether a call of a function may be made, with its arguments."""
    info = record.info or state.bindings.of_node(activation.node).tools[record.name]
    subject = {
        "tool_call_id": record.call.id,
        "tool_name": record.name,
        "service": info.service,
        "function": info.function,
        "parameters": parameters,
    }
    template = activation.node.approval_message
    if template is not None:
        subject["message"] = _message(state, activation, template)
    return _ask(state, activation, "tool", subject, now, seed=record.call.id, side_effect=info.side_effect)


def _message(state: RunState, activation: Activation, template: Template) -> Any:
    """Return the message of the approval. One that cannot be made says so: the call alone can be judged."""
    try:
        return template.evaluate(state.scope(activation))
    except EvaluationError as error:
        return f"the message of this approval cannot be made: {error}"


def ask_person(
    state: RunState, activation: Activation, subject: dict[str, Any], timeout: float | None, now: int
) -> Decisions:
    """Return the question of a step whose work is to ask a person (kind `human`)."""
    seed = f"{activation.key} {activation.attempt}"
    return _ask(state, activation, "human", subject, now, seed=seed, timeout=timeout)


def _ask(
    state: RunState,
    activation: Activation,
    kind: Any,
    subject: dict[str, Any],
    now: int,
    *,
    seed: str,
    timeout: float | None = None,
    digest: str | None = None,
    **more: Any,
) -> Decisions:
    policy = activation.node.spec.approval
    deadline: Any = UNSET
    limit = policy.timeout if policy is not None else timeout
    if limit is not None:
        deadline = iso(now + round(limit * 1e6))
    request_id = derive("req_", now, state.workflow_id, "approval", seed)
    if digest is None:
        body = canonical_json([state.workflow_id, activation.key, subject])
        digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
    return [
        ev.ApprovalRequested(
            **scope_fields(activation),
            request_id=request_id,
            kind=kind,
            subject=subject,
            digest=digest,
            deadline=deadline,
            **more,
        ),
        ev.WorkflowStepWaiting(
            **step_fields(activation, state.clock if kind == "step" else None),
            for_="approval",
            ref=request_id,
            deadline=deadline,
        ),
    ]


def call_needs_consent(activation: Activation, info: ToolInfo, record: ToolRecord) -> bool:
    """Return whether a call must be asked about first. `never` lowers only what the document asks for."""
    if record.approval is not None:
        return False
    if (
        info.side_effect == "irreversible"
        and activation.agent is not None  # where a step is one call, its arguments were approved with it
        and PLAN_STEP in activation.node.spec.metadata
    ):
        return True
    if info.needs_approval:
        return True
    policy = activation.node.spec.approval
    if policy is None or policy.before in ("step", "never"):
        return False
    return policy.before == "calls" or (info.declared and info.side_effect not in ("none", "read"))


def decided(
    request: OpenRequest,
    *,
    granted: bool,
    by: str,
    via: Any,
    reason: str | None = None,
    claimed_actor: str | None = None,
    response: Any = None,
) -> Decisions:
    """Return the event of a decision about an open request."""
    data = request.data
    assert isinstance(data, ev.ApprovalRequested)
    kind = ev.ApprovalGranted if granted else ev.ApprovalDenied
    return [
        kind(
            step_id=data.step_id,
            iteration=data.iteration,
            activation=data.activation,
            request_id=data.request_id,
            digest=data.digest,
            by=by,
            claimed_actor=UNSET if claimed_actor is None else claimed_actor,
            via=via,
            reason=UNSET if reason is None else reason,
            response=UNSET if response is None else response,
        )
    ]


def expired(state: RunState, request_id: str) -> Decisions:
    """Return the denial of an approval whose deadline has passed."""
    request = state.requests.get(request_id)
    if request is None:
        return []
    return decided(request, granted=False, by="system", via="deadline", reason="the deadline has passed")


def withdrawn(request: OpenRequest, reason: str) -> Decisions:
    """Close a question because its run or step ends without an answer."""
    data = request.data
    if isinstance(data, ev.ApprovalRequested):
        return decided(request, granted=False, by="system", via="policy", reason=reason)
    return [
        ev.InputCancelled(**scope_fields(request.activation), request_id=request.request_id, reason=reason)
    ]


def refusal_moves(state: RunState, activation: Activation, now: int) -> Decisions:
    """Return the end of a step that may not start: failed, or skipped when the document says so."""
    policy = activation.node.spec.approval
    error = activation.error or denial("the step was not approved")
    if error.category == "policy" and policy is not None and policy.on_denied == "skip":
        return skipped(activation, "approval_denied", error.message, ())
    return step_failed(activation, error, now)


def denial(message: str) -> ErrorInfo:
    """Return the error of work that may not be done."""
    return fault("policy", "approval_denied", message)
