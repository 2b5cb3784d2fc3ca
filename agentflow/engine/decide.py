"""`decide`: given the state of a run and the time, what happens next.

Returns the events of the next single decision, in order, or nothing. The caller folds them and asks
again until nothing is left; then it makes them durable and carries out the calls that they opened.
Deterministic: same log and same times, same decisions in the same order. The eager policy: a node
starts the moment that it is ready and a slot is free (page 002 §6, page 001 §5).

Between events `decide` may move work from one agenda of the state to the next (ready → due); that
bookkeeping follows from the log alone and is done again after a restart.
"""

from __future__ import annotations

from collections import deque
from typing import Any, cast

from agentflow.definition.conversation import ToolCall
from agentflow.definition.expressions import EvaluationError
from agentflow.definition.failure import ErrorInfo
from agentflow.engine import agents, deadlines, outcome
from agentflow.engine.approvals import ask_step, refusal_moves, withdrawn
from agentflow.engine.budgets import exceeded_moves, tool_calls_exceed
from agentflow.engine.caching import Lookup, cached_completion, key_of
from agentflow.engine.limits import overdue, step_limit, steps_exceeded
from agentflow.engine.held_steps import held_moves
from agentflow.engine.ids import derive
from agentflow.engine.decisions import Decisions, skipped, step_completed, step_failed, step_fields
from agentflow.engine.graph import NodePlan
from agentflow.engine.activation import Activation
from agentflow.engine.agents.progress import ToolRecord
from agentflow.engine.state import RunState
from agentflow.engine.tool_calls import settle_unknown, start_tool
from agentflow.events import catalogue as ev

__all__ = ["decide"]

MAX_ITEMS = 10_000
MAX_INTERRUPTIONS = 5


def decide(state: RunState, now: int) -> Decisions:
    """The next decision at the time `now` (microseconds since the epoch); empty when there is none."""
    if state.status == "paused" and state.draining and state.cancel_requested is None:
        return _in_flight(state, now)
    if state.status in ("completed", "failed", "cancelled", "paused") or state.next_offset == 0:
        return []
    if state.cancel_requested is not None:
        return []  # the runtime stops the work first; `cancel.finish` ends the log
    if state.timers:
        moves = overdue(state, now)
        if moves:
            return moves
    if state.held_steps:
        return held_moves(state)
    if state.settled:
        return _end_of(state, next(iter(state.settled.values())), now)
    if state.denied:
        return refusal_moves(state, next(iter(state.denied.values())), now)
    while state.changed:
        key, activation = next(iter(state.changed.items()))
        moves = _unit_moves(state, activation, now)
        if moves:
            return moves
        del state.changed[key]
    if state.call_queue and (moves := agents.admit_calls(state, now)):
        return moves
    if state.on_failure == "halt" and state.has_failed:
        # Nothing new is dispatched; a for_each that has begun is in flight, its other items still run.
        activation = _next_due(state, begun=True)
        if activation is not None and state.running < state.graph.options.max_parallel:
            return _begin(state, activation, now)
        if activation is not None:
            return []
        for request in state.requests.values():
            if request.activation.key in state.awaiting_approval:  # it will not be dispatched any more
                return withdrawn(request, "a step failed")
    else:
        moves = _dispatch(state, now)
        if moves:
            return moves
        if state.tokens or state.frontier or state.due:
            return _waiting(state)
    if state.open or state.requests:
        return _waiting(state)
    return outcome.run_ended(state, now)


def _in_flight(state: RunState, now: int) -> Decisions:
    """Paused, but what has begun comes to its end; nothing new begins."""
    if state.settled:
        return _end_of(state, next(iter(state.settled.values())), now)
    while state.changed:
        key, activation = next(iter(state.changed.items()))
        moves = _unit_moves(state, activation, now)
        if moves:
            return moves
        del state.changed[key]
    return agents.admit_calls(state, now) if state.call_queue else []


def _unit_moves(state: RunState, activation: Activation, now: int) -> Decisions:
    plan = activation.node
    if activation.interruptions > MAX_INTERRUPTIONS:
        detail = f"the actor at work on {plan.id} died {activation.interruptions} times without getting further"
        return [ev.WorkflowPaused(reason="recovery_limit", detail=detail)]
    if plan.kind == "agent":
        if activation.agent is None and activation.due_at is None and plan.system_prompt is not None:
            # Only behind a log that was cut inside a batch; evaluating again gives the same.
            prompt = plan.system_prompt.evaluate(state.scope(activation))
            return agents.initialize(state, activation, prompt, activation.input, plan.previous_agent, now)
        return agents.next_moves(state, activation, now)
    return _tool_node_moves(state, activation, now)


