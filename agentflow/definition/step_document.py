"""The step document (page 001 §1.1 to §1.4): static checks, then the graph that it means (§4)."""

from __future__ import annotations

from typing import Any, cast

import msgspec

from agentflow.definition.common_checks import (
    check_embedded_schema,
    compile_services,
    escaped,
    service_names,
    warn_undeclared,
)
from agentflow.definition.document_lints import warn_of_unused_inputs, warn_of_unused_services
from agentflow.definition.expression_checks import ExpressionChecks, Scope
from agentflow.definition.graph_checks import Graph, build_graph
from agentflow.definition.input_checks import compile_inputs, input_needs
from agentflow.definition.inputs import InputNeeds
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
from agentflow.definition.nodes import Object
from agentflow.definition.policies import (
    Models,
    compiled_approval,
    compiled_budget,
    compiled_cache,
    merged_policy,
)
from agentflow.definition.report import Report
from agentflow.definition.source_text import Source
from agentflow.definition.structure import Found, check_structure
from agentflow.definition.vocabulary import STEP_DOCUMENT

__all__ = ["compile_step_document"]

_START, _END = "__start", "__end"
_VERSION = "1.0"


def compile_step_document(
    root: Object, source: Source, default_name: str, report: Report
) -> tuple[Workflow, InputNeeds]:
    """The graph of a step document and the inputs that it needs.

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


class _Guard(msgspec.Struct, frozen=True):
    text: str | None
    join: Join


class _StepDocument:
    def __init__(self, document: Found, source: Source, report: Report) -> None:
        self._document = document
        self._report = report
        self._services = service_names(document)
        self._steps = self._checked_steps()
        self._graph: Graph = build_graph(self._steps, report)
        if self._lacks_steps():
            self._graph.nameless = True
        self._schemas = self._result_schemas()
        self._inputs: dict[str, InputSpec] | None = compile_inputs(document, report)
        self._models = Models(document.get("models"), report)
        self._expressions = ExpressionChecks(
            report,
            source,
            self._graph,
            {step_id: self._schemas.get(step.pointer, True) for step_id, step in self._graph.steps.items()},
            self._input_schemas(),
        )

    def compile(self, default_name: str) -> tuple[Workflow, InputNeeds]:
        document = self._document
        workflow = document.get("workflow")
        compiled = [self._step(i, step) for i, step in enumerate(self._steps)]
        outputs = document.get("outputs")
        for _, output in outputs.items() if outputs else ():
            self._expressions.template(output, Scope("outputs"))
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
        needs = input_needs(document, self._inputs, self._expressions.uses, self._expressions.all_inputs_used)
        if not self._report.has_errors:
            self._warn_of_unused(compiled)
        return graph, needs

    def _lacks_steps(self) -> bool:
        """Return True if steps of the document were reported as wrong and left out."""
        workflow = self._document.get("workflow")
        steps = workflow.get("steps") if workflow else None
        return steps is None or len(steps.json()) != len(self._steps)

    def _warn_of_unused(self, nodes: list[AgentNode]) -> None:
        """Warn of inputs and services without a use; not if a misspelt name may be the use."""
        expressions = self._expressions
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
        if not steps.json():
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

    def _result_schemas(self) -> dict[str, Any]:
        """By pointer of the step."""
        schemas: dict[str, Any] = {}
        for step in self._steps:
            agent = step.get("agent")
            found = agent.get("resultSchema") if agent else None
            if found is not None:
                schemas[step.pointer] = check_embedded_schema(found, "E_RESULT_SCHEMA", "", self._report)
        return schemas

    def _input_schemas(self) -> dict[str, Any] | None:
        """By name, those too that are declared wrongly; None if inputs are not declared."""
        declared = self._document.get("inputs")
        if declared is None or self._inputs is None:
            return None
        names = [name for name in declared.json() if not name.startswith("x-")]
        return {name: self._inputs[name].schema if name in self._inputs else True for name in names}

    def _step(self, index: int, step: Found) -> AgentNode:
        step_id: str = step.plain("id", f"step_{index}")
        agent = step.get("agent")
        for_each = step.get("for_each")
        iterates = step.has("for_each")
        named: str | None = step.plain("id")
        item: Any = True
        before, unsure = self._graph.before_step(step), step.pointer in self._graph.unsure
        if for_each is not None:
            item = self._expressions.for_each(for_each, Scope("for_each", named, before, unsure=unsure))
        guard = self._guard(step, Scope("if", named, before, item=iterates, status=True, unsure=unsure), item)
        self._other_templates(step, named, item, iterates)
        return AgentNode(
            id=step_id,
            name=agent.plain("name") if agent else None,
            index=index,
            depends_on=self._graph.depends_on.get(step_id, ()),
            join=guard.join,
            guard=guard.text,
            for_each=for_each.value.strip() if for_each else None,
            max_parallel=step.plain("max_parallel"),
            required=step.plain("required", True),
            policy=merged_policy(
                [self._default("retry"), step.get("retry")],
                step.plain("timeout", self._default_value("timeout")),
            ),
            approval=compiled_approval(step.get("approval")),
            cache=compiled_cache(step.get("cache")),
            budget=compiled_budget(step.get("budget")),
            agent=self._agent(step_id, step, agent),
            input=escaped(agent.plain("input")) if agent else None,
        )

    def _guard(self, step: Found, scope: Scope, item: Any) -> _Guard:
        found = step.get("if")
        if found is None:
            return _Guard(None, "all_succeeded")
        if isinstance(found.value, bool):
            self._expressions.constant_guard(found)
            return _Guard(None if found.value else "false", "all_succeeded")
        expression = self._expressions.guard(found, scope, item)
        with_status = expression is not None and expression.status_functions
        return _Guard(found.value.strip(), "all_terminal" if with_status else "all_succeeded")

    def _other_templates(self, step: Found, name: str | None, item: Any, iterates: bool) -> None:
        agent = step.get("agent")
        scope = Scope(
            "", name, self._graph.before_step(step), item=iterates, unsure=step.pointer in self._graph.unsure
        )
        for key in ("systemPrompt", "input", "context", "tags"):
            inner = msgspec.structs.replace(scope, where=key, prompt=key == "systemPrompt")
            self._expressions.template(agent.get(key) if agent else None, inner, item)
        cache, approval = step.get("cache"), step.get("approval")
        if cache is not None:
            inner = msgspec.structs.replace(scope, where="cache.key")
            self._expressions.template(cache.get("key"), inner, item)
        if approval is not None and approval.value is not True:
            inner = msgspec.structs.replace(scope, where="approval.message", item=False)
            self._expressions.template(approval.get("message"), inner)

    def _agent(self, step_id: str, step: Found, agent: Found | None) -> AgentSpec:
        if agent is None:
            return AgentSpec(name=step_id, system_prompt="")
        fallback = agent.get("fallback")
        choices = [self._models.choose(found) for found in fallback.value] if fallback else []
        tags = agent.get("tags")
        return AgentSpec(
            name=agent.plain("name", step_id),
            system_prompt=escaped(agent.plain("systemPrompt", "")),
            model=self._models.choose(agent.get("model")),
            fallback=tuple(choice for choice in choices if choice is not None),
            output_schema=self._schemas.get(step.pointer),
            plain_result="object",
            functions=self._functions(agent),
            context=escaped(agent.plain("context")),
            tags=escaped(tags.json()) if tags else {},
            max_turns=agent.plain("max_turns", self._default_value("max_turns") or 10),
            max_tool_calls=agent.plain("max_tool_calls", 50),
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


def _outer_edges(steps: list[AgentNode]) -> tuple[Edge, ...]:
    """From the start to the steps without dependencies, from those nobody waits for to the end."""
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
