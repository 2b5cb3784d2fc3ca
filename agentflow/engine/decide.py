"""`decide`: given the state of a run and the time, what happens next.

Returns the events of the next single decision, in order, or nothing. The caller folds them and asks again
until nothing is left; then it makes them durable and carries out their effects. Deterministic: same log and
same times, same decisions in the same order. It reads the state and changes nothing.

What comes first, when several things are due:

 1. messages that no edge delivered, behind a crash  mail.untold
 2. nothing: a run that is cancelled, paused or over (a pause may let open work end, 8 to 11)
 3. what a pipeline lacks behind a crash             activated_event, ask_anew
 4. timers of the rounds of fan-ins                  durable_timers.round_timers
 5. deadlines that have passed                       limits.overdue
 6. a step that is held after its failure            held_steps.held_moves
 7. the end of a run that its messages must end      limits.end_run
 8. the end of a step whose work is done             _end_of
 9. the end of a step whose approval was denied      approvals.refusal_moves
10. what follows in an open activation               kind.next
11. model calls that waited for room in a budget     turns.admit_calls
12. the end of a run that reached its `end`          limits.stop
13. the end of a run that a failure halts            _halted
14. activations that need no slot, or must not start _examine
15. a free slot for the next ready activation        _grant
16. the next superstep                               policy.next
17. the run waits, or ends                           limits.waiting, run_end.leftovers, run_end.run_ended
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import UNSET

from agentflow.definition.expressions import EvaluationError
from agentflow.definition.failure import ErrorInfo
from agentflow.engine import gates, limits, run_end
from agentflow.engine.activation import Activation
from agentflow.engine.agents import turns
from agentflow.engine.approvals import ask_anew, refusal_moves, withdrawn
from agentflow.engine.budgets import asked_about_budget
from agentflow.engine.caching import CacheHit, Lookup, cached_completion, key_of
from agentflow.engine.child_requests import left_to_caller
from agentflow.engine.child_runs import waits_for_child
from agentflow.engine.decisions import (
    Decisions,
    size_of,
    skipped,
    step_completed,
    step_failed,
    step_fields,
)
from agentflow.engine.durable_timers import round_timers
from agentflow.engine.held_steps import held_moves
from agentflow.engine.judging import Unjudged, with_judgements
from agentflow.engine.kinds.kind import Prepared
from agentflow.engine.mail import MAX_HANDLERS
from agentflow.engine.pipeline import activated_event
from agentflow.engine.state import RunState
from agentflow.engine.templates import expression_error
from agentflow.events import catalogue as ev

__all__ = ["Found", "decide"]

MAX_INTERRUPTIONS = 5

Found = Mapping[str, Any]
"""What came of a Lookup, by activation key, and of a StoreAccess, by its `answer_key`: `asked` while it is
under way, then a CacheHit or None, or the answer of the store; by the key of a Judgement, the message with
its results."""

_NOTHING: Found = {}
_NOTHING_MORE: dict[str, Any] = {}


def decide(state: RunState, now: int, found: Found = _NOTHING) -> Decisions:
    """Return the next decision at the time `now` (microseconds since the epoch); empty when there is none.

    A decision may be a Lookup, a StoreAccess or a Judgement instead of events: the caller asks for it, notes
    `asked` in `found`, and asks on; its answer comes with `found`, too. An access waits until the events
    before it are durable.
    """
    return _judged(_decide(state, now, found), found)


def _judged(moves: Decisions, found: Found) -> Decisions:
    """Return moves, with the results of the code on edges; nothing while they are awaited."""
    for move in moves:
        if move.__class__ is Unjudged:
            return with_judgements(moves, found)
    return moves


def _decide(state: RunState, now: int, found: Found) -> Decisions:
    if state.has_mail and state.mail.untold and state.ended is None and state.status != "paused":
        return list(state.mail.untold.values())
    if state.next_offset == 0 or state.cancel_requested is not None:
        return []  # a cancel first stops the work; `limits.cancel_finished` ends the log
    if state.status == "paused":
        return _in_flight(state, now, found) if state.draining else []
    if state.ended is not None:
        return []
    if state.pipeline is not None and state.pipeline.activated is None:
        return [activated_event(state.input)]  # of a log that was cut inside its first append
    if state.pipeline is not None and state.pipeline.stale:
        return ask_anew(state, next(iter(state.pipeline.stale.values())), now)
    if state.has_mail and state.mail.untimed and state.mail.fatal is None:
        return round_timers(state)
    if state.timers and (moves := limits.overdue(state, now)):
        return moves
    if state.held_steps:
        return held_moves(state)
    if state.has_mail and state.mail.fatal is not None and not state.mail.stepping:
        return limits.end_run(state, state.mail.fatal, now)
    if moves := _in_flight(state, now, found):
        return moves
    if state.root.stopped:
        if state.settled and "asked" in found.values():
            return []  # what has settled before the end comes to its own
        return limits.stop(state, now) or run_end.run_ended(state, now)
    if state.on_failure == "halt" and state.has_failed and not state.mail.stepping:
        return _halted(state, now, found)
    examines = state.arrived or state.has_mail
    if moves := (_dispatch(state, now, found) if examines else _grant(state, now, found)):
        return moves
    if state.has_mail and (moves := state.graph.policy.next(state, now)):
        return moves
    if state.open or state.requests or state.arrived or state.ready:
        return [] if state.running or state.calls else _waiting(state, now, found)
    return (state.has_mail and run_end.leftovers(state)) or run_end.run_ended(state, now)


def _in_flight(state: RunState, now: int, found: Found) -> Decisions:
    """Bring what has begun to its end; begin nothing new."""
    for activation in state.settled.values():
        if moves := _judged(_end_of(state, activation, now), found):
            return moves
    if state.denied and state.status != "paused":
        return refusal_moves(state, next(iter(state.denied.values())), now)
    for activation in state.changed.values():
        if moves := _judged(_next(state, activation, now, found), found):
            return moves
    if state.timers:
        for activation in limits.due_retries(state, now):
            if moves := _judged(_next(state, activation, now, found), found):
                return moves
    return turns.admit_calls(state, now) if state.call_queue else []


def _next(state: RunState, activation: Activation, now: int, found: Found) -> Decisions:
    if activation.interruptions > MAX_INTERRUPTIONS:
        node, count = activation.node, activation.interruptions
        detail = f"the actor at work on {node.id} died {count} times without getting further"
        return [ev.WorkflowPaused(reason="recovery_limit", detail=detail)]
    if state.requests and asked_about_budget(state, activation):
        return []  # though another answer may have raised the limit: the slot comes with its own
    kind = activation.node.kind
    if kind.uses_store and (access := kind.access(state, activation)) is not None:
        if access.answer_key not in found:
            return [access]
        answer = found[access.answer_key]
        return [] if isinstance(answer, str) else kind.store_answered(state, activation, answer, now)
    return kind.next(state, activation, now)


def _end_of(state: RunState, activation: Activation, now: int) -> Decisions:
    """Return the end of a step whose work is done, as its kind says it."""
    if activation.error is not None:
        return step_failed(activation, activation.error, now)
    if activation.node.kind.ends_itself:
        return activation.node.kind.end(state, activation, now)
    if activation.is_for_each:
        ended = (
            activation.node.kind.end_of_items(state, activation, now)
            if activation.node.kind.iterates
            else None
        )
        return _end_of_items(state, activation, now) if ended is None else ended
    return step_completed(state, activation, now, output=activation.output)


def _end_of_items(state: RunState, outer: Activation, now: int) -> Decisions:
    children = [outer.children[i] for i in range(len(outer.children))]
    items = tuple(
        ev.ItemResult(index=i, status=c.status, **({} if c.error is None else {"error": c.error}))
        for i, c in enumerate(children)
    )
    failed = [i for i, c in enumerate(children) if c.status in ("failed", "cancelled")]
    if failed:
        error = ErrorInfo(
            category="agent",
            code="iteration_failed",
            message=f"{len(failed)} of {len(children)} iterations failed",
            details={"failed": failed},
            cause=children[failed[0]].error,
        )
        return step_failed(outer, error, now, items=items)
    output = [c.output if c.status == "succeeded" else None for c in children]
    return step_completed(state, outer, now, output=output, items=items)


# -- dispatch -----------------------------------------------------------------------------------


def _dispatch(state: RunState, now: int, found: Found) -> Decisions:
    for activation in state.arrived:
        if activation.key not in found or found[activation.key] != "asked":
            return _examine(state, activation, now, found)
    if state.has_mail and state.mail.inbox and len(state.mail.open) < MAX_HANDLERS:
        return _examine(state, state.mail.inbox[0], now, found)
    return _grant(state, now, found)


def _examine(state: RunState, activation: Activation, now: int, found: Found) -> Decisions:
    """Decide about an activation that needs no slot, must not start, or has to ask first."""
    if activation.verdict is not None:
        return gates.refused_moves(state, activation, activation.verdict, now)
    node = activation.node
    if node.kind.admits and (moves := _admitted(state, activation, now, found)):
        return moves
    subject: dict[str, Any] = {}
    if node.iterates:
        if activation.snapshot is not None:
            items = activation.snapshot["items"]
        else:
            items = gates.items_of(state, activation)
        if isinstance(items, ErrorInfo):
            return step_failed(activation, items, now, clock=state.clock)
        subject["items"] = items
    if node.asks and activation.snapshot is None:
        return gates.ask(state, activation, subject, now)
    if over := limits.too_many_steps(state, now):
        return over
    if node.iterates:
        return [_started(state, activation, Prepared(subject["items"], {}))]
    return _begin(state, activation, now, found)


def _admitted(state: RunState, activation: Activation, now: int, found: Found) -> Decisions:
    """Return the Probe that comes first, or the end of an activation that must not start; empty: it may."""
    kind = activation.node.kind
    known = kind.known_result(state, activation)
    if known is not None:
        return _ended_before(state, activation, known, now)
    if activation.key not in found and (probe := kind.probe(state, activation)) is not None:
        return [probe]
    return kind.refusal(state, activation, found.get(activation.key), now)


def _ended_before(state: RunState, activation: Activation, result: dict[str, Any], now: int) -> Decisions:
    """Return the end of a step of a plan whose result came with the run: nothing of it is done again."""
    if result["status"] == "skipped":
        return skipped(activation, "dependency_skipped", result["error"], (), clock=state.clock)
    if result["status"] == "failed":
        code = str(result.get("code") or "step_failed")
        details = {"result": result}
        error = ErrorInfo(category="agent", code=code, message=str(result["error"]), details=details)
        return step_failed(activation, error, now, clock=state.clock)
    return [
        _started(state, activation, Prepared({"result": result}, {})),
        ev.WorkflowStepCompleted(
            **step_fields(activation, state.clock),
            duration_ms=0,
            output=result,
            output_size=size_of(result),
        ),
    ]


def _grant(state: RunState, now: int, found: Found, *, only_below: bool = False) -> Decisions:
    """Give a free slot to the next ready activation."""
    if not state.ready or state.running >= state.max_parallel:
        return []
    first = state.ready.sole()
    for activation in state.ready.in_turn() if first is None else (first,):
        if only_below and not _is_below(activation):
            continue
        if found.get(activation.key) == "asked":
            continue
        if activation.node.kind.starts_run and waits_for_child(state, activation):
            continue
        if activation.iteration is None and (over := limits.too_many_steps(state, now)):
            return over
        return _begin(state, activation, now, found)
    return []


def _halted(state: RunState, now: int, found: Found) -> Decisions:
    """Nothing new is dispatched after a failure; the items of a for_each and the child paths that have begun
    are in flight."""
    for request in state.requests.values():
        waits = request.activation.key in state.awaiting_approval
        if waits and not _is_below(request.activation):  # it will not be dispatched any more
            return withdrawn(request, "a step failed")
    for activation in [*state.arrived, *state.mail.inbox]:
        if _is_below(activation) and found.get(activation.key) != "asked":
            return _examine(state, activation, now, found)
    if moves := _grant(state, now, found, only_below=True):
        return moves
    if any(_is_below(a) for a in state.ready.in_turn()):
        return []
    if any(q.path.opener is not None for q in state.mail.queue) and not (state.running or state.mail.open):
        return limits.end_run(state, run_end.failure_of(state), now)  # no barrier comes any more
    if not (state.open or state.calls) and (closed := limits.close_requests(state, "a step failed")):
        return closed
    if state.open or state.requests:
        return _waiting(state, now, found, begins=False)
    return run_end.run_ended(state, now)


def _is_below(activation: Activation) -> bool:
    """Return whether an activation is part of one that has begun."""
    return activation.iteration is not None or activation.path.opener is not None


def _begin(state: RunState, activation: Activation, now: int, found: Found) -> Decisions:
    clock = state.clock if activation.iteration is None else None
    node = activation.node
    if node.guard_per_item and (verdict := gates.guard_of_item(state, activation)) is not None:
        return gates.refused_moves(state, activation, verdict, now)
    if node.kind.admits and (moves := _admitted(state, activation, now, found)):
        return moves
    prepared = node.kind.prepare(state, activation)
    if isinstance(prepared, ErrorInfo):
        return step_failed(activation, prepared, now, clock=clock)
    if node.kind.admits:
        prepared = node.kind.with_probe(state, activation, prepared, found.get(activation.key))
        if isinstance(prepared, ErrorInfo):
            return step_failed(activation, prepared, now, clock=clock)
    hit: CacheHit | None = None
    if node.spec.cache is not None:
        if activation.key not in found:
            try:
                key = key_of(state, activation, prepared)
                return [Lookup(activation.key, key, node.id, prepared.input)]
            except EvaluationError as error:
                return step_failed(activation, expression_error(error, "/cache/key"), now, clock=clock)
        known = found[activation.key]
        assert known is None or isinstance(known, CacheHit)
        hit = known
    moves: Decisions = [_started(state, activation, prepared)]
    if hit is not None:
        return moves + cached_completion(state, activation, hit, now, clock)
    return moves + node.kind.start(state, activation, prepared, now)


def _started(state: RunState, activation: Activation, prepared: Prepared) -> Any:
    node, taken = activation.node, activation.taken
    more = node.kind.started_fields(state, activation, prepared) if node.kind.adds_to_start else _NOTHING_MORE
    return ev.WorkflowStepStarted(
        step_id=node.id,
        iteration=activation.iteration,
        activation=activation.base_key,
        step_index=node.index,
        attempt=activation.attempt,
        path=activation.path.key,
        visit=activation.visit,
        clock=state.clock if activation.iteration is None else activation.clock,
        superstep=activation.superstep or UNSET,
        kind=node.kind.name,
        input=prepared.input,
        agent_name=UNSET if node.agent_name is None else node.agent_name,
        depends_on=node.dependencies or UNSET,
        sources=UNSET if taken is None else taken.sources or UNSET,
        missing=UNSET if taken is None else taken.missing or UNSET,
        **more,
    )


def _waiting(state: RunState, now: int, found: Found, *, begins: bool = True) -> Decisions:
    """Say that the run waits when nothing runs and only a person, a timer or a signal can move it on. Not
    `begins`: what is queued will not be dispatched any more."""
    if state.status != "running" or state.running or state.calls or state.mail.is_at_work:
        return []
    if "asked" in found.values():
        return []
    if not state.requests and not limits.has_wake_up(state):
        return [] if begins and (state.ready or state.arrived) else _stalled(state, now)
    waits = all(a.status == "waiting" or a.node.kind.is_passive or a.is_for_each for a in state.open.values())
    if not waits:
        return []
    return left_to_caller(state) or [limits.waiting(state)]


def _stalled(state: RunState, now: int) -> Decisions:
    """Nothing moves, and nothing outside will: let an activation go on that waits for what cannot come."""
    for activation in state.open.values():
        if moves := activation.node.kind.stalled(state, activation, now):
            return moves
    return []