def _tool_node_moves(state: RunState, activation: Activation, now: int) -> Decisions:
    record = activation.tool
    if activation.due_at is not None and now < activation.due_at:
        return []
    if record is None:
        return _first_call(state, activation, activation.input, now)
    if record.state == "planned":
        return start_tool(state, activation, record, now)
    if record.state == "unknown":
        return settle_unknown(state, activation, [record], now)
    if record.state == "failed" and record.error is not None:
        return step_failed(activation, record.error, now)
    return []


def _first_call(state: RunState, activation: Activation, parameters: Any, now: int) -> Decisions:
    """The one call of a tool node; a call that cannot be made fails the step with the same error."""
    over = tool_calls_exceed(state, activation, 1)
    if over is not None:
        return exceeded_moves(state, activation, over, now)
    call_id = derive("call_", now, state.workflow_id, activation.key)
    name = next(iter(state.bindings.of(activation.node.id).tools), activation.node.id)
    record = ToolRecord(ToolCall(id=call_id, name=name, arguments=""), name)
    record.parameters = parameters
    moves = start_tool(state, activation, record, now)
    if isinstance(moves[-1], ev.ToolCallFailed):
        moves += step_failed(activation, moves[-1].error, now)
    return moves


def _end_of(state: RunState, activation: Activation, now: int) -> Decisions:
    """The work of a step is done: its end, in the words of its kind."""
    if activation.error is not None:
        return step_failed(activation, activation.error, now)
    node = state.nodes[activation.node.id]
    if activation.iteration is None and node.outer is activation:
        return _end_of_items(node, activation, now, state)
    return step_completed(state, activation, now)


def _end_of_items(node: NodeState, outer: Activation, now: int, state: RunState) -> Decisions:
    activations = [node.activations[i] for i in range(len(node.items))]
    items = tuple(
        ev.ItemResult(index=i, status=u.status, **({} if u.error is None else {"error": u.error}))
        for i, u in enumerate(activations)
    )
    failed = [i for i, u in enumerate(activations) if u.status in ("failed", "cancelled")]
    if failed:
        error = ErrorInfo(
            category="agent",
            code="iteration_failed",
            message=f"{len(failed)} of {len(activations)} iterations failed",
            details={"failed": failed},
            cause=activations[failed[0]].error,
        )
        return step_failed(outer, error, now, items=items)
    outer.output = [u.output if u.status == "succeeded" else None for u in activations]
    return step_completed(state, outer, now, items=items)


# -- dispatch -----------------------------------------------------------------------------------


def _dispatch(state: RunState, now: int) -> Decisions:
    while state.frontier:
        step_id = state.frontier[0]
        node = state.nodes[step_id]
        moves = _examine(state, node, now)
        if moves:
            return moves
        state.frontier.popleft()
        state.due[step_id] = deque([node.activation(node.visits)])
    while state.tokens:
        token = state.tokens[0]
        moves = _take_token(state, token, now)
        if moves:
            return moves
    if state.due and state.running < state.graph.options.max_parallel:
        return _grant(state, now)
    return []


def _take_token(state: RunState, token: Token, now: int) -> Decisions:
    node = state.nodes[token.target]
    plan = node.plan
    if plan.kind == "end":
        state.end_payload = token.payload
        state.tokens.popleft()
        return []
    activation = node.activation(node.visits + len(state.due.get(plan.id, ())))
    activation.input = token.payload
    if plan.kind == "condition":
        return _condition(state, activation, now)
    if plan.asks:
        return _consent(state, activation, now)
    state.tokens.popleft()
    state.due.setdefault(plan.id, deque()).append(activation)
    return []


def _condition(state: RunState, activation: Activation, now: int) -> Decisions:
    if state.clock >= state.graph.max_steps:
        return step_limit(state, now)
    activation.clock = state.clock
    assert activation.node.predicate is not None
    try:
        value = _truth(activation.node.predicate.evaluate(state.scope()))
    except EvaluationError as error:
        return step_failed(activation, _expression_error(error, "/expression"), now)
    activation.output = value
    activation.started = now
    started = ev.WorkflowStepStarted(**step_fields(activation), kind="condition", input=activation.input)
    done = step_completed(state, activation, now, next_port="on_true" if value else "on_false")
    return [started, *done]


