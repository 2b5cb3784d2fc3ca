"""Checks of a plan before any of its effects, and what the runtime changes of it (page 004 §4). Pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any, Literal, NamedTuple, cast

import msgspec

from agentflow.definition.diagnostics import Diagnostic, did_you_mean
from agentflow.definition.ir import canonical_json
from agentflow.definition.stage_schemas import (
    ARTIFACT_TYPES,
    CHECK_KEYS,
    MAX_STEPS,
    Plan,
    Step,
    as_expected,
    problems_of,
    read,
    to_value,
)
from agentflow.definition.toolsets import CLASSES, PolicyRule, Toolsets

__all__ = ["CheckedPlan", "approval_of", "check_plan", "plan_digest"]

_ID = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,127}")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_FILES = ("file", "json", "markdown")
_MAX_HINTS = 200
_MAX_CHECKS = 1_000
"""Of one plan. A schema in a check takes a millisecond to judge, and nobody waits for 20,000 of them."""


class CheckedPlan(NamedTuple):
    """What the checks found. `plan` is the adjusted plan, None if an error was found."""

    plan: Plan | None
    diagnostics: tuple[Diagnostic, ...]
    adjustments: tuple[dict[str, Any], ...]

    @property
    def errors(self) -> tuple[Diagnostic, ...]:
        """The problems that refuse the plan."""
        return tuple(d for d in self.diagnostics if d.severity == "error")


def plan_digest(plan: Plan) -> str:
    """Return `sha256:` + hex of the canonical JSON of an adjusted plan."""
    return "sha256:" + hashlib.sha256(canonical_json(to_value(plan))).hexdigest()


def approval_of(
    step: Step,
    toolsets: Toolsets,
    rules: Iterable[PolicyRule] = (),
    *,
    approval_class: str = "external",
    template: str | None = None,
) -> str | None:
    """Return why a step needs an approval: `class`, `step` or the rule; None if it needs none."""
    if CLASSES.index(toolsets.class_of(step.toolsets)) >= CLASSES.index(cast("Any", approval_class)):
        return "class"
    if step.requires_approval is True:
        return "step"
    for number, rule in enumerate(rules):
        match = rule.match
        names = {found.name for n in step.toolsets if (found := toolsets.find(n)) is not None}
        asked = toolsets.find(match.toolset) if match.toolset is not None else None
        fits = (
            (match.toolset is None or (asked.name if asked is not None else match.toolset) in names)
            and (match.tool is None or match.tool in toolsets.tools_of(step.toolsets))
            and (match.step is None or match.step == step.id)
            and (match.template is None or match.template == template)
        )
        if fits:
            return f"policy/{number}"
    return None


def check_plan(
    value: Any,
    toolsets: Toolsets,
    rules: Iterable[PolicyRule] = (),
    *,
    approval_class: str = "external",
    template: str | None = None,
) -> CheckedPlan:
    """Return the adjusted plan, every problem of it, and what was adjusted."""
    check = _Check(toolsets)
    check.shape(value)
    steps = _steps_of(value)
    ids = {step["id"]: index for index, step in enumerate(steps) if isinstance(step.get("id"), str)}
    steps = steps[:MAX_STEPS]
    check.identities(steps)
    check.dependencies(steps, ids)
    for index, step in enumerate(steps):
        check.tools(index, step)
        check.artifacts(index, step)
        check.checks(index, step)
    if check.has_errors:
        return CheckedPlan(None, tuple(check.found), ())
    plan = read(Plan, value)
    adjust = _Adjust(toolsets, tuple(rules), approval_class, template)
    adjusted = msgspec.structs.replace(
        plan, steps=tuple(adjust.step(index, step) for index, step in enumerate(plan.steps))
    )
    return CheckedPlan(adjusted, (*check.found, *adjust.found), tuple(adjust.made))


def _steps_of(value: Any) -> list[dict[str, Any]]:
    steps = cast("Mapping[str, Any]", value).get("steps") if isinstance(value, Mapping) else None
    found = cast("list[Any]", steps) if isinstance(steps, list) else []
    return [step if isinstance(step, dict) else {} for step in found]


def _texts(value: Any) -> list[str]:
    found = cast("list[Any]", value) if isinstance(value, list | tuple) else []
    return [one for one in found if isinstance(one, str)]


class _Check:
    def __init__(self, toolsets: Toolsets) -> None:
        self.toolsets = toolsets
        self.found: list[Diagnostic] = []
        self._suggested = 0
        self._checks = 0

    @property
    def has_errors(self) -> bool:
        return any(d.severity == "error" for d in self.found)

    def report(
        self,
        code: str,
        message: str,
        path: str,
        hint: str | None = None,
        severity: Literal["error", "warning"] = "error",
    ) -> None:
        self.found.append(Diagnostic(code=code, severity=severity, message=message, path=path, hint=hint))

    def suggest(self, name: str, known: Iterable[str]) -> str | None:
        """Return the hint that names what is near, for the first 200 names that are unknown."""
        self._suggested += 1
        return did_you_mean(name, list(known)) if self._suggested <= _MAX_HINTS else None

    def shape(self, value: Any) -> None:
        """Report what breaks the schema, apart from what the other checks report with a code of their own."""
        given = cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else None
        steps = None if given is None else given.get("steps")
        if isinstance(steps, list):
            count = len(cast("list[Any]", steps))
            if count > MAX_STEPS:
                message = f"the plan has {count} steps, the limit is {MAX_STEPS}"
                self.report("E_PLAN_TOO_LARGE", message, "/steps", "split the plan")
            if count == 0 and given is not None and given.get("status") == "ready":
                self.report("E_PLAN_EMPTY", "a ready plan has no steps", "/steps", "add a step")
        for path, message in problems_of(Plan, _without_own(value)):
            self.report("E_PLAN_SCHEMA", message, path)

    def identities(self, steps: list[dict[str, Any]]) -> None:
        first: dict[str, int] = {}
        for index, step in enumerate(steps):
            step_id = step.get("id")
            if not isinstance(step_id, str):
                continue
            path = f"/steps/{index}/id"
            if not _ID.fullmatch(step_id) or step_id.startswith("__"):
                message = (
                    f'"{step_id[:60]}" is no step id' if step_id.strip() else "the id of the step is empty"
                )
                hint = "begin with a letter or _, go on with letters, digits, _ and -"
                self.report("E_PLAN_STEP_ID", message, path, hint)
            elif step_id in first:
                message = f'id "{step_id}" is used by steps {first[step_id]} and {index}'
                self.report("E_PLAN_DUPLICATE_ID", message, path, "give each step an id of its own")
            else:
                first[step_id] = index

    def dependencies(self, steps: list[dict[str, Any]], ids: Mapping[str, int]) -> None:
        """Report unknown dependencies and cycles; `ids` are those of all steps, by their index."""
        graph: dict[str, list[str]] = {}
        for index, step in enumerate(steps):
            own = step.get("id")
            for place, name in enumerate(_texts(step.get("depends_on"))):
                path = f"/steps/{index}/depends_on/{place}"
                if name not in ids:
                    others = (one for one in islice(ids, MAX_STEPS) if one != own)
                    hint = self.suggest(name, others)
                    self.report("E_PLAN_DEPENDENCY", f'there is no step "{name[:60]}"', path, hint)
                elif name == own:
                    message = f"step {own} depends on itself: {own} -> {own}"
                    self.report("E_PLAN_CYCLE", message, path, "remove the dependency")
                elif isinstance(own, str):
                    graph.setdefault(own, []).append(name)
        for cycle in _cycles(graph):
            path = f"/steps/{ids[cycle[0]]}/depends_on"
            self.report("E_PLAN_CYCLE", f"dependencies form a cycle: {' -> '.join(cycle)}", path)

    def tools(self, index: int, step: dict[str, Any]) -> None:
        for place, name in enumerate(_texts(step.get("toolsets"))):
            path = f"/steps/{index}/toolsets/{place}"
            toolset = self.toolsets.find(name)
            if toolset is None:
                hint = self.suggest(name, self.toolsets.names) or "see GET /toolsets"
                self.report("E_PLAN_TOOLSET", f'there is no toolset "{name[:60]}"', path, hint)
            elif not toolset.enabled:
                message = f'toolset "{toolset.name}" is not enabled: the step will be skipped'
                hint = "add it to [toolsets] enabled"
                self.report("W_PLAN_TOOLSET_OFF", message, path, hint, "warning")
        self.call(index, step)

    def call(self, index: int, step: dict[str, Any]) -> None:
        """Report a call of a function that none of the step's toolsets has."""
        call = step.get("call")
        tool = cast("dict[str, Any]", call).get("tool") if isinstance(call, dict) else None
        if not isinstance(tool, str):
            return
        known = self.toolsets.tools_of(_texts(step.get("toolsets")))
        if tool not in known:
            hint = self.suggest(tool, known) or "name its toolset in `toolsets`"
            message = f'no toolset of the step has the function "{tool[:60]}"'
            self.report("E_PLAN_TOOLSET", message, f"/steps/{index}/call/tool", hint)

    def artifacts(self, index: int, step: dict[str, Any]) -> None:
        given = step.get("expected_artifacts")
        for place, one in enumerate(cast("list[Any]", given) if isinstance(given, list) else []):
            path = f"/steps/{index}/expected_artifacts/{place}"
            if isinstance(one, dict):
                value = cast("dict[str, Any]", one)
                kind, uri = value.get("type"), value.get("uri")
                if isinstance(kind, str) and kind not in ARTIFACT_TYPES:
                    hint = self.suggest(kind, ARTIFACT_TYPES) or f"one of {', '.join(ARTIFACT_TYPES)}"
                    message = f'"{kind[:60]}" is no type of artifact'
                    self.report("E_PLAN_ARTIFACT", message, f"{path}/type", hint)
                    continue
            elif isinstance(one, str):
                kind, uri = as_expected(one).type, one
            else:
                continue
            if kind in _FILES and isinstance(uri, str) and _leaves(uri):
                message = f'"{uri[:120]}" lies outside the workspace'
                self.report("E_PLAN_ARTIFACT", message, path, "give a path relative to the workspace")

    def checks(self, index: int, step: dict[str, Any]) -> None:
        given = step.get("verification")
        is_list = isinstance(given, list)
        for place, one in enumerate(cast("list[Any]", given) if is_list else [given]):
            if not isinstance(one, dict):
                continue
            path = f"/steps/{index}/verification" + (f"/{place}" if is_list else "")
            self._checks += 1
            if self._checks > _MAX_CHECKS:
                if self._checks == _MAX_CHECKS + 1:
                    message = f"the plan has more than {_MAX_CHECKS} checks"
                    self.report("E_PLAN_CHECK", message, path, "several keys in one check must all hold")
                return
            for message, key, hint in self._problems_of_check(cast("dict[str, Any]", one)):
                self.report("E_PLAN_CHECK", message, f"{path}/{key}" if key else path, hint)

    def _problems_of_check(self, value: dict[str, Any]) -> Iterable[tuple[str, str, str | None]]:
        from agentflow.definition.schemas import check_schema
        from agentflow.definition.stage_schemas import Check

        unknown = {key: None for key in value if key != "target" and key not in CHECK_KEYS}
        for key in unknown:
            yield f'a check has no key "{key[:60]}"', key, self.suggest(key, CHECK_KEYS)
        known = {key: one for key, one in value.items() if key not in unknown}
        if not unknown or len(known) > ("target" in known):
            for path, message in problems_of(Check, known):
                yield message, path.lstrip("/"), None
        schema = known.get("json_schema")
        if isinstance(schema, dict):
            for problem in check_schema(schema)[:1]:
                yield f"json_schema: {problem.message}", "json_schema", None


