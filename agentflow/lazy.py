"""Sequences whose elements are made when they are first looked at."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar, overload

__all__ = ["LazySequence"]

T = TypeVar("T")


class LazySequence(Sequence[T]):
    """Elements that `made` gives; in JSON an array.

    Equal to a tuple or another lazy sequence with equal elements, joined with a tuple to a tuple; pickled and
    copied as a tuple.
    """

    __slots__ = ()

    @abstractmethod
    def made(self) -> tuple[T, ...]:
        """Return the elements, made at the first call and then kept."""

    def __len__(self) -> int:
        return len(self.made())

    @overload
    def __getitem__(self, index: int) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[T, ...]: ...

    def __getitem__(self, index: int | slice) -> T | tuple[T, ...]:
        return self.made()[index]

    def __iter__(self) -> Iterator[T]:
        return iter(self.made())

    def __eq__(self, other: object) -> bool:
        if isinstance(other, LazySequence):
            return self.made() == other.made()
        return self.made() == other if isinstance(other, tuple) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.made())

    def __add__(self, other: tuple[T, ...]) -> tuple[T, ...]:
        return self.made() + tuple(other)

    def __radd__(self, other: tuple[T, ...]) -> tuple[T, ...]:
        return tuple(other) + self.made()

    def __repr__(self) -> str:
        return repr(self.made())

    def __reduce__(self) -> tuple[Any, ...]:
        return tuple, (self.made(),)