def _examine(state: RunState, node: NodeState, now: int) -> Decisions:
    """Whether a node whose dependencies are settled runs at all (page 001 §5.2)."""
    plan = node.plan
    activation = node.activation(node.visits)
    activation.clock = state.clock
    status_guard = plan.guard is not None and bool(plan.guard.status_functions)
    if not status_guard and plan.node.join == "all_succeeded":
        moves = _dependency_skip(state, activation)
        if moves:
            return moves
    try:
        if plan.guard is not None and not plan.guard_per_item:
            view = _Status(state, plan) if status_guard else None
            if not _truth(plan.guard.evaluate(state.scope(), view)):
                return skipped(activation, "condition_false", plan.guard.source, ())
    except EvaluationError as error:
        return step_failed(activation, _expression_error(error, "/if"), now)
    if plan.for_each is None:
        return _consent(state, activation, now) if plan.asks else []
    try:
        items = plan.for_each.evaluate(state.scope())
    except EvaluationError as error:
        return step_failed(activation, _expression_error(error, "/for_each"), now)
    return _items_moves(state, activation, items, now)


def _items_moves(state: RunState, activation: Activation, items: Any, now: int) -> Decisions:
    plan = activation.node
    if not isinstance(items, list):
        kind = "null" if items is None else type(items).__name__
        message = f"for_each of {plan.id} gave {kind}, not an array"
        error = ErrorInfo(category="invalid_input", code="for_each_type", message=message)
        return step_failed(activation, error, now)
    count = len(cast(list[Any], items))
    if count > MAX_ITEMS:
        message = f"for_each of {plan.id} gave {count} items, the limit is {MAX_ITEMS}"
        error = ErrorInfo(category="invalid_input", code="for_each_limit", message=message)
        return step_failed(activation, error, now)
    if plan.asks:
        return _consent(state, activation, now, items=items)
    return [_started(activation, cast(list[Any], items), {})]


def _consent(state: RunState, activation: Activation, now: int, **subject: Any) -> Decisions:
    """Ask before the step starts. What is shown is what will run: it is not evaluated again."""
    plan = activation.node
    where = "/agent/input"
    scope = state.scope()
    try:
        if plan.for_each is None:
            subject["input"] = activation.input if plan.input is None else plan.input.evaluate(scope)
            where = "/agent/tags"
            if plan.tags is not None:
                subject["tags"] = plan.tags.evaluate(scope)
            where = "/agent/systemPrompt"
            if plan.system_prompt is not None:
                subject["system_prompt"] = plan.system_prompt.evaluate(scope)
        where = "/approval/message"
        if plan.message is not None:
            subject["message"] = plan.message.evaluate(scope)
    except EvaluationError as error:
        return step_failed(activation, _expression_error(error, where), now)
    return ask_step(state, activation, subject, now)


def _dependency_skip(state: RunState, activation: Activation) -> Decisions:
    by_status: dict[str, list[str]] = {}
    for dep in activation.node.deps:
        by_status.setdefault(state.nodes[dep].status, []).append(dep)
    for status, reason in (
        ("failed", "dependency_failed"),
        ("cancelled", "dependency_cancelled"),
        ("skipped", "dependency_skipped"),
    ):
        if status in by_status:
            return skipped(activation, reason, None, tuple(by_status[status]))
    return []


class _Status:
    """What the status functions of a guard see: all dependencies, near and far (page 001 §5.2)."""

    def __init__(self, state: RunState, plan: NodePlan) -> None:
        self._deps = [state.nodes[d].status for d in plan.deps]
        self._all = [state.nodes[d].status for d in plan.ancestors]

    def success(self) -> bool:
        return all(s == "succeeded" for s in self._deps)

    def failure(self) -> bool:
        return "failed" in self._all

    def cancelled(self) -> bool:
        return "cancelled" in self._all


# -- slots --------------------------------------------------------------------------------------


def _grant(state: RunState, now: int) -> Decisions:
    """Give a free slot to the next due step, going round in declared order, so that a wide for_each
    starves no sibling."""
    while (activation := _next_due(state)) is not None:
        moves = _begin(state, activation, now)
        if moves or activation.key not in state.lookups:
            return moves
    return []


