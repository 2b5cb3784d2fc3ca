"""Python functions as tools: the marker, and what it makes of a function.

A schema is made of the parameters' annotations: a model's arguments are checked against it and then
converted to the annotated types, so a function gets what it declares.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar, get_args, overload

import msgspec

from agentflow.definition.ir import ServiceSpec
from agentflow.tools.signature import describe
from agentflow.tools.tool import PythonTool, SideEffect, settled

__all__ = ["Marked", "function", "make_tool", "mark_of"]

_MARK = "__agentflow_function__"
F = TypeVar("F", bound=Callable[..., Any])


class Marked(msgspec.Struct, frozen=True, kw_only=True):
    """What `@function` was told."""

    name: str | None = None
    description: str | None = None
    side_effect: SideEffect | None = None
    idempotent: bool | None = None
    timeout: float | None = None
    sensitive: bool = False


@overload
def function(f: F, /) -> F: ...
@overload
def function(
    *,
    name: str | None = None,
    description: str | None = None,
    side_effect: SideEffect | None = None,
    idempotent: bool | None = None,
    timeout: float | None = None,
    sensitive: bool = False,
) -> Callable[[F], F]: ...
def function(f: Any = None, /, **options: Any) -> Any:
    """Mark a function, sync or async, as one that a `python` service offers (page 001 §1.4).

    `side_effect`: none, read, write, external (the default: unknown is unsafe) or irreversible.
    `idempotent`: a repeated call with the same `ctx.idempotency_key` has its effect once (default: true for
    none and read). `timeout` in seconds. `sensitive`: its output is kept out of spans. Raises TypeError or
    ValueError for an option that is none of these.
    """
    side_effect, timeout = options.get("side_effect"), options.get("timeout")
    if side_effect is not None and side_effect not in get_args(SideEffect):
        raise ValueError(f'side_effect "{side_effect}" is not one of {", ".join(get_args(SideEffect))}')
    if timeout is not None and not timeout > 0:
        raise ValueError(f"timeout {timeout} is not a number of seconds above 0")
    marked = Marked(**options)

    def mark(target: Any) -> Any:
        if not callable(target):
            raise TypeError(
                f"@function marks functions, not {type(target).__name__}; write its options by name"
            )
        setattr(target, _MARK, marked)
        return target

    return mark if f is None else mark(f)


def make_tool(service: str, f: Callable[..., Any], spec: ServiceSpec | None = None) -> PythonTool:
    """Return the tool of a function. What `spec` says about it wins over the marker, the marker over the
    code.

    Raises TypeError, ValueError or NameError when its parameters cannot be described.
    """
    marked = mark_of(f) or Marked()
    name = marked.name or getattr(f, "__name__", None) or type(f).__name__
    signature = describe(f)
    return PythonTool(
        service=service,
        function=name,
        input_schema=signature.schema,
        call=f,
        is_async=_is_async(f) or _is_async(getattr(f, "__call__", None)),  # noqa: B004
        accepts_ctx=signature.accepts_ctx,
        arguments=signature.arguments,
        sensitive=marked.sensitive,
        **settled(
            spec,
            name,
            side_effect=marked.side_effect,
            idempotent=marked.idempotent,
            description=marked.description or signature.text,
            timeout=marked.timeout,
        ),
    )


def mark_of(f: Any) -> Marked | None:
    """Return what `@function` was told about it, None if it is not marked."""
    found = getattr(f, _MARK, None)
    return found if isinstance(found, Marked) else None


def _is_async(f: Any) -> bool:
    return inspect.iscoroutinefunction(f) or inspect.isasyncgenfunction(f)
