"""What the kinds have in common that open child paths: parallel, map over a body, subgraph."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from agentflow.definition.failure import ErrorInfo
from agentflow.engine import arrivals, limits
from agentflow.engine.activation import Activation
from agentflow.engine.decisions import Decisions, step_completed, step_failed
from agentflow.engine.frames import Frame
from agentflow.engine.globals import GlobalWrite, joined_writes
from agentflow.engine.kinds.kind import Kind
from agentflow.engine.path import NodeState, Path
from agentflow.engine.state import RunState
from agentflow.events import catalogue as ev

if TYPE_CHECKING:
    from agentflow.engine.graph import Graph

__all__ = ["Group", "Spawning"]


class Group:
    """The child paths of one activation. `results` has those that ended, by index, until the join."""

    __slots__ = (
        "failed",
        "finished",
        "is_decided",
        "is_opening",
        "limit",
        "opened",
        "opening",
        "results",
        "timed_out",
        "total",
    )

    def __init__(self, total: int, limit: int, opening: int) -> None:
        self.total = total
        self.limit = limit
        """How many may be open at once."""
        self.opening = opening
        """The opening of the parent's frame as of which they read it."""
        self.opened = 0
        self.finished: list[int] = []
        """Those that reached their end, in the order of the log."""
        self.failed: list[int] = []
        """Those that failed, in the order of the log."""
        self.results: dict[int, Path] = {}
        self.is_decided = False
        """True once what comes of the group is known: the others are not read any more."""
        self.is_opening = False
        self.timed_out = False

    @property
    def is_over(self) -> bool:
        """True once no further path will be opened."""
        return self.is_decided or self.opened == self.total


