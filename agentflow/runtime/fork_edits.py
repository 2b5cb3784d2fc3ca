"""Edits of a fork that come as JSON: checked before anything is written (page 002 §9)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NoReturn, cast

import msgspec
from msgspec import UNSET

from agentflow.definition.diagnostics import or_which
from agentflow.definition.loader import check_inputs, load_text
from agentflow.engine import RunState
from agentflow.errors import InvalidEdit
from agentflow.events.catalogue import WorkflowStarted
from agentflow.executors.callables import Callables
from agentflow.runtime.submission import json_problem

__all__ = ["checked_edits"]

_MEMBERS = ("input", "outputs", "shared")


def checked_edits(
    given: Any, source: RunState, begin: WorkflowStarted, cut: Collection[str], code: Callables | None
) -> dict[str, Any]:
    """Return the edits as the log keeps them; an input with its defaults.

    `cut` are the steps that the fork begins anew. Raises InvalidEdit.
    """
    if not isinstance(given, Mapping) or not given:
        _refuse("edits", f"write an object with one of {', '.join(_MEMBERS)}")
    edits = dict(cast("Mapping[str, Any]", given))
    for name, value in edits.items():
        if name not in _MEMBERS:
            _refuse(str(name), f"this cannot be edited{or_which(str(name), _MEMBERS)}")
        problem = json_problem(value)
        if problem is not None:
            _refuse(name, problem)
        if name != "input" and not isinstance(value, Mapping):
            _refuse(name, f"write an object, not {type(value).__name__}")
    for step in edits.get("outputs", {}):
        _check_output(step, source, cut)
    if "input" in edits:
        edits["input"] = _checked_input(edits["input"], source, begin, code)
    return edits


def _check_output(step: str, source: RunState, cut: Collection[str]) -> None:
    place = source.nodes.get(step)
    if place is None:
        _refuse(f"outputs.{step}", f"there is no such step{or_which(step, source.graph.step_ids)}")
    if step in cut:
        _refuse(f"outputs.{step}", "the fork begins this step anew, so that it makes an output of its own")
    if place.status != "succeeded":
        _refuse(f"outputs.{step}", "the step has not succeeded where the fork begins")


def _checked_input(value: Any, source: RunState, begin: WorkflowStarted, code: Callables | None) -> Any:
    if any(place.status != "pending" for place in source.nodes.values() if not place.node.is_silent):
        _refuse("input", "steps have begun; fork at the first checkpoint, or edit their outputs")
    tag = begin.options.get("input_type")
    if tag is not None:
        if code is not None:
            try:
                code.payloads.decode(tag, value)
            except (TypeError, ValueError, msgspec.MsgspecError) as error:
                _refuse("input", f"the run takes {tag}: {error}")
        return value
    definition = load_text(begin.source, format=begin.definition.format)
    found, problems = check_inputs(definition, value)
    errors = [problem for problem in problems if problem.severity == "error"]
    if errors:
        _refuse("input", "; ".join(problem.message for problem in errors))
    return None if found is UNSET else found


def _refuse(edit: str, message: str) -> NoReturn:
    raise InvalidEdit(f"{edit}: {message}", details={"edit": edit})
