"""The static checks of expressions: scope, references, types (page 001 §6.1), each at its place.

Every expression of a document is looked at, dead branches too; one that does not parse is reported and
left out. Nothing is evaluated.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, cast

import msgspec

from agentflow.definition.expression_lints import Lint, lint_comparison, lint_condition, text_references
from agentflow.definition.expressions import Expression, ExpressionError, compile_template, parse_whole
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
from agentflow.definition.graph_checks import Ancestors, Graph
from agentflow.definition.nodes import Node as Value
from agentflow.definition.nodes import Place, Scalar
from agentflow.definition.report import Report, shown
from agentflow.definition.source_text import Source
from agentflow.definition.static_types import (
    Missing,
    RootSchemas,
    element_schema,
    schema_of,
    value_types,
    walk,
)
from agentflow.definition.structure import Found, strings_of

__all__ = ["ExpressionChecks", "InputUse", "Scope"]

_STATUS_FUNCTIONS = ("success", "failure", "cancelled", "always")
_STEP_PROPERTIES = ("outputs", "status", "error")


class Scope(msgspec.Struct, frozen=True):
    """Where an expression stands: a key of a step, or `outputs`. `before`: the steps that it may read,
    None in `outputs` (all of them). `unsure`: these were reported as wrong."""

    where: str
    step_id: str | None = None
    before: Ancestors | None = None
    item: bool = False
    status: bool = False
    prompt: bool = False
    unsure: bool = False


class InputUse(msgspec.Struct, frozen=True):
    """A literal `inputs.<name>`; `optional`: in the left operand of `||`."""

    name: str
    optional: bool
    place: Place
    path: str


class ExpressionChecks(msgspec.Struct):
    """Checks the expressions of one document. `results`: by step, the schema of one result (True if
    unknown); `inputs`: schemas of the declared inputs, None if they are not declared. `named`:
    inputs that stand in texts."""

    report: Report
    source: Source
    graph: Graph
    results: dict[str, Any]
    inputs: dict[str, Any] | None
    uses: list[InputUse] = []
    all_inputs_used: bool = False
    named: set[str] = set()
    _steps_schema: Any = None
    _step_ids: list[str] = []

    def __post_init__(self) -> None:
        self._step_ids = list(self.graph.steps)
        steps = {step_id: self._step_schema(step_id) for step_id in self.graph.steps}
        self._steps_schema = {"type": "object", "properties": steps}

    def template(self, found: Found | None, scope: Scope, item: Any = True) -> None:
        """Checks every string inside a template field. `item`: the schema of `item`."""
        if found is None:
            return
        for scalar, pointer in strings_of(found.node, found.pointer):
            text = scalar.value
            if not isinstance(text, str):
                continue
            if "${{" not in text:
                self._text_references(text, scalar, pointer, scope)
                continue
            errors: list[ExpressionError] = []
            compiled = compile_template(text, errors=errors)
            for error in errors:
                self._syntax(error, scalar, pointer)
            if not errors:
                self._text_references(text, scalar, pointer, scope)
            for _, start, expression in compiled.expressions:
                place = _Placed(scalar, pointer, start)
                self._check(expression, place, scope, item)

    def guard(self, found: Found, scope: Scope, item: Any) -> Expression | None:
        """Checks an `if` that is a string; None if it does not parse."""
        expression = self._whole(found, bare=True)
        if expression is None:
            return None
        at = _Placed(found.node, found.pointer, 0)
        self._check(expression, at, scope, item)
        constant = lint_condition(expression.tree)
        if value_types(expression.tree, self._roots(item)) == frozenset({"string"}):
            self.report.warning(
                "W_IF_STRING",
                'the condition is a string, and every text but "" is true',
                self._place(at, _begin(expression)),
                found.pointer,
                hint='compare it: … == "yes"',
            )
        elif constant is not None:
            self._lint(constant, at, _begin(expression))
        return expression

    def constant_guard(self, found: Found) -> None:
        """Warn of an `if` that is a boolean of the document."""
        lint = lint_condition(Lit(found.value, 0))
        if lint is not None:
            self.report.warning(lint.code, lint.message, found.place, found.pointer, lint.hint)

    def for_each(self, found: Found, scope: Scope) -> Any:
        """Checks a `for_each`; gives the schema of its items (True if unknown)."""
        expression = self._whole(found, bare=False)
        if expression is None:
            return True
        at = _Placed(found.node, found.pointer, 0)
        self._check(expression, at, scope, True)
        roots = self._roots(True)
        types = value_types(expression.tree, roots)
        if types is not None and "array" not in types:
            self.report.error(
                "E_FOR_EACH_TYPE",
                f"for_each over type {' or '.join(sorted(types - {'null'})) or 'null'}",
                self._place(at, _begin(expression)),
                found.pointer,
                hint="choose an array inside it",
            )
        return element_schema(schema_of(expression.tree, roots))

    def _whole(self, found: Found, *, bare: bool) -> Expression | None:
        try:
            return parse_whole(found.value, bare=bare)
        except ExpressionError as error:
            self._syntax(error, found.node, found.pointer)
            return None

    def _syntax(self, error: ExpressionError, node: Value, pointer: str) -> None:
        for problem in (error, *error.also):
            hint = problem.hint
            if self.source.is_cut_by_comment(node) and problem.code in ("E_EXPR_UNCLOSED", "E_EXPR_SYNTAX"):
                hint = 'quote the value, " #" begins a comment'
            elif problem.code == "E_EXPR_UNCLOSED" and hint is not None:
                hint = "close it with }}, and every quote inside it"
            elif problem.code == "E_EXPR_NAME" and hint is None:
                hint = self._meant_by(problem.message)
            place = self.source.place(node, problem.offset)
            self.report.error(problem.code, problem.message, place, pointer, hint)

    def _meant_by(self, message: str) -> str | None:
        """Return the hint for a name that is no root: a step, an input, or a text without its quotes."""
        found = re.search(r'"([A-Za-z_][\w-]*)"', message)
        if found is None:
            return None
        if found[1] in self.graph.steps:
            return f'did you mean "steps.{found[1]}"?'
        if self.inputs is not None and found[1] in self.inputs:
            return f'did you mean "inputs.{found[1]}"?'
        return f"write '{found[1]}' if it is a text"

    def _check(self, expression: Expression, at: _Placed, scope: Scope, item: Any) -> None:
        optional = {r.offsets[0] for r in expression.references if r.optional}
        for node in _nodes(expression.tree):
            if isinstance(node, Compare):
                lint = lint_comparison(node, self._roots(item))
                if lint is not None:
                    self._lint(lint, at, lint.offset)
            if isinstance(node, Call) and node.name in _STATUS_FUNCTIONS and not scope.status:
                self._scope(f"{node.name}() is known in if only", None, at, node.offset)
            if not isinstance(node, Path) or not isinstance(node.base, str):
                continue
            if node.base == "steps":
                self._step_reference(node, at, scope)
            elif node.base == "inputs":
                self._input_reference(node, at, node.offset in optional)
            elif not scope.item:
                self._item_out_of_scope(node, at, scope)
            elif node.base == "item":
                self._missing(walk(item, node.segments), "item", at)
            if scope.prompt and node.base in ("steps", "item"):
                self.report.warning(
                    "W_PROMPT_INJECTION",
                    "untrusted text enters the system prompt",
                    self._place(at, node.offset),
                    at.pointer,
                    hint="pass it in input",
                )

    def _lint(self, lint: Lint, at: _Placed, offset: int) -> None:
        self.report.warning(lint.code, lint.message, self._place(at, offset), at.pointer, lint.hint)

    def _text_references(self, text: str, scalar: Scalar, pointer: str, scope: Scope) -> None:
        """Warn of names of inputs and steps that stand in a text and are not read."""
        for found in text_references(text):
            if found.root == "inputs":
                known = self.inputs is None or found.name in self.inputs
            elif found.root == "steps":
                known = found.name in self.graph.steps
            else:
                known = scope.item
            if not known and found.is_bare:
                continue
            if found.root == "inputs":
                self.named.add(found.name)
            message = f'"{found.written}" is text here, not an expression'
            place = self.source.place(scalar, found.offset)
            self.report.warning("W_NOT_EXPRESSION", message, place, pointer, found.hint)

    def _item_out_of_scope(self, node: Path, at: _Placed, scope: Scope) -> None:
        name = str(node.base)
        if scope.before is not None and scope.where not in ("for_each", "approval.message"):
            self._scope(f'"{name}" needs for_each on this step', "add for_each", at, node.offset)
        else:
            self._scope(f'"{name}" is not known in {scope.where}', None, at, node.offset)

    def _scope(self, message: str, hint: str | None, at: _Placed, offset: int) -> None:
        self.report.error("E_EXPR_SCOPE", message, self._place(at, offset), at.pointer, hint)

    def _step_reference(self, node: Path, at: _Placed, scope: Scope) -> None:
        first = node.segments[0] if node.segments else None
        if not isinstance(first, Member | Digits):
            if scope.before is not None:
                message = f'"{scope.step_id or "this step"}" reads all of steps, not only its dependencies'
                self._not_dependency(message, "write steps.<id> of a dependency", at, node.offset)
            return
        name = first.name if isinstance(first, Member) else first.text
        if name not in self.graph.steps:
            if self.graph.is_reported(name, self.report):
                return
            self.report.error(
                "E_UNKNOWN_STEP",
                f'unknown step "{shown(name)}"',
                self._place(at, first.offset),
                at.pointer,
                self.report.did_you_mean(name, self._step_ids),
            )
            return
        if scope.before is not None and name == scope.step_id:
            self._not_dependency(f'"{name}" reads itself', None, at, first.offset)
        elif scope.before is not None and name not in scope.before and not scope.unsure:
            message = f'"{scope.step_id or "this step"}" reads "{name}", not a dependency'
            self._not_dependency(message, f"add {name} to depends_on", at, first.offset)
        self._properties(name, node, at)

    def _not_dependency(self, message: str, hint: str | None, at: _Placed, offset: int) -> None:
        self.report.error("E_REF_NOT_DEPENDENCY", message, self._place(at, offset), at.pointer, hint)

    def _properties(self, step_id: str, node: Path, at: _Placed) -> None:
        """Checks `steps.<id>.<property>` and below."""
        deeper = self._below(step_id, "outputs.result", node, 1)
        if not self._property(node, 1, "a step", _STEP_PROPERTIES, at, deeper):
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
        schema = self.results.get(step_id, True)
        properties = cast("dict[str, Any]", schema).get("properties") if isinstance(schema, dict) else None
        if name is not None and isinstance(properties, dict) and name in properties:
            return f'did you mean "{path}.{shown(name)}"?'
        return None

    def _property(
        self, node: Path, index: int, owner: str, known: tuple[str, ...], at: _Placed, deeper: str | None
    ) -> bool:
        """Return True if segment `index` is there and names one of `known`; report another name."""
        if index >= len(node.segments):
            return False
        name = _name(node, index)
        if name is None or name in known:
            return name is not None
        has = "have" if owner == "outputs" else "has"
        self.report.error(
            "E_UNKNOWN_PROPERTY",
            f'{owner} {has} no "{shown(name)}"',
            self._place(at, node.segments[index].offset),
            at.pointer,
            deeper or self.report.nearest_or_all(name, known),
        )
        return False

    def _missing(self, found: Any, owner: str, at: _Placed) -> None:
        if isinstance(found, Missing):
            self.report.warning(
                "W_UNKNOWN_RESULT_PROPERTY",
                f'{owner} has no "{shown(found.name)}"',
                self._place(at, found.offset),
                at.pointer,
                self.report.did_you_mean(found.name, found.known),
            )

    def _input_reference(self, node: Path, at: _Placed, optional: bool) -> None:
        name = _name(node, 0)
        if name is None:
            self.all_inputs_used = True
            return
        self.uses.append(InputUse(name, optional, self._place(at, node.offset), at.pointer))
        if self.inputs is not None and name not in self.inputs:
            self.report.error(
                "E_UNKNOWN_INPUT",
                f'unknown input "{shown(name)}"',
                self._place(at, node.segments[0].offset),
                at.pointer,
                self.report.did_you_mean(name, list(self.inputs)),
            )

    def _place(self, at: _Placed, offset: int) -> Place:
        return self.source.place(at.node, at.start + offset)

    def _iterates(self, step_id: str) -> bool:
        return self.graph.steps[step_id].has("for_each")

    def _result_schema(self, step_id: str) -> Any:
        result = self.results.get(step_id, True)
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

    def _roots(self, item: Any) -> RootSchemas:
        inputs = True if self.inputs is None else {"type": "object", "properties": self.inputs}
        return {"steps": self._steps_schema, "inputs": inputs, "item": item, "index": {"type": "number"}}


class _Placed(msgspec.Struct, frozen=True):
    """The scalar that holds an expression; offsets of the expression count from `start` in it."""

    node: Value
    pointer: str
    start: int


def _name(node: Path, index: int) -> str | None:
    """The literal name that a segment reads, None if it is not known before the run."""
    if index >= len(node.segments):
        return None
    segment = node.segments[index]
    if isinstance(segment, Member):
        return segment.name
    return segment.text if isinstance(segment, Digits) else None


def _begin(expression: Expression) -> int:
    """Where an expression read by `parse_whole` begins in its source."""
    source = expression.source
    start = len(source) - len(source.lstrip())
    if not source.startswith("${{", start):
        return start
    inner = source[start + 3 :]
    return start + 3 + len(inner) - len(inner.lstrip())


def _nodes(node: Node) -> Iterator[Node]:
    """All nodes of a tree, in the order of the text (but bases before their indexes)."""
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
