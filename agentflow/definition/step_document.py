"""The step document (page 001 §1.1 to §1.4): the graph that it means (§4), and where its values stand.

The graph is checked like any other. Only here is found what the graph does not show: wrong keys and types
(`structure`), the version, keys that are absent (W_INPUT_MISSING and the like), `if` that is a boolean,
dependencies and functions that are listed twice, `max_parallel` without `for_each`, what of models, services
and policies is shorthand, wrong schemas of inputs and results, and inputs and services without a use.
"""

from __future__ import annotations

from typing import Any, cast

import msgspec

from agentflow.definition.common_checks import (
    check_embedded_schema,
    compile_services,
    escaped,
    examples_of,
    service_names,
    warn_undeclared,
)
from agentflow.definition.document_lints import warn_of_unused_inputs, warn_of_unused_services
from agentflow.definition.expression_checks import ExpressionChecks
from agentflow.definition.expression_lints import lint_condition
from agentflow.definition.expressions import ExpressionError, parse_whole
from agentflow.definition.expressions.nodes import Lit
from agentflow.definition.input_checks import compile_inputs, input_needs
from agentflow.definition.inputs import ANY_INPUT, InputNeeds
from agentflow.definition.ir import (
    AgentNode,
    AgentSpec,
    Edge,
    EndNode,
    FunctionRef,
    InputSpec,
    Join,
    Options,
    StartNode,
    Workflow,
)
from agentflow.definition.ir_checks import check_graph
from agentflow.definition.ir_report import IrReport
from agentflow.definition.origin import DocumentOrigin, Words
from agentflow.definition.policies import (
    Models,
    compiled_approval,
    compiled_budget,
    compiled_cache,
    compiled_step_budget,
    merged_policy,
)
from agentflow.definition.report import Report, shown
from agentflow.definition.source_text import Source
from agentflow.definition.source_tree import Array, Object, child_pointer
from agentflow.definition.structure import Found, check_structure
from agentflow.definition.vocabulary import STEP_DOCUMENT

__all__ = ["compile_step_document"]

_START, _END = "__start", "__end"
_VERSION = "1.0"
_WORDS = Words(
    node="step",
    id="step id",
    guard="if",
    unknown="E_UNKNOWN_STEP",
    duplicate="E_DUPLICATE_ID",
    reserved="E_VALUE",
    reserved_hint="choose another name",
)
_AGENT_KEYS = {
    "agent/system_prompt": "systemPrompt",
    "input": "input",
    "agent/context": "context",
    "agent/tags": "tags",
}
_KEYS = {**_AGENT_KEYS, "guard": "if", "cache/key": "cache.key", "approval/message": "approval.message"}


def compile_step_document(
    root: Object, source: Source, default_name: str, report: Report
) -> tuple[Workflow, InputNeeds]:
    """Return the graph of a step document and the inputs that it needs.

    All problems go to the report; with an error among them the graph must not be used.
    """
    document = check_structure(root, STEP_DOCUMENT, report)
    _check_version(document, report)
    return _StepDocument(document, source, report).compile(default_name)


def _check_version(document: Found, report: Report) -> None:
    version = document.get("version")
    if version is None:
        if not document.has("version"):
            report.warning(
                "W_VERSION_MISSING",
                f'version is missing, "{_VERSION}" is assumed',
                document.key,
                "",
                hint=f'add version: "{_VERSION}"',
            )
        return
    value = version.value
    if value == _VERSION:
        return
    hint = f'write "{_VERSION}"'
    if isinstance(value, int | float) and not isinstance(value, bool) and value == 1:
        message = "version is a number"
        report.warning("W_VERSION_TYPE", message, version.place, version.pointer, f"{hint} with quotes")
        return
    shown = f'"{value[:40]}"' if isinstance(value, str) else msgspec.json.encode(value).decode()[:40]
    message = f"version {shown} is not supported"
    report.error("E_VERSION", message, version.place, version.pointer, hint)


