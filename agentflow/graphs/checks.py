"""What is wrong with a graph that only its code shows: types, handlers, predicates (page 002 §13).

Mistakes that graphs of every format can have are found over the IR (`definition/ir_checks`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, get_args, get_origin

from agentflow.definition.connections import circles
from agentflow.definition.cycles import shortest_cycle
from agentflow.definition.diagnostics import did_you_mean
from agentflow.definition.report import NOWHERE, Report
from agentflow.executors.annotations import is_any, members_of
from agentflow.executors.problems import problems_of, tag_clashes
from agentflow.graphs.cases import NodeFailure
from agentflow.graphs.subworkflows import SubWorkflowRequest, SubWorkflowResponse
from agentflow.graphs.types import can_match, can_match_element, names_of

if TYPE_CHECKING:
    from agentflow.graphs.builder import DrawnEdge, WorkflowBuilder
    from agentflow.graphs.nodes import Placed
    from agentflow.graphs.origin import BuilderOrigin, Call

__all__ = ["GraphChecks"]


class GraphChecks:
    """The checks of one builder; problems go to the report."""

    def __init__(self, builder: WorkflowBuilder, origin: BuilderOrigin, report: Report) -> None:
        self._builder = builder
        self._origin = origin
        self._report = report
        self._placed: dict[str, Placed] = {}
        self._calls: dict[str, Call] = {}
        for found in builder.nodes:
            self._placed.setdefault(found.placed.node.id, found.placed)
            self._calls.setdefault(found.placed.node.id, found.call)
        self._unread: set[str] = set()

    def run(self) -> None:
        """Check everything."""
        self._check_executors()
        for found in self._builder.edges:
            self._check_edge(found)
        self._check_maps()
        self._check_names()
        self._check_cycles()
        self._check_outputs()

    def _tell(self, code: str, message: str, call: Call, hint: str | None, *, error: bool = True) -> None:
        pointer = f"/told/{len(self._origin.calls)}"
        self._origin.calls[pointer] = call
        tell = self._report.error if error else self._report.warning
        tell(code, message, NOWHERE, pointer, hint)

    # -- executors ---------------------------------------------------------------------------------

    def _check_executors(self) -> None:
        executors = {i: one.executor for i, one in self._placed.items() if one.executor is not None}
        sound: list[Any] = []
        for node_id, executor in executors.items():
            problems = problems_of(executor)
            for problem in problems:
                if (
                    problem.code == "E_EXECUTOR_NOT_COPYABLE"
                    and self._placed[node_id].template is not executor
                ):
                    continue  # a factory makes a new one for each run
                is_error = problem.severity == "error"
                self._tell(problem.code, problem.message, self._calls[node_id], problem.hint, error=is_error)
            if any(problem.code == "E_NO_HANDLER" for problem in problems):
                self._unread.add(node_id)
            else:
                sound.append(executor)
        for clash in tag_clashes(sound):
            self._tell(clash.code, clash.message, self._calls[clash.node], clash.hint)

    # -- types -------------------------------------------------------------------------------------

    def _check_edge(self, found: DrawnEdge) -> None:
        edge, call = found.edge, found.call
        source, target = self._placed.get(edge.source), self._placed.get(edge.target)
        if edge.source == edge.target:
            message = f'"{edge.source}" sends to itself'
            hint = "give the edge a condition that ends the loop" if found.rule is None else None
            self._tell("W_SELF_LOOP", message, call, hint, error=False)
        if source is None or target is None or self._unread & {edge.source, edge.target}:
            return
        if edge.kind == "error":
            self._check_types((NodeFailure,), target, edge.source, edge.target, call)
        elif edge.kind == "fan_in":
            self._check_fan_in(source, target, call)
        elif _carries_requests(source, target):
            pass
        else:
            self._check_types(source.sends, target, edge.source, edge.target, call)

    def _check_types(
        self, sends: Iterable[Any], target: Placed, source_id: str, target_id: str, call: Call
    ) -> None:
        sent = tuple(sends)
        if not sent:
            self._tell_silent(source_id, call)
        elif not can_match(sent, target.takes):
            message = (
                f'the edge from "{source_id}" to "{target_id}" delivers nothing: '
                f'"{source_id}" sends {names_of(sent)}, "{target_id}" takes {names_of(target.takes)}'
            )
            hint = f'add a handler of {names_of(sent)} to "{target_id}", or a node between them that converts'
            self._tell("E_TYPE_INCOMPATIBLE", message, call, hint)

    def _tell_silent(self, source_id: str, call: Call) -> None:
        message = (
            f'an edge leaves "{source_id}", which sends nothing: none of its handlers declares a message'
        )
        hint = "declare what it sends: ctx: WorkflowContext[Out], or the result of the function"
        self._tell("E_TYPE_INCOMPATIBLE", message, call, hint)

    def _check_fan_in(self, source: Placed, target: Placed, call: Call) -> None:
        begin, end = source.node.id, target.node.id
        if not source.sends:
            self._tell_silent(begin, call)
        elif not can_match_element(source.sends, target.takes):
            sent = names_of(source.sends)
            message = (
                f'the fan-in at "{end}" gathers nothing from "{begin}", which sends {sent}: '
                f'"{end}" takes {names_of(target.takes)}'
            )
            self._tell("E_TYPE_INCOMPATIBLE", message, call, f'let a handler of "{end}" take list[{sent}]')

    def _check_maps(self) -> None:
        for found in self._builder.maps:
            ids = (found.source, found.worker, found.join)
            if any(i not in self._placed or i in self._unread for i in ids):
                continue
            source, worker, join = (self._placed[i] for i in ids)
            items = _elements(source.sends)
            if not can_match(items, worker.takes):
                message = (
                    f'"{found.source}" sends {names_of(source.sends)}, and the worker "{found.worker}" '
                    f"takes {names_of(worker.takes)}"
                )
                hint = f'send list[{names_of(worker.takes)}] from "{found.source}"'
                self._tell("E_TYPE_INCOMPATIBLE", message, found.call, hint)
            if not worker.sends:
                self._tell_silent(found.worker, found.call)
            elif not can_match_element(worker.sends, join.takes):
                message = (
                    f'the worker "{found.worker}" sends {names_of(worker.sends)}, and "{found.join}" '
                    f"takes {names_of(join.takes)}"
                )
                hint = f'let a handler of "{found.join}" take list[{names_of(worker.sends)}]'
                self._tell("E_TYPE_INCOMPATIBLE", message, found.call, hint)

    # -- the whole ---------------------------------------------------------------------------------

    def _check_names(self) -> None:
        """Report two edges of one source that have one name and two predicates: verdicts go by the name."""
        seen: dict[tuple[str, str], DrawnEdge] = {}
        for found in self._builder.edges:
            edge, rule = found.edge, found.rule
            if edge.name is None or rule is None or rule.function is None or edge.kind == "multi":
                continue
            first = seen.setdefault((edge.source, edge.name), found)
            if first.rule is not None and first.rule.function is not rule.function:
                message = f'two edges of "{edge.source}" are named "{edge.name}" and have two conditions'
                self._tell("E_DUPLICATE_EDGE", message, found.call, "give each a name of its own")

    def _check_cycles(self) -> None:
        if not self._builder.acyclic:
            return
        links: dict[str, list[str]] = {i: [] for i in self._placed}
        for found in self._builder.edges:
            if found.edge.source in links and found.edge.target in links:
                links[found.edge.source].append(found.edge.target)
        for mapped in self._builder.maps:
            for target in (mapped.worker, mapped.join):
                if mapped.source in links and target in links:
                    links[mapped.source].append(target)
        order = {i: n for n, i in enumerate(links)}
        for circle in circles(links, order):
            cycle = shortest_cycle(links, circle[0], set(circle))
            message = f"the graph is acyclic, and has the cycle {' → '.join(cycle)}"
            hint = "take one of these edges away, or leave acyclic out"
            self._tell("E_CYCLE_NOT_ALLOWED", message, self._calls[circle[0]], hint)

    def _check_outputs(self) -> None:
        builder = self._builder
        wanted = builder.output_from
        if wanted != "all":
            for one in wanted:
                node_id = str(getattr(one, "id", one))
                if node_id not in self._placed:
                    message = f'output_from names "{node_id}", and there is no such node'
                    hint = did_you_mean(node_id, list(self._placed))
                    self._tell("E_UNKNOWN_OUTPUT_NODE", message, builder.call, hint)
        given = [i for i, one in self._placed.items() if one.yields or one.executor is None]
        if self._placed and not given and not self._unread:
            hint = "declare WOut in WorkflowContext[Out, WOut] and call ctx.yield_output"
            message = "no node gives an output of the run: result.output is None"
            self._tell("W_NO_OUTPUT", message, builder.call, hint, error=False)


def _carries_requests(source: Placed, target: Placed) -> bool:
    """Return whether an edge brings requests of a nested workflow to a node, or the answers back."""
    if source.exchanges and any(
        member is SubWorkflowRequest for t in target.takes for member in members_of(t)
    ):
        return True
    return target.exchanges and can_match(source.sends, (SubWorkflowResponse,))


def _elements(annotations: Iterable[Any]) -> list[Any]:
    """Return the types of the elements of the lists among some types."""
    found: list[Any] = []
    for member in (member for one in annotations for member in members_of(one)):
        if is_any(member):
            found.append(Any)
        elif (get_origin(member) or member) is list:
            found += get_args(member) or (Any,)
    return found
