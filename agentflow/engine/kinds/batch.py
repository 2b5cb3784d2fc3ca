"""`batch`: an array in parts, or tokens gathered to arrays (page 003 §4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from agentflow.definition.expressions import EvaluationError, json_type_of
from agentflow.definition.failure import ErrorInfo
from agentflow.definition.ir import BatchNode, NodeBase, canonical_json
from agentflow.engine import arrivals
from agentflow.engine.activation import Activation
from agentflow.engine.decisions import Decisions, step_completed, step_failed, step_fields
from agentflow.engine.durable_timers import cancelled, scheduled
from agentflow.engine.joins import Window
from agentflow.engine.kinds.kind import TIMER_EVENTS, Kind
from agentflow.engine.path import Path
from agentflow.engine.state import RunState
from agentflow.engine.templates import expression_error, path_expression
from agentflow.events import catalogue as ev

if TYPE_CHECKING:
    from agentflow.engine.graph import Node

__all__ = ["KIND"]

_TIMER = "window"


def _spec(node: Node) -> BatchNode:
    spec = node.spec
    assert isinstance(spec, BatchNode)
    return spec


def _too_many(node: Node, count: int, limit: int) -> ErrorInfo:
    message = f"{node.id} got {count} items, the limit is {limit}"
    details = {"limit": limit}
    return ErrorInfo(category="agent", code="batch_item_limit_exceeded", message=message, details=details)


class _Batch(Kind):
    """Chooses the form of a batch node: of an array, or a window."""

    name = "batch"

    def form_of(self, spec: NodeBase) -> Kind:
        """Return the form."""
        assert isinstance(spec, BatchNode)
        return _WINDOW if spec.items_path is None else _OF_ARRAY


class BatchOfArray(Kind):
    """Gives the array at its path, or arrays of at most `size` of its elements."""

    name = "batch"

    def compile(self, node: Node) -> Any:
        """Return the path of the array."""
        path = _spec(node).items_path
        assert path is not None
        return path_expression(path)

    def next(self, state: RunState, activation: Activation, now: int) -> Decisions:
        """Complete at once."""
        node = activation.node
        try:
            value = node.program.evaluate(state.scope(activation))
        except EvaluationError as error:
            return step_failed(activation, expression_error(error, "/items_path"), now)
        if not isinstance(value, list):
            message = f"items_path of {node.id} gave {json_type_of(value)}, not an array"
            error = ErrorInfo(category="invalid_input", code="batch_items_not_array", message=message)
            return step_failed(activation, error, now)
        items, size = cast("list[Any]", value), _spec(node).size
        limit = state.graph.options.max_batch_items
        if len(items) > limit:
            return step_failed(activation, _too_many(node, len(items), limit), now)
        parts = items if size is None else [items[i : i + size] for i in range(0, len(items), size)]
        return step_completed(state, activation, now, output=parts)


class _Gathered:
    """The tokens of a window. It is closed once it is full, its time is over, or nothing can reach it."""

    __slots__ = ("has_said", "is_closed", "items", "key")

    def __init__(self, key: str) -> None:
        self.key = key
        self.items: list[Any] = []
        self.is_closed = False
        self.has_said = False
        """True once the log says that it waits."""


class BatchWindow(Kind):
    """Takes in the tokens of a key, each as one item, and sends them on as one array. A window is one
    activation: its first token begins it; those of others leave no event of their own."""

    name = "batch"
    join = Window()
    is_passive = True
    events = TIMER_EVENTS

    def compile(self, node: Node) -> Any:
        """Return the path of the key; None without one: all tokens have the same."""
        path = _spec(node).key_path
        return None if path is None else path_expression(path)

    # -- folds ----------------------------------------------------------------------------------

    def gather(self, state: RunState, path: Path, node: Node, payload: Any) -> None:
        """Put the token into the open window of its key, or into a new one."""
        key = _key_of(state, path, node)
        place = path.node(node)
        if place.windows is None:
            place.windows = {}
        window = None if isinstance(key, ErrorInfo) else place.windows.get(key)
        if window is None:
            window = arrivals.activate(state, path, node, payload)
            if isinstance(key, ErrorInfo):
                window.verdict = key
                return
            window.local = _Gathered(key)
            place.windows[key] = window
        gathered: _Gathered = window.local
        gathered.items.append(payload)
        size, limit = _spec(node).size, state.graph.options.max_batch_items
        if (size is not None and len(gathered.items) >= size) or len(gathered.items) > limit:
            self.close_window(state, window)

    def close_window(self, state: RunState, activation: Activation) -> None:
        """Let no more tokens in."""
        gathered: _Gathered = activation.local
        gathered.is_closed = True
        place = state.node_of(activation)
        if place.windows is not None and place.windows.get(gathered.key) is activation:
            place.windows = {k: w for k, w in place.windows.items() if w is not activation}
        if activation.key in state.open:
            state.changed[activation.key] = activation

    def fold(self, state: RunState, activation: Activation, data: Any, ts: int) -> None:
        """Close the window when its time is over."""
        if isinstance(data, ev.WorkflowStepWaiting):
            activation.local.has_said = True
        elif isinstance(data, ev.TimerFired):
            self.close_window(state, activation)

    def closed(self, state: RunState, activation: Activation) -> None:
        """Let go of a window that ends before it was closed."""
        if activation.local is not None:
            self.close_window(state, activation)

    # -- decisions ------------------------------------------------------------------------------

    def is_idle(self, activation: Activation) -> bool:
        """Return whether tokens may still come."""
        gathered: _Gathered = activation.local
        return gathered.has_said and not gathered.is_closed

    def next(self, state: RunState, activation: Activation, now: int) -> Decisions:
        """Send the array on once the window is closed; before, arm its timer and say that it waits."""
        gathered: _Gathered = activation.local
        spec = _spec(activation.node)
        if gathered.is_closed:
            return self._flush(state, activation, now)
        if gathered.has_said:
            return []
        waits: dict[str, Any] = {"for_": "tokens", "ref": gathered.key}
        if spec.max_wait is None:
            return [ev.WorkflowStepWaiting(**step_fields(activation), **waits)]
        due = activation.started + round(spec.max_wait * 1e6)
        timer = scheduled(activation, _TIMER, "batch_window", due)
        return [timer, ev.WorkflowStepWaiting(**step_fields(activation), **waits, deadline=timer.due_at)]

    def stalled(self, state: RunState, activation: Activation, now: int) -> Decisions:
        """Send the array on although a token could come: only from another window that waits for this one."""
        return self._flush(state, activation, now)

    def _flush(self, state: RunState, activation: Activation, now: int) -> Decisions:
        gathered: _Gathered = activation.local
        moves = cancelled(state, activation, _TIMER)
        count, limit = len(gathered.items), state.graph.options.max_batch_items
        if count > limit:
            return moves + step_failed(activation, _too_many(activation.node, count, limit), now)
        return moves + step_completed(state, activation, now, output=list(gathered.items))

    def abort(self, state: RunState, activation: Activation, error: ErrorInfo, now: int) -> Decisions:
        """Disarm the timer."""
        return cancelled(state, activation, _TIMER)


def _key_of(state: RunState, path: Path, node: Node) -> str | ErrorInfo:
    """Return the key of the token that comes now, as text."""
    if node.program is None:
        return ""
    try:
        return canonical_json(node.program.evaluate(state.scope(path=path, node=node))).decode()
    except EvaluationError as error:
        return expression_error(error, "/key_path")


_OF_ARRAY, _WINDOW = BatchOfArray(), BatchWindow()
KIND = _Batch()
