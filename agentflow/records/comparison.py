"""Comparison of two runs: the first activation that differs, input, output and usage (page 000 §12)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from agentflow.records.executions import StepExecution
from agentflow.records.runs import ExecutionRecord

__all__ = ["Comparison", "StepDifference", "compare"]

_COMPARED = ("state", "attempt", "input", "output", "error", "reason")


class StepDifference(msgspec.Struct, frozen=True, kw_only=True):
    """An activation that differs: by the name of a member of it, the value of each run."""

    step_id: str
    iteration: int | None
    differs: dict[str, list[Any]]


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Two runs, compared; each member but `equal` is null where they agree. Times and ids do not count.

    `activation` is the first that differs; `input`, `output` (state and output) and `usage` are pairs.
    """

    equal: bool
    activation: StepDifference | None
    input: list[Any] | None
    output: list[Any] | None
    usage: list[Any] | None


def compare(a: ExecutionRecord, b: ExecutionRecord) -> Comparison:
    """Return where two runs part."""
    activation = _first_difference(a.steps, b.steps)
    given = _pair(a.workflow.input, b.workflow.input)
    ends = _pair([a.workflow.state, a.workflow.output], [b.workflow.state, b.workflow.output])
    usage = _pair(a.workflow.usage, b.workflow.usage)
    equal = activation is None and given is None and ends is None and usage is None
    return Comparison(equal=equal, activation=activation, input=given, output=ends, usage=usage)


def _first_difference(a: Sequence[StepExecution], b: Sequence[StepExecution]) -> StepDifference | None:
    """Return the first activations that differ, paired by step, iteration and number: parallel ones may come
    in any order."""
    others = _numbered(b)
    for (step_id, iteration, number), mine in _numbered(a).items():
        theirs = others.pop((step_id, iteration, number), None)
        differs = {
            name: [_member(mine, name), _member(theirs, name)]
            for name in _COMPARED
            if _member(mine, name) != _member(theirs, name)
        }
        if theirs is None or differs:
            return StepDifference(step_id=step_id, iteration=iteration, differs=differs)
    for (step_id, iteration, _), theirs in others.items():
        differs = {"state": [None, theirs.state]}
        return StepDifference(step_id=step_id, iteration=iteration, differs=differs)
    return None


def _numbered(steps: Sequence[StepExecution]) -> dict[tuple[str, int | None, int], StepExecution]:
    found: dict[tuple[str, int | None, int], StepExecution] = {}
    counts: dict[tuple[str, int | None], int] = {}
    for step in steps:
        number = counts.get((step.step_id, step.iteration), 0)
        counts[step.step_id, step.iteration] = number + 1
        found[step.step_id, step.iteration, number] = step
    return found


def _member(step: StepExecution | None, name: str) -> Any:
    value = getattr(step, name, None)
    return getattr(value, "code", value) if name == "error" else value


def _pair(a: Any, b: Any) -> list[Any] | None:
    return None if a == b else [a, b]
