"""Workflows that were built in Python, named `module:attribute` on the command line (page 002 §9).

The module is imported from the current folder or from `sys.path`: naming it runs its code in this process.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast

import click

if TYPE_CHECKING:
    from agentflow.definition.loader import Definition
    from agentflow.graphs import Agent, Workflow
    from agentflow.runtime import Runtime
    from agentflow.runtime.listeners import Listener

    Extension = Workflow | Agent | Listener | dict[str, Callable[..., Any]]

__all__ = [
    "definition_of_subject",
    "is_python_workflow",
    "load_extension",
    "load_option",
    "load_python_workflow",
    "load_subject",
    "register",
]

F = TypeVar("F", bound=Callable[..., Any])

_REFERENCE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


def is_python_workflow(text: str) -> bool:
    """Return whether an argument is `module:attribute` and no file of this name exists."""
    return _REFERENCE.fullmatch(text) is not None and not Path(text).exists()


def load_subject(text: str, *, strict: bool = False) -> Definition | Workflow:
    """Load a document file, or a workflow that was built in Python. Raises DefinitionError."""
    if is_python_workflow(text):
        return load_python_workflow(text, strict=strict)
    from agentflow.definition.loader import load_file

    return load_file(text, strict=strict)


def definition_of_subject(subject: Definition | Workflow) -> Definition:
    """Return the definition of what `load_subject` returned."""
    from agentflow.definition.loader import Definition

    return subject if isinstance(subject, Definition) else subject.definition


def load_python_workflow(reference: str, *, strict: bool = False) -> Workflow:
    """Import `module:attribute`: a Workflow, a builder, or a function without arguments that returns one.

    With `strict` warnings of the build are errors. Raises DefinitionError: E_MODULE if there is no such
    module or attribute or it is no workflow, and all diagnostics of `build()`.
    """
    module_name, _, attribute = reference.partition(":")
    found: Any = _import(reference, module_name)
    for name in attribute.split("."):
        found = _attribute(reference, found, name)
    workflow = _built(reference, found)
    if strict and workflow.diagnostics:
        from msgspec.structs import replace

        from agentflow.errors import WorkflowValidationError

        raise WorkflowValidationError([replace(d, severity="error") for d in workflow.diagnostics])
    return workflow


def load_extension(reference: str) -> Extension:
    """Import `module:attribute`: a workflow, an Agent, a Listener, or worker handlers as a dict of functions
    by name.

    Raises DefinitionError as `load_python_workflow` does.
    """
    module_name, _, attribute = reference.partition(":")
    found: Any = _import(reference, module_name)
    for name in attribute.split("."):
        found = _attribute(reference, found, name)
    from agentflow.graphs import Agent
    from agentflow.runtime.listeners import Listener

    if isinstance(found, Agent | Listener):
        return found
    if not isinstance(found, dict):
        return _built(reference, found)
    from agentflow.tools.workers import worker_tools

    handlers = cast("dict[str, Callable[..., Any]]", found)
    try:
        worker_tools(handlers)
    except TypeError as error:
        _refuse(reference, f"{reference}: {error}", "write handler(*, context, payload)")
    return handlers


def register(runtime: Runtime, loaded: Iterable[Extension]) -> None:
    """Register what `load_extension` returned, without listeners: what a command of one run commits waits for
    the daemon that has them."""
    from agentflow.runtime.listeners import Listener

    for one in loaded:
        if isinstance(one, dict):
            runtime.registry.add_workers(one)
        elif not isinstance(one, Listener):
            runtime.register(one)


def _import(reference: str, name: str) -> Any:
    here = str(Path.cwd())
    if sys.path[:1] != [here]:
        sys.path.insert(0, here)  # it stays: functions of the module may import its neighbours later
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            _refuse(
                reference,
                f'there is no module "{error.name}"',
                "run the command in the folder of the module, or add that folder to PYTHONPATH",
            )
        _refuse(reference, f'importing "{name}" raised ModuleNotFoundError: {error}')
    except Exception as error:
        _raise_diagnostics(error)
        _refuse(reference, f'importing "{name}" raised {type(error).__name__}: {error}', _debug_hint(name))


def _attribute(reference: str, owner: Any, name: str) -> Any:
    from agentflow.definition.diagnostics import did_you_mean

    try:
        return getattr(owner, name)
    except AttributeError:
        members: dict[str, Any] = getattr(owner, "__dict__", {})
        known = [found for found in members if not found.startswith("_")]
        where = getattr(owner, "__name__", type(owner).__name__)
        _refuse(reference, f'"{where}" has no attribute "{name}"', did_you_mean(name, known))


def _built(reference: str, found: Any) -> Workflow:
    """Return the workflow of a Workflow, a builder, or a function that returns one of them."""
    from agentflow.graphs import Workflow

    build = getattr(found, "build", None)
    if not isinstance(found, Workflow | type) and not callable(build) and callable(found):
        found = _called(reference, found)
        build = getattr(found, "build", None)
    if not isinstance(found, Workflow | type) and callable(build):
        found = _called(reference, build)
    if not isinstance(found, Workflow):
        kind = f"the class {found.__name__}" if isinstance(found, type) else f"of type {type(found).__name__}"
        _refuse(
            reference,
            f"{reference} is {kind}, and no workflow",
            "name a Workflow, a WorkflowBuilder, or a function without arguments that returns one",
        )
    return found


def _called(reference: str, function: Callable[[], Any]) -> Any:
    import inspect

    try:
        found: Any = function()
    except Exception as error:
        _raise_diagnostics(error)
        name = getattr(function, "__qualname__", reference)
        _refuse(reference, f"{name}() raised {type(error).__name__}: {error}", _debug_hint(reference))
    if inspect.iscoroutine(found):
        found.close()
        _refuse(reference, f"{reference} is an async function; write one that returns the workflow at once")
    return found


def _raise_diagnostics(error: Exception) -> None:
    """Raise the diagnostics of `build()` as they are."""
    from agentflow.errors import DefinitionError

    if isinstance(error, DefinitionError):
        raise error


def _debug_hint(name: str) -> str:
    return f"`--debug` shows where; or: python -c 'import {name.partition(':')[0]}'"


def _refuse(reference: str, message: str, hint: str | None = None) -> NoReturn:
    from agentflow.definition.diagnostics import Diagnostic
    from agentflow.errors import DefinitionError

    found = Diagnostic(code="E_MODULE", severity="error", message=message, file=reference, hint=hint)
    raise DefinitionError([found])


def load_option(command: F) -> F:
    """Add `--load MODULE:WORKFLOW`, kept in the command's `where`. Stands below `target_options`."""
    from dataclasses import replace
    from functools import wraps

    @wraps(command)
    def call(*args: Any, load: tuple[str, ...], where: Any, **more: Any) -> Any:
        return command(*args, where=replace(where, load=load), **more)

    found: Any = click.option(
        "--load",
        multiple=True,
        metavar="MODULE:WORKFLOW",
        help="Import a workflow that was built in Python, so that its runs go on in this process, or a dict"
        " of worker handlers. May be repeated.",
    )(call)
    return found
