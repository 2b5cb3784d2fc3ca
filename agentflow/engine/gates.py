"""Gates: what stands before the work of any node: guard, approval, cache and budgets (page 001 §5).

A guard is evaluated when the node is activated, by the fold; all else is decided when its turn comes. A node
without gates costs nothing here.
"""

from __future__ import annotations

from typing import Any, cast

from agentflow.definition.expressions import EvaluationError, json_type_of
from agentflow.definition.failure import ErrorInfo
from agentflow.engine.activation import Activation
from agentflow.engine.approvals import ask_step
from agentflow.engine.decisions import Decisions, skipped, step_failed
from agentflow.engine.joins import Skip
from agentflow.engine.path import NodeState
from agentflow.engine.state import RunState
from agentflow.engine.templates import expression_error, is_true

__all__ = ["ask", "guard_of_item", "items_of", "refused_moves", "verdict_of"]

MAX_ITEMS = 10_000


class _Status:
    """What the status functions of a guard see: the dependencies, near and far (page 001 §5.2)."""

    def __init__(self, activation: Activation, place: NodeState) -> None:
        self._activation = activation
        self._place = place

    def success(self) -> bool:
        """Return whether all direct dependencies succeeded."""
        nodes = self._activation.path.nodes
        return all(nodes[d].status == "succeeded" for d in self._activation.node.dependencies)

    def failure(self) -> bool:
        """Return whether a dependency failed."""
        return self._place.upstream_failed

    def cancelled(self) -> bool:
        """Return whether a dependency was cancelled."""
        return self._place.upstream_cancelled


def verdict_of(state: RunState, activation: Activation, place: NodeState) -> Skip | ErrorInfo | None:
    """Return why a fresh activation must not start, by its join and its guard; None if it may."""
    node = activation.node
    guard = node.guard
    by_status = guard is not None and bool(guard.status_functions)
    if not by_status and (skip := node.join.skip(activation.path, node)) is not None:
        return skip
    if guard is None or node.guard_per_item:
        return None
    return _judge(state, activation, place)


def guard_of_item(state: RunState, activation: Activation) -> Skip | ErrorInfo | None:
    """Return why an iteration must not start, by a guard that reads its item; None if it may."""
    if activation.iteration is None or not activation.node.guard_per_item:
        return None
    return _judge(state, activation, state.node_of(activation))


def _judge(state: RunState, activation: Activation, place: NodeState) -> Skip | ErrorInfo | None:
    guard = activation.node.guard
    assert guard is not None
    view = _Status(activation, place) if guard.status_functions else None
    try:
        if is_true(guard.evaluate(state.scope(activation), view)):
            return None
    except EvaluationError as error:
        return expression_error(error, "/if")
    return Skip("condition_false", guard.source)


def refused_moves(state: RunState, activation: Activation, verdict: Skip | ErrorInfo, now: int) -> Decisions:
    """Return the end of a step that must not start."""
    clock = state.clock if activation.iteration is None else None
    if isinstance(verdict, Skip):
        return skipped(activation, verdict.reason, verdict.detail, verdict.caused_by, clock=clock)
    return step_failed(activation, verdict, now, clock=clock)


def items_of(state: RunState, activation: Activation) -> list[Any] | ErrorInfo:
    """Return the items of a for_each, or why there are none."""
    node = activation.node
    if node.for_each is None:
        return node.kind.items(state, activation)
    try:
        items = node.for_each.evaluate(state.scope(activation))
    except EvaluationError as error:
        return expression_error(error, "/for_each")
    if not isinstance(items, list):
        message = f"for_each of {node.id} gave {json_type_of(items)}, not an array"
        return ErrorInfo(category="invalid_input", code="for_each_type", message=message)
    found = cast(list[Any], items)
    if len(found) > MAX_ITEMS:
        message = f"for_each of {node.id} gave {len(found)} items, the limit is {MAX_ITEMS}"
        return ErrorInfo(category="invalid_input", code="for_each_limit", message=message)
    return found


def ask(state: RunState, activation: Activation, subject: dict[str, Any], now: int) -> Decisions:
    """Ask before the step starts. What is shown is what will run: it is not evaluated again."""
    node = activation.node
    try:
        if not node.iterates:
            prepared = node.kind.prepare(state, activation)
            if isinstance(prepared, ErrorInfo):
                return step_failed(activation, prepared, now, clock=state.clock)
            subject = {**subject, **prepared.subject}
        if node.approval_message is not None:
            subject["message"] = node.approval_message.evaluate(state.scope(activation))
    except EvaluationError as error:
        return step_failed(activation, expression_error(error, "/approval/message"), now, clock=state.clock)
    return ask_step(state, activation, subject, now)
