"""`Actor`, the base class of actors, and `@on`, which declares what a handler takes.

A handler is a method of one message, plain or `async`. Its return value is the reply. The table of handlers
is built when the class is defined, so that a message costs one dictionary look-up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from inspect import isasyncgenfunction, isgeneratorfunction
from typing import Any, Generic, TypeAlias, TypeVar, get_args, get_origin, overload

from actors.behaviour import UNBOUNDED, Behaviour, Overflow, Table
from actors.context import Context
from actors.errors import SpecError
from actors.messages import Asks, M, Plain
from actors.question import Reply
from actors.ref import Ref
from actors.supervision import Strategy

__all__ = ["Actor", "on"]

A = TypeVar("A")
T = TypeVar("T")
T2 = TypeVar("T2")
T3 = TypeVar("T3")
R = TypeVar("R")
R2 = TypeVar("R2")
X = TypeVar("X")
P = TypeVar("P", bound=Plain)

# What the handler of a message that is answered by an `R` may return: the answer, or `ctx.defer()`'s `Reply`.
Answer: TypeAlias = R | Reply[R] | Coroutine[Any, Any, R] | Coroutine[Any, Any, Reply[R]] | asyncio.Future[R]


# One overload for each number of types: mypy joins them to `object` otherwise.
@overload
def on(one: type[Asks[T, R]], /) -> Callable[[Callable[[A, T], Answer[R]]], Callable[[A, T], Answer[R]]]: ...
@overload
def on(one: type[P], /) -> Callable[[Callable[[A, P], X]], Callable[[A, P], X]]: ...
@overload
def on(
    one: type[Asks[T, R]], two: type[Asks[T2, R2]], /
) -> Callable[[Callable[[A, T | T2], Answer[R | R2]]], Callable[[A, T | T2], Answer[R | R2]]]: ...
@overload
def on(one: type[T], two: type[T2], /) -> Callable[[Callable[[A, T | T2], X]], Callable[[A, T | T2], X]]: ...
@overload
def on(
    one: type[T], two: type[T2], three: type[T3], /
) -> Callable[[Callable[[A, T | T2 | T3], X]], Callable[[A, T | T2 | T3], X]]: ...
@overload
def on(*types: type[T]) -> Callable[[Callable[[A, T], X]], Callable[[A, T], X]]: ...
def on(*types: type[Any]) -> Callable[[Callable[[A, Any], Any]], Callable[[A, Any], Any]]:
    """Declare that a method handles messages of these types (exactly, or as their nearest declared base
    class).

    Signals (`Failed`, `Restarted`, `Terminated`, `ReceiveTimeout`) are handled only where they are declared
    by name: a handler of `object` does not get them.
    """
    if not types or not all(isinstance(t, type) for t in types):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise SpecError(f"@on{types!r}: give one or more message classes, as in @on(Research)")

    def declare(method: Callable[[A, Any], Any]) -> Callable[[A, Any], Any]:
        if isgeneratorfunction(method) or isasyncgenfunction(method):
            raise SpecError(
                f"{method.__qualname__}: a handler must return its reply, and this is a generator function; "
                f"return a list, or tell the parts one by one"
            )
        method.__actor_messages__ = types  # type: ignore[attr-defined]
        return method

    return declare


class Actor(Behaviour[M], Generic[M]):
    """State that only its own handlers touch, one message at a time.

    Class arguments: `mailbox` (slots for messages, default 1,000; 0 is unbounded), `overflow` (what `tell`
    does with a full mailbox: `raise` MailboxFull, or `drop_new` / `drop_old` to the dead letters), `stash`
    (slots of the stash, default 100), `start_timeout` (seconds that `on_start` may take, default 30) and
    `stop_timeout` (seconds for `on_stop` and `on_restart`, default the child's `shutdown` time, which is 5,
    or 30 where that is None). A hook that takes longer is cancelled; `math.inf` sets no limit.
    `handler_timeout` (seconds that a handler may await, default no limit): a handler that takes longer is
    cancelled, and its actor fails with `HandlerTimeout`. `supervise` says what happens when a child fails.
    `Actor[Research | Brief]` declares the protocol for type checkers; each of its types must have a handler.
    Raises `SpecError` when the class is defined wrongly.
    """

    __slots__ = ("ctx",)

    ctx: Context[M]

    def __bind__(self, cell: Any, context: Any) -> Any:
        self.ctx = Context(cell) if context is None else context
        return self.ctx

    def __bound__(self) -> Ref[Any] | None:
        context = getattr(self, "ctx", None)
        return None if context is None else context.self

    def __init_subclass__(
        cls,
        *,
        mailbox: int | None = None,
        overflow: Overflow | None = None,
        stash: int | None = None,
        start_timeout: float | None = None,
        stop_timeout: float | None = None,
        handler_timeout: float | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init_subclass__(**kwargs)
        if mailbox is not None:
            if mailbox < 0:
                raise SpecError(f"{cls.__name__}(mailbox={mailbox}): slots of the mailbox; 0 is unbounded")
            cls.__mailbox__ = mailbox or UNBOUNDED
        if overflow is not None:
            if overflow not in get_args(Overflow):
                raise SpecError(
                    f"{cls.__name__}(overflow={overflow!r}): not one of raise, drop_new, drop_old"
                )
            cls.__overflow__ = overflow
        if stash is not None:
            if stash < 0:
                raise SpecError(f"{cls.__name__}(stash={stash}): slots of the stash")
            cls.__stash__ = stash
        for name, seconds in (
            ("start_timeout", start_timeout),
            ("stop_timeout", stop_timeout),
            ("handler_timeout", handler_timeout),
        ):
            if seconds is not None:
                if not seconds > 0:
                    raise SpecError(f"{cls.__name__}({name}={seconds}): must be more than 0 seconds")
                setattr(cls, f"__{name}__", seconds)
        if not isinstance(cls.supervise, Strategy):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise SpecError(
                f"{cls.__name__}.supervise: {cls.supervise!r} is not OneForOne, OneForAll or RestForOne"
            )
        cls.__handler_names__ = _collect(cls)
        cls.__handlers__ = Table(
            (message, getattr(cls, name)) for message, name in cls.__handler_names__.items()
        )
        _check_protocol(cls)


def _collect(cls: type[Actor[Any]]) -> dict[type, str]:
    """Return the attribute that handles each type; a subclass overrides by type or by name."""
    names: dict[type, str] = {}
    for base in reversed(cls.__mro__):
        declared: dict[type, str] = {}
        for name, value in vars(base).items():
            for message in getattr(value, "__actor_messages__", ()):
                if message in declared:
                    raise SpecError(
                        f"{base.__name__}: {declared[message]} and {name} both handle {message.__name__}"
                    )
                declared[message] = name
        names |= declared
    return names


def _check_protocol(cls: type[Actor[Any]]) -> None:
    for base in vars(cls).get("__orig_bases__", ()):
        origin = get_origin(base)
        if not (isinstance(origin, type) and issubclass(origin, Actor)):
            continue
        for argument in get_args(base):
            for message in get_args(argument) or (argument,):
                if isinstance(message, type) and cls.__handlers__.find(message) is None:
                    raise SpecError(
                        f"{cls.__name__} declares {message.__name__} in its protocol and has no "
                        f"@on({message.__name__}) handler"
                    )