def _without_own(value: Any) -> Any:
    """Return the plan without what has a code of its own, so that each problem is reported once."""
    if not isinstance(value, Mapping):
        return value
    plan = dict(cast("Mapping[str, Any]", value))
    steps = plan.get("steps")
    if not isinstance(steps, list):
        return plan
    shown: list[Any] = []
    for step in cast("list[Any]", steps)[:MAX_STEPS]:
        if isinstance(step, dict):
            step = dict(cast("dict[str, Any]", step))
            if isinstance(step.get("verification"), dict | list):
                kept = step["verification"]
                ones = cast("list[Any]", kept) if isinstance(kept, list) else [kept]
                step["verification"] = [{"exists": True} if isinstance(one, dict) else one for one in ones]
            expected = step.get("expected_artifacts")
            if isinstance(expected, list):
                step["expected_artifacts"] = [_known_type(one) for one in cast("list[Any]", expected)]
        shown.append(step)
    if not shown and plan.get("status") == "ready":
        shown = [{"id": "a", "title": "", "action": "", "owner": "", "depends_on": []}]
    plan["steps"] = shown
    return plan


def _known_type(one: Any) -> Any:
    if isinstance(one, dict):
        value = dict(cast("dict[str, Any]", one))
        if isinstance(value.get("type"), str):
            value["type"] = "file"
        return value
    return one


