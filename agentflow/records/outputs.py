"""What a run gave out, projected from its log: the outputs of the last attempt of each activation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UNSET

from agentflow.events import catalogue as ev

__all__ = ["FOLDED_TYPES", "OutputFold", "OutputRecord"]

FOLDED_TYPES = frozenset(
    kind.EVENT_TYPE
    for kind in (ev.Output, ev.WorkflowStepStarted, ev.WorkflowStepRetrying, ev.WorkflowStepFailed)
)
"""Types of the events that say something about outputs."""


class OutputRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One output. `kind` is `intermediate` for nodes that are not in `output_from`, `type` the tag of its
    type, `index` its number in its attempt."""

    step_id: str | None
    activation: str
    kind: str
    index: int
    type: str
    value: Any


class OutputFold:
    """The outputs of one run, up to the last event that it was given."""

    def __init__(self) -> None:
        self._found: dict[str, list[tuple[int, OutputRecord]]] = {}
        self._places: dict[str, tuple[int, int]] = {}  # superstep and visit, by activation
        self._steps = False
        self._failed: dict[tuple[str, str], str] = {}  # by path and step: the last activation that failed

    def take(self, data: Any, offset: int) -> None:
        """Fold the next event; an event that says nothing about outputs changes nothing."""
        kind = data.__class__
        if kind is ev.Output:
            self._output(data, offset)
        elif kind is ev.WorkflowStepStarted:
            if data.superstep is not UNSET:
                self._steps = True
            superstep = 0 if data.superstep is UNSET else data.superstep
            self._places[data.activation] = (superstep, data.visit)
        elif kind is ev.WorkflowStepRetrying and data.kind == "restart":
            held = None if data.activation in self._places else self._failed.get((data.path, data.step_id))
            self._found.pop(held or data.activation, None)
        elif kind is ev.WorkflowStepFailed:
            self._failed[data.path, data.step_id] = data.activation

    def _output(self, data: ev.Output, offset: int) -> None:
        given = self._found.setdefault(data.activation, [])
        del given[data.index :]  # of a handler that began its attempt once more, and gives another value
        found = OutputRecord(
            step_id=data.step_id,
            activation=data.activation,
            kind=data.kind,
            index=data.index,
            type=data.type,
            value=data.value,
        )
        given.append((offset, found))

    def outputs(self) -> Sequence[OutputRecord]:
        """Return the outputs in the order of page 002 §16."""
        found = [one for given in self._found.values() for one in given]
        if not self._steps:
            return [record for _, record in sorted(found, key=lambda one: one[0])]
        return [record for _, record in sorted(found, key=lambda one: self._order(one[1]))]

    def _order(self, record: OutputRecord) -> tuple[Any, ...]:
        superstep, visit = self._places.get(record.activation, (0, 0))
        return superstep, record.step_id, visit, record.index
