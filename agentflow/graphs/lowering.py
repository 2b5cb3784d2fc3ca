"""A builder's calls as a graph of the IR, checked, with the code that its names mean (page 002 §13, §15)."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from agentflow import reducers
from agentflow.definition.inputs import ANY_INPUT
from agentflow.definition.ir import (
    Edge,
    EndNode,
    MapNode,
    Node,
    Options,
    SharedKey,
    StartNode,
    canonical_json,
    decode_ir,
    ir_hash,
)
from agentflow.definition.ir import Workflow as Graph
from agentflow.definition.ir_checks import check_graph
from agentflow.definition.ir_report import IrReport
from agentflow.definition.json_values import json_problems
from agentflow.definition.kinds import kind_of
from agentflow.definition.loader import Definition
from agentflow.definition.report import NOWHERE, Report
from agentflow.definition.source import node_of_value
from agentflow.definition.source_tree import Positions
from agentflow.definition.type_errors import explain
from agentflow.errors import MessageNotEncodable, WorkflowValidationError
from agentflow.executors import Callables
from agentflow.executors.payloads import Payloads, TypeTagClash
from agentflow.graphs.agents import AgentResponse, Message
from agentflow.graphs.cases import NodeFailure
from agentflow.graphs.checks import GraphChecks
from agentflow.graphs.origin import BuilderOrigin, Call
from agentflow.graphs.subworkflows import SubWorkflowRequest, SubWorkflowResponse
from agentflow.graphs.workflow import Workflow

if TYPE_CHECKING:
    from agentflow.graphs.builder import MapEdges, SharedDeclaration, WorkflowBuilder

__all__ = ["FORMAT", "lower"]

FORMAT = "graph"
_START, _END = "__start", "__end"
_MAX_IN_FLIGHT = 256
"""Workers of one map at work at once, at most: `add_map_edges` states how many (page 002 §8)."""
_OWN_TYPES = (AgentResponse, Message, NodeFailure, SubWorkflowRequest, SubWorkflowResponse)


def lower(builder: WorkflowBuilder) -> Workflow:
    """Return the workflow of a builder. Raises WorkflowValidationError with all that is wrong."""
    report = Report()
    lowering = _Lowering(builder, report)
    graph, callables = lowering.graph(), lowering.callables()
    checked = _checked(graph, lowering.origin, report)
    GraphChecks(builder, lowering.origin, report).run()
    diagnostics = lowering.origin.placed(report.diagnostics())
    if any(d.severity == "error" for d in diagnostics):
        raise WorkflowValidationError(diagnostics)
    digest = ir_hash(checked)
    definition = Definition(
        name=builder.name,
        version=builder.version,
        format=FORMAT,
        source=canonical_json(checked).decode(),
        media="json",
        file=None,
        folder=None,
        hash=digest,
        workflow=checked,
        ir_hash=digest,
        warnings=diagnostics,
        positions=Positions(node_of_value({}, Report(None))),
        inputs=ANY_INPUT,
    )
    return Workflow(
        definition=definition,
        callables=callables,
        description=builder.description,
        starts=tuple(builder.starts),
        placed={found.placed.node.id: found.placed for found in builder.nodes},
        shared_types={found.key: found.type for found in builder.shared},
        storage=builder.storage,
    )


def _checked(graph: Graph, origin: BuilderOrigin, report: Report) -> Graph:
    """Return the graph as its stored bytes say it; what is wrong goes to the report."""
    found = False
    for path, problem, code in json_problems(graph, structs=True):
        report.error(code, problem, NOWHERE, path)
        found = True
    if found:
        return graph
    try:
        stored = decode_ir(canonical_json(graph))
    except msgspec.ValidationError as error:
        problem = explain(error, Graph)
        report.error("E_TYPE", problem.sentence("the workflow"), NOWHERE, problem.pointer, problem.hint)
        return graph
    check_graph(stored, IrReport(report, origin))
    return stored


class _Lowering:
    """The graph of a builder, with the origin of each of its parts."""

    def __init__(self, builder: WorkflowBuilder, report: Report) -> None:
        self._builder = builder
        self._report = report
        self.origin = BuilderOrigin(builder.call)
        self.payloads = self._payloads()
        self._predicates: dict[str, Any] = {}
        self._selections: dict[str, Any] = {}
        self._chosen: dict[tuple[str, str | None], str] = {}
        for number, finding in enumerate(builder.findings):
            pointer = f"/calls/{number}"
            self.origin.calls[pointer] = finding.call
            tell = report.error if finding.severity == "error" else report.warning
            tell(finding.code, finding.message, NOWHERE, pointer, finding.hint)

    def graph(self) -> Graph:
        """Return the graph, as far as it can be made."""
        builder = self._builder
        edges = tuple(self._edges())
        return Graph(
            name=builder.name,
            nodes=tuple(self._nodes()),
            edges=edges,
            options=self._options(),
            shared=dict(self._shared()),
            metadata={"description": builder.description} if builder.description else {},
        )

    def _options(self) -> Options:
        builder = self._builder
        rounds = builder.max_iterations if builder.policy == "superstep" else None
        return Options(
            policy=builder.policy,
            on_failure=builder.on_failure,
            on_undelivered=builder.on_undelivered,
            max_steps=builder.max_steps,
            max_iterations=rounds,
            scheduler_max_in_flight=_MAX_IN_FLIGHT,
        )

    # -- nodes -------------------------------------------------------------------------------------

    def _nodes(self) -> Iterator[Node]:
        builder, calls = self._builder, self.origin.calls
        if not builder.nodes:
            return
        number = 0
        if builder.starts:
            calls["/nodes/0"] = builder.start_call
            yield StartNode(id=_START, next=builder.starts[0] if len(builder.starts) == 1 else None)
            number = 1
        index = 0
        for found in builder.nodes:
            calls[f"/nodes/{number}"] = found.call
            node = found.placed.node
            yield msgspec.structs.replace(node, index=index, **self._more_of(node))
            number, index = number + 1, index + 1
        for found in builder.maps:
            calls[f"/nodes/{number}"] = found.call
            yield _map_node(found, index)
            number, index = number + 1, index + 1
        calls[f"/nodes/{number}"] = builder.call
        yield EndNode(id=_END, index=index, drain=True)

    def _more_of(self, node: Node) -> dict[str, Any]:
        """Return the fields of a node that follow from the rest of the graph: an agent that nothing follows
        leads to the end."""
        if kind_of(node).is_handled:
            return {"intermediate": self._is_intermediate(node.id)}
        builder = self._builder
        leads_on = {found.edge.source for found in builder.edges if found.edge.kind != "error"}
        leads_on |= {found.source for found in builder.maps} | {found.worker for found in builder.maps}
        return {} if node.id in leads_on else {"next": _END}

    def _is_intermediate(self, node_id: str) -> bool:
        wanted = self._builder.output_from
        return wanted != "all" and node_id not in {getattr(one, "id", one) for one in wanted}

    # -- edges -------------------------------------------------------------------------------------

    def _edges(self) -> Iterator[Edge]:
        builder, calls = self._builder, self.origin.calls
        number = 0
        if len(builder.starts) > 1:
            for start in builder.starts:
                calls[f"/edges/{number}"] = builder.start_call
                yield Edge(source=_START, target=start)
                number += 1
        for found in builder.edges:
            calls[f"/edges/{number}"] = found.call
            yield self._registered(found.edge, found.rule and found.rule.function)
            number += 1
        for mapped in builder.maps:
            calls[f"/edges/{number}"] = mapped.call
            yield Edge(source=mapped.source, target=_map_id(mapped))
            number += 1

    def _registered(self, edge: Edge, function: Any) -> Edge:
        """Return an edge whose function is registered; two functions of one identity get two names."""
        if function is None:
            return edge
        if edge.selection is not None:
            name = self._selection_of(edge, function)
            return msgspec.structs.replace(edge, selection=name)
        if edge.predicate is None:
            return edge
        return msgspec.structs.replace(edge, predicate=_register(self._predicates, edge.predicate, function))

    def _selection_of(self, edge: Edge, function: Any) -> str:
        """Return the name of the selection of an edge: one for all edges of its group, and for no other group
        of its source, because each group is chosen from for itself."""
        group = (edge.source, edge.group)
        taken = {name for (source, _), name in self._chosen.items() if source == edge.source}
        if group not in self._chosen:
            self._chosen[group] = _register(self._selections, edge.selection or "", function, taken)
        return self._chosen[group]

    # -- shared state ------------------------------------------------------------------------------

    def _shared(self) -> Iterator[tuple[str, SharedKey]]:
        seen: set[str] = set()
        for found in self._builder.shared:
            pointer = f"/shared/{found.key.replace('~', '~0').replace('/', '~1')}"
            self.origin.calls[pointer] = found.call
            if found.key in seen:
                message = f'the shared key "{found.key}" is declared twice'
                self._tell("E_DUPLICATE_KEY", message, found.call, "declare it once")
                continue
            seen.add(found.key)
            default = self._kept(found)
            yield found.key, SharedKey(reducer=self._reducer(found), default=default)

    def _kept(self, found: SharedDeclaration) -> Any:
        try:
            return None if found.default is None else self.payloads.keep(found.default)
        except MessageNotEncodable as error:
            message = f'the default of the shared key "{found.key}": {error}'
            self._tell("E_NOT_ENCODABLE", message, found.call, error.hint)
            return None

    def _reducer(self, found: SharedDeclaration) -> str | None:
        if found.reducer is None:
            return None
        name = reducers.name_of(found.reducer)
        if name is None:
            shown = getattr(found.reducer, "__name__", found.reducer)
            message = f'the reducer {shown} of the shared key "{found.key}" is not registered'
            self._tell("E_UNREGISTERED_CALLABLE", message, found.call, "call reducers.register(name, fn)")
        return name

    def _tell(self, code: str, message: str, call: Call, hint: str | None) -> None:
        pointer = f"/told/{len(self.origin.calls)}"
        self.origin.calls[pointer] = call
        self._report.error(code, message, NOWHERE, pointer, hint)

    # -- code --------------------------------------------------------------------------------------

    def _payloads(self) -> Payloads:
        """Return the types that the workflow knows; a clash of two is left to the checks."""
        payloads = Payloads()
        for annotation in self._annotations():
            try:
                payloads.add(annotation)
            except TypeTagClash:
                continue
        return payloads

    def _annotations(self) -> Iterator[Any]:
        yield from _OWN_TYPES
        for found in self._builder.nodes:
            if found.placed.executor is not None:
                try:
                    yield from found.placed.executor.annotations
                except (NameError, TypeError):
                    continue
            elif found.placed.workflow is not None:
                yield from found.placed.workflow.callables.payloads.types.values()
        yield from (found.type for found in self._builder.shared)

    def callables(self) -> Callables:
        """Return the code behind the names of the graph."""
        placed = [found.placed for found in self._builder.nodes]
        return Callables(
            executors={one.node.id: one.template for one in placed if one.template is not None},
            predicates=dict(self._predicates),
            selections=dict(self._selections),
            payloads=self.payloads,
            shared={found.key: found.type for found in self._builder.shared},
            workflows={one.node.id: one.workflow for one in placed if one.workflow is not None},
        )


def _register(known: dict[str, Any], name: str, function: Any, taken: Collection[str] = ()) -> str:
    """Register a function under its name, or under `name#2` and so on if that is taken or means another."""
    number, key = 1, name
    while key in taken or known.get(key, function) is not function:
        number += 1
        key = f"{name}#{number}"
    known[key] = function
    return key


def _map_id(found: MapEdges) -> str:
    return f"map_{found.worker}"


def _map_node(found: MapEdges, index: int) -> MapNode:
    return MapNode(
        id=_map_id(found),
        index=index,
        items_path="input",
        exchange=True,
        body=found.worker,
        next=found.join,
        max_in_flight=found.max_in_flight,
    )
