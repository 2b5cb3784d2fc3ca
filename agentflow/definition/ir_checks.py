"""What can be wrong with a graph that was built in Python (page 003 §5, for the kinds of nodes there are).

A graph that passes is safe to compile and to run: every target exists, every expression parses, every value
is in its range. Diagnostics have a JSON pointer into the canonical JSON of the graph, and no line.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

import msgspec

from agentflow.definition.graph_checks import components
from agentflow.definition.ir import Node, Workflow, canonical_json, decode_ir, wire_type
from agentflow.definition.ir_values import check_values
from agentflow.definition.kinds import kind_of
from agentflow.definition.node_report import Links, reachable
from agentflow.definition.nodes import child_pointer
from agentflow.definition.report import NOWHERE, Fatal, Report, shown
from agentflow.definition.type_errors import explain

__all__ = ["accepted_graph", "check_graph"]

_ID = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,127}")
_MAX_DEPTH = 200
_MAX_BITS = 3_320  # a thousand digits


def accepted_graph(workflow: Workflow, report: Report) -> Workflow:
    """The graph as its stored bytes say it, checked; all problems go to the report.

    Raises Fatal when it is no JSON, or when a field has another type than it should.
    """
    _check_plain(workflow, report)
    if report.has_errors:
        raise Fatal("E_TYPE")
    try:
        stored = decode_ir(canonical_json(workflow))
    except msgspec.ValidationError as error:
        problem = explain(error, wire_type())
        message = problem.sentence("the workflow")
        raise report.fatal("E_TYPE", message, NOWHERE, problem.pointer, problem.hint) from None
    check_graph(stored, report)
    return stored


def _check_plain(value: Any, report: Report) -> None:
    """Reports what JSON cannot hold, each at its place. Does not recurse."""
    todo: list[tuple[Any, str, int]] = [(value, "", 0)]
    while todo:
        item, path, depth = todo.pop()
        problem = (
            _plain_problem(item) if depth <= _MAX_DEPTH else f"values are nested deeper than {_MAX_DEPTH}"
        )
        if problem is not None:
            _error(report, "E_LIMIT" if depth > _MAX_DEPTH else "E_TYPE", problem, path)
        elif isinstance(item, msgspec.Struct):
            for field in item.__struct_fields__:
                inner = getattr(item, field)
                if inner is not msgspec.UNSET:
                    todo.append((inner, child_pointer(path, field), depth + 1))
        elif isinstance(item, Mapping):
            members = cast("Mapping[str, Any]", item).items()
            todo += [(inner, child_pointer(path, key), depth + 1) for key, inner in members]
        elif isinstance(item, list | tuple):
            items = cast("list[Any]", item)
            todo += [(inner, f"{path}/{i}", depth + 1) for i, inner in enumerate(items)]


def _plain_problem(item: Any) -> str | None:
    match item:
        case None | bool() | list() | tuple() | msgspec.Struct():
            return None
        case Mapping():
            keys = cast("Mapping[Any, Any]", item)
            wrong = next((k for k in keys if not isinstance(k, str) or _surrogate(k)), None)
            return None if wrong is None else f"key {shown(repr(wrong))} is not a string of characters"
        case str():
            return "string holds a lone surrogate" if _surrogate(item) else None
        case int():
            return "number has more than 1,000 digits" if item.bit_length() > _MAX_BITS else None
        case float():
            return None if math.isfinite(item) else f"{item} is not a JSON number"
        case _:
            return f"{type(item).__name__} is not a JSON type"


def _surrogate(text: str) -> bool:
    return not text.isascii() and any("\ud800" <= c <= "\udfff" for c in text)


def check_graph(workflow: Workflow, report: Report) -> None:
    """Reports everything that is wrong with the graph. It must be one that `decode_ir` gives."""
    if not workflow.name.strip():
        _error(report, "E_EMPTY_WORKFLOW_NAME", "the workflow has no name", "/name")
    if not workflow.nodes:
        _error(report, "E_EMPTY_WORKFLOW", "the workflow has no nodes", "/nodes")
        return
    by_id = _identify(workflow, report)
    _check_ends(workflow, report)
    tokens, waits = _links(workflow, by_id, report)
    leading = {edge.source for edge in workflow.edges}
    leading |= {node.id for node in workflow.nodes if kind_of(node).ports(node)}
    for i, node in enumerate(workflow.nodes):
        _check_fields(node, node.id in leading, f"/nodes/{i}", report)
    _check_circles(workflow, waits, report)
    if not report.has_errors:
        _check_ways(workflow, tokens, waits, report)
    if not report.has_errors:
        _check_loops(workflow, tokens, report)
    check_values(workflow, waits, report)


def _error(report: Report, code: str, message: str, path: str, hint: str | None = None) -> None:
    report.error(code, message, NOWHERE, path, hint)


def _identify(workflow: Workflow, report: Report) -> dict[str, Node]:
    by_id: dict[str, Node] = {}
    for i, node in enumerate(workflow.nodes):
        path = f"/nodes/{i}/id"
        if not node.id.strip():
            _error(report, "E_EMPTY_NODE_ID", "the node has no id", path)
        elif not _ID.fullmatch(node.id):
            hint = "begin with a letter or _, go on with letters, digits, _ and -, at most 128"
            _error(report, "E_INVALID_NODE_ID", f'"{shown(node.id)}" is not an id', path, hint)
        elif node.id.startswith("__") and not kind_of(node).is_border:
            message = f'id "{node.id}" is reserved: it begins with "__"'
            _error(report, "E_INVALID_NODE_ID", message, path, "choose another id")
        if by_id.setdefault(node.id, node) is not node:
            _error(report, "E_DUPLICATE_NODE_ID", f'id "{shown(node.id)}" is already used', path)
    return by_id


def _check_ends(workflow: Workflow, report: Report) -> None:
    starts = [i for i, node in enumerate(workflow.nodes) if kind_of(node).is_start]
    if not starts:
        _error(report, "E_MISSING_START", "the workflow has no start", "/nodes", "add a StartNode")
    for i in starts[1:]:
        _error(report, "E_MULTIPLE_START", "the workflow has more than one start", f"/nodes/{i}")
    if not any(kind_of(node).is_end for node in workflow.nodes):
        _error(report, "E_MISSING_END", "the workflow has no end", "/nodes", "add an EndNode")


def _links(workflow: Workflow, by_id: dict[str, Node], report: Report) -> tuple[Links, Links]:
    """Where tokens go, and which nodes wait for which; what names no node is reported and left out."""
    tokens: Links = {node_id: [] for node_id in by_id}
    waits: Links = {node_id: [] for node_id in by_id}
    for i, node in enumerate(workflow.nodes):
        for key, target in kind_of(node).ports(node):
            path = f"/nodes/{i}/{key}"
            if not _exists(target, path, by_id, report) or _waits(node):
                continue
            if _entered(node, by_id[target], path, report):
                tokens[node.id].append(target)
        for j, dependency in enumerate(node.depends_on):
            path = f"/nodes/{i}/depends_on/{j}"
            if dependency not in by_id:
                message = f'"{shown(node.id)}" depends on unknown node "{shown(dependency)}"'
                hint = report.did_you_mean(dependency, list(by_id))
                report.error("E_UNKNOWN_DEPENDENCY", message, NOWHERE, path, hint)
            elif kind_of(by_id[dependency]).is_end:
                _error(report, "E_VALUE", f'nothing comes after the end "{dependency}"', path)
            elif not kind_of(by_id[dependency]).is_start:
                waits[node.id].append(dependency)
    seen: set[tuple[str, str]] = set()
    for i, edge in enumerate(workflow.edges):
        path = f"/edges/{i}"
        if not all(
            [
                _exists(edge.source, f"{path}/source", by_id, report),
                _exists(edge.target, f"{path}/target", by_id, report),
            ]
        ):
            continue
        if (edge.source, edge.target) in seen or edge.target in tokens[edge.source]:
            message = f'the edge from "{edge.source}" to "{edge.target}" is repeated'
            _error(report, "E_DUPLICATE_EDGE", message, path)
            continue
        seen.add((edge.source, edge.target))
        if _followed(by_id[edge.source], by_id[edge.target], path, report):
            tokens[edge.source].append(edge.target)
    return tokens, waits


def _exists(target: str, path: str, by_id: dict[str, Node], report: Report) -> bool:
    if target in by_id:
        return True
    hint = report.did_you_mean(target, list(by_id))
    report.error("E_UNKNOWN_TARGET", f'there is no node "{shown(target)}"', NOWHERE, path, hint)
    return False


def _followed(source: Node, target: Node, path: str, report: Report) -> bool:
    """Whether tokens go along an edge; one that nothing would ever follow is reported. Those of the start
    and to the end may be written out also where nodes wait for each other."""
    hint = None
    kind = kind_of(source)
    if kind.is_end:
        message = f'nothing comes after the end "{source.id}"'
    elif kind.routing is not None:
        ports = " and ".join(port for port, _ in kind.ports(source))
        message = f'the {kind.name} "{source.id}" has {ports} alone'
    elif _waits(source):
        if kind_of(target).is_end:
            return False
        message = f'"{source.id}" sends nothing along edges: it waits by rule {source.join}'
        hint = f'let "{target.id}" depend on it'
    else:
        return _entered(source, target, path, report)
    _error(report, "E_CONFLICTING_FIELDS", message, path, hint)
    return False


def _entered(source: Node, target: Node, path: str, report: Report) -> bool:
    """Whether tokens enter the target; where they never would, that is reported."""
    hint = None
    if kind_of(target).is_start:
        message = f'nothing leads to the start "{target.id}"'
    elif not _waits(target):
        return True
    elif kind_of(source).is_start and not target.depends_on:
        return False
    else:
        message = f'"{target.id}" is not entered by edges: it waits by rule {target.join}'
        hint = f'add "{source.id}" to its depends_on'
    _error(report, "E_CONFLICTING_FIELDS", message, path, hint)
    return False


def _waits(node: Node) -> bool:
    """Whether this is a node of a dependency graph, which tokens neither enter nor leave."""
    return node.join != "any" and not kind_of(node).is_border


def _check_fields(node: Node, leads_on: bool, path: str, report: Report) -> None:
    """Fields that have no effect where they stand, and a way on that is missing."""
    without_effect: tuple[str, ...] = ("depends_on", "guard", "for_each")
    why, hint = f'"{node.id}" is entered by tokens', 'set join to "all_succeeded"'
    if _waits(node):
        without_effect = ("next",)
        why, hint = f'"{node.id}" waits by rule {node.join}', "let the next node depend on it"
        kind = kind_of(node)
        if kind.routing is not None:
            message = f"{why}, but a {kind.name} sends a token on"
            _error(report, "E_CONFLICTING_FIELDS", message, f"{path}/join", 'leave it "any"')
    elif not leads_on and not kind_of(node).is_border:
        message = f'"{node.id}" leads nowhere'
        _error(report, "E_MISSING_NEXT", message, path, "set next, or let it wait by depends_on")
    for field in without_effect:
        if getattr(node, field, None):
            message = f"{why}: {field} has no effect"
            _error(report, "E_CONFLICTING_FIELDS", message, f"{path}/{field}", hint)


def _check_circles(workflow: Workflow, waits: Links, report: Report) -> None:
    order = {node.id: i for i, node in enumerate(workflow.nodes)}
    for circle in _circles(waits, order):
        message = shown(f"nodes wait for each other: {', '.join(circle)}", 200)
        _error(report, "E_CYCLE", message, f"/nodes/{order[circle[0]]}")


def _check_loops(workflow: Workflow, tokens: Links, report: Report) -> None:
    """Ways on which a token comes back, and no person is asked."""
    order = {node.id: i for i, node in enumerate(workflow.nodes)}
    for circle in _circles(tokens, order):
        if all(workflow.nodes[order[node_id]].approval is None for node_id in circle):
            message = shown(f"nothing bounds the way round {', '.join(circle)}", 200)
            hint = f"the run fails after {workflow.options.max_steps:,} steps: options.max_steps"
            report.warning("W_UNBOUNDED_CYCLE", message, NOWHERE, f"/nodes/{order[circle[0]]}", hint)


def _circles(links: Links, order: dict[str, int]) -> Iterator[list[str]]:
    """The groups of nodes that lead back to themselves, each in declared order."""
    for group in components({node_id: tuple(targets) for node_id, targets in links.items()}):
        if len(group) > 1 or group[0] in links[group[0]]:
            yield sorted(group, key=order.__getitem__)


def _check_ways(workflow: Workflow, tokens: Links, waits: Links, report: Report) -> None:
    """Every node lies on a way from the start to an end. The graph is whole: all that is named exists."""
    start = next(node.id for node in workflow.nodes if kind_of(node).is_start)
    ends = [node.id for node in workflow.nodes if kind_of(node).is_end]
    onward = {node_id: list(targets) for node_id, targets in tokens.items()}
    awaited = {dependency for waiting in waits.values() for dependency in waiting}
    for node in workflow.nodes:
        if not _waits(node):
            continue
        for dependency in waits[node.id] or [start]:
            onward[dependency].append(node.id)
        if node.id not in awaited:
            onward[node.id] += ends
    reached = reachable([start], onward)
    if not reached & set(ends):
        message, hint = "no way leads from the start to an end", "set next of the StartNode"
        path = f"/nodes/{[n.id for n in workflow.nodes].index(start)}"
        _error(report, "E_NO_PATH_TO_END", message, path, hint)
    back: Links = {node_id: [] for node_id in onward}
    for source, targets in onward.items():
        for target in targets:
            back[target].append(source)
    leading = reachable(ends, back)
    for i, node in enumerate(workflow.nodes):
        if node.id not in reached:
            message = f'no way leads from the start to "{node.id}"'
            _error(report, "E_UNREACHABLE_NODE", message, f"/nodes/{i}")
        elif node.id not in leading and node.id != start:
            _error(report, "E_DEAD_END", f'no way leads from "{node.id}" to an end', f"/nodes/{i}")
