"""Reports what is wrong with one node of a graph: values, templates and expressions, by JSON pointer.

The `check` of a kind gets a NodeReport bound to its node, and names fields relative to it: "input",
"agent/max_turns".
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import msgspec

from agentflow.definition.expression_checks import ExpressionChecks, Scope
from agentflow.definition.ir import Node, Workflow
from agentflow.definition.ir_report import IrReport
from agentflow.definition.report import shown
from agentflow.definition.schema_checks import schema_problems

if TYPE_CHECKING:
    from agentflow.definition.way_checks import Regions

__all__ = ["NodeReport"]


class NodeReport:
    """Reports on one node, or with `node` None on what stands beside the nodes (`outputs`, `options`)."""

    def __init__(
        self,
        node: Node | None,
        pointer: str,
        regions: Regions,
        expressions: ExpressionChecks,
        report: IrReport,
    ) -> None:
        self._node = node
        self._pointer = pointer
        self._expressions = expressions
        self._report = report
        # The schema of the item that the node has; None if it has none.
        self._item: Any = True if node is not None and regions.has_item(node.id) else None

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

        inner = IrReport(self._report.report, self._report.origin, self._whole(field))
        own = self._node.capabilities if self._node is not None else None
        inner.grants = self._report.grants if own is None else (*self._report.grants, own)
        inner.graphs = self._report.graphs
        check_graph(graph, inner)
        self._report.failed |= inner.failed

    def named_graph(self, name: str) -> Workflow | None:
        """Return the graph that a name means; None if the document has none: it may be a registered one."""
        return self._report.graphs.get(name)

    def is_written(self, field: str) -> bool:
        """Return False for a field that the front end made, or that was reported as wrong."""
        return self._report.origin.find(self._whole(field)) is not None

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
        if not self.is_written(field):
            return True
        problems = schema_problems(schema)
        for problem in problems:
            self.error(problem.code or code, shown(problem.message, 200), field + problem.path, problem.hint)
        return not problems

    # -- expressions ----------------------------------------------------------------------------

    def expression(
        self, field: str, text: str, form: str = "expression", *, item: bool | None = None
    ) -> None:
        """Check a field that is one expression, without braces; of form `signal` it may read that root.
        `item`: as for a template."""
        self._expressions.expression(self._whole(field), text, self._with_item(field, item), form)

    def path(self, field: str, text: str) -> None:
        """Check a `*_path` field."""
        self._expressions.expression(self._whole(field), text, self._scope(field), "path")

    def for_each(self, text: str) -> None:
        """Check a `for_each`; what is checked later may read its item."""
        scope = msgspec.structs.replace(self._scope("for_each"), may_have_item=False)
        self._item = self._expressions.for_each(self._whole("for_each"), text, scope)

    def guard(self, text: str) -> None:
        """Check a guard."""
        scope = msgspec.structs.replace(self._scope("guard"), status=True)
        self._expressions.guard(self._whole("guard"), text, scope)

    def template(self, field: str, value: Any, *, item: bool | None = None) -> bool:
        """Check the templates in a JSON value, None and UNSET have none; return True if it has an expression.

        `item`: it may read the item; None: if the node has one.
        """
        if value is None or value is msgspec.UNSET:
            return False
        return self._expressions.template(self._whole(field), value, self._with_item(field, item))

    def _with_item(self, field: str, item: bool | None) -> Scope:
        scope = self._scope(field)
        if item is None:
            return scope
        return msgspec.structs.replace(scope, item=(self._item or True) if item else None, may_have_item=item)

    def _whole(self, field: str) -> str:
        return self._report.base + self._at(field)

    def _scope(self, field: str) -> Scope:
        where = self._report.origin.field(field)
        return self._expressions.scope(self._node, self._pointer, where, self._item)