class Spawning(Kind):
    """Parks its token, opens child paths, at most so many at once, and ends when the group is over.

    `branches` names the branches for messages; a failure on a path ends the path, and `verdict` says what
    comes of the group.
    """

    is_passive = True
    shows_more = True

    def total(self, state: RunState, activation: Activation) -> int:
        """Return how many child paths there will be."""
        raise NotImplementedError

    def at_once(self, state: RunState, activation: Activation) -> int:
        """Return how many of them may be open at once."""
        return 1

    def graph_of(self, activation: Activation) -> Graph:
        """Return the graph in which the tokens of the child paths move."""
        return activation.path.graph

    def begin_path(self, state: RunState, activation: Activation, path: Path) -> None:
        """Fold the beginning of a child path: put its first token where it starts."""
        raise NotImplementedError

    def verdict(self, activation: Activation, group: Group) -> tuple[bool, bool]:
        """Return whether what comes of the group is decided, and then whether the rest is cancelled."""
        return False, True

    def joined(self, activation: Activation, group: Group) -> list[int]:
        """Return the indexes of the paths whose values the parent takes over, in order."""
        return sorted(group.results)

    def finish(self, state: RunState, activation: Activation, group: Group, now: int) -> Decisions:
        """Return the end of the activation, once no child path is open."""
        raise NotImplementedError

    # -- folds ----------------------------------------------------------------------------------

    def started(self, state: RunState, activation: Activation, data: Any, ts: int) -> None:
        """Open the first child paths."""
        state.changed.pop(activation.key, None)
        opening = activation.path.frame.open()
        group = Group(self.total(state, activation), self.at_once(state, activation), opening)
        activation.local, activation.paths = group, {}
        self.take_over(state, activation, group)
        self._open_more(state, activation, group)

    def take_over(self, state: RunState, activation: Activation, group: Group) -> None:
        """Fold what an earlier attempt of the activation has finished already."""

    def _open_more(self, state: RunState, activation: Activation, group: Group) -> None:
        if group.is_opening:
            return  # a path that ended while it began: the loop goes on
        group.is_opening = True
        paths = activation.paths
        assert paths is not None
        while not group.is_over and len(paths) < group.limit:
            index = group.opened
            group.opened += 1
            if index not in group.results:
                self._open(state, activation, group, index)
        group.is_opening = False
        if not paths and group.is_over and activation.key in state.open:
            state.changed[activation.key] = activation

    def _open(self, state: RunState, activation: Activation, group: Group, index: int) -> None:
        graph, parent = self.graph_of(activation), activation.path
        path = Path(graph, f"{activation.key}.{index}", activation, index)
        path.frame = Frame(parent.frame, group.opening, is_isolated=graph is not parent.graph)
        path.stop_at = frozenset(e.target.id for e in activation.node.targets("next"))
        assert activation.paths is not None
        activation.paths[index] = path
        state.paths[path.key] = path
        path.live = 1  # until it has begun
        self.begin_path(state, activation, path)
        arrivals.begun(state, path)
        path.live -= 1
        if path.live == 0:
            arrivals.end_path(state, path)

    def path_failed(self, state: RunState, path: Path, error: ErrorInfo) -> None:
        """End the path with the failure; what else is on it is cancelled."""
        path.error = path.error or error
        arrivals.stop_path(state, path)

    def path_ended(self, state: RunState, activation: Activation, path: Path) -> None:
        """Note how it ended, judge the group, and open the next one."""
        group: Group = activation.local
        if group.is_decided:
            return self._open_more(state, activation, group)
        group.results[path.index] = path
        (group.finished if path.error is None else group.failed).append(path.index)
        self._judge(state, activation, group)
        return self._open_more(state, activation, group)

    def _judge(self, state: RunState, activation: Activation, group: Group) -> None:
        group.is_decided, cancels = self.verdict(activation, group)
        if not group.is_decided:
            return
        for path in list((activation.paths or {}).values()):
            if cancels:
                arrivals.stop_path(state, path)
                if path.live == 0:
                    arrivals.end_path(state, path)

    def closed(self, state: RunState, activation: Activation) -> None:
        """Let go of the child paths; on those that are left nothing has begun."""
        group: Group | None = activation.local
        if group is None:
            return
        for path in (activation.paths or {}).values():
            path.stopped = path.ended = True
            for work in list(path.work.values()):
                arrivals.drop(state, work)
            arrivals.forget(state, path)
            arrivals.leave_path(state, path)
        activation.paths = {}
        activation.path.frame.close(group.opening)

    def ended(self, activation: Activation, place: NodeState, data: Any) -> None:
        """Take over what the nodes of the child paths gave, in the order of the paths."""
        group: Group | None = activation.local
        if group is None or not isinstance(data, ev.WorkflowStepCompleted):
            return
        parent = activation.path
        for index in self.joined(activation, group):
            child = group.results[index]
            if not child.frame.is_isolated:
                _join(parent, child)
            if parent.opener is not None:
                _join_writes(activation, child)

    # -- decisions ------------------------------------------------------------------------------

    def is_idle(self, activation: Activation) -> bool:
        """Return whether it only waits for child paths, or for the consent to open them."""
        paths = activation.paths
        return paths is None or (bool(paths) and not any(path.stopped for path in paths.values()))

    def next(self, state: RunState, activation: Activation, now: int) -> Decisions:
        """Cancel what is left on paths that are given up; end once the group is over."""
        group: Group = activation.local
        paths = activation.paths or {}
        error = ErrorInfo(category="cancelled", code="cancelled", message="its path was given up")
        moves: Decisions = []
        for path in paths.values():
            if path.stopped:
                for work in path.work.values():
                    moves += limits.abort(state, work, error, now)
                moves += limits.close_requests(state, error.code, path)
        if moves or paths or not group.is_over:
            return moves
        return self.finish(state, activation, group, now)

    def complete(
        self, state: RunState, activation: Activation, group: Group, now: int, *, output: Any
    ) -> Decisions:
        """Return the end of an activation that succeeded, with the global values of its child paths."""
        children = [group.results[i] for i in self.joined(activation, group)]
        writes, conflict = joined_writes(activation.path, children)
        if conflict is not None:
            message = f"the child paths of {activation.node.id} disagree about the global value {conflict}"
            details = {"key": conflict}
            error = ErrorInfo(category="agent", code="state_conflict", message=message, details=details)
            return step_failed(activation, error, now)
        return step_completed(state, activation, now, output=output, global_writes=writes)


def _join(parent: Path, child: Path) -> None:
    for name, view in child.frame.nodes.items():
        if view["status"] is not None:
            parent.frame.set("nodes", name, view)
    if parent.opener is None:
        ended: Iterable[NodeState] = (place for place in child.nodes.values() if place.ended >= 0)
        for place in ended:
            parent.node(place.node).ended = place.ended
        return
    for place in child.nodes.values():
        if place.ended >= 0:
            seen = parent.node(place.node)
            seen.ended, seen.status = place.ended, place.status


def _join_writes(activation: Activation, child: Path) -> None:
    """Let the siblings of the parent path see what the child wrote, as the parent's own writes."""
    parent, own = activation.path, activation.node.writes
    for key, writes in child.writes.items():
        if own is not None and key in own.keys:
            parent.writes[key] = [GlobalWrite("set", parent.frame.get("globals", key))]
        else:
            parent.writes.setdefault(key, []).extend(writes)
