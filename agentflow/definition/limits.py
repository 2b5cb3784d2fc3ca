"""The limits of a budget as plain values, by name (page 000 §10): which there are, and how two are merged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import msgspec

from agentflow.definition.conversation import Usage
from agentflow.definition.ir import Budget

__all__ = ["LIMITS", "Limits", "asked_by_runtime", "asks_for_budget", "limits_of", "merged", "used_of"]

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


def limits_of(budget: Budget | Mapping[str, Any] | None) -> Limits:
    """Return the limits that a budget sets; what is absent has no limit."""
    if budget is None:
        return {}
    given = cast("dict[str, Any]", msgspec.to_builtins(budget))
    limits = {key: given[key] for key in LIMITS if given.get(key) is not None}
    if given.get("on_exceeded"):
        limits["on_exceeded"] = given["on_exceeded"]
    return limits


def merged(first: Limits, second: Limits) -> Limits:
    """Return both at once: the tighter of each limit, and `on_exceeded` of the second if it says it."""
    both = {**first, **second}
    for key in LIMITS:
        if key in first and key in second:
            both[key] = min(first[key], second[key])
    return both


def used_of(usage: Usage, clock: int = 0) -> dict[str, float | None]:
    """Return what counts against each limit; `clock` is the number of steps begun."""
    return {
        "max_cost_usd": usage.cost_usd,
        "max_tokens": usage.input_tokens + usage.output_tokens,
        "max_model_calls": usage.model_calls,
        "max_tool_calls": usage.tool_calls,
        "max_steps": clock,
    }


def asks_for_budget(request_type: Any, request: Any) -> bool:
    """Return whether a request asks for a larger budget; handlers may ask with a type of the same name."""
    wanted = ("scope", "limit", "value", "message")
    return request_type == "budget" and type(request) is dict and all(name in request for name in wanted)


def asked_by_runtime(request_type: Any, request: Any) -> bool:
    """Return whether the runtime asks about a call of a handler: about a budget, or about an outcome that was
    lost. What a handler asks by itself is a message to its response handler."""
    wanted = ("tool_call_id", "tool_name", "parameters", "message")
    asks_outcome = request_type == "outcome_unknown" and type(request) is dict
    return asks_for_budget(request_type, request) or (asks_outcome and all(n in request for n in wanted))
