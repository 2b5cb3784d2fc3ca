"""`subgraph` as a run of its own: of any graph, or of a workflow that takes messages (page 002 §11)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from agentflow.definition.diagnostics import Diagnostic
from agentflow.definition.dynamic_graph import read_graph
from agentflow.definition.expressions import EvaluationError, Expression, Template
from agentflow.definition.failure import ErrorInfo
from agentflow.definition.ir import NodeBase, SubgraphNode, Workflow, canonical_json, decode_ir
from agentflow.engine.activation import Activation
from agentflow.engine.child_requests import RESPONSE, brings_answer, drop_routed, response_moves
from agentflow.engine.child_runs import child_id_of, depth_error
from agentflow.engine.decisions import Decisions, scope_fields, step_completed
from agentflow.engine.grants import grants_of
from agentflow.engine.kinds.kind import Kind, Prepared
from agentflow.engine.messages import Outgoing, packed, takes_type
from agentflow.engine.state import RunState
from agentflow.engine.templates import expression_error, path_expression, value_template
from agentflow.events import catalogue as ev

if TYPE_CHECKING:
    from agentflow.engine.child_runs import ChildReport
    from agentflow.engine.graph import Node

__all__ = [
    "CHILD_RUN",
    "EXCHANGE",
    "Program",
    "as_value",
    "compiled",
    "graph_not_found",
    "graph_problem",
    "input_of",
    "value_at_path",
]


class Program(NamedTuple):
    """The template of the input, if there is one, and the graph."""

    input: Template | None
    graph: Any = None
    """The compiled inner graph; of a child run the path of its graph, if that is a value."""


class ChildRun(Kind):
    """Runs its graph as a run of its own: `workflow.step_started` has the runtime begin it, `child_runs`
    makes events of its reports. While the child rests the step waits, and takes no slot."""

    name = "subgraph"
    takes_slot = True
    starts_run = True
    takes_answers = True
    events = frozenset({ev.ApprovalRequested, ev.InputRequested})

    def compile(self, node: Node) -> Any:
        """Return the template of the input, and the expression of the graph if it is a value."""
        return compiled(node)

    def prepare(self, state: RunState, activation: Activation) -> Prepared | ErrorInfo:
        """Evaluate the input: without a template that of the caller. A graph that is a value is checked."""
        prepared = input_of(state, activation)
        if activation.node.program.graph is None or isinstance(prepared, ErrorInfo):
            return prepared
        graph = value_at_path(state, activation)
        if isinstance(graph, ErrorInfo):
            return graph
        return Prepared(prepared.input, {**prepared.subject, "graph": graph})

    def started_fields(self, state: RunState, activation: Activation, prepared: Prepared) -> dict[str, Any]:
        """Return the id of the child run, and its graph if that is a value of the run."""
        child: dict[str, Any] = {"workflow_id": child_id_of(state, activation)}
        if "graph" in prepared.subject:
            child["graph"] = prepared.subject["graph"]
        return {"child": child}

    def child_definition(self, state: RunState, activation: Activation) -> Workflow | str:
        """Return the graph that is given inline, or the one of the run that has this name; else the name."""
        spec, outer = activation.node.spec, state.graph.workflow
        assert isinstance(spec, SubgraphNode)
        graph = outer.graphs.get(spec.graph) if spec.graph is not None else spec.inline
        if spec.graph_path is not None:
            graph = decode_ir(canonical_json(activation.local))
        if graph is None:
            assert spec.graph is not None
            return spec.graph
        options, room = graph.options, outer.options.max_expression_scope_bytes
        if spec.inline is not None and options.max_expression_scope_bytes is None:
            options = msgspec.structs.replace(options, max_expression_scope_bytes=room)
        return msgspec.structs.replace(
            graph,
            options=options,
            services={**outer.services, **graph.services},
            models={**outer.models, **graph.models},
            graphs={**outer.graphs, **graph.graphs},
        )

    def child_completed(
        self, state: RunState, activation: Activation, report: ChildReport, now: int
    ) -> Decisions:
        """Return the completion of the step with the output of the child."""
        return step_completed(state, activation, now, output=report.output)

    def is_idle(self, activation: Activation) -> bool:
        """Return True: only the child run can move it on."""
        return not brings_answer(activation)

    def started(self, state: RunState, activation: Activation, data: Any, ts: int) -> None:
        """Wait for the child run; keep its graph if that is a value of the run."""
        if data.child is msgspec.UNSET:
            return  # it brings an answer to the child of another activation
        activation.local = data.child.get("graph")
        state.changed.pop(activation.key, None)

    def closed(self, state: RunState, activation: Activation) -> None:
        """Wait for the child run no more; what it asked is asked no more."""
        state.awaited.pop(activation.key, None)
        if state.mail.routed:
            drop_routed(state, activation)


class Exchange(ChildRun):
    """Runs a workflow once for each message that arrives: the message is the input of the child, and the
    outputs of the child go on as messages, or as outputs of this run."""

    yields = True
    events = frozenset({ev.ApprovalRequested, ev.InputRequested, ev.Output})

    def started_fields(self, state: RunState, activation: Activation, prepared: Prepared) -> dict[str, Any]:
        """Return the id of the child run; nothing of an activation that brings an answer to one."""
        return {} if brings_answer(activation) else super().started_fields(state, activation, prepared)

    def next(self, state: RunState, activation: Activation, now: int) -> Decisions:
        """Bring an answer to the child that asked; else only the child can move it on."""
        return response_moves(state, activation, now) if brings_answer(activation) else []

    def prepare(self, state: RunState, activation: Activation) -> Prepared | ErrorInfo:
        """Return the message as the input; a fan-in delivers the list of its round."""
        if brings_answer(activation):
            return Prepared(activation.input, {"input": activation.input})
        too_deep = depth_error(state, activation)
        if too_deep is not None:
            return too_deep
        if activation.snapshot is not None:
            value = activation.snapshot["input"]
        else:
            value = _message(state, activation)[0]
        return Prepared(value, {"input": value})

    def child_options(self, state: RunState, activation: Activation) -> dict[str, Any]:
        """Return the type of the message, by which the start of the child chooses its handler."""
        tag = _message(state, activation)[1]
        return {} if tag is None else {"input_type": tag}

    def child_completed(
        self, state: RunState, activation: Activation, report: ChildReport, now: int
    ) -> Decisions:
        """Return the outputs of the child and the completion of the step."""
        moves: Decisions = []
        messages: Sequence[Outgoing] = report.outputs
        if _spec(activation.node).exchange == "output":
            fields, messages = scope_fields(activation), ()
            moves += [
                ev.Output(**fields, kind="output", index=index, type=given.type, value=given.payload)
                for index, given in enumerate(report.outputs)
            ]
        first: int = activation.local or 0
        return moves + step_completed(
            state, activation, now, output=report.output, messages=messages, first=first
        )

    def is_typed(self, spec: NodeBase) -> bool:
        """Return True: the outputs of the child keep their types."""
        return True

    def accepts(self, node: Node, tags: tuple[str, ...], *, element: bool = False) -> bool:
        """Return whether the start of the workflow takes a message of these types, or a list of such.

        The answer to a request of its child it takes itself."""
        return (RESPONSE in tags and not element) or takes_type(_spec(node).accepts, tags, element=element)


def _spec(node: Node) -> SubgraphNode:
    spec = node.spec
    assert isinstance(spec, SubgraphNode)
    return spec


def _message(state: RunState, activation: Activation) -> tuple[Any, str | None]:
    """Return what arrived, with its type tag; None for a value that nothing typed."""
    value, taken = activation.input, activation.taken
    if taken is None:
        begin = state.begin
        tag = None if begin is None else begin.options.get("input_type")
        return value, tag if value == state.input else None
    if taken.type != "list" or not taken.types:
        return value, taken.type
    if len(set(taken.types)) == 1:
        return value, f"list[{taken.types[0]}]"
    return [packed(one, tag) for one, tag in zip(value, taken.types, strict=True)], "list"


def compiled(node: Node) -> Program:
    spec = node.spec
    assert isinstance(spec, SubgraphNode)
    return Program(
        None if spec.input is msgspec.UNSET else value_template(spec.input),
        None if spec.graph_path is None else path_expression(spec.graph_path),
    )


def value_at_path(state: RunState, activation: Activation) -> dict[str, Any] | ErrorInfo:
    """Return the graph that the node's `graph_path` gives, in normal form, or why there is none."""
    if activation.snapshot is not None:
        return activation.snapshot["graph"]
    where: Expression = activation.node.program.graph
    try:
        value = where.evaluate(state.scope(activation))
    except EvaluationError as error:
        return expression_error(error, "/graph_path")
    found = read_graph(value, grants_of(activation), in_run=not activation.node.kind.starts_run)
    return graph_problem(found) if isinstance(found, list) else as_value(found)


