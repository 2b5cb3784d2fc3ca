"""Plain handlers: the most frequent turn of a run of executors, folded as one.

The handler of an executor returns, its step ends, its messages go along the edges, and the handlers that take
them begin; under `superstep` a barrier lies between. `decide` and `evolve` would find these events in a round
each. For an executor without gates and limits (`Kind.makes_plain_call`), in a state where nothing else can
come first, they are made here at once, with the same events and the same state. Where it is not that simple
nothing is done and the caller asks `decide`. A test compares both on seeded graphs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import UNSET, UnsetType

from agentflow.definition.failure import ErrorInfo
from agentflow.engine.arrivals import leave
from agentflow.engine.decisions import elapsed_ms
from agentflow.engine.effects import Effect, StartHandler
from agentflow.engine.evolve import evolve
from agentflow.engine.folds.messages import add_to_rounds, bring_message
from agentflow.engine.grants import denied_write
from agentflow.engine.mail import MAX_HANDLERS, MAX_QUEUED, MAX_SENT, Handling
from agentflow.engine.messages import Outgoing, Way, way_of
from agentflow.engine.plain_calls import begin_visit, end_visit, is_plain
from agentflow.engine.shared_state import Writes
from agentflow.engine.state import RunState
from agentflow.events import catalogue as ev

if TYPE_CHECKING:
    from agentflow.engine.activation import Activation
    from agentflow.engine.rounds import Entry

__all__ = ["complete_plain_handler"]

_SUPERSTEPS = (ev.SuperstepStarted, ev.SuperstepCompleted)
_NULL_SIZE = 4


def complete_plain_handler(
    state: RunState,
    activation_key: str,
    attempt: int,
    messages: Sequence[Outgoing],
    private: Mapping[str, Any],
    shared: Sequence[tuple[str, Any]],
    now: int,
    effects: list[Effect],
) -> list[ev.RunEvent] | None:
    """Fold the end of a handler and what follows from it; return the events and add their effects.

    Returns None, with nothing changed, unless the handler is plain and nothing else can come first. There is
    no Release: a handler that returned and made no call has left nothing at work.
    """
    activation = state.mail.open.get(activation_key)
    if activation is None or not is_plain(state, now) or state.requests:
        return None
    node, path, mail = activation.node, activation.path, state.mail
    if not node.plain_call or activation.attempt != attempt:
        return None
    if path.opener is not None or activation.local.calls:
        return None
    if mail.untold or mail.untimed or mail.fatal is not None:
        return None
    ways: list[Way] = []
    if messages:
        waiting = len(mail.queue) + len(state.activations) - len(state.open)
        if len(messages) > MAX_SENT or waiting + len(messages) > MAX_QUEUED:
            return None
        for message in messages:
            way = way_of(node, message, state.shared.values)
            if isinstance(way, ErrorInfo) or (node.routes and not way.taken):
                return None  # no edge delivers it
            ways.append(way)
        if path.rounds and _is_late(activation):
            return None
    writes = Writes(activation.node.id, activation.visit, "", tuple(shared)) if shared else None
    if writes is not None and not _may_write(state, activation, writes):
        return None
    events: list[ev.RunEvent] = []
    _end(state, activation, messages, ways, private, writes, now, events)
    _go_on(state, now, events, effects)
    return events


def _is_quiet(state: RunState) -> bool:
    """Return whether nothing comes before the next handler or superstep."""
    mail = state.mail
    return not (
        state.arrived
        or state.changed
        or state.settled
        or state.root.stopped
        or mail.untold
        or mail.untimed
        or mail.fatal is not None
    )


def _may_write(state: RunState, activation: Activation, writes: Writes) -> bool:
    if denied_write(activation, [key for key, _ in writes.pairs]) is not None:
        return False
    return state.graph.policy.conflict(state, writes, activation.local.base) is None


def _is_late(activation: Activation) -> bool:
    """Return whether the round of a join that the node sends to has closed without this activation."""
    node, rounds = activation.node, activation.path.rounds
    return any(
        edge.fan is not None and rounds[edge.fan.index].charged[node.id] for edge in node.targets("next")
    )


def _end(
    state: RunState,
    activation: Activation,
    messages: Sequence[Outgoing],
    ways: Sequence[Way],
    private: Mapping[str, Any],
    writes: Writes | None,
    now: int,
    events: list[ev.RunEvent],
) -> None:
    """Add and fold `workflow.step_completed`."""
    node, key = activation.node, activation.key
    kept: ev.StateWrites | UnsetType = UNSET
    if private or writes is not None:
        pairs = () if writes is None else writes.pairs
        written = tuple(ev.SharedWrite(key=name, value=value) for name, value in pairs)
        kept = ev.StateWrites(private=dict(private), shared=written)
    sent = tuple(
        [
            ev.SentMessage(index=i, type=message.type, payload=message.payload, deliveries=way.deliveries)
            for i, (message, way) in enumerate(zip(messages, ways, strict=True))
        ]
    )
    events.append(
        ev.WorkflowStepCompleted(
            step_id=node.id,
            iteration=None,
            activation=key,
            step_index=node.index,
            attempt=activation.attempt,
            path="",
            visit=activation.visit,
            clock=activation.clock,
            superstep=activation.superstep or UNSET,
            duration_ms=elapsed_ms(activation.started, now),
            output=None,
            output_size=_NULL_SIZE,
            messages=sent,
            state=kept,
        )
    )
    place = end_visit(state, activation, None, state.next_offset, now)
    del state.mail.open[key]
    state.mail.end_turn(activation, place)
    buffered: dict[int, Entry] = {}
    for message, way in zip(sent, ways, strict=True):
        for name, edge in way.taken:
            bring_message(state, activation, message, edge, name, buffered, now)
    if buffered:
        add_to_rounds(state, activation, buffered)
    if private:
        state.shared.private.setdefault(node.id, {}).update(private)
    if writes is not None:
        state.graph.policy.commit(state, writes)
    leave(state, activation, place)


def _go_on(state: RunState, now: int, events: list[ev.RunEvent], effects: list[Effect]) -> None:
    """Begin the handlers whose turn it is, and supersteps before them."""
    mail, policy = state.mail, state.graph.policy
    while _is_quiet(state):
        while mail.inbox and len(mail.open) < MAX_HANDLERS:  # a start makes nothing else that comes first
            if not _begin(state, mail.inbox[0], now, events, effects):
                return
        if not policy.keeps_messages or mail.is_at_work or state.ready:
            return
        moves = policy.next(state, now)
        if not moves or moves[0].__class__ not in _SUPERSTEPS:
            return
        evolve(state, moves[0], state.next_offset, now)
        events.append(moves[0])


def _begin(
    state: RunState, activation: Activation, now: int, events: list[ev.RunEvent], effects: list[Effect]
) -> bool:
    """Add and fold `workflow.step_started`; return False, with nothing changed, if `decide` has to be asked
    about it."""
    node, path = activation.node, activation.path
    if not node.plain_call or path.opener is not None or state.clock >= state.graph.max_steps:
        return False
    if (
        activation.verdict is not None
        or activation.snapshot is not None
        or activation.local is not None
        or activation.due_at is not None
    ):
        return False
    key, taken, place, offset = activation.key, activation.taken, path.nodes[node.id], state.next_offset
    events.append(
        ev.WorkflowStepStarted(
            step_id=node.id,
            iteration=None,
            activation=key,
            step_index=node.index,
            attempt=activation.attempt,
            path="",
            visit=activation.visit,
            clock=state.clock,
            superstep=activation.superstep or UNSET,
            kind=node.kind.name,
            input=activation.input,
            depends_on=node.dependencies or UNSET,
            sources=UNSET if taken is None else taken.sources or UNSET,
            missing=UNSET if taken is None else taken.missing or UNSET,
        )
    )
    state.mail.begin(activation)
    begin_visit(state, activation, place, activation.input, offset, now)
    state.next_offset = offset + 1
    state.last_ts = now
    activation.local = Handling(state.shared.version, now, key)
    state.mail.open[key] = activation
    effects.append(StartHandler(key, activation.attempt))
    return True
