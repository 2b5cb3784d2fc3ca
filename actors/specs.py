"""Child specs: how a child is started, restarted and ended. Data, checked when it is made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, Literal, get_args

from actors.behaviour import Behaviour
from actors.errors import SpecError
from actors.messages import M

__all__ = ["ChildSpec", "RestartType", "check_name"]

RestartType = Literal["permanent", "transient", "temporary"]
_RESTARTS = get_args(RestartType)


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
    factory: Callable[[], Behaviour[M]]
    restart: RestartType = field(default="permanent", kw_only=True)
    shutdown: float | None = field(default=5.0, kw_only=True)
    start_timeout: float | None = field(default=None, kw_only=True)
    """Seconds that `on_start` may take; None is the limit of the class (30 s), `math.inf` none."""
    drain: bool = field(default=False, kw_only=True)
    """True if the stop of the parent drains this child: it handles what it accepted, within `shutdown`."""
    significant: bool = field(default=False, kw_only=True)
    """True if the parent stops when this child has ended for good, however it ended (`auto_shutdown=` of the
    strategy: after any significant child, or all). Not for a permanent child."""
    keep: bool = field(default=False, kw_only=True)
    """True if the parent keeps this spec after the child's end, for `ctx.restart_child(name)`."""

    def __post_init__(self) -> None:
        if self.name is not None and not isinstance(self.name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise SpecError(f"ChildSpec(name={self.name!r}): the name comes first and is a string or None")
        check_name(self.name)
        if not callable(self.factory):
            raise SpecError(
                f"ChildSpec({self.name!r}, {self.factory!r}): the factory is an Actor class or a function "
                f"of no arguments, not an actor"
            )
        if self.restart not in _RESTARTS:
            raise SpecError(
                f"ChildSpec({self.name!r}, restart={self.restart!r}): give permanent, transient or temporary"
            )
        if self.significant and self.restart == "permanent":
            raise SpecError(
                f"ChildSpec({self.name!r}, significant=True): a permanent child never ends by itself; "
                f"give restart='transient' or 'temporary'"
            )
        if self.keep and self.name is None:
            raise SpecError("ChildSpec(None, keep=True): a kept spec needs a name")
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
