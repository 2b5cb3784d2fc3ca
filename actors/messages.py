"""The typed base of messages.

A message may be an object of any class. Deriving it from `Message[Reply]` adds nothing at run time; it tells
a type checker what an `ask` returns, what the handler must return, and that a declared protocol takes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from typing import Self

    from typing_extensions import TypeVar as DefaultTypeVar

    # A bare `Actor` or `Ref` is one that takes anything.
    M = DefaultTypeVar("M", contravariant=True, default=Any)
else:
    M = TypeVar("M", contravariant=True)

__all__ = ["Asks", "M", "Message", "Plain"]

R = TypeVar("R")
M_co = TypeVar("M_co", covariant=True)
R_co = TypeVar("R_co", covariant=True)


class Message(Generic[R]):
    """Optional base of a message whose answer is an `R`: `class Research(Struct, Message[Report],
    frozen=True)`."""

    __slots__ = ()

    if TYPE_CHECKING:

        def __ask__(self) -> tuple[Self, R]: ...

        # What tells a message apart from `Plain`; every other object has the method of `object`.
        def __sizeof__(self, _: object) -> int: ...  # type: ignore[override]


class Asks(Protocol[M_co, R_co]):
    """For type checkers: a message of the type `M_co` that is answered by an `R_co`."""

    def __ask__(self) -> tuple[M_co, R_co]: ...


class Plain(Protocol):
    """For type checkers: an object that is no `Message`, so that its answer may be anything."""

    def __sizeof__(self) -> int: ...