def as_value(graph: Workflow) -> dict[str, Any]:
    """Return a graph as the log keeps it."""
    return msgspec.json.decode(canonical_json(graph))


def graph_not_found(name: str) -> ErrorInfo:
    """Return the error of a name that no graph has."""
    message = f'no graph "{name}" is registered'
    return ErrorInfo(category="invalid_input", code="subgraph_not_found", message=message)


def graph_problem(found: Sequence[Diagnostic]) -> ErrorInfo:
    """Return the error of a graph that cannot run, with all that is wrong with it."""
    return ErrorInfo(
        category="invalid_input",
        code="dynamic_graph_invalid",
        message=f"the graph is not valid: {found[0].message}",
        details={"diagnostics": [msgspec.to_builtins(one) for one in found]},
    )


def input_of(state: RunState, activation: Activation) -> Prepared | ErrorInfo:
    """Return what the graph starts with, or why it may not: it is nested too deep."""
    too_deep = depth_error(state, activation)
    if too_deep is not None:
        return too_deep
    if activation.snapshot is not None:
        value = activation.snapshot["input"]
        return Prepared(value, {"input": value})
    template: Template | None = activation.node.program.input
    value = activation.path.input
    if template is not None:
        try:
            value = template.evaluate(state.scope(activation))
        except EvaluationError as error:
            return expression_error(error, "/input")
    return Prepared(value, {"input": value})


CHILD_RUN, EXCHANGE = ChildRun(), Exchange()
