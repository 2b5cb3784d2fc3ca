"""Forks of graph runs at a checkpoint, with edits that are typed and checked (page 002 §9)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec
from msgspec import UNSET, UnsetType

from agentflow.definition.schemas import validate
from agentflow.engine.edits import waiting_messages
from agentflow.engine.replay import forked_request_id
from agentflow.engine.state import OpenRequest, RunState
from agentflow.errors import (
    InvalidAnswer,
    InvalidEdit,
    MessageNotEncodable,
    UnknownRequest,
)
from agentflow.executors.annotations import name_of, rank
from agentflow.graphs.run import GraphRun
from agentflow.graphs.types import names_of
from agentflow.records.checkpoint_storage import found_checkpoint
from agentflow.runtime.fork_edits import private_problem

if TYPE_CHECKING:
    from agentflow.graphs.workflow import Workflow

__all__ = ["Edits", "fork_at"]


class Edits(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a fork begins with in place of what was there. Keys and nodes that are not named stay as they are.

    All values are Python values, checked against the types that the workflow declares. `input`: the input of
    the run, at its start alone. `shared`: values of the shared state by key. `state`: private values by node
    and key, of the type of that which they replace. `outputs`: those of steps that have ended, by id.
    `messages`: by node, those that wait for the next superstep or for their turn, as many as wait there.
    """

    input: Any | UnsetType = UNSET
    messages: dict[str, list[Any]] | UnsetType = UNSET
    shared: dict[str, Any] | UnsetType = UNSET
    state: dict[str, dict[str, Any]] | UnsetType = UNSET
    outputs: dict[str, Any] | UnsetType = UNSET


async def fork_at(
    workflow: Workflow,
    id: str,
    *,
    edits: Edits | None = None,
    responses: Mapping[str, Any] | None = None,
    workflow_id: str | None = None,
) -> GraphRun:
    """Begin a run that goes on from a checkpoint. Raises as `Workflow.run_from_checkpoint`."""
    runtime = await workflow.runtime()
    source_id, offset = await found_checkpoint(runtime.log, id)
    source = await runtime.fork_source(source_id, offset, folded=edits is not None or bool(responses))
    if source.begin.ir_hash != workflow.definition.ir_hash:
        await (await workflow.attach(source_id)).check_signature()
    state = source.state
    if state is None:
        handle = await runtime.fork_graph(source, workflow.definition, as_id=workflow_id)
        return GraphRun(workflow, runtime, handle)
    encoder = _Encoder(workflow, state)
    given = encoder.edits(edits) if edits is not None else {}
    answers = encoder.answers(responses or {})
    handle = await runtime.fork_graph(
        source,
        workflow.definition,
        as_id=workflow_id,
        edits=given,
        input_type=encoder.input_type,
    )
    run = GraphRun(workflow, runtime, handle)
    if answers:
        relayed = [old for old in answers if _is_relayed(state, old)]
        asked = {forked_request_id(run.workflow_id, old): old for old in answers if old not in relayed}
        if relayed:
            await handle.rest()  # what the children of the fork ask
            asked |= _asked_again(state, await runtime.fold(run.workflow_id), relayed)
        await handle.answer_all({new: answers[old] for new, old in asked.items()})
    return run


def _is_relayed(state: RunState, request_id: str) -> bool:
    """Return whether a child run asks, and its parent for it."""
    return getattr(state.requests[request_id].data, "child", UNSET) is not UNSET


def _asked_again(old: RunState, new: RunState, relayed: list[str]) -> dict[str, str]:
    """Return the ids under which the children of a fork ask what the children of its source asked, in the
    order of their questions. Raises UnknownRequest for one that is not asked again."""
    found: dict[str, str] = {}
    for request_id in relayed:
        wanted = _subject(old.requests[request_id])
        equal = [known for known, request in old.requests.items() if _subject(request) == wanted]
        again = [known for known, request in new.requests.items() if _subject(request) == wanted]
        index = equal.index(request_id)
        if index >= len(again):
            message = f"the fork does not ask what {request_id} asked"
            raise UnknownRequest(message, details={"request_id": request_id})
        found[again[index]] = request_id
    return found


def _subject(request: OpenRequest) -> tuple[Any, ...]:
    data = request.data
    return request.activation.key, getattr(data, "request", None), getattr(data, "request_type", None)


