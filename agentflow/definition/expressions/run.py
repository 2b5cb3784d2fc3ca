"""One evaluation: what it reads, what it may still do, and the shape of compiled code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from agentflow.definition.expressions.errors import EvaluationError, Fault
from agentflow.definition.expressions.values import Meter

__all__ = ["Evaluate", "Run", "StatusView", "Step", "located"]


class StatusView(Protocol):
    """What the status functions look at: the dependencies of the step (page 001 §5.2)."""

    def success(self) -> bool:
        """Whether all of `depends_on` succeeded."""
        ...

    def failure(self) -> bool:
        """Whether some transitive dependency failed."""
        ...

    def cancelled(self) -> bool:
        """Whether some transitive dependency was cancelled."""
        ...


class Run(Meter):
    """One evaluation: the roots, the status of the dependencies, the operations that are left."""

    __slots__ = ("scope", "status")

    def __init__(self, scope: Mapping[str, Any], status: StatusView | None, left: int) -> None:
        self.scope = scope
        self.status = status
        self.left = left


Evaluate = Callable[[Run], Any]
Step = Callable[[Any, Run], Any]


def located(fault: Fault, offset: int, source: str) -> EvaluationError:
    """The error that a fault is at this place of this source."""
    return EvaluationError(fault.reason, fault.message, offset, source)
