"""One evaluation: what it reads, what it may still do, and the shape of compiled code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from agentflow.definition.expressions.errors import EvaluationError, Fault
from agentflow.definition.expressions.values import Meter, json_size

__all__ = ["Evaluate", "Run", "StatusView", "Step", "located"]


class StatusView(Protocol):
    """What the status functions look at: the dependencies of the step (page 001 §5.2)."""

    def success(self) -> bool:
        """Return whether all of `depends_on` succeeded."""
        ...

    def failure(self) -> bool:
        """Return whether some transitive dependency failed."""
        ...

    def cancelled(self) -> bool:
        """Return whether some transitive dependency was cancelled."""
        ...


class Run(Meter):
    """One evaluation: the roots, the status of the dependencies, the operations that are left."""

    __slots__ = ("room", "scope", "status")

    def __init__(
        self, scope: Mapping[str, Any], status: StatusView | None, left: int, room: int | None = None
    ) -> None:
        self.scope = scope
        self.status = status
        self.left = left
        self.room = room
        """Bytes of values that may still be read; None: any number."""

    def read(self, value: Any) -> None:
        """Take a value that was read from the room; raise Fault if it is larger than what is left."""
        assert self.room is not None
        if value is None or value is True or value is False:
            return
        self.room -= json_size(value, self.room)
        if self.room < 0:
            raise Fault("scope", "expression reads more than max_expression_scope_bytes")


Evaluate = Callable[[Run], Any]
Step = Callable[[Any, Run], Any]


def located(fault: Fault, offset: int, source: str) -> EvaluationError:
    """Return the error that a fault is at this place of this source."""
    return EvaluationError(fault.reason, fault.message, offset, source)
