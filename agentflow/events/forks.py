"""Makes a log unusable in a forked child.

A fork copies the log's memory, but neither its threads nor its right to the store: an append in the child
would wait for ever, and a copied descriptor of the lock would keep the store locked after the parent has
ended. Python calls the hook below in each child that `os.fork` makes; programs started by `subprocess`
inherit no descriptor.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable

from agentflow.errors import StoreError

__all__ = ["ForkGuard"]


class ForkGuard:
    """Guard of one open log. In a forked child, `forked` is true and `release` has been called."""

    def __init__(self, url: str, release: Callable[[], object] | None = None) -> None:
        self.forked = False
        self._url = url
        self._release = release
        _guards.add(self)

    def check(self) -> None:
        """Raise StoreError in a forked child."""
        if self.forked:
            raise self.error()

    def error(self) -> StoreError:
        """Return what a call in a forked child is refused with."""
        return StoreError(
            f"the store {self._url} was opened before this process was forked, and belongs to its parent",
            hint="open the store after the fork, or start the child with `subprocess` or `spawn`",
        )

    def enter_child(self) -> None:
        """Refuse everything from now on."""
        self.forked = True
        if self._release is not None:
            self._release()


_guards: weakref.WeakSet[ForkGuard] = weakref.WeakSet()


def _enter_child() -> None:
    for guard in list(_guards):
        guard.enter_child()


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_enter_child)
