"""WorkflowBuilder: graphs of executors, agents and workflows, written in Python (page 002 §3).

Its methods record what they are given and never fail for a mistake in the graph: `build()` lowers all of it
to the one IR, checks it, and reports every mistake at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from agentflow.definition.diagnostics import Severity
from agentflow.definition.ir import Edge, EdgeKind
from agentflow.errors import ConfigurationError
from agentflow.executors.context import seconds
from agentflow.graphs.cases import Case, Default
from agentflow.graphs.nodes import NodeArgument, Placed, UnfitNode, place
from agentflow.graphs.origin import Call, caller
from agentflow.graphs.predicates import Role, Rule, describe_rule

if TYPE_CHECKING:
    from agentflow.events.log import EventLog
    from agentflow.graphs.workflow import Workflow
    from agentflow.records.checkpoint_storage import CheckpointStorage
    from agentflow.runtime import Runtime

__all__ = ["DrawnEdge", "Finding", "MapEdges", "PlacedNode", "SharedDeclaration", "WorkflowBuilder"]

Policy = Literal["superstep", "eager"]
OnMissing = Literal["partial", "wait", "fail"]
Condition = Callable[..., bool] | str
Selection = Callable[[Any, list[str]], Sequence[str]]


class Finding(msgspec.Struct, frozen=True):
    """A mistake that a call of the builder shows by itself."""

    call: Call
    code: str
    message: str
    hint: str | None = None
    severity: Severity = "error"


class PlacedNode(msgspec.Struct, frozen=True):
    """A node, and the call that added it."""

    placed: Placed
    call: Call


class DrawnEdge(msgspec.Struct, frozen=True):
    """An edge of the IR, the rule that decides about it, and the call that added it."""

    edge: Edge
    call: Call
    rule: Rule | None = None


class MapEdges(msgspec.Struct, frozen=True):
    """A map: `worker` for each element that `source` sends, all results to `join`."""

    source: str
    worker: str
    join: str
    max_in_flight: int
    call: Call


class SharedDeclaration(msgspec.Struct, frozen=True):
    """A key of the shared state."""

    key: str
    type: Any
    reducer: Any
    default: Any
    call: Call


class WorkflowBuilder:
    """Builds a workflow step by step; each method returns the builder.

    `policy`: `superstep` runs rounds with a barrier, `eager` each message as it comes. `max_iterations`
    bounds supersteps, `max_steps` activations. `acyclic`: a cycle is an error. `on_failure`: halt, continue
    or hold; by default halt under `superstep`, else continue. `on_undelivered`: a message that no
    edge delivers is recorded, or fails the run. `output_from`: the nodes whose outputs are outputs of the
    run; those of others are intermediate.
    """

    def __init__(
        self,
        name: str,
        *,
        version: str = "1",
        description: str = "",
        policy: Policy = "superstep",
        max_iterations: int = 100,
        max_steps: int = 1_000,
        acyclic: bool = False,
        on_failure: Literal["halt", "continue", "hold"] | None = None,
        on_undelivered: Literal["record", "fail"] = "record",
        output_from: Literal["all"] | Sequence[NodeArgument] = "all",
    ) -> None:
        self.name = name
        self.version = version
        self.description = description
        self.policy: Policy = policy
        self.max_iterations = max_iterations
        self.max_steps = max_steps
        self.acyclic = acyclic
        self.on_failure: Any = on_failure or ("halt" if policy == "superstep" else "continue")
        self.on_undelivered: Literal["record", "fail"] = on_undelivered
        self.output_from = output_from
        self.call = caller("WorkflowBuilder", name)
        self.nodes: list[PlacedNode] = []
        self.edges: list[DrawnEdge] = []
        self.maps: list[MapEdges] = []
        self.starts: list[str] = []
        self.start_call = self.call
        self.shared: list[SharedDeclaration] = []
        self.findings: list[Finding] = []
        self.storage: str | EventLog | Runtime | CheckpointStorage | None = None
        self._known: dict[int, tuple[Any, str]] = {}
        self._groups: dict[tuple[str, str], int] = {}

    # -- nodes -------------------------------------------------------------------------------------

    def set_start_executor(self, *nodes: NodeArgument) -> WorkflowBuilder:
        """Name the start; several starts each receive the input of the run."""
        call = caller("set_start_executor", *nodes)
        if self.starts:
            hint = "pass all starts to one call"
            self._find(call, "E_MULTIPLE_START", "the start is already set", hint)
            return self
        self.start_call = call
        self.starts = [found for node in nodes if (found := self._id(node, call)) is not None]
        return self

    def _id(self, given: NodeArgument, call: Call) -> str | None:
        """Return the id of a node argument, which is added if it is new; None if it is no node."""
        if isinstance(given, str):
            return given
        known = self._known.get(id(given))
        if known is not None:
            return known[1]
        try:
            placed = place(given)
        except UnfitNode as unfit:
            self._find(call, unfit.code, unfit.message, unfit.hint)
            return None
        self.nodes.append(PlacedNode(placed, call))
        self._known[id(given)] = (given, placed.node.id)
        return placed.node.id

    # -- edges -------------------------------------------------------------------------------------

    def add_edge(
        self,
        source: NodeArgument,
        target: NodeArgument,
        condition: Condition | None = None,
        name: str | None = None,
    ) -> WorkflowBuilder:
        """Lead the messages of `source` to `target`: those for which `condition` is true.

        `condition` is `fn(data)`, `fn(data, shared)` or an expression over `message` and `state`. `name`
        tells edges between the same nodes apart, and names the condition.
        """
        call = caller("add_edge", source, target)
        rule = None if condition is None else self._rule(condition, name, "condition", call)
        self._edge(source, target, call, rule=rule, name=name)
        return self

    def add_chain(self, nodes: Sequence[NodeArgument]) -> WorkflowBuilder:
        """Add an edge between each two neighbours."""
        call = caller("add_chain", nodes)
        if len(nodes) < 2:
            self._find(
                call, "E_FAN_TOO_SMALL", f"a chain of {len(nodes)} nodes has no edge", "name two nodes"
            )
        for source, target in pairwise(nodes):
            self._edge(source, target, call)
        return self

    def add_fan_out_edges(
        self, source: NodeArgument, targets: Sequence[NodeArgument], selection: Selection | None = None
    ) -> WorkflowBuilder:
        """Lead each message to every target that takes its type, or to those whose ids
        `selection(data, ids)` returns."""
        call = caller("add_fan_out_edges", source, targets)
        return self._fan_out(source, targets, selection, call)

    def add_multi_selection_edge_group(
        self, source: NodeArgument, targets: Sequence[NodeArgument], selection_func: Selection
    ) -> WorkflowBuilder:
        """Lead each message to the targets whose ids `selection_func(data, ids)` returns."""
        call = caller("add_multi_selection_edge_group", source, targets)
        return self._fan_out(source, targets, selection_func, call)

    def _fan_out(
        self, source: NodeArgument, targets: Sequence[NodeArgument], selection: Any, call: Call
    ) -> WorkflowBuilder:
        rule = None if selection is None else self._rule(selection, None, "selection", call)
        kind: EdgeKind = "fan_out" if selection is None else "multi"
        if not targets:
            self._find(call, "E_FAN_TOO_SMALL", "a fan-out without targets", "name two targets")
            return self
        group = self._group(kind, self._id(source, call))
        for target in targets:
            self._edge(source, target, call, kind=kind, group=group, rule=rule)
        return self

    def add_fan_in_edges(
        self,
        sources: Sequence[NodeArgument],
        target: NodeArgument,
        on_missing: OnMissing = "partial",
        quorum: int | None = None,
        timeout: float | str | None = None,
    ) -> WorkflowBuilder:
        """Gather the messages of the sources: `target` gets one list a round (page 002 §5).

        `on_missing` says what happens if a source cannot arrive any more; a round closes at `quorum`
        arrivals, or `timeout` after the first (seconds, or "1m").
        """
        call = caller("add_fan_in_edges", sources, target)
        if not sources:
            self._find(call, "E_FAN_TOO_SMALL", "a fan-in without sources", "name two sources")
            return self
        limit = self._seconds(timeout, call)
        found = [(source, self._id(source, call)) for source in sources]
        group = self._group("fan_in", self._id(target, call))
        more: dict[str, Any] = {"on_missing": on_missing, "quorum": quorum, "timeout": limit}
        for source, _ in found:
            self._edge(source, target, call, kind="fan_in", group=group, **more)
        return self

    def add_switch_case_edge_group(
        self, source: NodeArgument, cases: Sequence[Case | Default]
    ) -> WorkflowBuilder:
        """Lead each message along the first case that is true, else to the Default."""
        call = caller("add_switch_case_edge_group", source, [case.target for case in cases])
        group = self._group("switch", self._id(source, call))
        for number, case in enumerate(cases, 1):
            if isinstance(case, Default):
                name = case.name or "default"
                self._edge(source, case.target, call, kind="switch", group=group, name=name)
                continue
            rule = self._rule(case.condition, case.name, "condition", call)
            unnamed = rule.anonymous or rule.expression is not None
            name = case.name or (f"case{number}" if unnamed else rule.short)
            self._edge(source, case.target, call, kind="switch", group=group, rule=rule, name=name)
        if not cases:
            self._find(call, "E_MISSING_DEFAULT", "a switch without cases", "add Case(…) and Default(…)")
        return self

    def add_map_edges(
        self, source: NodeArgument, worker: NodeArgument, join: NodeArgument, max_in_flight: int = 8
    ) -> WorkflowBuilder:
        """Run `worker` once for each element of the lists that `source` sends; `join` gets the list of the
        results in the order of the elements. At most `max_in_flight` are at work at once."""
        call = caller("add_map_edges", source, worker, join)
        begin, work, end = self._id(source, call), self._id(worker, call), self._id(join, call)
        if begin is not None and work is not None and end is not None:
            self.maps.append(MapEdges(begin, work, end, max_in_flight, call))
        return self

    def add_error_edge(self, source: NodeArgument, target: NodeArgument) -> WorkflowBuilder:
        """Lead a failure of `source` to `target`, as NodeFailure, when its attempts are used up."""
        self._edge(source, target, caller("add_error_edge", source, target), kind="error")
        return self

    def _edge(
        self,
        source: NodeArgument,
        target: NodeArgument,
        call: Call,
        *,
        kind: EdgeKind = "single",
        rule: Rule | None = None,
        name: str | None = None,
        **more: Any,
    ) -> None:
        begin, end = self._id(source, call), self._id(target, call)
        if begin is None or end is None:
            return
        if rule is not None and rule.problem is None:
            field = "selection" if kind == "multi" else "when" if rule.expression else "predicate"
            more[field] = rule.expression or rule.identity
        edge = Edge(source=begin, target=end, kind=kind, name=name, **more)
        self.edges.append(DrawnEdge(edge, call, rule))

    def _group(self, kind: str, end: str | None) -> str | None:
        """Return the name of the next group of a kind at a node; the first has none."""
        number = self._groups[kind, end or ""] = self._groups.get((kind, end or ""), 0) + 1
        return None if number == 1 else str(number)

    # -- the rest ----------------------------------------------------------------------------------

    def add_shared(self, key: str, type: Any, reducer: Any = None, default: Any = None) -> WorkflowBuilder:
        """Declare a key of the shared state: the type of its value, how writes are folded, its default."""
        self.shared.append(SharedDeclaration(key, type, reducer, default, caller("add_shared", key)))
        return self

    def with_checkpointing(self, storage: str | EventLog | Runtime | CheckpointStorage) -> WorkflowBuilder:
        """Say where runs are kept: `sqlite:FILE`, `file:DIR`, `memory:`, an open EventLog or Runtime, or the
        CheckpointStorage of one of them."""
        self.storage = storage
        return self

    def build(self) -> Workflow:
        """Return the workflow. Raises WorkflowValidationError with every mistake; its warnings stand in
        `workflow.diagnostics`."""
        from agentflow.graphs.lowering import lower
        from agentflow.telemetry.build_span import build_span
        from agentflow.telemetry.conventions import SIGNATURE

        with build_span(self.name) as attributes:
            workflow = lower(self)
            if attributes is not None:
                attributes[SIGNATURE] = workflow.signature
            return workflow

    # -- mistakes ----------------------------------------------------------------------------------

    def _find(self, call: Call, code: str, message: str, hint: str | None = None, **more: Any) -> None:
        self.findings.append(Finding(call, code, message, hint, **more))

    def _rule(self, given: Any, name: str | None, role: Role, call: Call) -> Rule:
        rule = describe_rule(given, name, role)
        if rule.problem is not None:
            self._find(call, *rule.problem)
        elif rule.anonymous:
            message = f"the {role} is a lambda without a name, known by its code: {rule.short}"
            hint = "give the edge or case a name, or write a function with def"
            self._find(call, "W_ANONYMOUS_CONDITION", message, hint, severity="warning")
        return rule

    def _seconds(self, timeout: float | str | None, call: Call) -> float | None:
        if timeout is None:
            return None
        try:
            return seconds(timeout, "timeout")
        except (ConfigurationError, TypeError, ValueError) as error:
            self._find(call, "E_VALUE", str(error), getattr(error, "hint", None))
            return None
