"""The methods of one run: those of a Runtime or a client whose first argument is the run's id.

A handle that is made of them has the same arguments, results and exceptions by construction.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

__all__ = ["bound"]

P = ParamSpec("P")
R = TypeVar("R")


def bound(method: Callable[Concatenate[Any, str, P], R]) -> Callable[Concatenate[Any, P], R]:
    """Return `method` for a class that has its first argument as `workflow_id`, and its owner as `_home`."""
    name = method.__name__

    @wraps(method)
    def call(self: Any, *args: P.args, **kwargs: P.kwargs) -> R:
        return getattr(self._home, name)(self.workflow_id, *args, **kwargs)

    self, _, *others = inspect.signature(method).parameters.values()
    call.__signature__ = inspect.signature(method).replace(parameters=[self, *others])  # type: ignore[attr-defined]
    return call
