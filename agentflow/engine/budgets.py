"""Budgets: what a run or a step may still use (page 000 §10).

Limits stand on a run and on its steps, and the tightest counts. What a model call reserves is computed in
`reservations`, which call is made next is decided in `call_queue`. Pure.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from agentflow.definition.conversation import Usage
from agentflow.definition.failure import ErrorInfo
from agentflow.definition.limits import (
    LIMITS,
    Limits,
    asked_by_runtime,
    asks_for_budget,
    limits_of,
    merged,
    used_of,
)
from agentflow.engine.activation import NO_USAGE, Activation
from agentflow.engine.agents.failure import agent_failed
from agentflow.engine.bounding_steps import bounding_steps
from agentflow.engine.decisions import Decisions, scope_fields, step_fields
from agentflow.engine.ids import derive
from agentflow.engine.state import OpenCall, OpenRequest, RunState
from agentflow.events import catalogue as ev

__all__ = [
    "LIMITS",
    "Exceeded",
    "Limits",
    "Scope",
    "asked_about_budget",
    "budget_error",
    "budget_left",
    "exceeded",
    "exceeded_moves",
    "fails",
    "how_of",
    "is_about_budget",
    "is_about_call",
    "is_about_own_budget",
    "limits_of",
    "merged",
    "paused",
    "scopes_of",
    "time_limit",
    "tool_calls_exceed",
    "used_of",
    "used_up",
    "wait_for_room",
]


class Scope(NamedTuple):
    """One budget and what counts against it: `name` is "run" or the id of a step, `calls` are open."""

    name: str
    limits: Limits
    usage: Usage
    calls: list[OpenCall]


class Exceeded(NamedTuple):
    """A limit that the next piece of work does not fit in. `scope` is "run" or the id of a step."""

    scope: str
    limit: str
    value: float
    used: float
    reserved: float
    requested: float
    on_exceeded: Literal["pause", "ask", "fail"]
    problem: str = ""

    @property
    def message(self) -> str:
        """The limit in words."""
        if self.problem:
            return self.problem
        where = "the run" if self.scope == "run" else f"step {self.scope}"
        reserved = f" and {_figure(self.reserved)} reserved" if self.reserved else ""
        return (
            f"{self.limit} of {where} is {_figure(self.value)}: {_figure(self.used)} used{reserved},"
            f" {_figure(self.requested)} more wanted"
        )


def _figure(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.6f}".rstrip("0").rstrip(".")


def how_of(limits: Limits) -> Literal["pause", "ask", "fail"]:
    """Return what becomes of work that does not fit."""
    return limits.get("on_exceeded", "pause")


def scopes_of(state: RunState, activation: Activation) -> list[Scope]:
    """Return the budgets that bound this activation: of the run, of its step, of the steps around it."""
    found: list[Scope] = []
    calls = [call for call in state.calls.values() if call.kind == "model"]
    if state.budget:
        found.append(Scope("run", state.budget, state.usage, calls))
    for step in bounding_steps(state, activation):
        own = [call for call in calls if step in bounding_steps(state, call.activation)]
        found.append(Scope(step, state.step_budgets[step], state.step_usage.get(step, NO_USAGE), own))
    return found


def time_limit(state: RunState, activation: Activation) -> float | None:
    """Return how many seconds a step may take, by its time limit or its budget; None without a limit."""
    if not state.step_budgets:
        return activation.node.timeout
    limits = (activation.node.timeout, state.step_budgets.get(activation.node.id, {}).get("max_duration_s"))
    return min((limit for limit in limits if limit is not None), default=None)


def tool_calls_exceed(state: RunState, activation: Activation, count: int) -> Exceeded | None:
    """Return the first limit that `count` more function calls of this activation would break, or None.

    A function call counts from its beginning, so that nothing is reserved for it.
    """
    if not state.budget and not state.step_budgets:
        return None
    for scope in scopes_of(state, activation):
        limit = scope.limits.get("max_tool_calls")
        if limit is not None and scope.usage.tool_calls + count > limit:
            return exceeded(scope, "max_tool_calls", count)
    return None


def budget_left(state: RunState, activation: Activation) -> Limits:
    """Return what is left of the budgets of the run and of the step, for a child or a delegate that draws on
    both."""
    found: Limits = {}
    step = activation.node.id
    own = used_of(state.step_usage[step]) if step in state.step_usage else {}
    scopes = (
        (state.budget, used_of(state.usage, state.clock)),
        (state.step_budgets.get(step, {}), own),
    )
    for limits, used in scopes:
        for name in LIMITS:
            if name in limits and name != "max_duration_s":
                left = max(0, limits[name] - (used.get(name) or 0))
                found[name] = min(left, found.get(name, left))
        if "on_exceeded" in limits:
            found["on_exceeded"] = limits["on_exceeded"]
    return found


def used_up(state: RunState, activation: Activation) -> Exceeded | None:
    """Return the first limit of which nothing is left, so that no work of unknown size may begin; None if
    there is something of each."""
    if not state.budget and not state.step_budgets:
        return None
    for scope in scopes_of(state, activation):
        used = used_of(scope.usage)
        for limit in ("max_cost_usd", "max_tokens", "max_model_calls"):
            if limit in scope.limits and (used[limit] or 0) >= scope.limits[limit]:
                where = "the run" if scope.name == "run" else f"step {scope.name}"
                problem = f"{limit} of {where} is {_figure(scope.limits[limit])}, and used up"
                return exceeded(scope, limit, 1, problem=problem)
    return None


def exceeded(scope: Scope, limit: str, requested: float, *, problem: str = "") -> Exceeded:
    """Return what does not fit a limit of this budget; `problem` if it is not the figures that are wrong."""
    used, calls = used_of(scope.usage)[limit] or 0, scope.calls
    reserved = {
        "max_tokens": sum(call.tokens for call in calls),
        "max_cost_usd": sum(call.cost or 0.0 for call in calls),
        "max_model_calls": len(calls),
    }
    value, how = scope.limits[limit], how_of(scope.limits)
    return Exceeded(scope.name, limit, value, used, reserved.get(limit, 0), requested, how, problem)


def exceeded_moves(state: RunState, activation: Activation, found: Exceeded, now: int) -> Decisions:
    """Return what becomes of work that does not fit: the run stands still, a person is asked, or it fails."""
    if fails(activation, found):
        return agent_failed(activation, budget_error(found), now)
    return wait_for_room(state, activation, found, now)


def fails(activation: Activation, found: Exceeded) -> bool:
    """Return whether work that does not fit fails: by its budget, or because a person raised none."""
    return found.on_exceeded == "fail" or activation.overdrawn


def wait_for_room(state: RunState, activation: Activation, found: Exceeded, now: int) -> Decisions:
    """Return how work waits for a larger budget: the run stands still, or a person is asked. Empty if it
    waits already."""
    if found.on_exceeded == "pause":
        # A run that was paused while this step came to its end stays so; its resume decides anew.
        return [] if state.status == "paused" else [paused(found)]
    if asked_about_budget(state, activation):
        return []
    request_id = derive("req_", now, state.workflow_id, activation.key, found.limit, found.value, found.used)
    return [
        ev.InputRequested(
            **scope_fields(activation),
            request_id=request_id,
            request_type="budget",
            request={
                "scope": found.scope,
                "limit": found.limit,
                "value": found.value,
                "message": found.message,
                **_figures(found),
            },
            response_schema={
                "type": "object",
                "properties": {
                    "choice": {"enum": ["raise", "fail"]},
                    "limit": {"type": "number", "exclusiveMinimum": found.used},
                },
                "required": ["choice"],
                "additionalProperties": False,
                "if": {"properties": {"choice": {"const": "raise"}}},
                "then": {"required": ["limit"]},
            },
        ),
        ev.WorkflowStepWaiting(**step_fields(activation), for_="input", ref=request_id),
    ]


def asked_about_budget(state: RunState, activation: Activation) -> bool:
    """Return whether a person is being asked for a larger budget for this activation."""
    return any(r.activation is activation and is_about_own_budget(r) for r in state.requests.values())


def is_about_own_budget(request: OpenRequest) -> bool:
    """Return whether the runtime asks about a budget of the activation's own calls."""
    return not request.activation.node.kind.starts_run and is_about_budget(request.data)


def is_about_call(data: Any) -> bool:
    """Return whether the runtime asks about a call of a handler: about a budget, or an outcome."""
    return isinstance(data, ev.InputRequested) and asked_by_runtime(data.request_type, data.request)


def is_about_budget(data: Any) -> bool:
    """Return whether a request asks for a larger budget."""
    return isinstance(data, ev.InputRequested) and asks_for_budget(data.request_type, data.request)


def paused(found: Exceeded) -> ev.WorkflowPaused:
    """Pause the run until it is resumed with a larger limit."""
    budget = {"limit": {found.limit: found.value}, "scope": found.scope, **_figures(found)}
    return ev.WorkflowPaused(reason="budget", detail=found.message, budget=budget)


def _figures(found: Exceeded) -> dict[str, float]:
    return {"used": found.used, "reserved": found.reserved, "requested": found.requested}


def budget_error(found: Exceeded) -> ErrorInfo:
    """Return the error of work that did not fit."""
    details = {"scope": found.scope, "limit": found.limit, "value": found.value, **_figures(found)}
    return ErrorInfo(category="budget", code="budget_exceeded", message=found.message, details=details)
