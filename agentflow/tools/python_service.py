"""The service that a Python module is (page 001 §1.4, type `python`)."""

from __future__ import annotations

import fnmatch
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from agentflow.definition.diagnostics import Diagnostic, did_you_mean
from agentflow.definition.ir import ServiceSpec
from agentflow.tools.modules import import_service_module
from agentflow.tools.problems import is_pattern, problem, shortened, unavailable, unknown_functions
from agentflow.tools.python import make_tool, mark_of
from agentflow.tools.service import Service
from agentflow.tools.tool import Tool

__all__ = ["load_python_service"]


def load_python_service(
    name: str, spec: ServiceSpec, folder: Path | None
) -> tuple[Service | None, list[Diagnostic]]:
    """Import the module of a declared service and collect its functions: those that are marked, and those
    that `include` names. The module is looked up in `folder` first, then on `sys.path`.

    Runs the module's code. Problems are diagnostics of phase B without a position, and then there is no
    service; nothing is raised.
    """
    module_name = str(spec.options.get("module", ""))
    try:
        module = import_service_module(module_name, folder)
    except (Exception, SystemExit) as error:  # the module's own code may raise anything
        reason, hint = _reason(error, module_name)
        return None, [unavailable(name, reason, "/module", hint)]
    problems: list[Diagnostic] = []
    tools: dict[str, Tool] = {}
    for key, f in _functions(module, spec, name, problems):
        try:
            tool = make_tool(name, f, spec)
        except (TypeError, ValueError, NameError) as error:
            message = f'function "{key}" of service "{name}": {shortened(str(error))}'
            problems.append(problem("E_TOOL_SCHEMA", message))
            continue
        if tool.function in tools:
            message = f'service "{name}" has two functions "{tool.function}"'
            problems.append(problem("E_TOOL_DUPLICATE", message, hint="give one of them another name"))
        tools[tool.function] = tool
    if problems:
        return None, problems
    if not tools:
        hint = "mark one with @agentflow.function"
        return None, [unavailable(name, "it offers no function", "/module", hint)]
    problems = unknown_functions(name, list(spec.functions), list(tools), {})
    return (None, problems) if problems else (Service(name, spec, tools), [])


def _functions(
    module: ModuleType, spec: ServiceSpec, service: str, problems: list[Diagnostic]
) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield the functions of the module itself that are marked, in its order, and those that are included.

    A marked function that was imported from elsewhere is that module's, unless it is included by name.
    """
    wanted = dict.fromkeys(spec.include or ())
    patterns = [name for name in wanted if is_pattern(name)]
    given: set[int] = set()
    for key, value in vars(module).items():
        if not callable(value) or id(value) in given:
            continue
        marked = mark_of(value)
        names = {key, marked.name if marked is not None and marked.name else key}
        home = str(getattr(value, "__module__", ""))
        own = home == module.__name__ or home.startswith(module.__name__ + ".")
        # A pattern takes the functions of the module itself; what it imports has to be named.
        matched = own and {p for p in patterns if any(fnmatch.fnmatchcase(name, p) for name in names)}
        if wanted.keys().isdisjoint(names) and not matched and not (own and marked is not None):
            continue
        if matched:
            names |= matched
        for name in names:
            wanted.pop(name, None)
        given.add(id(value))
        yield key, value
    callables = [key for key, value in vars(module).items() if inspect.isfunction(value)]
    for key in wanted:
        reason = f'its module has no function "{key}", named in include'
        path = f"/include/{list(spec.include or ()).index(key)}"
        problems.append(unavailable(service, reason, path, did_you_mean(key, callables)))


def _reason(error: BaseException, module: str) -> tuple[str, str | None]:
    """Return why an import failed, and what helps. A missing import of the module is not a missing module."""
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    if missing is not None and (module == missing or module.startswith(missing + ".")):
        hint = f"put {module.replace('.', '/')}.py beside the document, or install it"
        return f'there is no module "{module}" beside the document or on the import path', hint
    return shortened(f"{type(error).__name__}: {error}"), None