class _Encoder:
    """Checks edits and answers against a workflow and the state at the checkpoint, and encodes them."""

    def __init__(self, workflow: Workflow, state: RunState) -> None:
        self._workflow = workflow
        self._payloads = workflow.callables.payloads
        self._state = state
        self.input_type: str | None = None

    def edits(self, edits: Edits) -> dict[str, Any]:
        """Return the edits as the log keeps them. Raises InvalidEdit."""
        found: dict[str, Any] = {}
        if edits.input is not UNSET:
            found["input"] = self._input(edits.input)
        if edits.shared is not UNSET:
            found["shared"] = {key: self._shared(key, value) for key, value in edits.shared.items()}
        if edits.state is not UNSET:
            found["state"] = {node: self._private(node, values) for node, values in edits.state.items()}
        if edits.messages is not UNSET:
            found["messages"] = {node: self._messages(node, sent) for node, sent in edits.messages.items()}
        if edits.outputs is not UNSET:
            found["outputs"] = {step: self._output(step, value) for step, value in edits.outputs.items()}
        return found

    def _refuse(self, edit: str, message: str) -> NoReturn:
        raise InvalidEdit(f"{edit}: {message}", details={"edit": edit})

    def _kept(self, edit: str, value: Any) -> Any:
        try:
            return self._payloads.keep(value)
        except MessageNotEncodable as error:
            self._refuse(edit, str(error))

    def _input(self, value: Any) -> Any:
        if any(place.status != "pending" for place in self._state.nodes.values() if not place.node.is_silent):
            self._refuse("input", "steps have begun; fork at the first checkpoint, or edit messages")
        problem = self._workflow.input_problem(value)
        if problem is not None:
            self._refuse("input", problem)
        try:
            encoded = self._payloads.encode(value)
        except MessageNotEncodable as error:
            self._refuse("input", str(error))
        self.input_type = encoded.tag
        return encoded.value

    def _shared(self, key: str, value: Any) -> Any:
        declared = self._workflow.shared_types.get(key, Any)
        if rank(declared, value) is None:
            self._refuse(f"shared.{key}", f"the key takes {name_of(declared)}, not {type(value).__name__}")
        return self._kept(f"shared.{key}", value)

    def _private(self, node: str, values: dict[str, Any]) -> dict[str, Any]:
        if node not in self._state.nodes:
            self._refuse(f"state.{node}", "there is no such node")
        before = self._state.shared.private.get(node, {})
        kept = {key: self._kept(f"state.{node}.{key}", value) for key, value in values.items()}
        for key, value in kept.items():
            if (problem := private_problem(before.get(key, UNSET), value)) is not None:
                self._refuse(f"state.{node}.{key}", problem)
        return kept

    def _messages(self, node: str, sent: list[Any]) -> list[dict[str, Any]]:
        edit = f"messages.{node}"
        waiting = len(waiting_messages(self._state).get(node, []))
        if waiting != len(sent):
            self._refuse(edit, f"{waiting} messages wait for the node here, and {len(sent)} are given")
        placed = self._workflow.placed(node)
        found: list[dict[str, Any]] = []
        for value in sent:
            if placed is not None and placed.executor is not None and not placed.executor.can_handle(value):
                self._refuse(edit, f"the node takes {names_of(placed.takes)}, not {type(value).__name__}")
            try:
                encoded = self._payloads.encode(value)
            except MessageNotEncodable as error:
                self._refuse(edit, str(error))
            found.append({"type": encoded.tag, "payload": encoded.value})
        return found

    def _output(self, step: str, value: Any) -> Any:
        place = self._state.nodes.get(step)
        if place is None or place.status != "succeeded":
            self._refuse(f"outputs.{step}", "no step of this id has succeeded at the checkpoint")
        return self._kept(f"outputs.{step}", value)

    def answers(self, responses: Mapping[str, Any]) -> dict[str, Any]:
        """Return answers as JSON. Raises UnknownRequest or InvalidAnswer."""
        found: dict[str, Any] = {}
        for request_id, value in responses.items():
            request = self._state.requests.get(request_id)
            if request is None:
                message = f"no request {request_id} is open at this checkpoint"
                raise UnknownRequest(message, details={"request_id": request_id})
            found[request_id] = self._payloads.encode(value).value
            schema: Any = getattr(request.data, "response_schema", True)
            issues = validate(schema, found[request_id])
            if issues:
                message = f"the answer to {request_id}: {issues[0].message}"
                raise InvalidAnswer(message, details={"request_id": request_id, "path": issues[0].path})
        return found
