"""Handlers: what the methods of an executor take, send and give out, and which of them takes a value."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple, TypeVar, cast, get_args, get_origin, get_type_hints

import msgspec

from agentflow.executors.annotations import Rank, is_any, members_of, rank
from agentflow.executors.context import WorkflowContext

__all__ = [
    "HandlerSpec",
    "choose",
    "choose_response",
    "declares",
    "describe",
    "handler",
    "handlers_of",
    "response_handler",
]

F = TypeVar("F", bound=Callable[..., Any])

_MARK = "__agentflow_handler__"


class HandlerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A handler: `takes` and, of a response handler, `answer` are annotations, `sends` and `yields` those of
    its context and of its result.

    `typed` is False if the message has no annotation; `function` takes the executor first, if it is a method.
    """

    name: str
    kind: Literal["message", "response"]
    function: Any
    takes: Any
    answer: Any = None
    sends: tuple[Any, ...] = ()
    yields: tuple[Any, ...] = ()
    accepts_ctx: bool = True
    is_async: bool = True
    typed: bool = True
    method: bool = True

    @property
    def annotations(self) -> tuple[Any, ...]:
        """All types that it names."""
        answer = () if self.kind == "message" else (self.answer,)
        return (self.takes, *answer, *self.sends, *self.yields)


def handler(function: F) -> F:
    """Mark a method `async (self, message: T, ctx: WorkflowContext[Out, WOut])` as a handler of T."""
    return _mark(function, "message")


def response_handler(function: F) -> F:
    """Mark a method `async (self, request: R, answer: A, ctx)` as the handler of answers to its requests."""
    return _mark(function, "response")


def _mark(function: Any, kind: str) -> Any:
    if not inspect.isfunction(function):
        name = "handler" if kind == "message" else "response_handler"
        raise TypeError(f"@{name} marks methods, not {type(function).__name__}; write it without parentheses")
    setattr(function, _MARK, kind)
    return function


def handlers_of(kind: type) -> tuple[HandlerSpec, ...]:
    """Return the handlers of a class in the order of its body, those of its bases behind them.

    Raises TypeError for a signature that is none of a handler, and NameError for a name that is not defined.
    """
    found: dict[str, HandlerSpec] = {}
    for base in kind.__mro__:
        for name, value in vars(base).items():
            mark = getattr(value, _MARK, None)
            if mark is not None and name not in found and _is_current(kind, name, value):
                found[name] = describe(value, kind=mark, namespace=vars(base))
    return tuple(found.values())


def _is_current(kind: type, name: str, value: Any) -> bool:
    """Return whether a subclass did not replace the method by one that is no handler."""
    return getattr(kind, name, None) is value


def describe(
    function: Any,
    *,
    kind: Literal["message", "response"] = "message",
    namespace: Any = None,
    method: bool = True,
) -> HandlerSpec:
    """Return what a function takes and sends. Raises TypeError or NameError, with its name."""
    name = getattr(function, "__name__", type(function).__name__)
    parameters = list(inspect.signature(function).parameters.values())[1 if method else 0 :]
    wanted = 1 if kind == "message" else 2
    called = _called(function)
    is_async = inspect.iscoroutinefunction(called)
    if inspect.isgeneratorfunction(called) or inspect.isasyncgenfunction(called):
        raise TypeError(f"{name} is a generator: send each value by ctx.send_message, instead of yield")
    if not wanted <= len(parameters) <= wanted + 1 or any(p.kind in _STARRED for p in parameters):
        shape = "message" if kind == "message" else "request, answer"
        raise TypeError(f"{name} must take ({'self, ' if method else ''}{shape}, ctx)")
    accepts_ctx = len(parameters) > wanted
    if accepts_ctx and not is_async:
        raise TypeError(f"{name} takes a context, so it must be written with async def")
    hints = _hints(called, namespace)
    types = [hints.get(parameter.name, _UNSTATED) for parameter in parameters]
    sends, yields = _context_types(hints, parameters[-1].name) if accepts_ctx else ((), ())
    given = hints.get("return")
    if given is not None and given is not type(None):
        sends = (*sends, *(m for m in members_of(given) if m is not type(None)))
    return HandlerSpec(
        name=name,
        kind=kind,
        function=function,
        takes=Any if types[0] is _UNSTATED else types[0],
        answer=(Any if types[1] is _UNSTATED else types[1]) if kind == "response" else None,
        sends=tuple(dict.fromkeys(sends)),
        yields=yields,
        accepts_ctx=accepts_ctx,
        is_async=is_async,
        typed=_UNSTATED not in types[:wanted],
        method=method,
    )


