"""Checks of `agentflow check` beside the text: files that services name, and with --bind, phase B.

`nearby_problems` runs no code and opens no connection: it looks at the files beside the document and at the
configuration. `bind_problems` binds as a run would, in this process, on a store in memory.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from agentflow.definition.bound_nodes import BoundNode, bound_nodes
from agentflow.definition.diagnostics import Diagnostic, Severity, did_you_mean
from agentflow.definition.ir import AgentSpec, ModelRef
from agentflow.definition.source_tree import child_pointer
from agentflow.errors import ConfigurationError

if TYPE_CHECKING:
    from agentflow.config import Config
    from agentflow.definition.loader import Definition
    from agentflow.graphs import Workflow

__all__ = ["bind_problems", "nearby_problems"]

_MAX_MODULE = 1 << 20
"""Bytes of a module that is parsed; a longer one is left to --bind."""


def bind_problems(subject: Definition | Workflow, config: Config) -> list[Diagnostic]:
    """Return what phase B of page 001 reports. Imports modules, starts and connects services."""
    import asyncio

    from agentflow import logs
    from agentflow.cli.python_workflows import definition_of_subject
    from agentflow.definition.loader import Definition
    from agentflow.models import Models
    from agentflow.runtime import Runtime

    definition = definition_of_subject(subject)

    async def bind() -> list[Diagnostic]:
        async with Runtime("memory:", models=Models(config=config.for_models())) as runtime:
            code = None if isinstance(subject, Definition) else subject.callables
            return (await runtime.bind(definition, code=code)).diagnostics

    logs.configure()
    return asyncio.run(bind())


def nearby_problems(definition: Definition, configuration: Callable[[], Config]) -> list[Diagnostic]:
    """Return what the files beside the document and the configuration say about it.

    A configuration that cannot be read says nothing: a document is not wrong because of it.
    """
    check = _Nearby(definition)
    for name, service in definition.workflow.services.items():
        if service.type == "openapi":
            check.openapi(name, str(service.options.get("document", "")))
        elif service.type == "python":
            check.module(name, str(service.options.get("module", "")))
        elif service.type == "http":
            check.declared(name, set(service.functions))
    with suppress(ConfigurationError):
        check.models(configuration().for_models().get("models"))
    return check.found


class _Nearby:
    def __init__(self, definition: Definition) -> None:
        self._definition = definition
        self._folder = definition.folder or Path()
        self.found: list[Diagnostic] = []
        self._reported = {warning.path for warning in definition.warnings}

    def openapi(self, name: str, document: str) -> None:
        """Report an OpenAPI document that is not there."""
        if "://" in document or (self._folder / document).exists():
            return
        others = [
            str(path.relative_to(self._folder))
            for suffix in ("json", "yaml", "yml")
            for path in (self._folder / document).parent.glob(f"*.{suffix}")
        ]
        message = f'service "{name}": there is no file "{document}"'
        pointer = f"{child_pointer('/services', name)}/document"
        hint = did_you_mean(document, others) or "name it by its path from the folder of the document"
        self._add("E_SERVICE_UNAVAILABLE", message, pointer, hint)

    def module(self, name: str, module: str) -> None:
        """Report functions that a module beside the document cannot have, by its text alone."""
        path = self._folder.joinpath(*module.split("."))
        file = next((f for f in (path.with_suffix(".py"), path / "__init__.py") if f.is_file()), None)
        known = _names_of(file) if file is not None else None
        if known is not None:
            self.declared(name, known)

    def declared(self, name: str, known: set[str]) -> None:
        """Report functions of a service that are not among the known ones."""
        for wanted, pointer in self._functions(name):
            if wanted not in known:
                message = f'"{name}" has no "{wanted}"'
                self._add("E_UNKNOWN_FUNCTION", message, pointer, did_you_mean(wanted, sorted(known)))

    def models(self, configured: Any) -> None:
        """Report aliases that neither the document nor the configuration, by its table of models, has."""
        table = cast("dict[str, Any]", configured) if isinstance(configured, dict) else {}
        known = [*self._definition.workflow.models, *table]
        for node, agent in self._agents():
            refs = [(agent.model, f"{node.agent_place}/model")]
            refs += [(ref, f"{node.agent_place}/fallback/{i}") for i, ref in enumerate(agent.fallback)]
            for ref, pointer in refs:
                alias = ref.model if isinstance(ref, ModelRef) and not ref.provider else ref
                if isinstance(alias, str) and alias and ":" not in alias and alias not in known:
                    message = f'model "{alias}" is declared neither here nor in the configuration'
                    hint = did_you_mean(alias, known) or "write provider:model, or declare it under models"
                    self._add("W_MODEL_UNDECLARED", message, pointer, hint, "warning")

    def _agents(self) -> list[tuple[BoundNode, AgentSpec]]:
        nodes = bound_nodes(self._definition.workflow, self._definition.format)
        return [(node, node.agent) for node in nodes if node.agent is not None]

    def _functions(self, service: str) -> list[tuple[str, str]]:
        """Return the functions of a service that the document names, with their pointers."""
        spec, home = self._definition.workflow.services[service], child_pointer("/services", service)
        found = [(name, f"{home}/include/{i}") for i, name in enumerate(spec.include or ())]
        found += [(name, child_pointer(f"{home}/functions", name)) for name in spec.functions]
        for node, agent in self._agents():
            for i, ref in enumerate(agent.functions or ()):
                if ref.service == service and ref.function != "*":
                    found.append((ref.function, node.function_place(i, "function")))
        return found

    def _add(
        self, code: str, message: str, path: str, hint: str | None, severity: Severity = "error"
    ) -> None:
        if path in self._reported:
            return
        self._reported.add(path)
        line, column = self._definition.positions.at(path)
        file = self._definition.file
        self.found.append(
            Diagnostic(
                code=code,
                severity=severity,
                message=message,
                file=file,
                line=line,
                column=column,
                path=path,
                hint=hint,
            )
        )


def _names_of(file: Path) -> set[str] | None:
    """Return every name that the functions of a module may have; None if its text does not tell.

    Names are those that it defines, assigns or imports at any depth, and every string: a function may be
    given its name as one.
    """
    try:
        if file.stat().st_size > _MAX_MODULE:
            return None
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    names: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.Name(id=name, ctx=ast.Store()):
                names.add(name)
            case ast.Constant(value=str() as name):
                names.add(name)
            case ast.ImportFrom() | ast.Import():
                if any(alias.name == "*" for alias in node.names):
                    return None
                names |= {alias.asname or alias.name for alias in node.names}
            case _:
                pass
    # The text of a module does not show the names that the module makes while it runs.
    dynamic = {"setattr", "globals", "__getattr__", "exec"}
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} | names
    return None if dynamic & used else names
