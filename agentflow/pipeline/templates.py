"""Templates of plans: reading, checking and binding (page 004 §12). Pure; `template_store` has the files.

Binding is one pass over the strings of the file: what is put in is data, and is never read for `${{` again.
Ids, dependencies, toolsets and the function of a call are no places for inputs, so that no input can
change what a step may do.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, cast

import msgspec

from agentflow.definition.diagnostics import Diagnostic, did_you_mean
from agentflow.definition.expressions import EvaluationError, ExpressionError, compile_template
from agentflow.definition.plan_checks import check_plan
from agentflow.definition.report import Fatal, Report
from agentflow.definition.schemas import check_schema, validate
from agentflow.definition.source import decode, read_node
from agentflow.definition.source_text import Source
from agentflow.definition.source_tree import Positions, to_value
from agentflow.definition.toolsets import ToolEntry, Toolset, Toolsets
from agentflow.errors import DefinitionError

__all__ = ["NAME", "BoundTemplate", "Input", "Template", "bind", "command_line_inputs", "read_template"]

NAME: Final = re.compile(r"[a-z][a-z0-9_-]{0,63}")
_INPUT_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
_KEYS: Final = (
    *("name", "description", "version", "inputs", "summary", "artifacts", "risks", "steps", "options"),
)
_INPUT_KEYS: Final = ("required", "default", "description", "schema")
_UNBOUND_STEP_KEYS: Final = ("id", "depends_on", "toolsets")
_OPEN: Final = re.compile(r"\$\{\{|\{\{")
_SHORT: Final = re.compile(r"\{\{[ \t]*([A-Za-z_][A-Za-z0-9_-]*)[ \t]*\}\}")
_EXPRESSION: Final = re.compile(r"""\$\{\{(?:'[^']*'|"(?:[^"\\]|\\.)*"|[^'"}]|\}(?!\}))*\}\}""", re.DOTALL)

Origin = Literal["workflows", "user", "built-in"]


class Input(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An input that a template declares."""

    required: bool
    default: Any = None
    description: str = ""
    schema: dict[str, Any] | bool | None = None

    @property
    def is_text(self) -> bool:
        """True if a value of the command line is taken as it stands."""
        if not isinstance(self.schema, dict):
            return True
        return self.schema.get("type", "string") == "string"

    @property
    def may_be_text(self) -> bool:
        """True if a value of the command line that is no JSON is taken as it stands."""
        return isinstance(self.schema, dict) and "string" in self.schema.get("type", ())


class Template(msgspec.Struct, frozen=True, kw_only=True):
    """A template that was read and checked. `hash` is that of its text."""

    name: str
    description: str
    version: str | None
    inputs: dict[str, Input]
    body: dict[str, Any]
    """summary, artifacts, risks, steps and options, with their expressions."""
    source: str
    media: Literal["yaml", "json"]
    hash: str
    warnings: tuple[Diagnostic, ...] = ()


class BoundTemplate(NamedTuple):
    """What a run of a template begins with."""

    plan: dict[str, Any]
    context: dict[str, Any]
    options: dict[str, Any]


# -- reading ------------------------------------------------------------------------------------


def read_template(
    data: bytes | str, media: Literal["yaml", "json"] = "yaml", *, file: str | None = None
) -> Template:
    """Return the template of a text. Raises DefinitionError with every problem and its place."""
    report = Report(file)
    try:
        text = decode(data, report, media)
        node = read_node(Source(text, media, file), report)
    except Fatal:
        raise DefinitionError(report.diagnostics()) from None
    places = Positions(node)
    value = to_value(node)
    check = _Check(report, places)
    if not isinstance(value, dict):
        check.problem("E_TEMPLATE_SCHEMA", "a template is a mapping", "")
        raise DefinitionError(report.diagnostics())
    members = cast("dict[str, Any]", value)
    inputs = check.head(members)
    body = {
        "summary": members.get("summary", ""),
        "artifacts": members.get("artifacts", []),
        "risks": members.get("risks", []),
        "steps": members.get("steps", []),
        "options": members.get("options", {}),
    }
    check.body(body, inputs)
    if report.has_errors:
        raise DefinitionError(report.diagnostics())
    return Template(
        name=members["name"],
        description=members.get("description", ""),
        version=members.get("version"),
        inputs=inputs,
        body=body,
        source=text,
        media=media,
        hash="sha256:" + hashlib.sha256(text.encode()).hexdigest(),
        warnings=tuple(report.diagnostics()),
    )


class _Check:
    """Checks a template and reports each problem with line and column."""

    def __init__(self, report: Report, places: Positions) -> None:
        self.report = report
        self.places = places

    def problem(self, code: str, message: str, path: str, hint: str | None = None) -> None:
        self.report.error(code, message, self.places.at(path), path or None, hint)

    def head(self, value: dict[str, Any]) -> dict[str, Input]:
        for key in value:
            if key not in _KEYS:
                path = f"/{_token(key)}"
                place = self.places.key_at(path)
                hint = did_you_mean(key, _KEYS)
                self.report.error("E_UNKNOWN_KEY", f'a template has no key "{key[:60]}"', place, path, hint)
        name = value.get("name")
        if not isinstance(name, str) or not NAME.fullmatch(name):
            hint = "write lower-case letters, digits, _ and -; a letter first, at most 64"
            self.problem("E_TEMPLATE_SCHEMA", "the name of the template is absent or no name", "/name", hint)
        for key in ("description", "version", "summary"):
            if key in value and not isinstance(value[key], str):
                self.problem("E_TEMPLATE_SCHEMA", f"{key} is no text", f"/{key}", "put it in quotes")
        for key, kind in (("steps", list), ("artifacts", list), ("risks", list), ("options", dict)):
            if key in value and not isinstance(value[key], kind):
                shape = "a list" if kind is list else "a mapping"
                self.problem("E_TEMPLATE_SCHEMA", f"{key} is not {shape}", f"/{key}")
        given = value.get("inputs", {})
        if not isinstance(given, dict):
            self.problem("E_TEMPLATE_SCHEMA", "inputs is not a mapping", "/inputs")
            return {}
        found = {key: self.input(key, one) for key, one in cast("dict[str, Any]", given).items()}
        return {key: one for key, one in found.items() if one is not None}

    def input(self, name: str, value: Any) -> Input | None:
        path = f"/inputs/{_token(name)}"
        if not _INPUT_NAME.fullmatch(name):
            self.problem("E_TEMPLATE_SCHEMA", f'"{name[:60]}" is no name of an input', path)
            return None
        value = {} if value is None else value
        if not isinstance(value, dict):
            hint = "write {required: true} or {default: …}"
            self.problem("E_TEMPLATE_SCHEMA", f'input "{name}" is not a mapping', path, hint)
            return None
        members = cast("dict[str, Any]", value)
        for key in members:
            if key not in _INPUT_KEYS:
                hint = did_you_mean(key, _INPUT_KEYS)
                self.problem(
                    "E_UNKNOWN_KEY", f'an input has no key "{key[:60]}"', f"{path}/{_token(key)}", hint
                )
                return None
        schema, required = members.get("schema"), members.get("required", "default" not in members)
        wrong = check_schema(schema) if "schema" in members else []
        if wrong:
            self.problem("E_TEMPLATE_SCHEMA", f"schema of the input: {wrong[0].message}", f"{path}/schema")
            return None
        if not isinstance(required, bool) or not isinstance(members.get("description", ""), str):
            self.problem("E_TEMPLATE_SCHEMA", f'input "{name}": required is no boolean, or no text', path)
            return None
        if "default" in members and schema is not None and (issues := validate(schema, members["default"])):
            message = f'default of input "{name}": {issues[0].message}'
            self.problem("E_TEMPLATE_INPUT_TYPE", message, f"{path}/default")
            return None
        return Input(
            required=required,
            default=members.get("default"),
            description=members.get("description", ""),
            schema=schema,
        )

    def body(self, body: dict[str, Any], inputs: Mapping[str, Input]) -> None:
        """Check expressions, and of the plan what no input can change."""
        expressions = _Expressions(inputs, self.expression_problem)
        sampled = {name: _sample(one) for name, one in inputs.items()}
        plan = _plan_of(expressions.bind(body, sampled, is_trial=True))
        for found in check_plan(plan, _every_toolset(plan)).diagnostics:
            path = found.path or ""
            if found.severity == "error" and not _touches(path, expressions.bound):
                self.report.error(found.code, found.message, self.places.at(path), path, found.hint)

    def expression_problem(self, code: str, message: str, path: str, hint: str | None) -> None:
        self.problem(code, message, path, hint)


# -- binding ------------------------------------------------------------------------------------


class _Expressions:
    """Binds the strings of a template. `bound`: the pointers of those that hold an expression."""

    def __init__(
        self, inputs: Mapping[str, Input], problem: Callable[[str, str, str, str | None], None]
    ) -> None:
        self._inputs = inputs
        self._problem = problem
        self.bound: list[str] = []

    def bind(
        self, body: Mapping[str, Any], values: Mapping[str, Any], *, is_trial: bool = False
    ) -> dict[str, Any]:
        """Return the body with the values in the places of its expressions."""
        self._values = values
        self._is_trial = is_trial
        return {key: self._value(one, f"/{key}", key) for key, one in body.items()}

    def _value(self, value: Any, path: str, key: str) -> Any:
        if isinstance(value, str):
            return self._text(value, path)
        if isinstance(value, list):
            items = cast("list[Any]", value)
            return [self._value(one, f"{path}/{index}", "") for index, one in enumerate(items)]
        if isinstance(value, dict):
            is_step = re.fullmatch(r"/steps/\d+", path) is not None
            is_call = re.fullmatch(r"/steps/\d+/call", path) is not None
            return {
                name: one
                if (is_step and name in _UNBOUND_STEP_KEYS) or (is_call and name == "tool")
                else self._value(one, f"{path}/{_token(name)}", name)
                for name, one in cast("dict[str, Any]", value).items()
            }
        return value

    def _text(self, text: str, path: str) -> Any:
        if "{{" not in text:
            return text
        text = self._long_form(text)
        if "${{" not in text:
            return text
        self.bound.append(path)
        errors: list[ExpressionError] = []
        compiled = compile_template(text, roots=("inputs",), errors=errors)
        for error in errors:
            for one in (error, *error.also):
                code = "E_TEMPLATE_UNBOUND" if one.code == "E_EXPR_NAME" else one.code
                self._problem(code, one.message, path, one.hint or "a template knows inputs.NAME alone")
        if errors:
            return ""
        fits = True
        for _, _, expression in compiled.expressions:
            for reference in expression.references:
                if len(reference.path) == 1:  # all inputs
                    continue
                name = reference.path[1]
                if not isinstance(name, str) or name not in self._inputs:
                    shown = f'"{name}"' if isinstance(name, str) else "of a name that is computed"
                    hint = did_you_mean(name, list(self._inputs)) if isinstance(name, str) else None
                    message = f"the template declares no input {shown}"
                    self._problem("E_TEMPLATE_UNBOUND", message, path, hint or "declare it under inputs")
                    fits = False
        if not fits:
            return ""
        try:
            return compiled.evaluate({"inputs": self._values})
        except EvaluationError as error:
            if not self._is_trial:
                self._problem("E_TEMPLATE_INPUT_TYPE", error.message, path, None)
            return ""

    def _long_form(self, text: str) -> str:
        """Return the text with `${{ inputs.NAME }}` in the place of `{{NAME}}`, if the input is declared and
        it stands in no expression."""
        parts: list[str] = []
        at = 0
        while found := _OPEN.search(text, at):
            parts.append(text[at : found.start()])
            at = found.start()
            pattern = _EXPRESSION if found[0] == "${{" else _SHORT
            match = pattern.match(text, at)
            if match is None:
                parts.append(found[0])
                at = found.end()
                continue
            is_short = pattern is _SHORT and match[1] in self._inputs
            parts.append(f"${{{{ inputs['{match[1]}'] }}}}" if is_short else match[0])
            at = match.end()
        return "".join([*parts, text[at:]])


def bind(template: Template, inputs: Mapping[str, Any], *, toolsets: Toolsets | None = None) -> BoundTemplate:
    """Return the plan that a template gives with these inputs. Raises DefinitionError with every problem: of
    the inputs, of what they were put into, and of the plan by its checks, if `toolsets` are given."""
    places = Positions(read_node(Source(template.source, template.media), Report()))
    report = Report()
    values = _checked_inputs(template, inputs, report)

    def problem(code: str, message: str, path: str, hint: str | None) -> None:
        report.error(code, message, places.at(path), path, hint)

    known = {name: values.get(name, _sample(one)) for name, one in template.inputs.items()}
    expressions = _Expressions(template.inputs, problem)
    body = expressions.bind(template.body, known)
    plan = _plan_of(body)
    wrong = [name for name in template.inputs if name not in values]
    for found in check_plan(plan, _every_toolset(plan) if toolsets is None else toolsets).diagnostics:
        path = found.path or ""
        # A place that a bad input goes to has no problem of its own.
        if found.severity == "error" and not (wrong and _touches(path, expressions.bound)):
            report.error(found.code, found.message, places.at(path), path, found.hint)
    if report.has_errors:
        raise DefinitionError(report.diagnostics())
    context: dict[str, Any] = {
        "template": template.name,
        "version": template.version,
        "hash": template.hash,
        "inputs": values,
    }
    return BoundTemplate(plan, context, body["options"])


def command_line_inputs(inputs: Mapping[str, Input], pairs: Iterable[str]) -> dict[str, Any]:
    """Return the values of declared inputs from `k=v` arguments: v is a text, or JSON where the schema of the
    input is no string.

    Raises DefinitionError for every argument that is none.
    """
    found: dict[str, Any] = {}
    problems: list[Diagnostic] = []
    for pair in pairs:
        name, equals, text = pair.partition("=")
        declared = inputs.get(name)
        if not equals:
            problems.append(_of_input("E_TEMPLATE_INPUT_UNKNOWN", f'"{pair[:60]}" is not k=v', None))
        elif declared is None or declared.is_text:
            found[name] = text
        else:
            try:
                found[name] = msgspec.json.decode(text.encode())
            except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
                if declared.may_be_text:
                    found[name] = text
                    continue
                message = f'input "{name}": its value is no JSON'
                problems.append(_of_input("E_TEMPLATE_INPUT_TYPE", message, "the schema is no string"))
    if problems:
        raise DefinitionError(problems)
    return found


def _checked_inputs(template: Template, inputs: Mapping[str, Any], report: Report) -> dict[str, Any]:
    """Return the inputs that fit, with defaults."""
    values: dict[str, Any] = {}
    for name in inputs:
        if name not in template.inputs:
            hint = did_you_mean(name, list(template.inputs)) or _declared(template)
            report.error(
                "E_TEMPLATE_INPUT_UNKNOWN",
                f'the template has no input "{name[:60]}"',
                path=_input(name),
                hint=hint,
            )
    for name, one in template.inputs.items():
        if name not in inputs:
            if one.required:
                hint = one.description or None
                report.error(
                    "E_TEMPLATE_INPUT_MISSING", f'input "{name}" is required', path=_input(name), hint=hint
                )
            else:
                values[name] = one.default
            continue
        value = inputs[name]
        issues = validate(one.schema, value) if one.schema is not None else []
        if one.schema is None and not isinstance(value, str | int | float | bool | None):
            message = f'input "{name}" is no text and no number'
            report.error(
                "E_TEMPLATE_INPUT_TYPE",
                message,
                path=_input(name),
                hint="declare its schema for other values",
            )
        elif issues:
            message = f'input "{name}": {issues[0].message}'
            report.error("E_TEMPLATE_INPUT_TYPE", message, path=f"{_input(name)}{issues[0].path}")
        else:
            values[name] = value
    return values


def _plan_of(body: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "status": "ready",
        "summary": body["summary"],
        "steps": body["steps"],
        "risks": body["risks"],
        "artifacts": body["artifacts"],
        "blockers": [],
    }


def _sample(one: Input) -> Any:
    """Return a value in the place of an input that is not known: its default, or one of its type."""
    if not one.required and one.default is not None:
        return one.default
    kind = one.schema.get("type") if isinstance(one.schema, dict) else "string"
    samples: dict[str, Any] = {"integer": 1, "number": 1, "boolean": True, "array": [], "object": {}}
    return samples.get(kind, "x") if isinstance(kind, str) else "x"


def _every_toolset(plan: Mapping[str, Any]) -> Toolsets:
    """Return a registry that knows every toolset of a plan: which there are is asked when it runs."""
    tools: dict[str, list[ToolEntry]] = {}
    for step in cast("list[Any]", plan["steps"]) if isinstance(plan["steps"], list) else []:
        members = cast("dict[str, Any]", step) if isinstance(step, dict) else {}
        given: Any = members.get("toolsets")
        names = (
            [one for one in cast("list[Any]", given) if isinstance(one, str)]
            if isinstance(given, list)
            else []
        )
        for name in names:
            tools.setdefault(name, [])
        call: Any = members.get("call")
        called: Any = cast("dict[str, Any]", call).get("tool") if isinstance(call, dict) else None
        service = called.rpartition(".")[0] if isinstance(called, str) else ""
        if service in names:
            tools[service].append(ToolEntry(name=called, side_effect="none"))
    return Toolsets(Toolset(name=name, tools=tuple(tools[name])) for name in sorted(tools))


def _touches(path: str, bound: Iterable[str]) -> bool:
    """Return whether a problem may be one of a value that is put in: it is at its place, or at a member of a
    step that holds it. The keys of a step are never put in."""
    is_member = path.count("/") > 2
    return any(
        path == one or path.startswith(one + "/") or (is_member and one.startswith(path + "/"))
        for one in bound
    )


def _token(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def _input(name: str) -> str:
    return f"/inputs/{_token(name)}"


def _declared(template: Template) -> str:
    return f"the inputs are {', '.join(template.inputs)}" if template.inputs else "it has no inputs"


def _of_input(code: str, message: str, hint: str | None) -> Diagnostic:
    return Diagnostic(code=code, severity="error", message=message, hint=hint)


def media_of_path(path: Path) -> Literal["yaml", "json"] | None:
    """Return what the suffix of a template file says; None for another file."""
    return cast("Any", {".yaml": "yaml", ".yml": "yaml", ".json": "json"}.get(path.suffix.lower()))
