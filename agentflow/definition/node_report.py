"""Reports what is wrong with one node of a graph: values, templates and expressions, by JSON pointer.

The `check` of a kind gets a NodeReport bound to its node, and names fields relative to it: "input",
"agent/max_turns".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from agentflow.definition.connections import Connections, reachable, waits_by_rule
from agentflow.definition.expressions import Expression, ExpressionError, compile_template, parse, parse_whole
from agentflow.definition.ir import Node, Workflow
from agentflow.definition.ir_report import IrReport
from agentflow.definition.kinds import kind_of
from agentflow.definition.paths import parse_path
from agentflow.definition.report import shown

if TYPE_CHECKING:
    from agentflow.definition.way_checks import Regions

__all__ = ["ROOTS", "NodeReport", "Scopes"]

ROOTS = frozenset({"steps", "inputs", "item", "index", "input", "nodes", "globals", "state"})
"""The names that begin a path in the expressions of a graph (page 003 §3)."""

_BRACES = ("${{", "{{")


class Scopes:
    """What the expressions of a graph may read. `has_item`: if a node is on a child path of a map."""

    def __init__(self, workflow: Workflow, found: Connections, regions: Regions) -> None:
        inner = [node for node in workflow.nodes if not kind_of(node).is_border]
        self.steps = {node.id for node in inner if waits_by_rule(node)}
        self.nodes = [node.id for node in inner]
        self.has_item = regions.has_item
        self._waits = found.waits
        self._before: tuple[str, set[str]] | None = None  # of the last node that asked

    def comes_before(self, name: str, node_id: str) -> bool:
        """Return True if a node waits for another one, directly or not."""
        if name in self._waits[node_id]:
            return True
        if self._before is None or self._before[0] != node_id:
            self._before = node_id, reachable(self._waits[node_id], self._waits)
        return name in self._before[1]


class NodeReport:
    """Reports on one node, or with `node` None on what stands beside the nodes (`outputs`, `options`)."""

    def __init__(self, node: Node | None, pointer: str, scopes: Scopes, report: IrReport) -> None:
        self._node = node
        self._pointer = pointer
        self._scopes = scopes
        self._report = report

    def error(self, code: str, message: str, field: str = "", hint: Any = None) -> None:
        """Record an error at a field."""
        self._report.error(code, message, self._at(field), hint)

    def warning(self, code: str, message: str, field: str = "", hint: Any = None) -> None:
        """Record a warning at a field."""
        self._report.warning(code, message, self._at(field), hint)

    def conflict(self, field: str, why: str, hint: str) -> None:
        """Refuse a field that has no effect beside the others."""
        name = field.rpartition("/")[2]
        self.error("E_CONFLICTING_FIELDS", f"{why}: {name} has no effect", field, hint)

    def graph(self, field: str, graph: Workflow) -> None:
        """Check an inner graph like a whole one."""
        from agentflow.definition.ir_checks import check_graph

        inner = IrReport(self._report.report, self._report.base + self._at(field))
        check_graph(graph, inner)
        self._report.failed |= inner.failed

    def _at(self, field: str) -> str:
        return f"{self._pointer}/{field}" if field else self._pointer

    # -- values ---------------------------------------------------------------------------------

    def at_least_one(self, owner: msgspec.Struct, prefix: str, *keys: str) -> None:
        """Require counts ≥ 1 of those fields of `owner` that are set; `prefix` ends in "/" or is ""."""
        for key in keys:
            value = getattr(owner, key)
            if value is not None:
                self.range(prefix + key, value, least=1)

    def range(
        self,
        field: str,
        value: float,
        *,
        above: float = -math.inf,
        least: float = -math.inf,
        most: float = math.inf,
        code: str = "E_VALUE",
    ) -> None:
        """Require a number within bounds."""
        key = field.rpartition("/")[2]
        if value <= above:
            self.error(code, f"{key} {value} is not above {above}", field)
        elif value < least:
            self.error(code, f"{key} {value} is below {least}", field)
        elif value > most:
            self.error(code, f"{key} {value} is above {most}", field)

    def not_blank(self, field: str, text: str) -> None:
        """Require a text that is not blank."""
        if not text.strip():
            name = self._node.id if self._node else "the workflow"
            self.error("E_EMPTY_FIELD", f'{field.rpartition("/")[2]} of "{name}" is blank', field)

    def schema(self, field: str, schema: dict[str, Any] | bool, code: str = "E_SCHEMA") -> bool:
        """Require a JSON Schema that can be applied; return True if it is one."""
        from agentflow.definition.schemas import check_applicable, check_schema

        problems = check_schema(schema) or check_applicable(schema)
        for problem in problems:
            self.error(problem.code or code, shown(problem.message, 200), field + problem.path, problem.hint)
        return not problems

    # -- expressions ----------------------------------------------------------------------------

    def expression(self, field: str, text: str) -> None:
        """Check a field that is one expression, without braces."""
        try:
            expression = parse(text, roots=ROOTS)
        except ExpressionError as error:
            self._syntax(error, field)
            return
        self._reads(expression, field, item=self._node_has_item(), status=False)

    def path(self, field: str, text: str) -> None:
        """Check a `*_path` field."""
        try:
            expression = parse_path(text, ROOTS)
        except ExpressionError as error:
            self._syntax(error, field)
            return
        self._reads(expression, field, item=self._node_has_item(), status=False)

    def gate(self, field: str, text: str, *, bare: bool) -> None:
        """Check a `guard` (with `bare`) or a `for_each`."""
        try:
            expression = parse_whole(text, bare=bare, roots=ROOTS)
        except ExpressionError as error:
            self._syntax(error, field)
            return
        self._reads(expression, field, item=self._in_map() or (bare and self._iterates()), status=bare)

    def template(self, field: str, value: Any, *, item: bool | None = None) -> bool:
        """Check the templates in a JSON value, None and UNSET have none; return True if it has an expression.

        `item`: it may read the item; None: if the node has one.
        """
        if value is None or value is msgspec.UNSET:
            return False
        if item is None:
            item = self._node_has_item()
        errors: list[ExpressionError] = []
        template = compile_template(value, braces=_BRACES, roots=ROOTS, errors=errors)
        for error in errors:
            self._syntax(error, field + error.path)
        for inner, _, expression in template.expressions:
            self._reads(expression, field + inner, item=item, status=False)
        return bool(template.expressions or errors)

    def _iterates(self) -> bool:
        return self._node is not None and self._node.for_each is not None

    def _in_map(self) -> bool:
        return self._node is not None and self._scopes.has_item(self._node.id)

    def _node_has_item(self) -> bool:
        return self._iterates() or self._in_map()

    def _syntax(self, error: ExpressionError, field: str) -> None:
        for problem in (error, *error.also):
            message = f"{problem.message}, at character {problem.offset + 1}"
            self.error(problem.code, message, field, problem.hint)

    def _reads(self, expression: Expression, field: str, *, item: bool, status: bool) -> None:
        """Check scope, and references to nodes."""
        if expression.status_functions and not status:
            name = min(expression.status_functions)
            self.error("E_EXPR_SCOPE", f"{name}() is known in guards only", field)
        for root in sorted(expression.roots & {"item", "index"}):
            if not item:
                self.error("E_EXPR_SCOPE", f'"{root}" needs for_each on this node', field)
        for reference in expression.references:
            root, *rest = reference.path
            if root in ("steps", "nodes"):
                self._names(str(root), rest, field)

    def _names(self, root: str, rest: Sequence[str | int | None], field: str) -> None:
        node, scopes = self._node, self._scopes
        name = str(rest[0]) if rest and rest[0] is not None else None
        inside = node is not None and node.id in scopes.steps
        if name is None:
            if root == "steps" and inside:
                message = f'"{shown(node.id if node else "")}" reads all of steps, not only those before it'
                self.error("E_REF_NOT_DEPENDENCY", message, field, "write steps.<id> of a dependency")
            return
        if name not in scopes.nodes:
            hint = self._report.report.did_you_mean(name, scopes.nodes)
            self.error("E_UNKNOWN_REFERENCE", f'there is no node "{shown(name)}"', field, hint)
        elif root == "steps" and name not in scopes.steps:
            message = f'"{name}" is entered by tokens, and is no member of steps'
            self.error("E_UNKNOWN_REFERENCE", message, field, f"write nodes.{name}")
        elif root == "steps" and node is not None and inside and not scopes.comes_before(name, node.id):
            message = f'"{node.id}" reads "{name}", not a dependency'
            self.error("E_REF_NOT_DEPENDENCY", message, field, f"add {name} to depends_on")
