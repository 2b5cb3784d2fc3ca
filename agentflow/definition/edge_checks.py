"""What is wrong with `edges[]` and their groups (page 002 §4, §5, §13)."""

from __future__ import annotations

from collections.abc import Iterator

from agentflow.definition.expression_checks import ExpressionChecks, Scope
from agentflow.definition.ir import Edge, Workflow
from agentflow.definition.ir_report import IrReport
from agentflow.definition.policy import MAX_SECONDS
from agentflow.definition.report import shown

__all__ = ["check_edges"]

_FIELDS: dict[str, tuple[str, ...]] = {
    "single": ("when", "predicate"),
    "fan_out": ("group",),
    "multi": ("group", "selection"),
    "switch": ("group", "when", "predicate"),
    "fan_in": ("group", "on_missing", "quorum", "timeout"),
    "error": (),
}
"""By kind of edge: the fields that have an effect."""

_OPTIONAL = {
    **dict.fromkeys(("group", "when", "predicate", "selection", "quorum", "timeout")),
    "on_missing": "partial",
}

Group = list[tuple[int, Edge]]


def check_edges(workflow: Workflow, expressions: ExpressionChecks, report: IrReport) -> None:
    """Check the fields of each edge, and each group."""
    for i, edge in enumerate(workflow.edges):
        _check_fields(edge, f"/edges/{i}", report)
        if edge.when is not None:
            expressions.expression(f"{report.base}/edges/{i}/when", edge.when, Scope("when"), "edge")
    for group in _groups(workflow.edges):
        _check_group(group, report)


def _check_fields(edge: Edge, path: str, report: IrReport) -> None:
    for field, default in _OPTIONAL.items():
        if getattr(edge, field) != default and field not in _FIELDS[edge.kind]:
            message = f"{field} has no effect on an edge of kind {edge.kind}"
            kinds = [kind for kind, fields in _FIELDS.items() if field in fields]
            report.error("E_CONFLICTING_FIELDS", message, f"{path}/{field}", f"it is for {', '.join(kinds)}")
    if edge.predicate is not None and edge.when is not None:
        message = "an edge has a when or a predicate, not both"
        report.error("E_CONFLICTING_FIELDS", message, f"{path}/predicate", "keep one of them")
    if edge.kind == "multi" and not (edge.selection or "").strip():
        report.error("E_EMPTY_FIELD", "the edge has no selection", f"{path}/selection", "name its function")
    if edge.timeout is not None and not 0 < edge.timeout <= MAX_SECONDS:
        message = f"timeout {edge.timeout} is not above 0 and at most {MAX_SECONDS}"
        report.error("E_VALUE", message, f"{path}/timeout")


def _groups(edges: tuple[Edge, ...]) -> Iterator[Group]:
    groups: dict[tuple[str, str, str | None], Group] = {}
    for i, edge in enumerate(edges):
        if "group" in _FIELDS[edge.kind]:
            end = edge.target if edge.kind == "fan_in" else edge.source
            groups.setdefault((edge.kind, end, edge.group), []).append((i, edge))
    yield from groups.values()


def _check_group(group: Group, report: IrReport) -> None:
    index, first = group[0]
    name = f"the {first.kind} {'to' if first.kind == 'fan_in' else 'from'} "
    name += f'"{shown(first.target if first.kind == "fan_in" else first.source)}"'
    if first.kind == "switch":
        defaults = [i for i, edge in group if edge.when is None and edge.predicate is None]
        if not defaults:
            hint = "add an edge without when; in Python Default(node)"
            report.error("E_MISSING_DEFAULT", f"{name} has no default", f"/edges/{index}", hint)
        for i in defaults[1:]:
            hint = "give it a when, or remove it"
            report.error("E_MULTIPLE_DEFAULT", f"{name} has more than one default", f"/edges/{i}", hint)
        return
    if len(group) < 2:
        hint = "add another edge, or write a single one"
        report.error("E_FAN_TOO_SMALL", f"{name} has one edge", f"/edges/{index}", hint)
    shared = ("on_missing", "quorum", "timeout") if first.kind == "fan_in" else ("selection",)
    for field in shared:
        other = next((i for i, e in group if getattr(e, field) != getattr(first, field)), None)
        if other is not None:
            message = f"{field} differs from that of the first edge of {name}"
            report.error("E_CONFLICTING_FIELDS", message, f"/edges/{other}/{field}", "write the same")
    if first.quorum is not None and not 1 <= first.quorum <= len(group):
        message = f"quorum {first.quorum} is not between 1 and {len(group)}, the number of sources"
        report.error("E_VALUE", message, f"/edges/{index}/quorum")
