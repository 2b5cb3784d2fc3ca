"""What people tell a request about its plan, as events: edit, execute, reject (page 004 §7). Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from agentflow.definition.ir import canonical_json
from agentflow.definition.plan_checks import plan_digest as digest_of
from agentflow.definition.stage_schemas import Plan, to_value
from agentflow.engine.commands import Refused
from agentflow.engine.decisions import Decisions
from agentflow.engine.pipeline import EXECUTE, PipelineState, accepted_events
from agentflow.engine.state import OpenRequest, RunState
from agentflow.events import catalogue as ev

__all__ = ["answer_review", "edit_plan", "execute_plan", "reject_plan"]


def edit_plan(state: RunState, plan: Any, *, plan_digest: str | None = None, by: str) -> Decisions:
    """Replace the plan before it is accepted. The same plan again changes nothing.

    Raises Refused with every problem of the plan (`plan_invalid`), or if the plan stands no more for review.
    """
    pipeline = _pipeline(state)
    _must_not_be_over(state)
    review = _review(state)
    if review is None and _is_at_rest(state, pipeline):
        _check_digest(pipeline, plan_digest)
        return _edited_on_the_way(state, pipeline, plan, by)
    if review is None:
        _must_have_plan(pipeline)
        raise Refused(
            "invalid_transition",
            f"the plan of {state.workflow_id} is not open for edits: {_where(state, pipeline)}",
        )
    _check_digest(pipeline, plan_digest)
    return _edited(pipeline, plan, by)[0]


def execute_plan(
    state: RunState,
    *,
    plan_digest: str | None = None,
    plan: Any = None,
    by: str,
    via: Any = "api",
    claimed_actor: str | None = None,
) -> Decisions:
    """Accept the stored plan, or an edited one, and execute it. A second time changes nothing."""
    pipeline = _pipeline(state)
    _must_not_be_over(state)
    if pipeline.accepted:
        _check_digest(pipeline, plan_digest)
        if plan is not None and _checked(pipeline, plan)[1] != pipeline.digest:
            raise Refused("invalid_transition", f"{state.workflow_id} executes another plan already")
        return []
    review = _review(state)
    if review is None:
        where = _where(state, pipeline)
        raise Refused("invalid_transition", f"{state.workflow_id} has no plan to execute: {where}")
    _check_digest(pipeline, plan_digest)
    moves, value, digest = ([], None, pipeline.digest) if plan is None else _edited(pipeline, plan, by)
    received = _received(review, {"decision": "execute"}, by, via, claimed_actor)
    return [*moves, received, *accepted_events(pipeline, by=by, plan=value, digest=digest)]


def reject_plan(
    state: RunState,
    *,
    reason: str | None = None,
    by: str,
    via: Any = "api",
    claimed_actor: str | None = None,
) -> Decisions:
    """Reject the plan that stands for review; the runtime cancels the run then."""
    pipeline = _pipeline(state)
    if pipeline.rejected:
        return []
    _must_not_be_over(state)
    review = _review(state)
    if review is None or pipeline.digest is None:
        where = _where(state, pipeline)
        raise Refused("invalid_transition", f"{state.workflow_id} has no plan to reject: {where}")
    value = {"decision": "reject"} if reason is None else {"decision": "reject", "reason": reason}
    received = _received(review, value, by, via, claimed_actor)
    return [received, ev.PlanRejected(plan_digest=pipeline.digest, reason=reason, by=by)]


def answer_review(
    state: RunState, value: dict[str, Any], *, by: str, via: Any, claimed_actor: str | None
) -> Decisions:
    """Return what follows from an answer to the review, which satisfies its schema."""
    if value["decision"] == "reject":
        reason = value.get("reason")
        return reject_plan(state, reason=reason, by=by, via=via, claimed_actor=claimed_actor)
    digest, plan = value.get("plan_digest"), value.get("plan")
    return execute_plan(state, plan_digest=digest, plan=plan, by=by, via=via, claimed_actor=claimed_actor)


def _is_at_rest(state: RunState, pipeline: PipelineState) -> bool:
    """Return whether the plan is being executed and waits for an approval, or is paused."""
    is_open = pipeline.accepted and state.nodes[EXECUTE].status in ("running", "waiting")
    asks = any(isinstance(r.data, ev.ApprovalRequested) for r in state.requests.values())
    return is_open and (asks or state.status == "paused")


def _edited_on_the_way(state: RunState, pipeline: PipelineState, plan: Any, by: str) -> Decisions:
    """Return the edit of steps that have not started, and the graph with them. What joins the steps stays."""
    moves, value, digest = _edited(pipeline, plan, by)
    if not moves:
        return []
    before = {step["id"]: step for step in pipeline.steps()}
    after = {step["id"]: step for step in value["steps"]}
    fixed = [name for name in before if name not in after or _shape(before[name]) != _shape(after[name])]
    fixed += [name for name in after if name not in before]
    changed = (name.removeprefix(f"{EXECUTE}/") for name in moves[0].changed_steps)
    fixed += [name for name in changed if name in before and _has_started(state, name)]
    if fixed or list(before) != list(after):
        problems = [
            {
                "code": "E_PLAN_STARTED",
                "severity": "error",
                "message": f"step {name} has started, or it is joined to others: it cannot be changed now",
                "path": "/steps",
                "hint": "fork the run, or wait for its end",
            }
            for name in dict.fromkeys(fixed)
        ]
        raise Refused("plan_invalid", "the plan is being executed", diagnostics=problems)
    return [*moves, accepted_events(pipeline, by=by, plan=value, digest=digest)[1]]


def _shape(step: dict[str, Any]) -> tuple[Any, ...]:
    return step["depends_on"], step["owner"] == "human"


def _has_started(state: RunState, name: str) -> bool:
    place = state.nodes.get(f"{EXECUTE}/{name}")
    if place is None or place.status == "pending":
        return False
    waits = {activation.node.name for activation in state.awaiting_approval.values()}
    return name not in waits


def _pipeline(state: RunState) -> PipelineState:
    if state.pipeline is None:
        raise Refused("invalid_transition", f"{state.workflow_id} is no request and has no plan")
    return state.pipeline


def _must_not_be_over(state: RunState) -> None:
    if state.terminal:
        raise Refused("run_terminal", f"{state.workflow_id} has ended ({state.status})", state=state.status)
    if state.cancel_requested is not None:
        raise Refused("invalid_transition", f"{state.workflow_id} is being cancelled")


def _must_have_plan(pipeline: PipelineState) -> None:
    if pipeline.plan is None:
        raise Refused("no_plan", "there is no plan yet")


def _review(state: RunState) -> OpenRequest | None:
    for request in state.requests.values():
        data = request.data
        if isinstance(data, ev.InputRequested) and data.request_type == "review":
            return request
    return None


def _where(state: RunState, pipeline: PipelineState) -> str:
    if pipeline.accepted:
        return "it is accepted"
    for stage in ("normalize", "plan"):
        if state.nodes[stage].status in ("running", "waiting"):
            return f"stage {stage} is {'blocked' if state.nodes[stage].status == 'waiting' else 'at work'}"
    return "no plan stands for review"


def _check_digest(pipeline: PipelineState, given: str | None) -> None:
    if given is not None and given != pipeline.digest:
        raise Refused("digest_mismatch", f"the plan is {pipeline.digest}", digest=pipeline.digest)


def _checked(pipeline: PipelineState, plan: Any) -> tuple[Plan, str]:
    checked = pipeline.check(plan)
    if checked.plan is None:
        errors = [msgspec.to_builtins(d) for d in checked.errors]
        raise Refused(
            "plan_invalid",
            f"the plan has {len(errors)} problems, the first: {checked.errors[0].message}",
            diagnostics=errors,
        )
    if checked.plan.status == "blocked":
        raise Refused("plan_invalid", "a blocked plan cannot be executed", diagnostics=[])
    return checked.plan, digest_of(checked.plan)


def _edited(pipeline: PipelineState, plan: Any, by: str) -> tuple[Decisions, dict[str, Any], str]:
    """Return the edit, the adjusted plan and its digest; no event if the plan is the stored one."""
    adjusted, digest = _checked(pipeline, plan)
    value = to_value(adjusted)
    assert pipeline.digest is not None
    if digest == pipeline.digest:
        return [], value, digest
    edited = ev.PlanEdited(
        plan=value,
        plan_digest=digest,
        previous_digest=pipeline.digest,
        changed_steps=_changed(pipeline, value),
        by=by,
    )
    return [edited], value, digest


def _changed(pipeline: PipelineState, plan: dict[str, Any]) -> tuple[str, ...]:
    before = {step["id"]: canonical_json(step) for step in pipeline.steps()}
    after = {step["id"]: canonical_json(step) for step in plan["steps"]}
    names = dict.fromkeys([*after, *before])
    return tuple(f"{EXECUTE}/{name}" for name in names if before.get(name) != after.get(name))


def _received(
    request: OpenRequest, value: dict[str, Any], by: str, via: Any, claimed_actor: str | None
) -> ev.InputReceived:
    data = request.data
    return ev.InputReceived(
        step_id=data.step_id,
        iteration=data.iteration,
        activation=data.activation,
        request_id=request.request_id,
        value=value,
        by=by,
        claimed_actor=msgspec.UNSET if claimed_actor is None else claimed_actor,
        via=via,
    )