def _leaves(uri: str) -> bool:
    """Return whether the path of a file lies outside the workspace by its text."""
    if _SCHEME.match(uri) or uri.startswith(("/", "\\", "~")) or "\0" in uri:
        return True
    depth = 0
    for part in uri.replace("\\", "/").split("/"):
        depth += -1 if part == ".." else 0 if part in ("", ".") else 1
        if depth < 0:
            return True
    return False


def _cycles(graph: Mapping[str, list[str]]) -> list[list[str]]:
    """Return cycles that share no step, each with its first step again at its end: at least one of each group
    of steps that reach each other."""
    done: set[str] = set()
    told: set[str] = set()
    found: list[list[str]] = []
    for start in graph:
        path: dict[str, None] = {}
        todo: list[tuple[str, int]] = [(start, 0)]
        while todo:
            name, place = todo.pop()
            if place == 0:
                if name in path:
                    steps = list(path)
                    cycle = steps[steps.index(name) :]
                    if told.isdisjoint(cycle):
                        told.update(cycle)
                        found.append([*cycle, name])
                    continue
                if name in done:
                    continue
                path[name] = None
            following = graph.get(name, [])
            if place < len(following):
                todo.append((name, place + 1))
                todo.append((following[place], 0))
            else:
                path.popitem()
                done.add(name)
    return found


