"""Child runs: a step whose work is a run of its own, with its own log (page 003 §4, page 002 §11). Pure.

The parent's log says that the child is to start (`workflow.step_started.child`) and how it ended (the end of
the step). The id of a child follows from its parent and its activation, so a start that is repeated after a
crash finds the run that the first one began. What the child asks is asked by the parent too, under the same
id; an answer to either is passed on to the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from agentflow.definition.conversation import Usage
from agentflow.definition.failure import ErrorInfo
from agentflow.engine.approvals import decided, withdrawn
from agentflow.engine.budgets import LIMITS, budget_left
from agentflow.engine.child_requests import brings_answer, route_request
from agentflow.engine.decisions import Decisions, scope_fields, step_failed, step_fields
from agentflow.engine.grants import grants_of
from agentflow.engine.ids import named
from agentflow.engine.messages import Outgoing
from agentflow.engine.run_end import outputs_of
from agentflow.engine.state import OpenRequest, RunState
from agentflow.events import catalogue as ev
from agentflow.events.envelope import iso

if TYPE_CHECKING:
    from agentflow.definition.ir import Capabilities, Workflow
    from agentflow.engine.activation import Activation

__all__ = [
    "MAX_DEPTH",
    "ChildReport",
    "ChildRequest",
    "awaits",
    "child_id_of",
    "child_request",
    "depth_error",
    "open_children",
    "report_of",
    "reported",
    "waits_for_child",
]

MAX_DEPTH = 8
"""How deep runs and graphs may be nested in a run whose budget says nothing else."""

_TERMINAL = ("completed", "failed", "cancelled")


class ChildRequest(NamedTuple):
    """What a child run begins with. `definition` is a graph, or the name of one that is registered."""

    workflow_id: str
    definition: Workflow | str
    input: Any
    parent: ev.ParentRun
    options: dict[str, Any]
    budget: dict[str, Any]
    deadline: str | None
    attempt: int = 1
    """Of the activation that the child works for."""
    grants: tuple[Capabilities, ...] = ()
    """Of the step and of what is around it: the child may call no more."""


class ChildReport(msgspec.Struct, frozen=True, kw_only=True):
    """Where a child run stands: its state, what it gave, and its requests, open and decided.

    `key` names the activation of the parent that the child works for. `outputs` has the outputs of a child
    that has completed, in their order.
    """

    workflow_id: str
    key: str
    status: str
    output: Any = None
    outputs: tuple[Outgoing, ...] = ()
    error: ErrorInfo | None = None
    usage: Usage = Usage()
    requests: tuple[ev.ApprovalRequested | ev.InputRequested, ...] = ()
    decided: dict[str, Any] = {}
    asked: Mapping[str, Outgoing] = {}
    """By id the requests as messages, with the results of the code on the edges that may take them."""

    @property
    def is_over(self) -> bool:
        """True if the child has ended."""
        return self.status in _TERMINAL


def child_id_of(state: RunState, activation: Activation) -> str:
    """Return the id of the run that does the work of an activation: the same whenever it is asked for."""
    return named("wf_", "child", state.workflow_id, activation.key, activation.attempt)


def open_children(state: RunState) -> dict[str, str]:
    """Return the ids of the child runs that are awaited, by the key of their activation."""
    found = (a for a in state.open.values() if _has_child(a) and not a.is_for_each)
    return {activation.key: child_id_of(state, activation) for activation in found}


def awaits(state: RunState, report: ChildReport) -> bool:
    """Return whether the run still waits for the child of this report."""
    activation = state.open.get(report.key)
    if activation is None or not _has_child(activation) or state.terminal:
        return False
    return child_id_of(state, activation) == report.workflow_id


def _has_child(activation: Activation) -> bool:
    """Return whether a run does the work of an activation; not of one that only brings an answer."""
    return activation.node.kind.starts_run and not brings_answer(activation)


# -- starting -------------------------------------------------------------------------------------


def child_request(state: RunState, key: str) -> ChildRequest | None:
    """Return what the child of an activation is started with; None if the activation has ended."""
    activation = state.open.get(key)
    if activation is None or not _has_child(activation):
        return None
    begin = state.begin
    assert begin is not None
    options: dict[str, Any] = {"parent_activation": key, "depth": _depth(state, activation) + 1}
    options["max_depth"] = _max_depth(state)
    for name in ("on_unknown", "trusted"):
        if name in begin.options:
            options[name] = begin.options[name]
    options |= activation.node.kind.child_options(state, activation)
    due = state.timers.get("run")
    return ChildRequest(
        workflow_id=child_id_of(state, activation),
        definition=activation.node.kind.child_definition(state, activation),
        input=activation.input,
        parent=ev.ParentRun(
            workflow_id=state.workflow_id, step_id=activation.node.id, offset=activation.first_offset
        ),
        options=options,
        budget=budget_left(state, activation),
        deadline=None if due is None else iso(due),
        attempt=activation.attempt,
        grants=grants_of(activation),
    )


def depth_error(state: RunState, activation: Activation) -> ErrorInfo | None:
    """Return why an activation may not open another graph below it; None if it may."""
    limit = _max_depth(state)
    if _depth(state, activation) < limit:
        return None
    message = f"{activation.node.id} is nested more than {limit} graphs deep"
    return ErrorInfo(category="agent", code="depth_exceeded", message=message, details={"limit": limit})


def _depth(state: RunState, activation: Activation) -> int:
    """Return how many graphs are around an activation, those of the runs above its own too."""
    above = 0 if state.begin is None else state.begin.options.get("depth", 0)
    return above + activation.path.depth


def _max_depth(state: RunState) -> int:
    budget = state.graph.options.budget
    limits = [MAX_DEPTH if budget is None else budget.max_depth]
    begin = state.begin
    if begin is not None:
        if "max_depth" in begin.options:
            limits = [begin.options["max_depth"], *([] if budget is None else limits)]
        if begin.budget is not msgspec.UNSET and begin.budget.get("max_depth") is not None:
            limits.append(begin.budget["max_depth"])
    return min(limits)


def waits_for_child(state: RunState, activation: Activation) -> bool:
    """Return whether the run of an activation may not begin yet: another one is under way that draws on the
    same budget, of which it may use all that is left."""
    if not (state.budget or state.step_budgets) or not _has_child(activation):
        return False
    others = [a for a in state.open.values() if _has_child(a) and not a.is_for_each]
    if not others:
        return False
    if _bounds(state.budget):
        return True
    node = activation.node
    return _bounds(state.step_budgets.get(node.id, {})) and any(a.node is node for a in others)


def _bounds(limits: Mapping[str, Any]) -> bool:
    return any(name in limits for name in LIMITS if name != "max_duration_s")


# -- reports --------------------------------------------------------------------------------------


def report_of(state: RunState) -> ChildReport | None:
    """Return where a run stands, for its parent; None if it has none."""
    begin = state.begin
    if begin is None or begin.parent is msgspec.UNSET:
        return None
    key: str = begin.options.get("parent_activation", "")
    output, error = None, None
    if state.status == "completed":
        output = _outcome(state)
    elif state.terminal:
        error = _failure(state)
    asked = () if state.terminal else tuple(r.data for r in state.requests.values())
    return ChildReport(
        workflow_id=state.workflow_id,
        key=key,
        status=state.status,
        output=output,
        outputs=_outputs(state) if state.status == "completed" else (),
        error=error,
        usage=state.usage,
        requests=asked,
        decided=dict(state.decided),
    )


def _outcome(state: RunState) -> dict[str, Any]:
    root = state.root
    terminal = root.terminal if root.terminal is not None else next(iter(root.graph.ends), None)
    views = root.frame.nodes.items()
    return {
        "terminal_node_id": None if terminal is None else terminal.name,
        "output": state.output,
        "node_outputs": {name: view["output"] for name, view in views if view["status"] == "succeeded"},
        "workflow_id": state.workflow_id,
    }


def _outputs(state: RunState) -> tuple[Outgoing, ...]:
    """Return what a run gave out, without progress (`intermediate`)."""
    given = (data for data in outputs_of(state) if data.kind == "output")
    return tuple(Outgoing(type=data.type, payload=data.value) for data in given)


def _failure(state: RunState) -> ErrorInfo:
    """Return why a run ended without success, with the activation whose failure did it."""
    error = state.error
    if error is None:
        reason = None if state.cancel_requested is None else state.cancel_requested.reason
        message = reason or "the run was cancelled"
        error = ErrorInfo(category="cancelled", code="cancelled", message=message)
    details: dict[str, Any] = {**(error.details or {}), "workflow_id": state.workflow_id}
    if state.first_failure is not None:
        activation, own = state.first_failure
        if own.code == error.code:  # with its cause, which the run's error leaves out
            error = msgspec.structs.replace(error, cause=own.cause)
        details["activation"] = activation
    return msgspec.structs.replace(error, details=details)


def reported(state: RunState, report: ChildReport, now: int) -> Decisions:
    """Return what follows for the parent from where its child stands; empty if it knows already."""
    if not awaits(state, report) or state.cancel_requested is not None:
        return []
    activation = state.open[report.key]
    asked = [r for r in state.requests.values() if r.activation is activation]
    asked += [r for r in state.mail.routed.values() if r.activation is activation]
    if report.is_over:
        closed = [move for request in asked for move in _closed(request, report)]
        return closed + _ended(state, activation, report, now)
    wanted = {data.request_id: data for data in report.requests}
    moves = [move for r in asked if r.request_id not in wanted for move in _closed(r, report)]
    rests = report.status in ("waiting", "paused")
    if any(request_id in state.decided for request_id in wanted):
        rests = False  # the answer is on its way to the child, which goes on with it
    sent: tuple[ev.SentMessage, ...] = ()
    for request_id, data in wanted.items():
        if _is_known(state, request_id):
            continue
        message = report.asked.get(request_id)
        if message is not None and rests:
            found = route_request(state, activation, message, len(sent))
            if isinstance(found, ErrorInfo):
                shown = [r for r in asked if r.request_id in state.requests]
                closed = [move for request in shown for move in withdrawn(request, found.code)]
                return closed + step_failed(activation, found, now)
            if found:
                sent += found
                continue
        moves.append(_relayed(activation, data, report.workflow_id))
    is_known = activation.status == "waiting" and activation.key not in state.returning
    if rests and (moves or sent or not is_known):
        moves.append(
            ev.WorkflowStepWaiting(
                **step_fields(activation),
                for_="child",
                ref=report.workflow_id,
                messages=sent or msgspec.UNSET,
            )
        )
    return moves


def _is_known(state: RunState, request_id: str) -> bool:
    return (
        request_id in state.requests
        or request_id in state.mail.routed
        or request_id in state.decided
        or request_id in state.withdrawn
    )


def _ended(state: RunState, activation: Activation, report: ChildReport, now: int) -> Decisions:
    if report.status == "completed":
        return [
            msgspec.structs.replace(move, usage=report.usage)
            if isinstance(move, ev.WorkflowStepCompleted)
            else move
            for move in activation.node.kind.child_completed(state, activation, report, now)
        ]
    cause = report.error
    if cause is not None and cause.code == "subgraph_not_found":
        return step_failed(activation, cause, now)
    details: dict[str, Any] = {"workflow_id": report.workflow_id}
    if report.usage != Usage():
        details["usage"] = msgspec.to_builtins(report.usage)
    why = "" if cause is None else f": {cause.message}"
    error = ErrorInfo(
        category="agent",
        code="subgraph_failed",
        message=f"the run of {activation.node.id} {_VERBS[report.status]}{why}",
        details=details,
        cause=cause,
    )
    return step_failed(activation, error, now)


_VERBS: Mapping[str, str] = {"failed": "failed", "cancelled": "was cancelled"}


def _relayed(activation: Activation, data: Any, child_id: str) -> Any:
    """Return a question of the child as one of the step that runs it, under the same id."""
    scope = scope_fields(activation)
    if isinstance(data, ev.ApprovalRequested):
        return msgspec.structs.replace(data, **scope)
    child: dict[str, Any] = {"workflow_id": child_id, "step_id": data.step_id}
    return msgspec.structs.replace(data, **scope, child=child)


def _closed(request: OpenRequest, report: ChildReport) -> Sequence[Any]:
    """Return the end of a question that the child does not ask any more."""
    request_id, by = request.request_id, report.workflow_id
    if request_id not in report.decided:
        return withdrawn(request, f"{by} does not ask any more")
    value = report.decided[request_id]
    if isinstance(request.data, ev.ApprovalRequested):
        return decided(request, granted=value == "granted", by=by, via="api")
    scope = scope_fields(request.activation)
    return [ev.InputReceived(**scope, request_id=request_id, value=value, by=by, via="api")]
