"""Binding: which models and functions a definition's agents get (page 001 §2 phase B).

Reports every problem at once and starts nothing: a definition that does not bind leaves no run.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal
from weakref import WeakKeyDictionary

import msgspec

from agentflow.definition.diagnostics import Diagnostic
from agentflow.definition.ir import (
    AgentNode,
    AgentSpec,
    FunctionRef,
    ModelRef,
    ServiceSpec,
    ToolNode,
    Workflow,
)
from agentflow.engine import Bindings, StepBinding, ToolInfo
from agentflow.models import ModelResolutionError, Models
from agentflow.tools import Service, Tool, ToolRegistry, load_python_service

__all__ = ["Bound", "Pins", "bind"]

Locate = Callable[[str], tuple[int | None, int | None]]
"""A JSON pointer of the document to (line, column)."""


class Pins:
    """What an existing run was bound to: it keeps its models and may not gain functions."""

    def __init__(self, models: dict[str, list[dict[str, Any]]], grants: dict[str, list[str]]) -> None:
        self.models = {
            step: tuple(
                ModelRef(provider=m["provider"], model=m["model"], parameters=m.get("parameters", {}))
                for m in refs
            )
            for step, refs in models.items()
        }
        self.grants = {step: frozenset(names) for step, names in grants.items()}


class Bound:
    """The result: what the engine needs, the services that were loaded, and what a run must remember."""

    def __init__(self) -> None:
        self.steps: dict[str, StepBinding] = {}
        self.services: dict[str, Service] = {}
        self.diagnostics: list[Diagnostic] = []
        self.grants: dict[str, list[str]] = {}

    @property
    def bindings(self) -> Bindings:
        return Bindings(steps=self.steps)

    @property
    def models(self) -> dict[str, list[dict[str, Any]]]:
        """The pinned models, as `workflow.started` stores them."""
        return {
            step: [{"provider": r.provider, "model": r.model, "parameters": r.parameters} for r in b.models]
            for step, b in self.steps.items()
            if b.models
        }


class _Binder:
    def __init__(
        self,
        workflow: Workflow,
        registry: ToolRegistry,
        models: Models,
        folder: Path | None,
        locate: Locate,
        file: str | None,
        linear: bool,
        pins: Pins | None,
        implicit: Literal["allow", "deny"],
    ) -> None:
        self.workflow = workflow
        self.models = models
        self.folder = folder
        self.locate = locate
        self.file = file
        self.pins = pins
        self.implicit = implicit
        self.bound = Bound()
        self.registry = registry.copy()
        self.linear = linear

    def run(self) -> Bound:
        for name, spec in self.workflow.services.items():
            self._load(name, spec)
        for node in self.workflow.nodes:
            if isinstance(node, AgentNode):
                self._agent(node)
            elif isinstance(node, ToolNode):
                self._tool(node)
        for service in self.registry.services.values():
            self.bound.services.setdefault(service.name, service)
        return self.bound

    def _report(
        self,
        code: str,
        message: str,
        path: str,
        hint: str | None = None,
        severity: Literal["error", "warning"] = "error",
    ) -> None:
        line, column = self.locate(path)
        self.bound.diagnostics.append(
            Diagnostic(
                code=code,
                severity=severity,
                message=message,
                file=self.file,
                line=line,
                column=column,
                path=path,
                hint=hint,
            )
        )

    def _load(self, name: str, spec: ServiceSpec) -> None:
        service, problems = load_python_service(name, spec, self.folder)
        for problem in problems:
            self._report(
                problem.code, problem.message, f"/services/{name}", problem.hint, severity=problem.severity
            )
        if service is not None:
            self.registry.add(service)

    # -- agents ---------------------------------------------------------------------------------

    def _agent(self, node: AgentNode) -> None:
        spec = node.agent
        place = f"/agents/{node.index}" if self.linear else f"/workflow/steps/{node.index}/agent"
        tools = self._functions(node, spec, place)
        refs = self._models(node.id, spec, place)
        self._check_capability(node.id, spec, refs, tools, place)
        self.bound.steps[node.id] = StepBinding(models=refs, tools={t.name: _info(t) for t in tools})
        self.bound.grants[node.id] = [f"{t.service}.{t.function}" for t in tools]

    def _models(self, step: str, spec: AgentSpec, place: str) -> tuple[ModelRef, ...]:
        if self.pins is not None and step in self.pins.models:
            return self.pins.models[step]
        default = self.workflow.models.get("default")
        wanted: list[ModelRef | str | None] = [spec.model or default]
        wanted += spec.fallback
        refs: list[ModelRef] = []
        for name in wanted:
            try:
                refs.append(self._resolve(name))
            except ModelResolutionError as error:
                path = f"{place}/model" if name is not None and spec.model is not None else place
                message = str(error) if name is not None else f'no model for step "{step}": {error}'
                self._report("E_UNKNOWN_MODEL", message, path, error.hint)
        return tuple(refs)

    def _resolve(self, wanted: ModelRef | str | None) -> ModelRef:
        """A reference without a provider names an alias or nothing, and sets parameters of its own."""
        aliases = self.workflow.models
        if not isinstance(wanted, ModelRef) or wanted.provider:
            return self.models.resolve(wanted, aliases=aliases)
        known = {k: v for k, v in aliases.items() if v is not wanted}
        base = self.models.resolve(wanted.model or None, aliases=known)
        return msgspec.structs.replace(base, parameters={**base.parameters, **wanted.parameters})

    def _check_capability(
        self, step: str, spec: AgentSpec, refs: tuple[ModelRef, ...], tools: list[Tool], place: str
    ) -> None:
        for ref in refs:
            profile = self.models.profile(ref)
            lacks = profile.lacks(functions=len(tools), json_schema=spec.output_schema is not None)
            if lacks is None:
                continue
            offered = f', "{step}" attaches {len(tools)}' if len(tools) != 1 else f', step "{step}"'
            key = "tools" if self.linear else "attachedFunctions"
            hint = "attach one function, or choose another model" if tools else "choose another model"
            self._report("E_MODEL_CAPABILITY", f"{ref.name} {lacks}{offered}", f"{place}/{key}", hint)

    def _functions(self, node: AgentNode, spec: AgentSpec, place: str) -> list[Tool]:
        tools: list[Tool] = []
        if spec.functions is None:
            tools = self._implied(self.registry.all_public())
        else:
            key = "tools" if self.linear else "attachedFunctions"
            for i, ref in enumerate(spec.functions):
                found, problems = self.registry.resolve(ref)
                for problem in problems:
                    member = "" if self.linear else "/service" if "SERVICE" in problem.code else "/function"
                    self._report(problem.code, problem.message, f"{place}/{key}/{i}{member}", problem.hint)
                if ref.function == "*":
                    found = self._implied(found)
                tools += [t for t in found if t not in tools]
        for problem in self.registry.duplicates(tools):
            self._report(problem.code, problem.message, place, problem.hint)
        if self.pins is not None and node.id in self.pins.grants:
            granted = self.pins.grants[node.id]
            tools = [t for t in tools if f"{t.service}.{t.function}" in granted]
        return tools

    def _implied(self, tools: list[Tool]) -> list[Tool]:
        """What "all" and `*` give: a function that is declared to change something must be named, or the
        Runtime must say `implicit_side_effects="allow"` (page 001 §5.6)."""
        if self.implicit == "allow":
            return tools
        return [t for t in tools if not t.declared or t.side_effect in ("none", "read")]

    def _tool(self, node: ToolNode) -> None:
        service, _, function = node.tool.rpartition(".")
        found, problems = self.registry.resolve(FunctionRef(service, function))
        for problem in problems:
            self._report(problem.code, problem.message, f"/nodes/{node.index}/tool", problem.hint)
        self.bound.steps[node.id] = StepBinding(tools={t.name: _info(t) for t in found[:1]})
        self.bound.grants[node.id] = [f"{t.service}.{t.function}" for t in found[:1]]


_infos: WeakKeyDictionary[Callable[..., Any], tuple[Tool, ToolInfo]] = WeakKeyDictionary()


def _info(tool: Tool) -> ToolInfo:
    known = _infos.get(tool.call)
    if known is not None and known[0] is tool:
        return known[1]
    info = ToolInfo(
        name=tool.name,
        service=tool.service,
        function=tool.function,
        description=tool.description,
        input_schema=tool.input_schema,
        schema_hash=tool.schema_hash,
        side_effect=tool.side_effect,
        idempotent=tool.idempotent,
        timeout=tool.timeout,
        sensitive=tool.sensitive,
        self_checked=True,
    )
    _infos[tool.call] = (tool, info)
    return info


def bind(
    workflow: Workflow,
    *,
    registry: ToolRegistry,
    models: Models,
    folder: Path | None = None,
    locate: Locate = lambda _: (None, None),
    file: str | None = None,
    linear: bool = False,
    pins: Pins | None = None,
    implicit: Literal["allow", "deny"] = "deny",
) -> Bound:
    """Resolve every model and function of the graph. Imports the modules of its python services.

    With `pins`, an existing run keeps its models and is offered no function that it was not granted.
    """
    return _Binder(workflow, registry, models, folder, locate, file, linear, pins, implicit).run()
