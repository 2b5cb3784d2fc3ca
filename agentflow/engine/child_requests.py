"""Requests of child runs that nodes of the parent answer: SubWorkflowRequest, SubWorkflowResponse (002 §11).

A request goes along the edges of the step that runs the child, as a message, if a node behind them names the
type; its log event is `workflow.step_waiting.messages`. The response comes back as a message to that step: it
answers the request in the child, or asks the caller. A request that no node answers is put to the caller when
nothing else moves the run on. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from msgspec import UNSET

from agentflow.definition.failure import ErrorInfo
from agentflow.definition.schemas import validate
from agentflow.engine.decisions import Decisions, scope_fields, step_completed, step_failed
from agentflow.engine.messages import Outgoing, route_messages
from agentflow.engine.state import OpenRequest, RunState
from agentflow.events import catalogue as ev

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentflow.engine.activation import Activation
    from agentflow.engine.graph import Node

__all__ = [
    "REQUEST",
    "RESPONSE",
    "brings_answer",
    "drop_routed",
    "keep_routed",
    "left_to_caller",
    "request_message",
    "response_moves",
    "route_request",
    "takes_requests",
]

REQUEST, RESPONSE = "SubWorkflowRequest", "SubWorkflowResponse"
"""Type tags of the two messages."""

_OPERATORS = frozenset({"budget", "outcome_unknown"})
"""Types of requests to those who operate runs; no message carries them."""


def takes_requests(node: Node) -> bool:
    """Return whether a node behind an edge of this one names SubWorkflowRequest among what it takes."""
    return any(
        REQUEST in tag
        for route in node.routes
        for edge in route.edges
        for tag in getattr(edge.target.spec, "accepts", ())
    )


def brings_answer(activation: Activation) -> bool:
    """Return whether an activation of a step that runs workflows only brings an answer to a request."""
    taken = activation.taken
    return taken is not None and taken.type == RESPONSE and activation.node.kind.starts_run


def request_message(activation: Activation, data: Any, child_id: str) -> Outgoing | None:
    """Return a request of the child as a message; None if only people answer it."""
    if not isinstance(data, ev.InputRequested) or data.request_type in _OPERATORS:
        return None
    payload: dict[str, Any] = {
        "child_workflow_id": child_id,
        "request_id": data.request_id,
        "executor_id": activation.node.id,
        "data": data.request,
        "response_schema": data.response_schema,
    }
    if data.request_type is not UNSET:
        payload["response_type"] = data.request_type
    if data.deadline is not UNSET:
        payload["deadline"] = data.deadline
    return Outgoing(type=REQUEST, payload=payload)


def route_request(
    state: RunState, activation: Activation, message: Outgoing, further: int
) -> tuple[ev.SentMessage, ...] | ErrorInfo:
    """Return a request with what each edge did with it; empty if none takes it, an error if it cannot be
    routed. `further` messages go before it in the same event."""
    first = (activation.local or 0) + further
    sent = route_messages(activation.node, [message], state.shared.values, first)
    if isinstance(sent, ErrorInfo):
        return sent
    taken = any(d.status in ("delivered", "buffered") for one in sent for d in one.deliveries)
    return sent if taken else ()


def keep_routed(
    state: RunState, activation: Activation, messages: Sequence[ev.SentMessage], offset: int, ts: int
) -> None:
    """Keep the requests that went along edges until a response closes them."""
    activation.local = (activation.local or 0) + len(messages)
    for message in messages:
        payload = cast("dict[str, Any]", message.payload)
        data = ev.InputRequested(
            **scope_fields(activation),
            request_id=payload["request_id"],
            request_type=payload.get("response_type", UNSET),
            request=payload["data"],
            response_schema=payload["response_schema"],
            deadline=payload.get("deadline", UNSET),
            child={"workflow_id": payload["child_workflow_id"]},
        )
        state.mail.routed[data.request_id] = OpenRequest(data.request_id, activation, "", data, offset, ts)


def drop_routed(state: RunState, activation: Activation) -> None:
    """Forget the requests of an activation that ends; a response to one comes too late."""
    for request_id in [i for i, r in state.mail.routed.items() if r.activation is activation]:
        del state.mail.routed[request_id]
        state.withdrawn[request_id] = None


def left_to_caller(state: RunState) -> Decisions:
    """Put requests to the caller that nodes of this graph took and did not answer, once nothing is left that
    could: no node is at work, and none waits for an answer of its own."""
    if not state.mail.routed:
        return []
    if any(request.activation.node.kind.sends for request in state.requests.values()):
        return []
    return [request.data for request in state.mail.routed.values()]


def response_moves(state: RunState, activation: Activation, now: int) -> Decisions:
    """Return what follows from a response: the request is answered or put to the caller, or the step fails
    that got a response to no request of a child of its own."""
    found: Any = activation.input
    given = cast("dict[str, Any]", found if type(found) is dict else {})
    request_id: Any = given.get("request_id")
    if not isinstance(request_id, str):
        return step_failed(activation, _refused("invalid_response", "a response names no request", {}), now)
    details = {"request_id": request_id, "step_id": activation.node.id}
    request = state.mail.routed.get(request_id)
    if request is None:
        return _late(state, activation, given, details, now)
    if request.activation.node is not activation.node:
        message = f"{request_id} is a request of {request.activation.node.id}, not of {activation.node.id}"
        hint = {"hint": "send the response to request.executor_id"}
        return step_failed(activation, _refused("unknown_request", message, {**details, **hint}), now)
    if given.get("forward"):
        return [request.data, *_done(state, activation, now)]
    value = _plain(given.get("value"))
    assert isinstance(request.data, ev.InputRequested)
    if issues := validate(request.data.response_schema, value):
        message = f"the answer to {request_id} of {activation.node.id}: {issues[0].message}"
        details["path"] = issues[0].path
        return step_failed(activation, _refused("invalid_response", message, details), now)
    answer = ev.InputReceived(
        **scope_fields(request.activation),
        request_id=request_id,
        value=value,
        by=_sender_of(activation),
        via="message",
    )
    return [answer, *_done(state, activation, now)]


def _plain(value: Any) -> Any:
    """Return an answer as the JSON that the schema of its request judges: without the tag of its type."""
    members = cast("dict[str, Any]", value if type(value) is dict else {})
    if "$type" not in members:
        return cast("Any", value)
    if set(members) == {"$type", "$value"}:
        return members["$value"]
    return {key: item for key, item in members.items() if key != "$type"}


def _late(
    state: RunState, activation: Activation, given: dict[str, Any], details: dict[str, Any], now: int
) -> Decisions:
    """Complete the response to a request that is closed; fail it if an earlier response said something else,
    or if no child asked."""
    request_id = details["request_id"]
    if request_id in state.mail.answered and not given.get("forward"):
        value = _plain(given.get("value"))
        if value != state.decided[request_id]:
            message = f"{request_id} of {activation.node.id} was answered before, with another value"
            return step_failed(activation, _refused("already_answered", message, details), now)
    if request_id in state.decided or request_id in state.withdrawn or request_id in state.requests:
        return _done(state, activation, now)
    message = f"no child of {activation.node.id} asks {request_id}"
    return step_failed(activation, _refused("unknown_request", message, details), now)


def _done(state: RunState, activation: Activation, now: int) -> Decisions:
    return step_completed(state, activation, now, output=None, messages=())


def _sender_of(activation: Activation) -> str:
    sources = () if activation.taken is None else activation.taken.sources
    return sources[0].activation if sources else activation.key


def _refused(code: str, message: str, details: dict[str, Any]) -> ErrorInfo:
    return ErrorInfo(category="invalid_input", code=code, message=message, details=details or None)
