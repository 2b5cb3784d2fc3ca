"""Functions that choose the ways of messages, and by what a graph knows them (page 002 §9).

A predicate or selection is known by its name, else by module and qualified name, a lambda by the hash of its
code. An expression is known by its text.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable
from functools import partial
from types import CodeType, FunctionType
from typing import Any, Literal, NamedTuple

__all__ = ["Role", "Rule", "describe_rule"]

Role = Literal["condition", "selection"]

_DIGITS = 12
_LAMBDA = "<lambda>"


class Rule(NamedTuple):
    """What decides about an edge: an expression, or a function with its identity.

    `problem` is (code, message, hint) if it cannot decide; `anonymous`: only its code tells it from others.
    """

    identity: str
    function: Callable[..., Any] | None = None
    expression: str | None = None
    anonymous: bool = False
    problem: tuple[str, str, str] | None = None

    @property
    def short(self) -> str:
        """The name of the function without its module."""
        return self.identity.rpartition(":")[2]


def describe_rule(given: Any, name: str | None, role: Role = "condition") -> Rule:
    """Return the rule that a condition or selection states; `name` is what the caller calls it."""
    if isinstance(given, str) and role == "condition":
        return Rule(name or given, expression=given)
    if not callable(given):
        wanted = "a function or an expression" if role == "condition" else "a function"
        message = f"a {role} is {wanted}, not {type(given).__name__}"
        return Rule(name or role, problem=("E_TYPE", message, f"pass {wanted}"))
    inner = _inner(given)
    anonymous = name is None and getattr(inner, "__name__", "") == _LAMBDA
    identity = name or _identity(inner)
    return Rule(identity, given, None, anonymous, _problem_of(given, inner, name or _called(inner), role))


def _inner(given: Any) -> Any:
    while isinstance(given, partial):
        given = given.func
    return given


def _called(function: Any) -> str:
    return str(getattr(function, "__qualname__", type(function).__qualname__))


def _identity(function: Any) -> str:
    owner: Any = function if hasattr(function, "__qualname__") else function.__class__
    if getattr(function, "__name__", "") == _LAMBDA and isinstance(function, FunctionType):
        return f"{owner.__module__}:lambda {_code_hash(function)}"
    return f"{owner.__module__}:{owner.__qualname__}"


def _code_hash(function: FunctionType) -> str:
    """Return a digest of what a lambda does, whatever line it stands on."""
    digest = hashlib.sha256()
    todo: list[CodeType] = [function.__code__]
    while todo:
        code = todo.pop()
        constants = [value for value in code.co_consts if not isinstance(value, CodeType)]
        digest.update(repr((code.co_code, constants, code.co_names, code.co_varnames)).encode())
        todo += [value for value in code.co_consts if isinstance(value, CodeType)]
    digest.update(repr(function.__defaults__).encode() if function.__defaults__ else b"")
    return digest.hexdigest()[:_DIGITS]


def _problem_of(given: Any, inner: Any, name: str, role: Role) -> tuple[str, str, str] | None:
    is_async = inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(
        getattr(inner, "__call__", None)  # noqa: B004 - its own, for the instance of a class
    )
    if is_async:
        message = f"the {role} {name} is async: routing is decided without awaiting"
        return "E_ASYNC_PREDICATE", message, "write it with def; do what must be awaited in the handler"
    try:
        signature = inspect.signature(given)
    except (TypeError, ValueError):
        return None  # of a builtin, which says nothing
    counts = (1, 2) if role == "condition" else (2,)
    if any(_takes(signature, count) for count in counts):
        return None
    forms = "fn(data) or fn(data, shared)" if role == "condition" else "fn(data, targets)"
    return "E_VALUE", f"the {role} {name} takes {signature}", f"write it as {forms}"


def _takes(signature: inspect.Signature, count: int) -> bool:
    try:
        signature.bind(*[None] * count)
    except TypeError:
        return False
    return True
