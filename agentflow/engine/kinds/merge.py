"""`merge`: joins the branches of a parallel node, or outputs of one path (page 003 §4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from agentflow.definition.failure import ErrorInfo
from agentflow.definition.ir import MergeNode
from agentflow.engine.activation import Activation
from agentflow.engine.decisions import Decisions, step_completed, step_failed
from agentflow.engine.frames import ABSENT
from agentflow.engine.kinds.group import Group
from agentflow.engine.kinds.kind import Kind
from agentflow.engine.kinds.parallel import ParallelProgram
from agentflow.engine.path import Path
from agentflow.engine.state import RunState

if TYPE_CHECKING:
    from agentflow.engine.graph import Graph, Node

__all__ = ["KIND"]


class _Entered(NamedTuple):
    """The group that the token comes from; None of the fields changes any more."""

    program: ParallelProgram
    group: Group


class Merge(Kind):
    """Goes on with the outputs that its rule asks for.

    Behind a parallel node it judges the group at every arrival (`judge`), and reads it once its token is
    here; `rest: drain` waits for the others, and reads nothing of them. On one path it reads the outputs in
    scope.
    """

    name = "merge"
    closes_groups = True

    def link(self, graph: Graph, node: Node) -> None:
        """Keep the nodes whose outputs it reads."""
        prefix = node.id.removesuffix(node.name)
        node.program = tuple(graph.nodes[prefix + source] for source in _spec(node).sources)

    # -- of a group -----------------------------------------------------------------------------

    def sources_of(self, node: Node) -> frozenset[str]:
        """Return its sources."""
        prefix = node.id.removesuffix(node.name)
        return frozenset(prefix + source for source in _spec(node).sources)

    def time_limit(self, node: Node) -> float | None:
        """Return the seconds that a group may take."""
        return _spec(node).timeout

    def failing(self, node: Node, default: str) -> str:
        """Return what it states; else `first` and `quorum` bear failures, `all` leaves it to the opener."""
        spec = _spec(node)
        if spec.on_branch_error is not None:
            return spec.on_branch_error
        return default if spec.rule == "all" else "collect"

    def judge(self, program: ParallelProgram, group: Group) -> tuple[bool, bool]:
        """Decide as soon as enough branches have finished, or too few still can."""
        spec = _spec(program.closer)
        if spec.rule == "all":
            return False, True
        finished = self.counted(program, group)
        left = sum(has and i not in group.results for i, has in enumerate(program.has_source))
        needed = _needed(spec)
        if len(finished) + left < needed:
            return True, True
        return len(finished) >= needed, spec.rest == "cancel"

    def counted(self, program: ParallelProgram, group: Group) -> list[int]:
        """Return the branches that it reads: for `all` also those that failed, whose errors stay visible."""
        spec = _spec(program.closer)
        if spec.rule == "all":
            return sorted(group.results)
        return [i for i in group.finished if program.has_source[i]]

    def entered(self, activation: Activation, sender: Activation) -> None:
        """Keep the group that the token comes from; behind a map or a subgraph it reads what is in scope."""
        program = sender.node.program
        if isinstance(program, ParallelProgram) and program.closer is activation.node:
            activation.local = _Entered(program, sender.local)

    # -- decisions ------------------------------------------------------------------------------

    def next(self, state: RunState, activation: Activation, now: int) -> Decisions:
        """Decide at once."""
        entered: _Entered | None = activation.local
        if entered is None:
            output = self._in_scope(activation)
            if isinstance(output, ErrorInfo):
                return step_failed(activation, output, now)
            return step_completed(state, activation, now, output=output)
        spec = _spec(activation.node)
        counted = [i for i in self.counted(*entered) if i in entered.group.finished]
        is_met = entered.group.opened == entered.group.total or not entered.group.timed_out
        if spec.rule != "all" or entered.group.timed_out:
            is_met = len(counted) >= _needed(spec)
        if is_met and not (spec.rule == "all" and entered.group.timed_out):
            output = _values(activation.node, entered, counted)
            return step_completed(state, activation, now, output=output)
        if not entered.group.timed_out:
            return step_failed(activation, _quorum_not_met(activation.node, entered, len(counted)), now)
        if spec.on_timeout is not None:
            output = {"timed_out": True, "arrived": len(counted)}
            return step_completed(state, activation, now, output=output, next_port="on_timeout")
        message = f"{len(counted)} branches before {activation.node.id} ended within {spec.timeout:g} s"
        details = {"arrived": len(counted), "timeout": spec.timeout}
        error = ErrorInfo(category="timeout", code="merge_timeout", message=message, details=details)
        return step_failed(activation, error, now)

    def _in_scope(self, activation: Activation) -> Any:
        """Return the outputs of its sources on this path, and above it as of its opening."""
        spec = _spec(activation.node)
        found: dict[str, Any] = {}
        order: list[tuple[int, str]] = []
        sources: tuple[Node, ...] = activation.node.program
        for source in sources:
            view = activation.path.frame.get("nodes", source.name)
            if view is not ABSENT and view["status"] == "succeeded":
                found[source.id] = view["output"]
                order.append((_ended(activation.path, source), source.id))
        needed = len(sources) if spec.rule == "all" else _needed(spec)
        if len(found) < needed:
            lacking = next(source.name for source in sources if source.id not in found)
            message = f"{activation.node.id} needs an output of {lacking}, which has none here"
            details = {"source": lacking}
            return ErrorInfo(category="agent", code="missing_merge_source", message=message, details=details)
        chosen = {source for _, source in sorted(order)[:needed]}
        values = [found[source.id] for source in sources if source.id in chosen]
        return values[0] if spec.rule == "first" else values


def _spec(node: Node) -> MergeNode:
    spec = node.spec
    assert isinstance(spec, MergeNode)
    return spec


def _needed(spec: MergeNode) -> int:
    if spec.rule == "all":
        return len(spec.sources)
    return 1 if spec.rule == "first" else spec.quorum or 1


def _ended(path: Path, node: Node) -> int:
    """Return the offset at which a node ended that this path, or one above it, knows."""
    above: Path | None = path
    while above is not None:
        place = above.nodes.get(node.id)
        if place is not None and place.ended >= 0:
            return place.ended
        above = above.parent
    return 0


def _values(node: Node, entered: _Entered, counted: list[int]) -> Any:
    """Return the first value, or the values of the sources on the branches that count, in their order.

    A source that its branch did not take is null; on two branches the later one's output wins.
    """
    spec, group = _spec(node), entered.group
    if spec.rule == "first":
        return group.results[counted[0]].output
    found: list[Any] = []
    sources: tuple[Node, ...] = node.program
    for source in sources:
        on = [i for i, names in enumerate(entered.program.sources) if source.id in names]
        if spec.rule == "quorum" and not any(i in counted for i in on):
            continue
        value = None
        for i in sorted(set(on) & set(counted)):
            view = group.results[i].frame.nodes.get(source.name)
            if view is not None and view["status"] == "succeeded":
                value = view["output"]
        found.append(value)
    return found


def _quorum_not_met(node: Node, entered: _Entered, arrived: int) -> ErrorInfo:
    group, needed = entered.group, _needed(_spec(node))
    failed = sum(entered.program.has_source[i] for i in group.failed)
    first = group.results[group.failed[0]].error if group.failed else None
    message = f"{node.id} needs {needed} branches: {arrived} finished and {failed} failed"
    details = {"needed": needed, "arrived": arrived, "failed": failed}
    return ErrorInfo(
        category="agent", code="merge_quorum_not_met", message=message, details=details, cause=first
    )


KIND = Merge()