def _called(function: Any) -> Any:
    """Return the function or method that a callable calls: of a partial, and of an object with `__call__`."""
    while isinstance(function, partial):
        function = cast("partial[Any]", function).func
    return function if inspect.isroutine(function) else function.__call__


_STARRED = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_UNSTATED = object()


def _hints(function: Any, namespace: Any) -> dict[str, Any]:
    """Return the annotations as types, also those of a module that writes them as text."""
    try:
        return get_type_hints(function, localns=_names_around(function, namespace), include_extras=True)
    except NameError as error:
        name = getattr(function, "__qualname__", "a handler")
        hint = "define it at the top of a module, or before the class whose handler names it"
        raise NameError(f"{name}: {error}; {hint}") from None


def _names_around(function: Any, namespace: Any) -> dict[str, Any]:
    """Return the names that the annotations of a function may use beside those of its module.

    A class inside a function sees the locals of that function, which live as long as its frame runs.
    """
    names: dict[str, Any] = {}
    frame: Any = sys._getframe()  # pyright: ignore[reportPrivateUsage]
    frames: list[dict[str, Any]] = []
    while frame is not None:
        if frame.f_globals is getattr(function, "__globals__", None):
            frames.append(frame.f_locals)
        frame = frame.f_back
    for found in reversed(frames):
        names.update(found)
    if inspect.isfunction(function):
        names.update(inspect.getclosurevars(function).nonlocals)
    return {**names, **dict(namespace or {})}


def _context_types(hints: dict[str, Any], name: str) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Return what `WorkflowContext[Out, WOut]` declares; without arguments, nothing."""
    stated = hints.get(name)
    if stated is None:
        return (), ()
    origin = get_origin(stated) or stated
    if not (isinstance(origin, type) and issubclass(origin, WorkflowContext)):
        raise TypeError(f'"{name}" is annotated with {stated!r}, and must be a WorkflowContext')
    args = get_args(stated)
    sends = members_of(args[0]) if args else ()
    yields = members_of(args[1]) if len(args) > 1 else ()
    return sends, yields


class _Ranked(NamedTuple):
    rank: Rank
    order: int


def choose(specs: Sequence[HandlerSpec], value: Any) -> HandlerSpec | None:
    """Return the handler of a value: exact type, nearest base, union member, Any; ties by their order."""
    if len(specs) == 1:
        only = specs[0]
        return only if only.kind == "message" and rank(only.takes, value) is not None else None
    found = [
        _Ranked(near, i)
        for i, spec in enumerate(specs)
        if spec.kind == "message" and (near := rank(spec.takes, value)) is not None
    ]
    return specs[min(found).order] if found else None


def choose_response(
    specs: Sequence[HandlerSpec], request: Any, fits: Callable[[Any], bool]
) -> HandlerSpec | None:
    """Return the response handler of a request whose annotation of the answer `fits`."""
    found = [
        _Ranked(near, i)
        for i, spec in enumerate(specs)
        if spec.kind == "response" and fits(spec.answer) and (near := rank(spec.takes, request)) is not None
    ]
    return specs[min(found).order] if found else None


def declares(annotations: Iterable[Any], value: Any) -> bool:
    """Return whether a value is of one of these types."""
    return any(is_any(annotation) or rank(annotation, value) is not None for annotation in annotations)
