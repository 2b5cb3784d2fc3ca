"""Static checks of the expressions of a graph: scope, references, types (page 001 §6.1), each at its place.

Every expression is looked at, dead branches too; one that does not parse is reported and left out. Nothing
is evaluated.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import takewhile
from typing import Any

import msgspec

from agentflow.definition.connections import Ancestors, Connections, waits_by_rule
from agentflow.definition.expression_lints import Lint, lint_comparison, lint_condition, text_references
from agentflow.definition.expression_size import exceeded
from agentflow.definition.expressions import Expression, ExpressionError, compile_template, parse, parse_whole
from agentflow.definition.expressions.nodes import (
    Call,
    Compare,
    Digits,
    Index,
    Lit,
    Logic,
    Member,
    Node,
    Not,
    Path,
)
from agentflow.definition.ir import NodeBase, Workflow, agent_of
from agentflow.definition.ir_report import IrReport
from agentflow.definition.kinds import kind_of
from agentflow.definition.origin import Written
from agentflow.definition.paths import parse_path
from agentflow.definition.report import shown
from agentflow.definition.schema_checks import sound_schema
from agentflow.definition.source_tree import Place
from agentflow.definition.static_types import (
    Missing,
    RootSchemas,
    element_schema,
    schema_of,
    value_types,
    walk,
)

__all__ = ["EDGE_ROOTS", "ExpressionChecks", "InputUse", "Read", "Scope"]

EDGE_ROOTS = frozenset({"message", "state"})
"""The names that begin a path in `when` of an edge (page 002 §4)."""

_ELSEWHERE = {"signal": ("match",), "message": ("when",)}
"""Names that only expressions of certain fields know."""

_STATUS_FUNCTIONS = ("success", "failure", "cancelled", "always")
_STEP_PROPERTIES = ("outputs", "status", "error")


class Scope(msgspec.Struct, frozen=True):
    """Where an expression stands: a field of a node, or `outputs`. `before`: the steps that it may read, None
    for all of them. `item`: the schema of the item, None if there is none. `unsure`: `before` was reported as
    wrong."""

    where: str
    node_id: str | None = None
    before: Ancestors | None = None
    item: Any = None
    may_have_item: bool = True
    status: bool = False
    unsure: bool = False


class InputUse(msgspec.Struct, frozen=True):
    """A literal `inputs.<name>`; `optional`: in the left operand of `||`."""

    name: str
    optional: bool
    place: Place
    path: str


class Read(msgspec.Struct, frozen=True):
    """A path that an expression reads: its root, and the members behind it as far as their names are known.

    `place` and `path` say where in the source; `where` is the field of the node.
    """

    node_id: str | None
    where: str
    root: str
    members: tuple[str, ...]
    place: Place
    path: str


class ExpressionChecks:
    """Checks the expressions of one graph. `uses`: of inputs; `named`: inputs that stand in texts."""

    def __init__(self, workflow: Workflow, found: Connections, report: IrReport) -> None:
        self.uses: list[InputUse] = []
        self.all_inputs_used = False
        self.named: set[str] = set()
        self.reads: list[Read] = []
        self._report = report
        self._origin = report.origin
        self._found = found
        inner = {name: node for name, node in found.by_id.items() if name and not kind_of(node).is_border}
        self._nodes = [name for name in found.by_id if name and name not in self._origin.hidden]
        self._steps = {name: node for name, node in inner.items() if waits_by_rule(node)}
        declared = workflow.inputs
        self._inputs = None if declared is None else {k: sound_schema(s.schema) for k, s in declared.items()}
        agents = {name: agent_of(node) for name, node in self._steps.items()}
        self._schemas = {
            name: sound_schema(agent.output_schema)
            for name, agent in agents.items()
            if agent is not None and agent.output_schema is not None
        }
        steps = {name: self._step_schema(name) for name in self._steps}
        self._steps_schema: Any = {"type": "object", "properties": steps}

    def scope(self, node: NodeBase | None, pointer: str, where: str, item: Any) -> Scope:
        """Return the scope of a field of a node; `node` None: of `outputs`, which see all."""
        if node is None:
            return Scope(where, may_have_item=False)
        before = self._found.before(node) if waits_by_rule(node) else None
        unsure = self._origin.is_unsure(pointer) or pointer in self._found.unsure
        return Scope(where, node.id or None, before, item, unsure=unsure)

    # -- fields ---------------------------------------------------------------------------------

    def template(self, pointer: str, value: Any, scope: Scope) -> bool:
        """Check every string inside a template field; return True if one has an expression."""
        has_expression = False
        for written in self._origin.strings(pointer, value):
            errors: list[ExpressionError] = []
            compiled = None
            if "{{" in written.text:
                origin = self._origin
                compiled = compile_template(
                    written.text, braces=origin.braces, roots=origin.roots, errors=errors
                )
            for error in errors:
                self._syntax(error, written)
            if not errors and self._origin.lints:
                self._text_references(written, scope)
            for _, start, expression in compiled.expressions if compiled is not None else ():
                self._check(expression, _At(written, start), scope)
            has_expression |= bool(errors or (compiled is not None and compiled.expressions))
        return has_expression

    def guard(self, pointer: str, text: str, scope: Scope) -> None:
        """Check a guard."""
        for written, expression in self._parsed(pointer, text, "guard"):
            at = _At(written, 0)
            self._check(expression, at, scope)
            if not self._origin.lints:
                continue
            constant = lint_condition(expression.tree)
            if value_types(expression.tree, self._roots(scope)) == frozenset({"string"}):
                message = 'the condition is a string, and every text but "" is true'
                self._warn("W_IF_STRING", message, at, _begin(expression), 'compare it: … == "yes"')
            elif constant is not None:
                self._lint(constant, at, _begin(expression))

    def for_each(self, pointer: str, text: str, scope: Scope) -> Any:
        """Check a `for_each`; return the schema of its items (True if unknown)."""
        for written, expression in self._parsed(pointer, text, "for_each"):
            at = _At(written, 0)
            self._check(expression, at, scope)
            roots = self._roots(scope)
            types = value_types(expression.tree, roots)
            if types is not None and "array" not in types:
                message = f"for_each over type {' or '.join(sorted(types - {'null'})) or 'null'}"
                hint = "choose an array inside it"
                self._error("E_FOR_EACH_TYPE", message, at, _begin(expression), hint)
            return element_schema(schema_of(expression.tree, roots))
        return True

    def expression(self, pointer: str, text: str, scope: Scope, form: str = "expression") -> None:
        """Check a field that is one expression without braces; `form`: a `path`, or `when` of an `edge`."""
        for written, expression in self._parsed(pointer, text, form):
            self._check(expression, _At(written, 0), scope)

    def _parsed(self, pointer: str, text: str, form: str) -> Iterator[tuple[Written, Expression]]:
        roots = self._origin.roots
        for written in self._origin.strings(pointer, text):
            try:
                if form == "path":
                    expression = parse_path(written.text, roots)
                elif form == "signal":
                    expression = parse_whole(
                        written.text, bare=True, roots=(roots or frozenset[str]()) | {"signal"}
                    )
                elif form in ("expression", "edge"):
                    expression = parse(written.text, roots=EDGE_ROOTS if form == "edge" else roots)
                else:
                    expression = parse_whole(written.text, bare=form == "guard", roots=roots)
            except ExpressionError as error:
                self._syntax(error, written)
            else:
                yield written, expression

    # -- problems -------------------------------------------------------------------------------

    def _syntax(self, error: ExpressionError, written: Written) -> None:
        for problem in (error, *error.also):
            hint = problem.hint
            if written.is_cut and problem.code in ("E_EXPR_UNCLOSED", "E_EXPR_SYNTAX"):
                hint = 'quote the value, " #" begins a comment'
            elif problem.code == "E_EXPR_UNCLOSED" and hint is not None:
                hint = "close it with }}, and every quote inside it"
            elif problem.code == "E_EXPR_NAME" and hint is None:
                hint = self._meant_by(problem.message)
            message = problem.message
            if self._origin.counts:
                message += f", at character {problem.offset + 1}"
            place = written.place(problem.offset)
            self._report.error_at(problem.code, message, place, written.pointer + problem.path, hint)

    def _meant_by(self, message: str) -> str | None:
        """Return the hint for a name that is no root: a step, an input, or a text without its quotes."""
        found = re.search(r'"([A-Za-z_][\w-]*)"', message)
        if found is None:
            return None
        if found[1] in self._steps:
            return f'did you mean "steps.{found[1]}"?'
        if self._inputs is not None and found[1] in self._inputs:
            return f'did you mean "inputs.{found[1]}"?'
        return f"write '{found[1]}' if it is a text"

    def _error(self, code: str, message: str, at: _At, offset: int, hint: Any = None) -> None:
        self._report.error_at(code, message, at.place(offset), at.written.pointer, hint)

    def _warn(self, code: str, message: str, at: _At, offset: int, hint: Any = None) -> None:
        self._report.report.warning(code, message, at.place(offset), at.written.pointer, hint)

    def _lint(self, lint: Lint, at: _At, offset: int) -> None:
        self._warn(lint.code, lint.message, at, offset, lint.hint)

    # -- one expression -------------------------------------------------------------------------

    def _check(self, expression: Expression, at: _At, scope: Scope) -> None:
        optional = {r.offsets[0] for r in expression.references if r.optional}
        limit = self._origin.limits and exceeded(expression, self._origin.limits)
        if limit:
            message = f"expression has more than {limit}"
            self._error("E_EXPR_LIMIT", message, at, _begin(expression), "split it over several nodes")
            return
        for node in _nodes(expression.tree):
            if isinstance(node, Compare):
                lint = lint_comparison(node, self._roots(scope))
                if lint is not None:
                    self._lint(lint, at, lint.offset)
            if isinstance(node, Call) and node.name in _STATUS_FUNCTIONS and not scope.status:
                message = f"{node.name}() is known in {self._origin.words.guard} only"
                self._error("E_EXPR_SCOPE", message, at, node.offset)
            if isinstance(node, Path) and isinstance(node.base, str):
                self._path(node, node.base, at, scope, node.offset in optional)

    def _path(self, node: Path, root: str, at: _At, scope: Scope, optional: bool) -> None:
        members = tuple(takewhile(bool, (_name(node, i) or "" for i in range(2))))
        place = at.place(node.offset)
        self.reads.append(Read(scope.node_id, scope.where, root, members, place, at.written.pointer))
        if root in ("steps", "nodes"):
            self._node_reference(node, root, at, scope)
        elif root == "inputs":
            self._input_reference(node, at, optional)
        elif root in _ELSEWHERE and scope.where not in _ELSEWHERE[root]:
            message = f'"{root}" is not known in {scope.where}'
            self._error("E_EXPR_SCOPE", message, at, node.offset, f"it is for {_ELSEWHERE[root][0]}")
        elif root not in ("item", "index"):
            return
        elif scope.item is None:
            self._item_out_of_scope(node, at, scope)
        elif root == "item":
            self._missing(walk(scope.item, node.segments), "item", at)
        if scope.where == self._origin.field("agent/system_prompt") and root in ("steps", "item"):
            message = "untrusted text enters the system prompt"
            self._warn("W_PROMPT_INJECTION", message, at, node.offset, "pass it in input")

    def _text_references(self, written: Written, scope: Scope) -> None:
        """Warn of names of inputs and steps that stand in a text and are not read."""
        for found in text_references(written.text):
            if found.root == "inputs":
                known = self._inputs is None or found.name in self._inputs
            elif found.root == "steps":
                known = found.name in self._steps
            else:
                known = scope.item is not None
            if not known and found.is_bare:
                continue
            if found.root == "inputs":
                self.named.add(found.name)
            message = f'"{found.written}" is text here, not an expression'
            self._warn("W_NOT_EXPRESSION", message, _At(written, 0), found.offset, found.hint)

    def _item_out_of_scope(self, node: Path, at: _At, scope: Scope) -> None:
        name, word = str(node.base), self._origin.words.node
        if scope.may_have_item:
            message, hint = f'"{name}" needs for_each on this {word}', "add for_each"
        else:
            message, hint = f'"{name}" is not known in {scope.where}', None
        self._error("E_EXPR_SCOPE", message, at, node.offset, hint)

    def _node_reference(self, node: Path, root: str, at: _At, scope: Scope) -> None:
        own = scope.node_id or f"this {self._origin.words.node}"
        first = node.segments[0] if node.segments else None
        if not isinstance(first, Member | Digits):
            if root == "steps" and scope.before is not None:
                message = f'"{own}" reads all of steps, not only its dependencies'
                hint = "write steps.<id> of a dependency"
                self._error("E_REF_NOT_DEPENDENCY", message, at, node.offset, hint)
            return
        name = first.name if isinstance(first, Member) else first.text
        if name not in (self._steps if root == "steps" else self._nodes):
            self._unknown(name, root, at, first.offset)
            return
        if root == "nodes":
            return
        if scope.before is not None and name == scope.node_id:
            self._error("E_REF_NOT_DEPENDENCY", f'"{name}" reads itself', at, first.offset)
        elif scope.before is not None and name not in scope.before and not scope.unsure:
            message, hint = f'"{own}" reads "{name}", not a dependency', f"add {name} to depends_on"
            self._error("E_REF_NOT_DEPENDENCY", message, at, first.offset, hint)
        self._properties(name, node, at)

    def _unknown(self, name: str, root: str, at: _At, offset: int) -> None:
        report = self._report.report
        if name in self._nodes:
            message = f'"{name}" is entered by tokens, and is no member of steps'
            self._error("E_UNKNOWN_REFERENCE", message, at, offset, f"write nodes.{name}")
        elif not self._origin.is_excused(name, lambda: report.nearest(name, self._nodes) is not None):
            known = list(self._steps) if root == "steps" else self._nodes
            message = f'unknown {self._origin.words.node} "{shown(name)}"'
            self._error(self._origin.words.unknown, message, at, offset, report.did_you_mean(name, known))

    def _properties(self, step_id: str, node: Path, at: _At) -> None:
        """Check `steps.<id>.<property>` and below."""
        deeper = self._below(step_id, "outputs.result", node, 1)
        if not self._property(node, 1, f"a {self._origin.words.node}", _STEP_PROPERTIES, at, deeper):
            return
        if _name(node, 1) != "outputs":
            return
        known = ("status", "result", "items") if self._iterates(step_id) else ("status", "result")
        if self._property(node, 2, "outputs", known, at, self._below(step_id, "result", node, 2)) and (
            _name(node, 2) == "result"
        ):
            found = walk(self._result_schema(step_id), node.segments[3:])
            self._missing(found, f'result of "{step_id}"', at)

    def _below(self, step_id: str, path: str, node: Path, index: int) -> str | None:
        """Return the hint for a name that stands deeper: `result`, or a property of the result."""
        name = _name(node, index)
        if name in ("result", "items") and path == "outputs.result":
            return f'did you mean "outputs.{name}"?'
        schema = self._schemas.get(step_id, True)
        properties = schema.get("properties") if isinstance(schema, dict) else None
        if name is not None and isinstance(properties, dict) and name in properties:
            return f'did you mean "{path}.{shown(name)}"?'
        return None

    def _property(
        self, node: Path, index: int, owner: str, known: tuple[str, ...], at: _At, deeper: str | None
    ) -> bool:
        """Return True if segment `index` is there and names one of `known`; report another name."""
        if index >= len(node.segments):
            return False
        name = _name(node, index)
        if name is None or name in known:
            return name is not None
        message = f'{owner} {"have" if owner == "outputs" else "has"} no "{shown(name)}"'
        hint = deeper or self._report.report.nearest_or_all(name, known)
        self._error("E_UNKNOWN_PROPERTY", message, at, node.segments[index].offset, hint)
        return False

    def _missing(self, found: Any, owner: str, at: _At) -> None:
        if isinstance(found, Missing):
            message = f'{owner} has no "{shown(found.name)}"'
            hint = self._report.report.did_you_mean(found.name, found.known)
            self._warn("W_UNKNOWN_RESULT_PROPERTY", message, at, found.offset, hint)

    def _input_reference(self, node: Path, at: _At, optional: bool) -> None:
        name = _name(node, 0)
        if name is None:
            self.all_inputs_used = True
            return
        self.uses.append(InputUse(name, optional, at.place(node.offset), at.written.pointer))
        if self._inputs is not None and name not in self._inputs:
            hint = self._report.report.did_you_mean(name, list(self._inputs))
            self._error(
                "E_UNKNOWN_INPUT", f'unknown input "{shown(name)}"', at, node.segments[0].offset, hint
            )

    # -- schemas --------------------------------------------------------------------------------

    def _iterates(self, step_id: str) -> bool:
        return self._steps[step_id].for_each is not None

    def _result_schema(self, step_id: str) -> Any:
        result = self._schemas.get(step_id, True)
        return {"type": "array", "items": result} if self._iterates(step_id) else result

    def _step_schema(self, step_id: str) -> Any:
        text = {"type": "string"}
        states = {"enum": ["success", "failed", "skipped", "cancelled"]}
        outputs: dict[str, Any] = {
            "status": {"enum": ["success", "failed"]},
            "result": self._result_schema(step_id),
        }
        if self._iterates(step_id):
            outputs["items"] = {"type": "array"}
        nothing = ["object", "null"]
        error = {"type": nothing, "properties": {"category": text, "code": text, "message": text}}
        properties = {"outputs": {"type": nothing, "properties": outputs}, "status": states, "error": error}
        return {"type": "object", "properties": properties}

    def _roots(self, scope: Scope) -> RootSchemas:
        inputs = True if self._inputs is None else {"type": "object", "properties": self._inputs}
        item = True if scope.item is None else scope.item
        return {"steps": self._steps_schema, "inputs": inputs, "item": item, "index": {"type": "number"}}


class _At(msgspec.Struct, frozen=True):
    """The text that holds an expression; offsets of the expression count from `start` in it."""

    written: Written
    start: int

    def place(self, offset: int) -> Place:
        return self.written.place(self.start + offset)


def _name(node: Path, index: int) -> str | None:
    """Return the literal name that a segment reads, None if it is not known before the run."""
    if index >= len(node.segments):
        return None
    segment = node.segments[index]
    if isinstance(segment, Member):
        return segment.name
    return segment.text if isinstance(segment, Digits) else None


def _begin(expression: Expression) -> int:
    """Return where an expression read by `parse_whole` begins in its source."""
    source = expression.source
    start = len(source) - len(source.lstrip())
    if not source.startswith("${{", start):
        return start
    inner = source[start + 3 :]
    return start + 3 + len(inner) - len(inner.lstrip())


def _nodes(node: Node) -> Iterator[Node]:
    """Return all nodes of a tree, in the order of the text (but bases before their indexes)."""
    yield node
    children: list[Node] = []
    match node:
        case Lit():
            pass
        case Not():
            children = [node.operand]
        case Logic():
            children = list(node.operands)
        case Compare():
            children = [node.first, *(right for _, right, _ in node.rest)]
        case Call():
            children = list(node.arguments)
        case Path():
            children = [] if isinstance(node.base, str) else [node.base]
            children += [segment.key for segment in node.segments if isinstance(segment, Index)]
    for child in children:
        yield from _nodes(child)
