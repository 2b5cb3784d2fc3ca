"""Evaluators of the user: functions beside the suite, or callables (page 003 §13)."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import msgspec

from agentflow.definition.diagnostics import or_which
from agentflow.definition.type_errors import explain
from agentflow.evals.report import Evaluation
from agentflow.evals.suite import CustomEval, EvalError

__all__ = ["CustomEvalFailed", "Evaluator", "bind_handlers", "evaluate", "evaluate_case"]

Evaluator = Callable[[Any], Any]
"""`evaluator(case) -> bool | dict`, sync or async; a sync one runs in a thread."""


class CustomEvalFailed(Exception):
    """A custom evaluator raised, or returned what is no judgement."""


class _Judgement(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    passed: bool | None = None
    score: float | None = None
    reason: str | None = None
    metadata: dict[str, Any] | None = None


def bind_handlers(suite: tuple[CustomEval, ...], folder: Path) -> dict[str, Evaluator]:
    """Return the functions of `handlers.py` by the ids of the evaluators. Raises EvalError."""
    if not suite:
        return {}
    from agentflow.tools.modules import import_service_module

    try:
        module = import_service_module("handlers", folder)
    except Exception as error:
        message = f"{folder / 'handlers.py'} cannot be imported: {type(error).__name__}: {error}"
        raise EvalError("invalid_suite", message, hint="write it beside the suite") from error
    found: dict[str, Evaluator] = {}
    for custom in suite:
        handler = getattr(module, custom.handler, None)
        if not callable(handler):
            known = [name for name, value in vars(module).items() if callable(value) and name[0] != "_"]
            which = or_which(custom.handler, known)
            raise EvalError("invalid_suite", f'handlers.py has no function "{custom.handler}"{which}')
        found[custom.id] = cast("Evaluator", handler)
    return found


async def evaluate(custom: CustomEval, handler: Evaluator, payload: Mapping[str, Any]) -> Evaluation:
    """Call a handler of the suite. Raises CustomEvalFailed."""
    return _judged(custom.id, await _called(custom.id, handler, dict(payload)), custom.threshold)


async def evaluate_case(name: str, evaluator: Evaluator, case: Any) -> Evaluation:
    """Call an evaluator that was given as a callable. Raises CustomEvalFailed."""
    return _judged(name, await _called(name, evaluator, case), 0.5)


async def _called(name: str, handler: Evaluator, argument: Any) -> Any:
    try:
        if inspect.iscoroutinefunction(handler):
            return await handler(argument)
        result = await asyncio.to_thread(handler, argument)
        return await result if inspect.isawaitable(result) else result
    except Exception as error:
        raise CustomEvalFailed(f"{name} raised {type(error).__name__}: {error}") from error


def _judged(name: str, result: Any, threshold: float) -> Evaluation:
    if isinstance(result, bool):
        return Evaluation(id=name, passed=result)
    if not isinstance(result, Mapping):
        raise CustomEvalFailed(f"{name} returned {type(result).__name__}, not a bool or an object")
    given = dict(cast("Mapping[str, Any]", result))
    try:
        found = msgspec.convert(given, _Judgement)
    except msgspec.ValidationError as error:
        raise CustomEvalFailed(
            f"{name} returned an object: {explain(error, _Judgement).sentence()}"
        ) from None
    passed = found.passed
    if passed is None:
        if found.score is None:
            raise CustomEvalFailed(f"{name} returned neither passed nor score")
        passed = found.score >= threshold
    return Evaluation(id=name, passed=passed, score=found.score, reason=found.reason, metadata=found.metadata)
