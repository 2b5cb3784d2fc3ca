"""The two ways in which an expression fails: it does not parse (load), or it cannot be evaluated (run).

Neither message ever holds a value of the run: names of types, functions and limits only.
"""

from __future__ import annotations

from typing import Any, Literal

from agentflow.errors import AgentflowError

__all__ = ["EvaluationError", "ExpressionError", "Fault", "Reason"]

Reason = Literal["type", "format", "from_json", "limit", "scope"]


class ExpressionError(AgentflowError):
    """An expression or a template does not parse.

    `code` is one of E_EXPR_SYNTAX, _UNCLOSED, _LIMIT, _NAME, _FUNCTION, _ARITY, _WHOLE. `offset` and
    `length` count code points of the text that was given to the parser (of a template: of the string at
    the JSON pointer `path`). `also` holds the further errors of the same expression, in their order:
    names, functions and arities are reported together, a syntax error stands alone.
    """

    def __init__(
        self, code: str, message: str, offset: int, hint: str | None = None, length: int = 1
    ) -> None:
        super().__init__(message, hint=hint)
        # A problem's code belongs to the problem, not to the class.
        self.code = code
        self.message = message
        self.offset = offset
        self.length = length
        self.path = ""
        self.also: tuple[ExpressionError, ...] = ()

    def shifted(self, by: int, path: str) -> ExpressionError:
        """Return the same error, seen from a text in which the expression begins `by` code points later."""
        error = ExpressionError(self.code, self.message, self.offset + by, self.hint, self.length)
        error.path = path
        error.also = tuple(other.shifted(by, path) for other in self.also)
        return error


class EvaluationError(AgentflowError):
    """An expression cannot be evaluated on these values. It is never retried.

    `offset` counts code points of `expression` (its source text) and points at the operator, function
    or segment that failed. `path` is the place of the expression in a template (a JSON pointer), if any.
    """

    code = "expression_error"

    def __init__(self, reason: Reason, message: str, offset: int, expression: str, path: str = "") -> None:
        super().__init__(message)
        self.reason: Reason = reason
        self.message = message
        self.offset = offset
        self.expression = expression
        self.path = path

    def details(self, path: str = "") -> dict[str, Any]:
        """Return the error details of page 001 §6.5; `path` is the pointer of the template in its
        document."""
        return {
            "path": path + self.path,
            "expression": self.expression,
            "offset": self.offset,
            "reason": self.reason,
        }


class Fault(Exception):
    """A rule of the language was broken at a place that the caller knows; it becomes an EvaluationError."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason: Reason = reason
        self.message = message
