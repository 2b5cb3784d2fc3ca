"""Budgets: what a run or a step may still use (page 000 §10).

Before a call is made its worst case is set against what is used and what open calls have reserved; a call
that does not fit is not made. The tightest of the limits counts. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple, cast

import msgspec

from agentflow.definition.conversation import Usage
from agentflow.definition.failure import ErrorInfo
from agentflow.definition.ir import Budget
from agentflow.engine.ends import agent_failed
from agentflow.engine.ids import derive
from agentflow.engine.moves import Moves, scope_fields, step_fields
from agentflow.engine.state import OpenCall, RunState, Unit
from agentflow.events import catalogue as ev

__all__ = [
    "LIMITS",
    "Exceeded",
    "Limits",
    "budget_error",
    "call_exceeds",
    "exceeded_moves",
    "how_of",
    "limits_of",
    "merged",
    "paused",
    "used_of",
]

LIMITS = (
    "max_cost_usd",
    "max_tokens",
    "max_model_calls",
    "max_tool_calls",
    "max_duration_s",
    "max_steps",
)
Limits = dict[str, Any]
"""The limits that are set, by name, and `on_exceeded` if it is said."""


class Exceeded(NamedTuple):
    """A limit that the next piece of work does not fit in. `scope` is "run" or the id of a step."""

    scope: str
    limit: str
    value: float
    used: float
    reserved: float
    requested: float
    on_exceeded: Literal["pause", "ask", "fail"]

    @property
    def message(self) -> str:
        """The limit in words."""
        where = "the run" if self.scope == "run" else f"step {self.scope}"
        reserved = f" and {self.reserved:g} reserved" if self.reserved else ""
        return (
            f"{self.limit} of {where} is {self.value:g}: {self.used:g} used{reserved},"
            f" {self.requested:g} more wanted"
        )


def limits_of(budget: Budget | Mapping[str, Any] | None) -> Limits:
    """The limits that a budget sets; the rest is without limit."""
    if budget is None:
        return {}
    given = cast("dict[str, Any]", msgspec.to_builtins(budget))
    limits = {key: given[key] for key in LIMITS if given.get(key) is not None}
    if given.get("on_exceeded"):
        limits["on_exceeded"] = given["on_exceeded"]
    return limits


def how_of(limits: Limits) -> Literal["pause", "ask", "fail"]:
    """What becomes of work that does not fit."""
    return limits.get("on_exceeded", "pause")


def merged(first: Limits, second: Limits) -> Limits:
    """Both at once: of each limit the tighter one; what to do is said by the second, if it says it."""
    both = {**first, **second}
    for key in LIMITS:
        if key in first and key in second:
            both[key] = min(first[key], second[key])
    return both


def used_of(usage: Usage, clock: int = 0) -> dict[str, float | None]:
    """What counts against each limit."""
    return {
        "max_cost_usd": usage.cost_usd,
        "max_tokens": usage.input_tokens + usage.output_tokens,
        "max_model_calls": usage.model_calls,
        "max_tool_calls": usage.tool_calls,
        "max_steps": clock,
    }


def call_exceeds(
    state: RunState, unit: Unit, *, tokens: int = 0, cost: float | None = None, tool_calls: int = 0
) -> Exceeded | None:
    """The first limit that a model call (or `tool_calls` function calls) of this unit would break."""
    if not state.budget and not state.step_budgets:
        return None
    wanted: dict[str, float] = {"max_tool_calls": tool_calls}
    if not tool_calls:
        wanted = {"max_tokens": tokens, "max_model_calls": 1, "max_cost_usd": cost or 0.0}
    step = unit.node.id
    node = state.nodes[step]
    scopes = (
        ("run", state.budget, state.usage, state.calls.values()),
        (
            step,
            state.step_budgets.get(step, {}),
            node.usage,
            [c for c in state.calls.values() if c.unit.node is unit.node],
        ),
    )
    for scope, limits, usage, open_calls in scopes:
        if limits and (found := _exceeds(scope, limits, usage, open_calls, wanted)) is not None:
            return found
    return None


def _exceeds(
    scope: str, limits: Limits, usage: Usage, calls: Iterable[OpenCall], wanted: dict[str, float]
) -> Exceeded | None:
    used = used_of(usage)
    held = [c for c in calls if c.kind == "model"]
    reserved = {
        "max_tokens": float(sum(c.tokens for c in held)),
        "max_cost_usd": sum(c.cost for c in held),
        "max_model_calls": float(len(held)),
    }
    for key, requested in wanted.items():
        if key not in limits:
            continue
        spent, kept = used[key] or 0, reserved.get(key, 0.0)
        # A call whose size nobody knows does not fit when nothing is left; what costs nothing always does.
        over = key == "max_tokens" or (key == "max_cost_usd" and spent > 0)
        if spent + kept + requested > limits[key] or (over and spent >= limits[key]):
            return Exceeded(scope, key, limits[key], spent, kept, requested, how_of(limits))
    return None


def exceeded_moves(state: RunState, unit: Unit, found: Exceeded, now: int) -> Moves:
    """What becomes of work that does not fit: the run stands still, a person is asked, or it fails."""
    if found.on_exceeded == "fail" or unit.overdrawn:
        return agent_failed(unit, budget_error(found), now)
    if found.on_exceeded == "pause":
        return [paused(found)]
    if any(r.unit is unit and not r.call_id for r in state.requests.values()):
        return []  # it was asked for already
    request_id = derive("req_", now, state.workflow_id, unit.key, found.limit, found.value, found.used)
    return [
        ev.InputRequested(
            **scope_fields(unit),
            request_id=request_id,
            request_type="budget",
            request={"scope": found.scope, "limit": found.limit, "message": found.message, **_figures(found)},
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
        ev.WorkflowStepWaiting(**step_fields(unit), for_="input", ref=request_id),
    ]


def paused(found: Exceeded) -> ev.WorkflowPaused:
    """The run stands still until somebody resumes it with a larger limit."""
    budget = {"limit": {found.limit: found.value}, "scope": found.scope, **_figures(found)}
    return ev.WorkflowPaused(reason="budget", detail=found.message, budget=budget)


def _figures(found: Exceeded) -> dict[str, float]:
    return {"used": found.used, "reserved": found.reserved, "requested": found.requested}


def budget_error(found: Exceeded) -> ErrorInfo:
    """The error of work that did not fit."""
    details = {"scope": found.scope, "limit": found.limit, "value": found.value, **_figures(found)}
    return ErrorInfo(category="budget", code="budget_exceeded", message=found.message, details=details)
