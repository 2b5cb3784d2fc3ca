"""Scheduling policies: when a message reaches its target and when state is committed (page 002 §6).

`eager` delivers and commits with the completion of the sender. `superstep` keeps messages until the barrier,
which commits what was written meanwhile. `deliver`, `commit` and `examine` are called by folds and change the
state; `next` reads it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentflow.definition.failure import ErrorInfo
from agentflow.engine.arrivals import close_rounds, count_queued, end_path, make_activation
from agentflow.engine.limits import end_run, too_many_steps
from agentflow.engine.mail import Queued, Taken
from agentflow.engine.rounds import closings
from agentflow.engine.run_end import failure_of
from agentflow.events import catalogue as ev

if TYPE_CHECKING:
    from agentflow.engine.activation import Activation
    from agentflow.engine.decisions import Decisions
    from agentflow.engine.graph import Graph, Node
    from agentflow.engine.path import Path
    from agentflow.engine.shared_state import Writes
    from agentflow.engine.state import RunState

__all__ = ["POLICIES", "Eager", "Superstep", "begin_superstep", "complete_superstep"]

MAX_ITERATIONS = 100
"""Supersteps without anything from outside, where `max_iterations` is not stated."""


class Eager:
    """Dataflow: a message is dispatched when the completion of its sender is durable."""

    keeps_messages = False

    def deliver(
        self,
        state: RunState,
        path: Path,
        node: Node,
        payload: Any = None,
        taken: Taken | None = None,
        order: tuple[int, ...] = (),
        problem: ErrorInfo | None = None,
        sender: Activation | None = None,
    ) -> None:
        """Activate the target."""
        place = count_queued(path, node)
        activation = make_activation(state, path, place, node, payload, taken=taken, problem=problem)
        if sender is not None and sender.paths is not None:
            node.kind.entered(activation, sender)

    def commit(self, state: RunState, writes: Writes) -> None:
        """Commit what an activation wrote at its completion."""
        problem = state.shared.commit(writes, bases_of(state))
        state.mail.fatal = state.mail.fatal or problem

    def conflict(self, state: RunState, writes: Writes, base: int) -> ErrorInfo | None:
        """Return why an activation may not commit: another node committed the key since its dispatch."""
        return state.shared.conflict_with_commits(writes, base)

    def examine(self, state: RunState, path: Path) -> None:
        """Close the rounds that a step which has ended leaves complete."""
        close_rounds(state, path, closings(path))

    def next(self, state: RunState, now: int) -> Decisions:
        """Return nothing: messages do not wait."""
        return []


class Superstep(Eager):
    """Rounds over one shared state: all that waits is delivered at a barrier, and none before it."""

    keeps_messages = True

    def deliver(
        self,
        state: RunState,
        path: Path,
        node: Node,
        payload: Any = None,
        taken: Taken | None = None,
        order: tuple[int, ...] = (),
        problem: ErrorInfo | None = None,
        sender: Activation | None = None,
    ) -> None:
        """Keep the message for the next superstep; its target is live."""
        count_queued(path, node)
        mail = state.mail
        mail.next_order += 1
        place = (*(order or (1,)), mail.next_order)
        mail.queue.append(Queued(path, node, payload, taken, place, problem, sender))

    def commit(self, state: RunState, writes: Writes) -> None:
        """Keep what an activation wrote for the barrier; at once if it waited over the last one."""
        if state.mail.stepping:
            state.shared.pending.append(writes)
        else:
            super().commit(state, writes)

    def conflict(self, state: RunState, writes: Writes, base: int) -> ErrorInfo | None:
        """Return None: the barrier finds the conflicts, unless the activation waited over it."""
        return None if state.mail.stepping else super().conflict(state, writes, base)

    def examine(self, state: RunState, path: Path) -> None:
        """Close rounds that an activation completes which waited over the barrier; else the barrier does."""
        if not state.mail.stepping:
            close_rounds(state, path, closings(path))

    def next(self, state: RunState, now: int) -> Decisions:
        """Complete the superstep whose activations all have ended or wait, or begin the next one."""
        mail = state.mail
        if state.running or state.calls or mail.is_at_work:
            return []
        if mail.stepping:
            return self._barrier(state, now)
        if not mail.queue and not state.shared.pending and not any(p.due for p in state.paths.values()):
            return []
        if mail.queue:
            return self._begin(state, now)
        return []

    def _barrier(self, state: RunState, now: int) -> Decisions:
        problem = state.mail.fatal
        if problem is None and state.on_failure == "halt" and state.has_failed:
            problem = failure_of(state)  # nothing is committed, and what waits is not delivered
        problem = problem or state.shared.conflict_at_barrier()
        if problem is not None:
            return end_run(state, problem, now)
        rounds = sum(1 for path in state.paths.values() for c in closings(path) if c.error is None)
        return [
            ev.SuperstepCompleted(
                superstep=state.mail.superstep,
                state_version=state.shared.next_version(),
                queued=len(state.mail.queue) + rounds,
            )
        ]

    def _begin(self, state: RunState, now: int) -> Decisions:
        mail = state.mail
        limit = max_iterations(state.graph)
        if max(mail.since_outside.get(queued.path.key, 0) for queued in mail.queue) >= limit:
            error = ErrorInfo(
                category="agent",
                code="max_iterations_exceeded",
                message=f"the run went through {limit} supersteps, {len(mail.queue)} messages wait",
                details={"limit": limit, "queued": len(mail.queue)},
            )
            return end_run(state, error, now)
        if over := too_many_steps(state, now, more=len(mail.queue)):
            return over
        visits: dict[tuple[str, str], int] = {}
        keys: list[str] = []
        for queued in in_order(mail.queue):
            place = (queued.path.key, queued.node.id)
            visit = visits.get(place, queued.path.node(queued.node).arrived)
            visits[place] = visit + 1
            keys.append(f"{queued.path.key}/{queued.node.id}#{visit}")
        return [ev.SuperstepStarted(superstep=mail.superstep + 1, activations=tuple(keys))]


POLICIES: dict[str, Eager] = {"eager": Eager(), "superstep": Superstep()}


def max_iterations(graph: Graph) -> int:
    """Return how many supersteps may follow one another: as stated, else at least the longest path."""
    return graph.options.max_iterations or max(MAX_ITERATIONS, len(graph.nodes))


def in_order(queue: list[Queued]) -> list[Queued]:
    """Return what waits by target, and at one target by edge, activation and send index (page 002 §6)."""
    if len(queue) == 1:
        return queue
    return sorted(queue, key=lambda q: (q.path.key, q.node.index, q.order))


def bases_of(state: RunState) -> list[int]:
    """Return the versions of the shared state that handlers at work read."""
    return [activation.local.base for activation in state.mail.open.values()]


def begin_superstep(state: RunState) -> list[str]:
    """Activate all that waits; return the keys of the activations."""
    mail = state.mail
    queue, mail.queue = in_order(mail.queue), []
    mail.superstep += 1
    for key in {queued.path.key for queued in queue}:
        mail.since_outside[key] = mail.since_outside.get(key, 0) + 1
    mail.stepping = True
    keys: list[str] = []
    for queued in queue:
        place = queued.path.node(queued.node)
        activation = make_activation(
            state, queued.path, place, queued.node, queued.payload, taken=queued.taken, problem=queued.problem
        )
        if queued.sender is not None and queued.sender.paths is not None:
            queued.node.kind.entered(activation, queued.sender)
        keys.append(activation.key)
    return keys


def complete_superstep(state: RunState) -> None:
    """Commit the writes and close the rounds of the superstep."""
    problem = state.shared.commit_pending(bases_of(state))  # of handlers that wait over the barrier
    state.mail.fatal = state.mail.fatal or problem
    for path in list(state.paths.values()):
        if path.due:
            close_rounds(state, path, closings(path))
            if path.live == 0 and path.opener is not None:
                end_path(state, path)
    state.mail.stepping = False
