"""The queue of model calls that a budget bounds: which one is made next, and with which limit of output.

A call that fits the limit, but not beside what open calls have reserved, waits until they have ended; one
that does not fit once no call is open is not made. Calls go in the order of the log (first come, first served
within each budget), so that a small call never starves a large one and a folded log gives the same order.
Pure.
"""

from __future__ import annotations

from collections.abc import Iterator

from agentflow.engine.activation import Activation
from agentflow.engine.agents.progress import model_of
from agentflow.engine.bounding_steps import bounding_steps
from agentflow.engine.budgets import Exceeded, Scope, exceeded, scopes_of, used_of
from agentflow.engine.reservations import Need, need_of
from agentflow.engine.state import RunState

__all__ = ["bounds_calls", "bounds_output", "is_queued", "need_of_next", "next_calls"]

_CALL_LIMITS = ("max_model_calls", "max_tokens", "max_cost_usd")


def bounds_calls(state: RunState, activation: Activation) -> bool:
    """Return whether any budget bounds the model calls of this activation."""
    return any(key in limits for limits in _limits(state, activation) for key in _CALL_LIMITS)


def bounds_output(state: RunState, activation: Activation) -> bool:
    """Return whether any budget bounds what a model call of this activation may write."""
    return any("max_tokens" in limits or "max_cost_usd" in limits for limits in _limits(state, activation))


def _limits(state: RunState, activation: Activation) -> tuple[dict[str, object], ...]:
    steps = bounding_steps(state, activation)
    return state.budget, *(state.step_budgets[step] for step in steps)


def is_queued(state: RunState, activation_key: str, now: int) -> bool:
    """Return whether the next model call of this activation waits for room in a budget at this time."""
    activation = state.call_queue.get(activation_key)
    if activation is None or activation.agent is None:
        return False
    return activation.agent.due_at is None or activation.agent.due_at <= now


def need_of_next(state: RunState, activation: Activation) -> Need:
    """Return what the next model call of this agent wants; counted once for each state of its context."""
    progress = activation.agent
    assert progress is not None
    follows = (len(progress.messages), len(progress.pending), progress.model_index, progress.min_output)
    if progress.need is None or progress.need[0] != follows:
        binding = state.bindings.of_node(activation.node)
        progress.need = (follows, need_of(progress, activation, binding, model_of(progress)))
    return progress.need[1]


def next_calls(state: RunState, now: int) -> Iterator[tuple[Activation, Need, int | Exceeded]]:
    """Yield the first call that need not wait: with its limit of output, or the limit that it exceeds; then,
    for a caller that can do nothing about that one, the next.

    None if every call waits. There is then an open call in the budget that the first one waits for, since a
    call waits for nothing else, and the end of that call makes the run decide anew.
    """
    short: set[str] = set()  # steps for whose budget an earlier call waits
    for activation in sorted(state.call_queue.values(), key=lambda waiting: waiting.touched):
        if short and not short.isdisjoint(bounding_steps(state, activation)):
            continue
        if not is_queued(state, activation.key, now):
            continue
        need = need_of_next(state, activation)
        output = need.output
        for scope in scopes_of(state, activation):
            fitting = _fit(scope, need)
            if isinstance(fitting, Exceeded):
                yield activation, need, fitting
                break
            if fitting is None:
                if scope.limits is state.budget:
                    return  # all later calls wait for the budget of the run too
                short.add(scope.name)
                break
            output = min(output, fitting)
        else:
            yield activation, need, output


def fit_budgets(state: RunState, activation: Activation, need: Need) -> int | Exceeded | None:
    """Return the limit of output that all budgets of an activation allow a call; None if it has to wait for
    open ones."""
    output = need.output
    for scope in scopes_of(state, activation):
        fitting = _fit(scope, need)
        if fitting is None or isinstance(fitting, Exceeded):
            return fitting
        output = min(output, fitting)
    return output


def _fit(scope: Scope, need: Need) -> int | Exceeded | None:
    """Return the limit of output that this budget allows; None if the call has to wait for open ones.

    Only a call that is alone gets less than it wants: beside others it waits, since an answer that is cut off
    for the sake of what others merely reserved would be paid for in vain.
    """
    limits, used, calls = scope.limits, used_of(scope.usage), scope.calls
    most = limits.get("max_model_calls")
    if most is not None and (used["max_model_calls"] or 0) + len(calls) + 1 > most:
        return None if calls else exceeded(scope, "max_model_calls", 1)
    output = need.output
    most = limits.get("max_tokens")
    if most is not None:
        room = most - (used["max_tokens"] or 0)
        if sum(call.tokens for call in calls) + need.tokens(output) > room:
            if calls:
                return None
            output = int((room - need.input) // need.answers)
            if output < need.least:
                return exceeded(scope, "max_tokens", need.tokens(need.least))
    most = limits.get("max_cost_usd")
    return output if most is None else _afford(scope, need, output, most - (used["max_cost_usd"] or 0.0))


def _afford(scope: Scope, need: Need, output: int, room: float) -> int | Exceeded | None:
    """Return the limit of output, `output` at most, whose price fits the `room` in US dollars."""
    price, least = need.cost(output), need.cost(need.least)
    if price is None or least is None:
        problem = f"max_cost_usd is set, but the price of {need.ref.name} is unknown"
        return exceeded(scope, "max_cost_usd", 0.0, problem=problem)
    if price == 0 or sum(call.cost or 0.0 for call in scope.calls) + price <= room:
        return output
    if scope.calls:
        return None
    begin = need.cost(0) or 0.0
    each = (price - begin) / output if output else 0.0
    if each > 0:
        output = min(output, max(0, int((room - begin) / each)) + 1)
    while output > 0 and (need.cost(output) or 0.0) > room:  # at most twice: the division is rounded
        output -= 1
    fits = output >= need.least and (need.cost(output) or 0.0) <= room
    return output if fits else exceeded(scope, "max_cost_usd", least)