class _Adjust:
    """Changes what the runtime does not take over as it is, and notes each change."""

    def __init__(
        self, toolsets: Toolsets, rules: tuple[PolicyRule, ...], approval_class: str, template: str | None
    ) -> None:
        self.toolsets = toolsets
        self.rules = rules
        self.approval_class = approval_class
        self.template = template
        self.made: list[dict[str, Any]] = []
        self.found: list[Diagnostic] = []

    def _note(self, step: Step, field: str, before: Any, after: Any, reason: str) -> None:
        self.made.append(
            {"step_id": step.id, "field": field, "before": before, "after": after, "reason": reason}
        )

    def step(self, index: int, step: Step) -> Step:
        """Return the step with canonical names, its approval reset and the policy applied."""
        toolsets = [found.name for name in step.toolsets if (found := self.toolsets.find(name)) is not None]
        toolsets = tuple(dict.fromkeys(toolsets))
        if toolsets != step.toolsets:
            self._note(step, "toolsets", list(step.toolsets), list(toolsets), "alias")
            step = msgspec.structs.replace(step, toolsets=toolsets)
        claimed = step.approval_status
        if claimed in ("approved", "rejected"):
            self._note(step, "approval_status", claimed, "pending", "approval_reset")
            message = f"step {step.id} says that it is {claimed}: only a person can decide that"
            self._warn("W_PLAN_SELF_APPROVED", message, f"/steps/{index}/approval_status")
            step = msgspec.structs.replace(step, approval_status="pending")
        why = approval_of(
            step, self.toolsets, self.rules, approval_class=self.approval_class, template=self.template
        )
        if why is not None and step.requires_approval is not True:
            before = None if step.requires_approval is msgspec.UNSET else False
            self._note(step, "requires_approval", before, True, why)
            step = msgspec.structs.replace(step, requires_approval=True)
        if why is not None and step.approval_status == "not_required":
            self._note(step, "approval_status", "not_required", "pending", why)
            step = msgspec.structs.replace(step, approval_status="pending")
        changes = CLASSES.index(self.toolsets.class_of(step.toolsets)) >= CLASSES.index("write")
        if changes and not step.expected_artifacts and not step.checks:
            message = f"step {step.id} has side effects and nothing to check"
            self._warn("W_PLAN_UNVERIFIABLE", message, f"/steps/{index}", "add expected_artifacts or a check")
        return step

    def _warn(self, code: str, message: str, path: str, hint: str | None = None) -> None:
        self.found.append(Diagnostic(code=code, severity="warning", message=message, path=path, hint=hint))
