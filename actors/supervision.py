"""What to do when an actor fails: child specs, strategies, backoff, restart intensity.

Everything here is data and pure functions; it never touches a loop, a task or an actor. The runtime carries
decisions out (`lifecycle`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, cast, get_args

import msgspec

from actors.errors import SpecError
from actors.messages import Action

if TYPE_CHECKING:
    from actors.actor import Actor

__all__ = [
    "Backoff",
    "ChildSpec",
    "History",
    "Intensity",
    "OneForAll",
    "OneForOne",
    "RestForOne",
    "RestartType",
    "Strategy",
    "Streak",
]

M = TypeVar("M", contravariant=True)
T = TypeVar("T")

RestartType = Literal["permanent", "transient", "temporary"]


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


class History(msgspec.Struct, frozen=True):  # quicker to make than a dataclass
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

    def __post_init__(self) -> None:
        name = type(self).__name__
        if self.max_restarts < 0:
            raise SpecError(f"{name}(max_restarts={self.max_restarts}): must not be negative")
        if self.within <= 0:
            raise SpecError(f"{name}(within={self.within}): must be more than 0 seconds")
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
        """The action for this failure: `restart`, `resume`, `stop` or `escalate`."""
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
        """Of `children` (in start order) those that restart together with `failed`."""
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
    """Return the action for the nearest base class; of a group that is not listed, the severest of its parts."""
    for base in type(error).__mro__:
        if base in table and not (
            isinstance(error, BaseExceptionGroup) and not issubclass(base, BaseExceptionGroup)
        ):
            return table[base]
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        return max((_look_up(table, part) for part in group.exceptions), key=_SEVERITY.index)
    return "restart"


def _check_action(name: str, action: object) -> None:
    if action not in get_args(Action):
        raise SpecError(f"{name}(decide=...): {action!r} is not one of restart, resume, stop, escalate")


@dataclass(frozen=True, slots=True)
class ChildSpec(Generic[M]):
    """How to start a child and how long it lives.

    `factory` makes the actor anew at each start: an `Actor` class or a function of no arguments (bind
    arguments with `functools.partial`). `restart`: `permanent` (restarted after a failure and after
    `ctx.finish()`), `transient` (after a failure only), `temporary` (never). A stop, drain or kill through a
    ref is final for all three. `shutdown`: seconds that a stop may take before it becomes a kill; None waits
    for ever.
    """

    name: str | None
    factory: Callable[[], Actor[M]]
    restart: RestartType = field(default="permanent", kw_only=True)
    shutdown: float | None = field(default=5.0, kw_only=True)
    start_timeout: float | None = field(default=None, kw_only=True)
    """Seconds that `on_start` may take; None is the limit of the class (30 s), `math.inf` none."""
    drain: bool = field(default=False, kw_only=True)
    """True if the stop of the parent drains this child: it handles what it has accepted, within `shutdown`."""

    def __post_init__(self) -> None:
        if self.name is not None and not isinstance(self.name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise SpecError(f"ChildSpec(name={self.name!r}): the name comes first and is a string or None")
        check_name(self.name)
        if not callable(self.factory):
            raise SpecError(
                f"ChildSpec({self.name!r}, {self.factory!r}): the factory is an Actor class or a function "
                f"of no arguments, not an actor"
            )
        if self.restart not in get_args(RestartType):
            raise SpecError(
                f"ChildSpec({self.name!r}, restart={self.restart!r}): give permanent, transient or temporary"
            )
        if self.shutdown is not None and self.shutdown < 0:
            raise SpecError(f"ChildSpec({self.name!r}, shutdown={self.shutdown}): must not be negative")
        if self.start_timeout is not None and not self.start_timeout > 0:
            raise SpecError(
                f"ChildSpec({self.name!r}, start_timeout={self.start_timeout}): must be more than 0 seconds"
            )


def check_name(name: str | None) -> None:
    """Raise `SpecError` unless `name` can be a part of a path."""
    if name is not None and (not name or "/" in name):
        raise SpecError(f"{name!r} is no name for an actor: it must not be empty nor contain '/'")


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
