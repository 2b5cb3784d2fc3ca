"""What people and other programs tell a run, as events (page 000 §2, §8, §11).

Each command gives the events that carry it out; none when its effect already holds. What does not fit the
state is refused whole, with the code of page 000 §8.2. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import UNSET

from agentflow.definition.diagnostics import or_which
from agentflow.definition.failure import ErrorInfo
from agentflow.definition.schemas import validate
from agentflow.engine import approvals
from agentflow.engine.activation import NO_USAGE
from agentflow.engine.budgets import LIMITS, used_of
from agentflow.engine.child_runs import ChildReport, awaits, reported
from agentflow.engine.decisions import Decisions
from agentflow.engine.held_steps import HeldAction, retry_all, settle_held
from agentflow.engine.limits import closed_call
from agentflow.engine.pipeline import EXECUTE
from agentflow.engine.reservations import terms_of
from agentflow.engine.state import RunState
from agentflow.events import catalogue as ev

__all__ = [
    "Refused",
    "answer",
    "decide_request",
    "pause",
    "report_child",
    "resume",
    "retry",
    "signal",
    "withdraw",
]

_PLAN = f"{EXECUTE}/"
"""Before the ids that steps of a plan have in events."""


class Refused(Exception):
    """The command does not fit the state of the run; nothing changed. `code` as in page 000 §8.2."""

    def __init__(self, code: str, message: str, **details: Any) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.details = details


def _must_not_be_over(state: RunState) -> None:
    if state.terminal:
        raise Refused("run_terminal", f"{state.workflow_id} has ended ({state.status})", state=state.status)
    if state.cancel_requested is not None:
        raise Refused("invalid_transition", f"{state.workflow_id} is being cancelled")


def pause(
    state: RunState,
    now: int,
    *,
    reason: str = "operator",
    detail: str | None = None,
    in_flight: Literal["drain", "suspend"] = "drain",
    by: str,
) -> Decisions:
    """Stand still. `suspend` closes open model calls, which are made again at the resume."""
    _must_not_be_over(state)
    if state.status == "paused":
        return []
    moves: Decisions = []
    if in_flight == "suspend":
        error = ErrorInfo(category="interrupted", code="stopped", message="the run was paused")
        moves = [closed_call(state, c, error, now) for c in state.calls.values() if c.kind == "model"]
    moves.append(ev.WorkflowPaused(reason=reason, detail=detail, by=by, in_flight=in_flight))
    return moves


def resume(
    state: RunState,
    now: int,
    *,
    reason: str | None = None,
    budget: Mapping[str, Any] | None = None,
    by: str,
    definition_hash: str | None = None,
) -> Decisions:
    """Go on. Held steps are tried again. `budget` raises limits: of the run, or of the step that is stuck.
    `definition_hash`: of the definition whose code it goes on with, if that is another one."""
    _must_not_be_over(state)
    pins = definition_hash is not None and definition_hash != state.definition_hash
    if state.status != "paused" and not (pins and state.status == "waiting"):
        if budget:
            raise Refused("invalid_transition", f"{state.workflow_id} is not paused")
        return []
    raised: Any = _raised(state, budget) if budget else UNSET
    resumed = ev.WorkflowResumed(
        reason=reason or "operator",
        by=by,
        budget=raised,
        definition_hash=definition_hash if definition_hash is not None and pins else UNSET,
    )
    return [*retry_all(state, now, by=by), resumed]


def _raised(state: RunState, budget: Mapping[str, Any]) -> dict[str, Any]:
    scope: str = (state.paused_for or {}).get("scope", "run")
    if budget.get("max_cost_usd") is not None:
        _must_be_priced(state, scope)
    usage = state.usage if scope == "run" else state.step_usage.get(scope, NO_USAGE)
    used = used_of(usage, state.clock)
    for key, value in budget.items():
        if key in LIMITS and value <= (used.get(key) or 0):
            raise Refused(
                "budget_too_small", f"{key}: {value:g} is not above the {used.get(key):g} used", limit=key
            )
    return dict(budget) if scope == "run" else {"steps": {scope: dict(budget)}}


def _must_be_priced(state: RunState, scope: str) -> None:
    for step_id in state.graph.step_ids if scope == "run" else (scope,):
        place = state.root.nodes.get(step_id)
        binding = state.bindings.of(step_id) if place is None else state.bindings.of_node(place.node)
        for ref in binding.models:
            if terms_of(binding, ref.name).worst_cost(0, 0) is None:
                message = f'max_cost_usd: the price of {ref.name} (step "{step_id}") is unknown'
                raise Refused("budget_unpriced", message, model=ref.name)


def _no_step(state: RunState, step_id: str) -> str:
    known = state.graph.step_ids
    if state.pipeline is not None:
        known = [step["id"] for step in state.pipeline.steps()] or known
    return f'{state.workflow_id} has no step "{step_id}"{or_which(step_id, known)}'


def retry(
    state: RunState, now: int, step_id: str, *, action: HeldAction = "retry", output: Any = None, by: str
) -> Decisions:
    """Carry out what a person decided about a step that is held after its failure."""
    _must_not_be_over(state)
    if step_id not in state.nodes:
        raise Refused("step_not_found", _no_step(state, step_id))
    if step_id not in state.held_steps:
        raise Refused("not_failed", f'step "{step_id}" is not held after a failure')
    return settle_held(state, step_id, action, now, by=by, output=output)


# -- requests -----------------------------------------------------------------------------------


def decide_request(
    state: RunState,
    *,
    request_id: str | None = None,
    step_id: str | None = None,
    granted: bool,
    by: str,
    via: Any = "api",
    reason: str | None = None,
    digest: str | None = None,
    claimed_actor: str | None = None,
    response: Any = None,
) -> Decisions:
    """Grant or deny an approval, named by its id or by its step."""
    wanted = "granted" if granted else "denied"
    if request_id is None:
        request_id = _of_step(state, _step_of_plan(state, step_id or ""))
    request = state.requests.get(request_id)
    if request is None or not isinstance(request.data, ev.ApprovalRequested):
        before = state.decided.get(request_id)
        if request is None and before == wanted:
            return []
        if request_id in state.withdrawn:
            raise Refused("request_closed", f"{request_id} was superseded: its subject has changed")
        if request is None and before in ("granted", "denied"):
            who = {} if state.pipeline is None else state.pipeline.decision_of(request_id)
            raise Refused("decision_conflict", f"{request_id} was {before}", decision=before, **who)
        _must_not_be_over(state)
        raise Refused("unknown_request", f"{state.workflow_id} has no open approval {request_id}")
    _must_not_be_over(state)
    if digest is not None and digest != request.data.digest:
        raise Refused(
            "digest_mismatch",
            f"{request_id} asks about {request.data.digest}",
            digest=request.data.digest,
            subject=request.data.subject,
        )
    if granted and state.pipeline is not None and _must_be_another(state, by):
        raise Refused("self_approval", f"{by} submitted {state.workflow_id}: another must approve")
    return approvals.decided(
        request,
        granted=granted,
        by=by,
        via=via,
        reason=reason,
        claimed_actor=claimed_actor,
        response=response,
    )


def _must_be_another(state: RunState, by: str) -> bool:
    """Return whether a caller submitted the run, and may not approve its steps for that."""
    is_forbidden = state.pipeline is not None and bool(state.pipeline.settings.get("distinct_approver"))
    return is_forbidden and state.begin is not None and state.begin.by == by


def _step_of_plan(state: RunState, step_id: str) -> str:
    """Return the id that a step of a plan has in events; people name it as the plan does. A stage of the same
    name asks for no approval."""
    inner = _PLAN + step_id
    return inner if state.pipeline is not None and inner in state.nodes else step_id


def _of_step(state: RunState, step_id: str) -> str:
    if state.pipeline is not None and step_id in {step["id"] for step in state.pipeline.steps()}:
        _must_not_be_over(state)
        raise Refused("approval_not_open", f'step "{step_id}" waits for no approval')
    if step_id not in state.nodes:
        raise Refused("step_not_found", _no_step(state, step_id))
    found = [
        r.request_id
        for r in state.requests.values()
        if isinstance(r.data, ev.ApprovalRequested) and r.activation.node.id == step_id
    ]
    if not found and step_id in state.last_approval:
        return state.last_approval[step_id]  # a repeated decision is told how the first one went
    if not found:
        _must_not_be_over(state)
        code = "unknown_request" if state.pipeline is None else "approval_not_open"
        raise Refused(code, f'step "{step_id.removeprefix(_PLAN)}" waits for no approval')
    if len(found) > 1:
        names = ", ".join(found)
        raise Refused("unknown_request", f'step "{step_id}" waits for several approvals: {names}')
    return found[0]


def answer(
    state: RunState,
    responses: Mapping[str, Any],
    *,
    by: str,
    via: Any = "api",
    claimed_actor: str | None = None,
) -> Decisions:
    """Answer open inputs, all or none. The same answer again changes nothing."""
    moves: Decisions = []
    for request_id, value in responses.items():
        request = state.requests.get(request_id)
        if request is None:
            if request_id in state.decided:
                if state.decided[request_id] == value:
                    continue
                raise Refused("already_answered", f"{request_id} has another answer")
            if request_id in state.withdrawn:
                raise Refused("request_closed", f"{request_id} was withdrawn")
            _must_not_be_over(state)
            raise Refused("unknown_request", f"{state.workflow_id} has no open request {request_id}")
        if not isinstance(request.data, ev.InputRequested):
            raise Refused("unknown_request", f"{request_id} is an approval: grant or deny it")
        issues = validate(request.data.response_schema, value)
        if issues:
            where = issues[0].path or "/"
            raise Refused("invalid_response", f"{request_id}: {issues[0].message} at {where}", path=where)
        if request.data.request_type == "review" and state.pipeline is not None:
            from agentflow.engine.plan_commands import answer_review

            moves += answer_review(state, value, by=by, via=via, claimed_actor=claimed_actor)
            continue
        moves.append(
            ev.InputReceived(
                step_id=request.data.step_id,
                iteration=request.data.iteration,
                activation=request.data.activation,
                request_id=request_id,
                value=value,
                by=by,
                claimed_actor=UNSET if claimed_actor is None else claimed_actor,
                via=via,
            )
        )
    if moves:
        _must_not_be_over(state)
    return moves


def withdraw(state: RunState, request_id: str, *, reason: str, by: str) -> Decisions:
    """Take a question about a budget or an outcome back: what asked it has failed. A second time changes
    nothing. An approval is denied instead.
    """
    request = state.requests.get(request_id)
    if request is None:
        if request_id in state.decided:
            raise Refused("already_answered", f"{request_id} is answered")
        if request_id in state.withdrawn:
            return []
        raise Refused("unknown_request", f"{state.workflow_id} has no open request {request_id}")
    _must_not_be_over(state)
    if isinstance(request.data, ev.ApprovalRequested):
        return approvals.decided(request, granted=False, by=by, via="api", reason=reason)
    return approvals.withdrawn(request, reason)


def signal(state: RunState, signal_id: str, name: str, data: Any) -> Decisions:
    """Keep a signal for a step that waits for it, now or later. The same id again changes nothing."""
    if signal_id in state.signals:
        return []
    _must_not_be_over(state)
    return [ev.SignalReceived(signal_id=signal_id, name=name, data=data)]


def report_child(state: RunState, report: ChildReport, now: int) -> Decisions:
    """Take note of where a child run stands. Raises Refused if no step of this run waits for it."""
    if not awaits(state, report):
        raise Refused("invalid_transition", f"{state.workflow_id} does not wait for {report.workflow_id}")
    return reported(state, report, now)
