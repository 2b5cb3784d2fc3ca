"""The options of a submission, checked before anything happens (page 000 §8)."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from typing import Any, cast

import msgspec

from agentflow.definition.diagnostics import did_you_mean
from agentflow.definition.ir import Budget, canonical_json
from agentflow.definition.policy import MAX_SECONDS
from agentflow.definition.type_errors import explain
from agentflow.engine.budgets import LIMITS
from agentflow.errors import ConfigurationError
from agentflow.events.tracing import parse_traceparent, tracestate_problem

__all__ = ["body_hash", "checked_budget", "checked_labels", "checked_options", "json_problem"]

_DEEPEST = 200


def _one_of(*choices: str) -> Callable[[Any], str | None]:
    return lambda value: None if value in choices else f"is not one of {', '.join(choices)}"


def _count(value: Any) -> str | None:
    good = isinstance(value, int) and not isinstance(value, bool) and value >= 1
    return None if good else "is not a whole number from 1 on"


def _traceparent(value: Any) -> str | None:
    return None if parse_traceparent(value) is not None else "is not a W3C traceparent"


_OPTIONS: dict[str, Callable[[Any], str | None]] = {
    "on_failure": _one_of("halt", "continue", "hold"),
    "on_unknown": _one_of("ask", "fail"),
    "max_parallel": _count,
    "traceparent": _traceparent,
    "tracestate": tracestate_problem,
}


def checked_options(given: Mapping[str, Any] | None) -> dict[str, Any]:
    """The options, those that are null left out. ConfigurationError names the one that is wrong."""
    options = {key: value for key, value in (given or {}).items() if value is not None}
    for key, value in options.items():
        check = _OPTIONS.get(key)
        if check is None:
            hint = did_you_mean(key, list(_OPTIONS)) or f"known: {', '.join(_OPTIONS)}"
            raise ConfigurationError(f"unknown option {key!r}", hint=hint)
        problem = check(value)
        if problem is not None:
            raise ConfigurationError(f"option {key}: {value!r} {problem}")
    return options


def checked_labels(given: Mapping[str, str] | None) -> dict[str, str]:
    """The labels. ConfigurationError when one is not a string."""
    labels = dict(given or {})
    for key, value in labels.items():
        if not isinstance(key, str) or not isinstance(value, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(f"label {key!r}: names and values of labels are strings")
    problem = json_problem(labels)
    if problem is not None:
        raise ConfigurationError(f"labels: {problem}")
    return labels


def json_problem(value: Any) -> str | None:
    """Why no event can hold a Python value, or None. Does not recurse."""
    todo: list[tuple[Any, int]] = [(value, 0)]
    while todo:
        item, depth = todo.pop()
        if depth > _DEEPEST:
            return f"nested deeper than {_DEEPEST}"
        if isinstance(item, str):
            if not item.isascii() and any("\ud800" <= c <= "\udfff" for c in item):
                return "a string holds half a surrogate pair"
        elif isinstance(item, Mapping):
            for key, member in cast("Mapping[Any, Any]", item).items():
                if not isinstance(key, str):
                    return f"the key {key!r} is not a string"
                todo += [(key, depth), (member, depth + 1)]
        elif isinstance(item, list | tuple):
            todo += [(member, depth + 1) for member in cast("list[Any]", item)]
        elif isinstance(item, float):
            if not math.isfinite(item):
                return f"{item} is no JSON number"
        elif item is not None and not isinstance(item, bool | int):
            return f"{type(item).__name__} is no JSON type"
    return None


def checked_budget(given: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The limits of a budget. ConfigurationError names the key that is wrong."""
    if given is None:
        return None
    known = [*LIMITS, "max_depth", "on_exceeded"]
    for key in given:
        if key not in known:
            hint = did_you_mean(key, known) or f"known: {', '.join(known)}"
            raise ConfigurationError(f"unknown key {key!r} of the budget", hint=hint)
    try:
        msgspec.convert(dict(given), Budget)
    except msgspec.ValidationError as error:
        problem = explain(error, Budget)
        raise ConfigurationError(f"budget: {problem.sentence()}", hint=problem.hint) from None
    for key in LIMITS:
        value = given.get(key)
        if value is not None and (isinstance(value, bool) or not value >= 0):
            raise ConfigurationError(f"budget: {key} is {value}, below 0")
    seconds = given.get("max_duration_s")
    if seconds is not None and seconds > MAX_SECONDS:
        raise ConfigurationError(f"budget: max_duration_s is {seconds:g}, above {MAX_SECONDS:g}")
    return {key: value for key, value in given.items() if value is not None}


def body_hash(*parts: Any) -> str:
    """Names a submission, so that an idempotency key can be told from its misuse."""
    return "sha256:" + hashlib.sha256(canonical_json(parts)).hexdigest()
