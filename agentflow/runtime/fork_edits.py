"""Edits of a fork that come as JSON: checked before anything is written (page 002 §9).

A value is checked by the type that the workflow declares for its place: of the input, of a shared key, of
the handlers of a node. Private values have no declared type: one must be of the type of what it replaces.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NoReturn, cast

import msgspec
from msgspec import UNSET

from agentflow.definition.diagnostics import or_which
from agentflow.definition.loader import check_inputs, load_text
from agentflow.engine import RunState
from agentflow.engine.edits import waiting_messages
from agentflow.errors import InvalidEdit, MessageNotEncodable
from agentflow.events.catalogue import WorkflowStarted
from agentflow.executors.annotations import name_of, rank
from agentflow.executors.callables import Callables
from agentflow.executors.executor import Executor
from agentflow.executors.payloads import convert
from agentflow.runtime.submission import json_problem

__all__ = ["checked_edits", "private_problem"]

_MEMBERS = ("input", "outputs", "shared", "state", "messages")


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
    if "shared" in edits:
        edits["shared"] = {key: _shared(key, value, code) for key, value in edits["shared"].items()}
    if "state" in edits:
        edits["state"] = {node: _private(node, kept, source, code) for node, kept in edits["state"].items()}
    if "messages" in edits:
        edits["messages"] = {
            node: _messages(node, sent, source, code) for node, sent in edits["messages"].items()
        }
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


# -- state ----------------------------------------------------------------------------------------


def _shared(key: str, value: Any, code: Callables | None) -> Any:
    """Return a shared value as it is kept, of the declared type of its key."""
    if code is None or key not in code.shared:
        return value
    edit, declared = f"shared.{key}", code.shared[key]
    found = _unpacked(edit, value, code)
    if rank(declared, found) is None:
        try:
            found = convert(value, declared)
        except (TypeError, ValueError) as error:
            _refuse(edit, f"the key takes {name_of(declared)}: {error}")
    return _kept(edit, found, code)


def _private(node: str, values: Any, source: RunState, code: Callables | None) -> dict[str, Any]:
    """Return private values of a node as they are kept, of the types of those that they replace."""
    if node not in source.nodes:
        _refuse(f"state.{node}", f"there is no such node{or_which(node, source.graph.step_ids)}")
    if not isinstance(values, Mapping):
        _refuse(f"state.{node}", f"write an object of keys and values, not {type(values).__name__}")
    before = source.shared.private.get(node, {})
    kept: dict[str, Any] = {}
    for key, value in cast("Mapping[str, Any]", values).items():
        edit, old = f"state.{node}.{key}", before.get(key, UNSET)
        found = value
        tag = cast("dict[str, Any]", old).get("$type") if type(old) is dict else None
        if code is not None:
            if tag is not None and value is not None and not _is_tagged(value):
                try:
                    found = code.payloads.keep(code.payloads.decode(tag, value))
                except (TypeError, ValueError, MessageNotEncodable) as error:
                    _refuse(edit, f"the key holds {tag} here: {error}")
            found = _kept(edit, _unpacked(edit, found, code), code)
        if (problem := private_problem(old, found)) is not None:
            _refuse(edit, problem)
        kept[key] = found
    return kept


def private_problem(old: Any, new: Any) -> str | None:
    """Return why a packed value may not stand in place of another one; None if it is of its type."""
    if old is UNSET or old is None or new is None:
        return None
    was, now = _kind(old), _kind(new)
    fits = was == now or {was, now} == {"int", "float"}
    return None if fits else f"the key holds {was} here, and {now} is given"


def _kind(value: Any) -> str:
    if type(value) is dict:
        tag: Any = cast("dict[str, Any]", value).get("$type")
        return tag if isinstance(tag, str) else "dict"
    return type(value).__name__


def _is_tagged(value: Any) -> bool:
    return isinstance(value, dict) and "$type" in value


def _unpacked(edit: str, value: Any, code: Callables) -> Any:
    tag = cast("dict[str, Any]", value).get("$type") if type(value) is dict else None
    if tag is not None and (not isinstance(tag, str) or code.payloads.find(tag) is None):
        _refuse(edit, f"{tag!r} is no type of this workflow")
    try:
        return code.payloads.unpack(value)
    except (TypeError, ValueError) as error:
        _refuse(edit, str(error))


def _kept(edit: str, value: Any, code: Callables) -> Any:
    try:
        return code.payloads.keep(value)
    except MessageNotEncodable as error:
        _refuse(edit, str(error))


# -- messages -------------------------------------------------------------------------------------


def _messages(node: str, sent: Any, source: RunState, code: Callables | None) -> list[dict[str, Any]]:
    """Return messages that wait for a node, as they are kept: each of a type that the node takes."""
    edit = f"messages.{node}"
    if node not in source.nodes:
        _refuse(edit, f"there is no such node{or_which(node, source.graph.step_ids)}")
    waiting = waiting_messages(source).get(node, [])
    if not isinstance(sent, list):
        _refuse(edit, f"write a list of the messages, not {type(sent).__name__}")
    given = cast("list[Any]", sent)
    if len(waiting) != len(given):
        _refuse(edit, f"{len(waiting)} messages wait for the node here, and {len(given)} are given")
    executor = None if code is None else _executor(source, node, code)
    pairs = zip(waiting, given, strict=True)
    return [_message(f"{edit}[{i}]", tag, value, executor, code) for i, (tag, value) in enumerate(pairs)]


def _executor(source: RunState, node: str, code: Callables) -> Executor | None:
    template = code.executors.get(getattr(source.nodes[node].node.spec, "executor", ""))
    return template if template is None or isinstance(template, Executor) else template()


def _message(
    edit: str, tag: str | None, value: Any, executor: Executor | None, code: Callables | None
) -> dict[str, Any]:
    """Return a message: of the type that it names, else of that which it replaces, else of the first type of
    the node that it fits."""
    if code is None or executor is None:
        return {"type": tag, "payload": value}
    found: Any = UNSET
    if _is_tagged(value):
        found = _unpacked(edit, value, code)
    else:
        for read in (tag, *executor.input_types):
            try:
                if isinstance(read, str):
                    made = code.payloads.decode(read, value)
                elif read is None:
                    continue
                else:
                    made = convert(value, read)
            except (TypeError, ValueError):
                continue
            if executor.can_handle(made):
                found = made
                break
    if found is UNSET or not executor.can_handle(found):
        takes = " | ".join(dict.fromkeys(name_of(one) for one in executor.input_types))
        what = type(found if found is not UNSET else value).__name__
        _refuse(edit, f'"{executor.id}" takes {takes}, and the value given is none: {what}')
    try:
        encoded = code.payloads.encode(found)
    except MessageNotEncodable as error:
        _refuse(edit, str(error))
    return {"type": encoded.tag, "payload": encoded.value}


# -- the input ------------------------------------------------------------------------------------


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
