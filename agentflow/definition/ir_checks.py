"""What can be wrong with a graph that was built in Python (page 003 §5, for the kinds of nodes there are).

A graph that passes is safe to compile and to run: every target exists, every expression parses, every value
is in its range. Diagnostics have a JSON pointer into the canonical JSON of the graph, and no line.
"""

from __future__ import annotations

import re

import msgspec

from agentflow.definition.capability_checks import check_capabilities
from agentflow.definition.connections import connect
from agentflow.definition.edge_checks import check_edges
from agentflow.definition.expression_checks import ExpressionChecks
from agentflow.definition.field_checks import check_common_fields
from agentflow.definition.ir import Node, Workflow, canonical_json, decode_ir, wire_type
from agentflow.definition.ir_report import IrReport
from agentflow.definition.ir_values import check_values
from agentflow.definition.json_values import json_problems
from agentflow.definition.kinds import kind_of
from agentflow.definition.passed_checks import check_passed
from agentflow.definition.pipeline_nodes import RESERVED
from agentflow.definition.report import NOWHERE, Fatal, Report, shown
from agentflow.definition.type_errors import explain
from agentflow.definition.way_checks import (
    Regions,
    check_branches,
    check_choices,
    check_loops,
    check_missing_next,
    check_waits,
    check_ways,
)

__all__ = ["accepted_graph", "check_graph"]

_ID = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,127}")


def accepted_graph(workflow: Workflow, report: Report, *, is_own: bool = False) -> Workflow:
    """Return the graph as its stored bytes say it, checked; all problems go to the report. `is_own`: the
    runtime built it, and may use the names in metadata that are reserved for it.

    Raises Fatal when it is no JSON, or when a field has another type than it should.
    """
    for path, problem, code in json_problems(workflow, structs=True):
        report.error(code, problem, NOWHERE, path)
    if report.has_errors:
        raise Fatal("E_TYPE")
    try:
        stored = decode_ir(canonical_json(workflow))
    except msgspec.ValidationError as error:
        problem = explain(error, wire_type())
        message = problem.sentence("the workflow")
        raise report.fatal("E_TYPE", message, NOWHERE, problem.pointer, problem.hint) from None
    check_graph(stored, IrReport(report), is_own=is_own)
    return stored


def check_graph(workflow: Workflow, report: IrReport, *, is_own: bool = False) -> ExpressionChecks | None:
    """Report everything that is wrong with the graph, which must be one that `decode_ir` gives; return what
    its expressions read, None if it has no nodes."""
    if not workflow.name.strip():
        report.error("E_EMPTY_WORKFLOW_NAME", "the workflow has no name", "/name")
    if not workflow.nodes:
        report.error("E_EMPTY_WORKFLOW", "the workflow has no nodes", "/nodes")
        return None
    if workflow.graphs:
        report.graphs = {**report.graphs, **workflow.graphs}
    if not is_own:
        _check_metadata(workflow, report)
    by_id = _identify(workflow, report)
    _check_ends(workflow, report)
    found = connect(workflow, by_id, report)
    regions = Regions(found)
    for i, node in enumerate(workflow.nodes):
        check_common_fields(node, f"/nodes/{i}", report)
    check_missing_next(workflow, found, regions, report)
    check_waits(found, report)
    if not report.failed:
        check_branches(found, regions, report)
        check_ways(workflow, found, regions, report)
    if not report.failed:
        check_loops(workflow, found, report)
    expressions = check_values(workflow, found, regions, report)
    check_edges(workflow, expressions, report)
    check_capabilities(workflow, expressions.reads, report)
    if not report.failed:
        check_choices(workflow, found, report)
        check_passed(workflow, found, regions, expressions.reads, report)
    return expressions


def _check_metadata(workflow: Workflow, report: IrReport) -> None:
    """Report metadata by which the runtime marks nodes of its own."""
    places = [("/metadata", workflow.metadata)]
    places += [(f"/nodes/{i}/metadata", node.metadata) for i, node in enumerate(workflow.nodes)]
    for place, metadata in places:
        for key in metadata:
            if key.startswith(RESERVED):
                message = f'metadata "{shown(key)}" is reserved: it begins with "{RESERVED}"'
                report.error("E_VALUE", message, f"{place}/{key}", "choose another name")


def _identify(workflow: Workflow, report: IrReport) -> dict[str, Node]:
    by_id: dict[str, Node] = {}
    positions: dict[str, str] = {}
    words = report.origin.words
    for i, node in enumerate(workflow.nodes):
        path = f"/nodes/{i}/id"
        if not node.id.strip():
            report.error("E_EMPTY_NODE_ID", "the node has no id", path)
        elif not _ID.fullmatch(node.id):
            hint = "begin with a letter or _, go on with letters, digits, _ and -, at most 128"
            report.error("E_INVALID_NODE_ID", f'"{shown(node.id)}" is not an id', path, hint)
        elif node.id.startswith("__") and not kind_of(node).is_border:
            message = f'id "{node.id}" is reserved: it begins with "__"'
            report.error(words.reserved, message, path, words.reserved_hint)
        by_id.setdefault(node.id, node)
        is_written = report.origin.find(report.base + path) is not None
        first = positions.setdefault(node.id, path) if is_written else path
        if first != path:
            place = report.origin.find(report.base + first)
            where = f" at {place[0][0]}:{place[0][1]}" if place is not None and place[0][0] else ""
            message = f'{words.id} "{shown(node.id)}" is already used{where}'
            report.error(words.duplicate, message, path, f"give each {words.node} an id of its own")
    return by_id


def _check_ends(workflow: Workflow, report: IrReport) -> None:
    starts = [i for i, node in enumerate(workflow.nodes) if kind_of(node).is_start]
    if not starts:
        hint = report.origin.words.start_hint
        report.error("E_MISSING_START", "the workflow has no start", "/nodes", hint)
    for i in starts[1:]:
        report.error("E_MULTIPLE_START", "the workflow has more than one start", f"/nodes/{i}")
    if not any(kind_of(node).is_end for node in workflow.nodes):
        report.error("E_MISSING_END", "the workflow has no end", "/nodes", "add an EndNode")
