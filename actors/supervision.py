"""Supervision of failing actors: strategies, backoff, restart intensity.

Everything here is data and pure functions; it never touches a loop, a task or an actor. The runtime carries
decisions out (`kernel.fate`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeVar, cast, get_args

from actors.errors import SpecError

__all__ = [
    "Action",
    "Backoff",
    "History",
    "Intensity",
    "OneForAll",
    "OneForOne",
    "RestForOne",
    "Strategy",
    "Streak",
]

T = TypeVar("T")

Action = Literal["restart", "resume", "stop", "escalate"]


@dataclass(frozen=True, slots=True)
class Backoff:
    """Seconds to wait before the n-th restart in a row (n from 0): `min(max, min * 2**n) * (1 + rand *
    jitter)`.

    The row ends after `reset_after` seconds without a failure (default: the strategy's `within`).
    """

    min: float
    max: float
    jitter: float = 0.0
    reset_after: float | None = None

    def __post_init__(self) -> None:
        if self.min < 0:
            raise SpecError(f"Backoff(min={self.min}): must not be negative")
        if self.max < self.min:
            raise SpecError(f"Backoff(min={self.min}, max={self.max}): max must not be less than min")
        if self.jitter < 0:
            raise SpecError(f"Backoff(jitter={self.jitter}): must not be negative")
        if self.reset_after is not None and self.reset_after <= 0:
            raise SpecError(f"Backoff(reset_after={self.reset_after}): must be more than 0 seconds")

    def delay(self, n: int, rand: float) -> float:
        """Seconds before the restart number `n` (from 0); `rand` is a random number of [0, 1)."""
        base = self.max if n > 60 else min(self.max, self.min * 2**n)
        return base * (1 + rand * self.jitter)


class History(NamedTuple):  # quicker to make than a dataclass
    """What a decider function sees of the past of the actor that failed."""

    failures: int
    """Failures in a row, this one included."""
    restarts: int
    """Restarts since the actor was spawned."""


Decider = Mapping[type[BaseException], Action] | Callable[[BaseException, History], Action]


@dataclass(frozen=True)
class Strategy:
    """How a supervisor treats its children; use `OneForOne`, `OneForAll` or `RestForOne`.

    At most `max_restarts` within the last `within` seconds, over all children; one more fails the supervisor
    itself. `decide` is a mapping of exception types (the nearest base class wins; what is not listed
    restarts) or a pure function of the exception and its `History`. Raises `SpecError` when a value makes no
    sense.
    """

    max_restarts: int = 3
    within: float = 5.0
    backoff: Backoff | None = None
    decide: Decider | None = field(default=None, compare=False)
    auto_shutdown: Literal["any", "all"] = "any"
    """When the supervisor itself stops because significant children ended: after the first, or the last."""

    def __post_init__(self) -> None:
        name = type(self).__name__
        if self.max_restarts < 0:
            raise SpecError(f"{name}(max_restarts={self.max_restarts}): must not be negative")
        if self.within <= 0:
            raise SpecError(f"{name}(within={self.within}): must be more than 0 seconds")
        if self.auto_shutdown not in ("any", "all"):
            raise SpecError(f"{name}(auto_shutdown={self.auto_shutdown!r}): give any or all")
        if not (self.decide is None or callable(self.decide) or isinstance(self.decide, Mapping)):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise SpecError(
                f"{name}(decide={self.decide!r}): give a mapping of exception types, or a function"
            )
        table = self._table()
        if table is not None:
            for error, action in table.items():
                if not (isinstance(error, type) and issubclass(error, BaseException)):  # pyright: ignore[reportUnnecessaryIsInstance]
                    raise SpecError(f"{name}(decide=...): {error!r} is not an exception type")
                _check_action(name, action)

    def verdict(self, error: BaseException, history: History) -> Action:
        """Return the action for this failure: `restart`, `resume`, `stop` or `escalate`."""
        table = self._table()
        if table is not None:
            return _look_up(table, error)
        if self.decide is None:
            return "restart"
        action = cast("Callable[[BaseException, History], Action]", self.decide)(error, history)
        _check_action(type(self).__name__, action)
        return action

    def _table(self) -> Mapping[type[BaseException], Action] | None:
        return None if callable(self.decide) else self.decide

    def affected(self, children: Sequence[T], failed: T) -> Sequence[T]:
        """Return those `children` (in start order) that restart together with `failed`."""
        raise NotImplementedError


class OneForOne(Strategy):
    """Restart the child that failed."""

    def affected(self, children: Sequence[T], failed: T) -> Sequence[T]:
        return [failed]


class OneForAll(Strategy):
    """Restart all children when one fails."""

    def affected(self, children: Sequence[T], failed: T) -> Sequence[T]:
        return children


class RestForOne(Strategy):
    """Restart the child that failed and those that were started after it."""

    def affected(self, children: Sequence[T], failed: T) -> Sequence[T]:
        return children[children.index(failed) :]


_SEVERITY: Sequence[Action] = ("resume", "restart", "stop", "escalate")


def _look_up(table: Mapping[type[BaseException], Action], error: BaseException) -> Action:
    """Return the action for the nearest base class; of an unlisted group, the severest of its parts."""
    for base in type(error).__mro__:
        if base in table and not (
            isinstance(error, BaseExceptionGroup) and not issubclass(base, BaseExceptionGroup)
        ):
            return table[base]
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        return max(
            (_look_up(table, part) for part in group.exceptions), key=lambda action: _SEVERITY.index(action)
        )
    return "restart"


def _check_action(name: str, action: object) -> None:
    if action not in get_args(Action):
        raise SpecError(f"{name}(decide=...): {action!r} is not one of restart, resume, stop, escalate")


class Intensity:
    """The sliding window of restarts of one supervisor."""

    __slots__ = ("times",)

    def __init__(self) -> None:
        self.times: deque[float] = deque()

    def exceeded(self, strategy: Strategy, now: float) -> bool:
        """Count a restart at `now` (seconds); true if it is one too many."""
        times = self.times
        while times and times[0] <= now - strategy.within:
            times.popleft()
        times.append(now)
        if len(times) > strategy.max_restarts:
            times.clear()
            return True
        return False


class Streak:
    """The failures in a row of one child."""

    __slots__ = ("count", "last", "restarts")

    def __init__(self) -> None:
        self.count = 0
        self.last = 0.0
        self.restarts = 0

    def failed(self, strategy: Strategy, now: float) -> History:
        """Count a failure at `now` (seconds)."""
        backoff = strategy.backoff
        quiet = strategy.within if backoff is None or backoff.reset_after is None else backoff.reset_after
        if self.count and now - self.last > quiet:
            self.count = 0
        self.count += 1
        self.last = now
        return History(self.count, self.restarts)

    def delay(self, strategy: Strategy, rand: Callable[[], float]) -> float:
        """Seconds to wait before the restart that follows the last failure."""
        backoff = strategy.backoff
        return 0.0 if backoff is None else backoff.delay(self.count - 1, rand())


DEFAULT_STRATEGY: Any = OneForOne()