def _next_due(state: RunState, *, begun: bool = False) -> Activation | None:
    """The activation whose turn it is; with `begun` only iterations of steps that have started."""
    best: Activation | None = None
    best_rank = (2, 0)
    for step_id, queue in state.due.items():
        node = state.nodes[step_id]
        activation = queue[0]
        if (begun and activation.iteration is None) or activation.key in state.lookups:
            continue
        if activation.iteration is not None and node.slots >= (
            node.plan.max_parallel or state.graph.options.max_parallel
        ):
            continue
        rank = (0 if node.plan.index > state.ready.last_slot else 1, node.plan.index)
        if rank < best_rank:
            best, best_rank = activation, rank
    return best


def _begin(state: RunState, activation: Activation, now: int) -> Decisions:
    plan = activation.node
    node = state.nodes[plan.id]
    if activation.iteration is None:
        if state.clock >= state.graph.max_steps:
            return step_limit(state, now)
        limit = state.budget.get("max_steps")
        if limit is not None and state.clock >= limit:
            return steps_exceeded(state, limit, now)
        activation.clock = state.clock
        activation.visit = node.visits
        activation.base_key = f"/{plan.id}#{activation.visit}"
    if activation.snapshot is not None and "items" in activation.snapshot:
        return [_started(activation, activation.snapshot["items"], {})]
    scope = state.scope(activation)
    snapshot = activation.snapshot
    where = "/if"
    try:
        if activation.iteration is not None and plan.guard is not None and plan.guard_per_item:
            view = _Status(state, plan) if plan.guard.status_functions else None
            if not _truth(plan.guard.evaluate(scope, view)):
                return skipped(activation, "condition_false", plan.guard.source, ())
        where = "/agent/input"
        if snapshot is not None:
            payload = snapshot["input"]
        else:
            payload = activation.input if plan.input is None else plan.input.evaluate(scope)
        where = "/agent/tags"
        tags: dict[str, Any] = snapshot.get("tags", {}) if snapshot is not None else _tags(plan, scope)
        if plan.context is not None:
            where = "/agent/context"
            plan.context.evaluate(scope)  # needed at each call of a function, where it must not fail
        where = "/agent/systemPrompt"
        if snapshot is not None:
            prompt = snapshot.get("system_prompt", "")
        else:
            prompt = plan.system_prompt.evaluate(scope) if plan.system_prompt is not None else ""
        if plan.node.cache is not None and not activation.looked_up:
            where = "/cache/key"
            found = Lookup(activation.key, key_of(state, activation, prompt, payload))
            state.lookups[activation.key] = activation
            state.wanted.append(found)
            return []
    except EvaluationError as error:
        return step_failed(activation, _expression_error(error, where), now)
    moves: Decisions = [_started(activation, payload, tags)]
    if activation.hit is not None:
        return moves + cached_completion(activation, activation.hit, now)
    if plan.agent is not None:
        moves += agents.initialize(state, activation, prompt, payload, plan.previous_agent, now)
    elif plan.kind == "tool":
        moves += _first_call(state, activation, payload, now)
    return moves


def _tags(plan: NodePlan, scope: dict[str, Any]) -> dict[str, Any]:
    return plan.tags.evaluate(scope) if plan.tags is not None else {}


def _started(activation: Activation, payload: Any, tags: dict[str, Any]) -> Any:
    plan = activation.node
    more: dict[str, Any] = {}
    if plan.agent is not None:
        more["agent_name"] = plan.agent.name
    if plan.deps:
        more["depends_on"] = plan.deps
    if tags:
        more["tags"] = tags
    return ev.WorkflowStepStarted(**step_fields(activation), kind=plan.kind, input=payload, **more)


# -- ends ---------------------------------------------------------------------------------------


def _waiting(state: RunState) -> Decisions:
    """Nothing runs and only a person can move the run on."""
    still = state.running == 0 and not state.calls and not state.lookups
    if state.requests and still and state.status == "running":
        waits = all(u.status == "waiting" or u.node.for_each is not None for u in state.open.values())
        if waits:
            return [deadlines.waiting(state)]
    return []


def _truth(value: Any) -> bool:
    """Page 001 §6.3: null, false, 0 and "" are false, all else is true."""
    return not (value is None or value == "" or (isinstance(value, int | float) and value == 0))


def _expression_error(error: EvaluationError, path: str) -> ErrorInfo:
    return ErrorInfo(
        category="expression",
        code="expression_error",
        message=str(error),
        details={
            "path": path,
            "expression": error.expression,
            "offset": error.offset,
            "reason": error.reason,
        },
    )
