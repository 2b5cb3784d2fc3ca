"""The error of an attempt, by what its handler raised."""

from __future__ import annotations

import asyncio

import msgspec

from agentflow.definition.failure import ErrorInfo, describe_exception
from agentflow.errors import HandlerMisuse, OutcomeUnknown, ScopeAccessDenied
from agentflow.models import ModelError
from agentflow.runtime.handler_choice import Unfit
from agentflow.tools import ToolError

__all__ = ["ReducerFailed", "error_of"]


class ReducerFailed(HandlerMisuse):
    """A reducer of the shared state does not take what a handler wrote. Its step is not tried again."""

    code = "reducer_failed"

    @classmethod
    def of(cls, key: str, step: str, why: str) -> ReducerFailed:
        """Return the error of an update that `step` wrote; `why` says what the reducer did with it."""
        message = f'the reducer of the shared key "{key}" {why}, on what {step} wrote'
        return cls(message, hint="correct the value or the reducer", details={"key": key, "steps": [step]})


def error_of(node: str, error: BaseException) -> ErrorInfo:
    if isinstance(error, HandlerMisuse):
        details = {**error.details, **({"hint": error.hint} if error.hint else {})}
        category = "policy" if isinstance(error, ScopeAccessDenied) else "invalid_input"
        return ErrorInfo(category=category, code=error.code, message=str(error), details=details)
    if isinstance(error, OutcomeUnknown):
        return ErrorInfo(category="tool", code=error.code, message=f"{node}: {error}")
    kind = type(error).__name__
    if isinstance(error, ToolError | ModelError) and error.info.category == "budget":
        return msgspec.structs.replace(error.info, message=f"{node}: {error.info.message}")
    if isinstance(error, ToolError):
        details = {"type": kind}
        message = f"{node}: {error.info.message}"
        return ErrorInfo(
            category="tool", code="executor_failed", message=message, details=details, cause=error.info
        )
    if isinstance(error, ModelError):
        info = error.info
        message, details = f"{node}: {info.message}", {"type": kind}
        return ErrorInfo(
            category=info.category, code="executor_failed", message=message, details=details, cause=info
        )
    if isinstance(error, Unfit):
        return ErrorInfo(category="invalid_input", code="executor_failed", message=str(error))
    if isinstance(error, asyncio.CancelledError):
        what = "ended by a cancellation that it asked for itself: raise another exception to fail, or return"
        message = f"{node} raised {kind}: it {what}"
        return ErrorInfo(category="agent", code="executor_failed", message=message, details={"type": kind})
    return ErrorInfo(
        category="agent",
        code="executor_failed",
        message=f"{node} raised {describe_exception(error)}",
        details={"type": kind},
    )
