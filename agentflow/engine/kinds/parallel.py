"""`parallel`: one concurrent child path for each branch (page 003 §4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from agentflow.definition.failure import ErrorInfo
from agentflow.definition.ir import ParallelNode
from agentflow.engine import arrivals
from agentflow.engine.activation import Activation
from agentflow.engine.decisions import Decisions, step_failed
from agentflow.engine.durable_timers import cancelled, is_armed, scheduled
from agentflow.engine.kinds.group import Group, Spawning
from agentflow.engine.kinds.kind import TIMER_EVENTS, Kind, Prepared
from agentflow.engine.path import NodeState, Path
from agentflow.engine.state import RunState
from agentflow.events import catalogue as ev

if TYPE_CHECKING:
    from agentflow.engine.graph import Graph, Node

__all__ = ["KIND", "ParallelProgram"]

_TIMER = "merge"


class ParallelProgram(NamedTuple):
    """Where the branches begin, and the merge that closes the group, if its `next` is one.

    `sources`: by branch, which sources of that merge lie on it; `has_source`: whether it counts for that.
    """

    entries: tuple[Any, ...]
    names: tuple[str, ...]
    closer: Any = None
    sources: tuple[frozenset[str], ...] = ()
    has_source: tuple[bool, ...] = ()


class Parallel(Spawning):
    """Opens a child path for each branch, with the token that it got."""

    name = "parallel"
    events = TIMER_EVENTS

    def link(self, graph: Graph, node: Node) -> None:
        """Find where the branches begin, and which of them the merge behind the group reads."""
        spec = node.spec
        assert isinstance(spec, ParallelNode)
        entries = tuple(node.targets(f"branches/{i}")[0].target for i in range(len(spec.branches)))
        following = node.targets("next")
        closer = following[0].target if len(following) == 1 else None
        if closer is None or not closer.kind.closes_groups:
            node.program = ParallelProgram(entries, spec.branches)
            return
        wanted = closer.kind.sources_of(closer)
        sources = tuple(wanted & _region(entry, closer) for entry in entries)
        has_source = tuple(bool(names) or not any(sources) for names in sources)
        node.program = ParallelProgram(entries, spec.branches, closer, sources, has_source)

    def prepare(self, state: RunState, activation: Activation) -> Prepared | ErrorInfo:
        """Refuse more branches than a run may have."""
        limit, found = state.graph.options.max_parallel_branches, len(activation.node.program.entries)
        if found <= limit:
            return super().prepare(state, activation)
        message = f"{activation.node.id} has {found} branches, the limit is {limit}"
        details = {"limit": limit}
        return ErrorInfo(
            category="agent", code="parallel_branch_limit_exceeded", message=message, details=details
        )

    def total(self, state: RunState, activation: Activation) -> int:
        """Return the number of branches."""
        return len(activation.node.program.entries)

    def at_once(self, state: RunState, activation: Activation) -> int:
        """Return how many branches may be at work at once."""
        spec = activation.node.spec
        assert isinstance(spec, ParallelNode)
        return min(spec.max_in_flight, state.graph.options.scheduler_max_in_flight)

    def started(self, state: RunState, activation: Activation, data: Any, ts: int) -> None:
        """Open the branches; the timer of the merge is still to be armed."""
        super().started(state, activation, data, ts)
        if _time_limit(activation) is not None:
            state.changed[activation.key] = activation

    def begin_path(self, state: RunState, activation: Activation, path: Path) -> None:
        """Bring the token to the branch."""
        arrivals.prepare_path(path)
        arrivals.deliver(state, path, activation.node.program.entries[path.index], activation.input)

    def fold(self, state: RunState, activation: Activation, data: Any, ts: int) -> None:
        """Fold the time-out of the merge: what has finished by now is all that it gets."""
        if isinstance(data, ev.TimerFired):
            group: Group = activation.local
            group.timed_out = True
            if not group.is_decided:
                self._judge(state, activation, group)

    def verdict(self, activation: Activation, group: Group) -> tuple[bool, bool]:
        """Ask the merge, if one closes the group; else the first failure may decide."""
        program: ParallelProgram = activation.node.program
        if group.timed_out or self._fails(activation, group):
            return True, True
        return (False, True) if program.closer is None else program.closer.kind.judge(program, group)

    def joined(self, activation: Activation, group: Group) -> list[int]:
        """Return the branches that count."""
        program: ParallelProgram = activation.node.program
        if program.closer is None:
            return sorted(group.results)
        return sorted(program.closer.kind.counted(program, group))

    def next(self, state: RunState, activation: Activation, now: int) -> Decisions:
        """Arm the timer of the merge, then as for every group."""
        moves = super().next(state, activation, now)
        limit = _time_limit(activation)
        group: Group = activation.local
        if moves or limit is None or group.timed_out or is_armed(state, activation, _TIMER):
            return moves
        return [scheduled(activation, _TIMER, "merge_timeout", activation.started + round(limit * 1e6))]

    def finish(self, state: RunState, activation: Activation, group: Group, now: int) -> Decisions:
        """Return the results by branch, or the first failure."""
        names = activation.node.program.names
        moves = cancelled(state, activation, _TIMER)
        if self._fails(activation, group):
            index = group.failed[0]
            cause = group.results[index].error
            message = f"branch {names[index]} of {activation.node.id} failed"
            details = {"branch": names[index]}
            error = ErrorInfo(
                category="agent", code="branch_failed", message=message, details=details, cause=cause
            )
            return moves + step_failed(activation, error, now)
        counted = {i for i in self.joined(activation, group) if i in group.finished}
        output = {name: group.results[i].output if i in counted else None for i, name in enumerate(names)}
        return moves + self.complete(state, activation, group, now, output=output)

    def _fails(self, activation: Activation, group: Group) -> bool:
        """Return whether a branch failed, and that fails the node."""
        if not group.failed:
            return False
        spec = activation.node.spec
        assert isinstance(spec, ParallelNode)
        closer: Node | None = activation.node.program.closer
        how = spec.on_branch_error if closer is None else closer.kind.failing(closer, spec.on_branch_error)
        return how == "fail"

    def abort(self, state: RunState, activation: Activation, error: ErrorInfo, now: int) -> Decisions:
        """Disarm the timer of the merge."""
        return cancelled(state, activation, _TIMER)

    def view(self, activation: Activation, place: NodeState) -> dict[str, Any]:
        """Return the failures by branch."""
        group: Group | None = activation.local
        if group is None:
            return {"errors": []}
        names = activation.node.program.names
        found = [(names[i], group.results[i].error) for i in sorted(group.failed)]
        return {"errors": [{"branch": name, "error": msgspec.to_builtins(error)} for name, error in found]}


def _time_limit(activation: Activation) -> float | None:
    closer: Node | None = activation.node.program.closer
    return None if closer is None else closer.kind.time_limit(closer)


def _region(entry: Node, closer: Node) -> set[str]:
    """Return the nodes that a branch may pass before it comes to the merge."""
    found: set[str] = set()
    todo = [entry]
    while todo:
        node = todo.pop()
        if node is closer or node.id in found:
            continue
        found.add(node.id)
        todo += [edge.target for edge in node.edges()]
    return found


KIND: Kind = Parallel()
