"""Tells a child made by `os.fork` from the process that opened a log.

Threads do not survive a fork: what the child queues is written by no thread, so its futures would never be
done, and file locks are shared with the parent. The child must open the store itself.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable

from agentflow.errors import LogFailed

__all__ = ["ForkGuard", "after_fork"]

_generation = 0  # forks between the first process and this one
_callbacks: list[Callable[[], None]] = []
_releasing: weakref.WeakSet[ForkGuard] = weakref.WeakSet()


def after_fork(callback: Callable[[], None]) -> None:
    """Call `callback` in each child of `os.fork`, before any other code of the child runs."""
    _callbacks.append(callback)


class ForkGuard:
    """Belongs to the process in which it was made. `what` names the guarded object in the error.

    `release` is called in each forked child, to close what must not stay open there, as the descriptor of
    a lock.
    """

    __slots__ = ("__weakref__", "_generation", "_what", "release")

    def __init__(self, what: str, release: Callable[[], object] | None = None) -> None:
        self._what = what
        self._generation = _generation
        self.release = release
        if release is not None:
            _releasing.add(self)

    @property
    def forked(self) -> bool:
        """True in a child of the process that made this guard."""
        return self._generation != _generation

    def check(self) -> None:
        """Raise LogFailed in a child of the process that made this guard."""
        if self._generation != _generation:
            raise LogFailed(
                f"{self._what} was opened before this process was forked; only its parent may use it",
                hint="open the store again in this process, or fork before opening it",
            )


def _forked() -> None:
    global _generation
    _generation += 1
    for callback in _callbacks:
        callback()
    for guard in list(_releasing):
        if guard.release is not None:
            guard.release()


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_forked)