class _StepDocument:
    def __init__(self, document: Found, source: Source, report: Report) -> None:
        self._document = document
        self._report = report
        self._services = service_names(document)
        self._steps = self._checked_steps()
        self._inputs: dict[str, InputSpec] | None = compile_inputs(document, report)
        self._models = Models(document.get("models"), report)
        self._origin = DocumentOrigin(_WORDS, source)
        self._origin.names = _KEYS
        self._origin.has_nameless = self._lacks_steps()

    def compile(self, default_name: str) -> tuple[Workflow, InputNeeds]:
        document = self._document
        workflow = document.get("workflow")
        compiled = [self._step(i, step) for i, step in enumerate(self._steps)]
        outputs = document.get("outputs")
        for name, output in outputs.items() if outputs else ():
            self._origin.fields[child_pointer("/outputs", name)] = output
        inputs = document.get("inputs")
        for name, declared in inputs.items() if inputs else ():
            if (default := declared.get("default")) is not None:
                self._origin.fields[f"{child_pointer('/inputs', name)}/default"] = default
        graph = Workflow(
            name=document.plain("name", default_name),
            nodes=(StartNode(id=_START), *compiled, EndNode(id=_END, index=len(compiled), drain=True)),
            edges=_outer_edges(compiled),
            inputs=self._inputs,
            outputs={name: escaped(found.value) for name, found in outputs.items()} if outputs else None,
            services=compile_services(document, self._report),
            models=self._models.table(),
            options=_options(workflow),
            metadata=_metadata(document),
        )
        expressions = check_graph(graph, IrReport(self._report, self._origin))
        if expressions is None or self._report.has_errors:
            return graph, ANY_INPUT
        self._warn_of_unused(compiled, expressions)
        return graph, input_needs(document, self._inputs, expressions.uses, expressions.all_inputs_used)

    def _lacks_steps(self) -> bool:
        """Return True if steps of the document were reported as wrong and left out."""
        workflow = self._document.get("workflow")
        steps = workflow.get("steps") if workflow else None
        return steps is None or len(_items(steps)) != len(self._steps)

    def _warn_of_unused(self, nodes: list[AgentNode], expressions: ExpressionChecks) -> None:
        """Warn of inputs and services without a use; not if a misspelt name may be the use."""
        if not expressions.all_inputs_used:
            used = {use.name for use in expressions.uses} | expressions.named
            warn_of_unused_inputs(self._document, used, self._report)
        granted = [node.agent.functions for node in nodes]
        services = {ref.service for functions in granted if functions for ref in functions}
        if None not in granted and services <= set(self._services or ()):
            warn_of_unused_services(self._document, services, self._report)

    def _checked_steps(self) -> list[Found]:
        workflow = self._document.get("workflow")
        steps = workflow.get("steps") if workflow else None
        if steps is None:
            return []
        found = cast("list[Found]", steps.value)
        if not _items(steps):
            self._report.error(
                "E_NO_STEPS", "workflow has no steps", steps.place, steps.pointer, "add a step"
            )
        for step in found:
            agent = step.get("agent")
            if agent is not None:
                self._warn_about_agent(step.plain("id", "?"), agent)
            if step.has("max_parallel") and not step.has("for_each"):
                limit = step.get("max_parallel")
                if limit is not None:
                    self._report.error(
                        "E_VALUE",
                        "max_parallel of a step counts iterations",
                        limit.key,
                        limit.pointer,
                        hint="add for_each, or leave it out",
                    )
        return found

    def _warn_about_agent(self, name: str, agent: Found) -> None:
        def warn(code: str, message: str, hint: str | None = None, at: Found | None = None) -> None:
            place = at.place if at else agent.key
            self._report.warning(code, f'step "{name}" {message}', place, (at or agent).pointer, hint)

        if not agent.has("input"):
            warn("W_INPUT_MISSING", "has no input, null is sent")
        if not agent.has("resultSchema"):
            warn("W_RESULT_SCHEMA_MISSING", "has no resultSchema, its result is unchecked")
        functions = agent.get("attachedFunctions")
        if not agent.has("attachedFunctions") or (functions is not None and functions.json() == []):
            warn("W_ALL_FUNCTIONS", "may call every function", "list them, or write none", functions)

    def _step(self, index: int, step: Found) -> AgentNode:
        agent = step.get("agent")
        for_each = step.get("for_each")
        pointer = f"/nodes/{index + 1}"
        self._locate(step, agent, pointer)
        return AgentNode(
            id=self._id(step, pointer),
            name=agent.plain("name") if agent else None,
            index=index,
            depends_on=self._dependencies(step, pointer),
            join=self._join(step),
            guard=_guard(step),
            # A wrong one, which has no place, still makes a step that iterates.
            for_each=for_each.value.strip() if for_each else "" if step.has("for_each") else None,
            max_parallel=step.plain("max_parallel"),
            required=step.plain("required", True),
            policy=merged_policy(
                [self._default("retry"), step.get("retry")],
                step.plain("timeout", self._default_value("timeout")),
            ),
            approval=compiled_approval(step.get("approval")),
            cache=compiled_cache(step.get("cache")),
            budget=compiled_step_budget(step.get("budget"), self._report),
            agent=self._agent(step.plain("id", ""), agent),
            input=escaped(agent.plain("input")) if agent else None,
        )

    def _locate(self, step: Found, agent: Found | None, pointer: str) -> None:
        """Tell the origin where the fields of a step stand."""
        cache, approval = step.get("cache"), step.get("approval")
        fields = {
            "id": step.get("id"),
            "guard": step.get("if"),
            "for_each": step.get("for_each"),
            "cache/key": cache.get("key") if cache else None,
            "approval/message": approval.get("message") if approval and approval.value is not True else None,
        }
        if agent is not None:
            fields |= {field: agent.get(key) for field, key in _AGENT_KEYS.items()}
        found = {f"{pointer}/{field}": value for field, value in fields.items() if value is not None}
        self._origin.fields.update(found)
        self._origin.keys[pointer] = step.key, step.pointer

    def _id(self, step: Found, pointer: str) -> str:
        """Return the id of a step; "" for one that is absent or wrong, and was reported as that."""
        if step.get("id") is None:
            self._origin.has_nameless |= step.has("id")
            written = step.written("id")
            if isinstance(written, str):
                self._origin.refused.add(written)
        return step.plain("id", "")

    def _dependencies(self, step: Found, pointer: str) -> tuple[str, ...]:
        declared: list[Found] = step.plain("depends_on", [])
        written: Any = step.written("depends_on") if step.has("depends_on") else []
        if not isinstance(written, list) or len(cast("list[Any]", written)) != len(declared):
            self._origin.unsure.add(pointer)
        seen: dict[str, Found] = {}
        for dependency in declared:
            if seen.setdefault(dependency.value, dependency) is not dependency:
                message = f'"{shown(dependency.value)}" is listed twice'
                self._report.warning("W_DUPLICATE", message, dependency.place, dependency.pointer)
        for i, dependency in enumerate(seen.values()):
            self._origin.fields[f"{pointer}/depends_on/{i}"] = dependency
        return tuple(seen)

    def _join(self, step: Found) -> Join:
        """Return the rule by which a step waits: a guard that asks for a status is asked in any case."""
        found = step.get("if")
        if found is None:
            return "all_succeeded"
        if isinstance(found.value, bool):
            lint = lint_condition(Lit(found.value, 0))
            if lint is not None:
                self._report.warning(lint.code, lint.message, found.place, found.pointer, lint.hint)
            return "all_succeeded"
        try:
            expression = parse_whole(found.value, bare=True)
        except ExpressionError:
            return "all_succeeded"
        return "all_terminal" if expression.status_functions else "all_succeeded"

    def _agent(self, step_id: str, agent: Found | None) -> AgentSpec:
        if agent is None:
            return AgentSpec(name=step_id, system_prompt="")
        tags, schema = agent.get("tags"), agent.get("resultSchema")
        return AgentSpec(
            name=agent.plain("name", step_id),
            system_prompt=escaped(agent.plain("systemPrompt", "")),
            model=self._models.choose(agent.get("model")),
            fallback=self._models.choose_each(agent.get("fallback")),
            output_schema=check_embedded_schema(schema, "E_RESULT_SCHEMA", "", self._report)
            if schema
            else None,
            plain_result="object",
            functions=self._functions(agent),
            context=escaped(agent.plain("context")),
            tags=escaped(tags.json()) if tags else {},
            max_turns=agent.plain("max_turns", self._default_value("max_turns") or 10),
            max_tool_calls=agent.plain("max_tool_calls", 50),
            examples=examples_of(agent),
            accept_truncated=agent.plain("accept_truncated", False),
        )

    def _functions(self, agent: Found) -> tuple[FunctionRef, ...] | None:
        attached = agent.get("attachedFunctions")
        if attached is None or not attached.json():
            return None
        if attached.value == "none":
            return ()
        references: list[FunctionRef] = []
        seen: set[FunctionRef] = set()
        for found in cast("list[Found]", attached.value):
            service, function = found.get("service"), found.get("function")
            if service is not None:
                warn_undeclared(service, self._services, self._report)
            if service is None or function is None:
                continue
            reference = FunctionRef(service.value, function.value)
            if reference in seen:
                message = f'"{service.value}.{function.value}" is listed twice'
                self._report.warning("W_DUPLICATE", message, found.key, found.pointer)
            seen.add(reference)
            references.append(reference)
        return tuple(references)

    def _default(self, key: str) -> Found | None:
        defaults = self._document.get("defaults")
        return defaults.get(key) if defaults else None

    def _default_value(self, key: str) -> Any:
        found = self._default(key)
        return found.value if found else None


def _items(found: Found) -> list[Any]:
    """Return the elements of an array as they stand in the source, right or wrong."""
    return list(found.node.items) if isinstance(found.node, Array) else []


def _guard(step: Found) -> str | None:
    found = step.get("if")
    if found is None or found.value is True:
        return None
    return found.value.strip() if isinstance(found.value, str) else "false"


def _outer_edges(steps: list[AgentNode]) -> tuple[Edge, ...]:
    """Return the edges from the start to the steps without dependencies, and from those that no step waits
    for to the end."""
    awaited = {dependency for step in steps for dependency in step.depends_on}
    first = [Edge(source=_START, target=step.id) for step in steps if not step.depends_on]
    last = [Edge(source=step.id, target=_END) for step in steps if step.id not in awaited]
    return (*first, *last)


def _options(workflow: Found | None) -> Options:
    if workflow is None:
        return Options()
    return Options(
        on_failure="halt" if workflow.plain("fail_fast", False) else "continue",
        max_parallel=workflow.plain("max_parallel", 8),
        timeout=workflow.plain("timeout"),
        budget=compiled_budget(workflow.get("budget")),
    )


def _metadata(document: Found) -> dict[str, Any]:
    description = document.plain("description")
    return {"description": description} if description is not None else {}
