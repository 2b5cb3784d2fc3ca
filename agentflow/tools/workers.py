"""Worker handlers: Python functions that nodes call by the name `worker:<handler>` (page 003 §12).

A handler takes the payload as it was evaluated, and a copy of what the node may read of its run. It is found
among those that were registered, or in `handlers.py` beside the document; a submission that is not trusted
imports no file.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import msgspec

from agentflow.definition.diagnostics import Diagnostic, did_you_mean
from agentflow.definition.ir import ServiceSpec
from agentflow.definition.node import WORKER_PREFIX, WORKERS
from agentflow.threads import in_thread
from agentflow.tools.invoke import run_function
from agentflow.tools.modules import import_service_module
from agentflow.tools.output import checked_output
from agentflow.tools.problems import problem, shortened
from agentflow.tools.python import mark_of
from agentflow.tools.service import Service
from agentflow.tools.tool import Tool, ToolContext, settled
from agentflow.tools.tool_executor import ExecutorTool, call_executor

__all__ = ["HANDLERS_FILE", "Handlers", "WorkerTool", "load_handlers", "worker_service", "worker_tools"]

HANDLERS_FILE = "handlers.py"
_GIVEN = ("context", "payload")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WorkerTool(Tool):
    """A handler. `given` are the parameters of `context` and `payload` that it has."""

    call: Callable[..., Any]
    is_async: bool
    given: frozenset[str]

    def __post_init__(self) -> None:
        Tool.__post_init__(self)
        object.__setattr__(self, "name", WORKER_PREFIX + self.function)


class Handlers(NamedTuple):
    """The handlers of a file, by name, or why there are none."""

    tools: Mapping[str, Tool]
    problem: Diagnostic | None = None


class _WorkerService(Service):
    """The handlers that one graph calls."""

    async def call(self, tool: Tool, arguments: Any, ctx: ToolContext) -> Any:
        """Call a handler with copies of its context and payload; give its result as JSON-able builtins."""
        if isinstance(tool, ExecutorTool):
            return await call_executor(tool, arguments, ctx)
        assert isinstance(tool, WorkerTool)
        given: dict[str, Any] = {}
        if "payload" in tool.given:
            given["payload"] = _copied(arguments)
        if "context" in tool.given:
            given["context"] = {**_copied(ctx.context or {}), "trace": _trace(ctx)}
        result = await run_function(partial(tool.call, **given), tool.name, is_async=tool.is_async)
        return await checked_output(tool, result)


def _copied(value: Any) -> Any:
    """Return a copy that the handler may change without changing the state of the run."""
    return msgspec.json.decode(msgspec.json.encode(value))


def _trace(ctx: ToolContext) -> dict[str, Any]:
    parts = (ctx.traceparent or "").split("-")
    return {
        "workflow_id": ctx.workflow_id,
        "node_id": ctx.step_id,
        "iteration": ctx.iteration,
        "attempt": ctx.attempt,
        "call_id": ctx.call_id,
        "idempotency_key": ctx.idempotency_key,
        "trace_id": parts[1] if len(parts) == 4 else None,
        "traceparent": ctx.traceparent,
        "tracestate": ctx.tracestate,
    }


def worker_tools(handlers: Mapping[str, Callable[..., Any]]) -> dict[str, WorkerTool]:
    """Return handlers as tools, by name. `@function` says what a handler does; without it that is unknown.

    Raises TypeError for one that cannot be called with `context` and `payload`.
    """
    return {name: _tool(name, handler) for name, handler in handlers.items()}


def _tool(name: str, handler: Callable[..., Any]) -> WorkerTool:
    if not callable(handler):
        raise TypeError(f'worker "{name}" is of type {type(handler).__name__}, and no function')
    marked = mark_of(handler)
    options = settled(
        None,
        name,
        side_effect=None if marked is None else marked.side_effect,
        idempotent=None if marked is None else marked.idempotent,
        description=inspect.getdoc(handler),
        timeout=None if marked is None else marked.timeout,
    )
    options["private"] = True  # only nodes call it
    return WorkerTool(
        service=WORKERS,
        function=name,
        input_schema={},
        call=handler,
        is_async=inspect.iscoroutinefunction(handler)
        or inspect.iscoroutinefunction(getattr(handler, "__call__", None)),  # noqa: B004
        given=_parameters(name, handler),
        sensitive=marked is not None and marked.sensitive,
        **options,
    )


def _parameters(name: str, handler: Callable[..., Any]) -> frozenset[str]:
    try:
        parameters = inspect.signature(handler).parameters.values()
    except ValueError:  # a builtin that does not say
        return frozenset(_GIVEN)
    given: set[str] = set()
    for parameter in parameters:
        if parameter.kind is parameter.VAR_KEYWORD:
            given.update(_GIVEN)
        elif parameter.name in _GIVEN and parameter.kind is not parameter.POSITIONAL_ONLY:
            given.add(parameter.name)
        elif parameter.default is parameter.empty and parameter.kind is not parameter.VAR_POSITIONAL:
            raise TypeError(f'worker "{name}" takes {parameter.name}, and is given context and payload')
    return frozenset(given)


def worker_service(tools: Iterable[Tool]) -> Service:
    """Return the service that calls these handlers: one actor for equal ones."""
    return _WorkerService(WORKERS, ServiceSpec(type="python"), {tool.function: tool for tool in tools})


async def load_handlers(file: str, folder: Path, wanted: Iterable[str]) -> Handlers:
    """Import the file of handlers in a folder, which runs its code, and return those that are wanted.

    Raises nothing: a file that is missing or cannot be imported, and a function that is no handler, are
    E_MISSING_WORKER; a handler that the file does not have is left out.
    """
    if not (folder / file).is_file():
        return Handlers({}, _missing(f'there is no file "{file}" beside the document'))
    name = ".".join(PurePosixPath(file).with_suffix("").parts)
    try:
        module = await in_thread(partial(import_service_module, name, folder), f"agentflow import {name}")
    except (Exception, SystemExit) as error:  # the module's own code may raise anything
        reason = shortened(f"{type(error).__name__}: {error}")
        return Handlers({}, _missing(f'"{file}" cannot be imported: {reason}'))
    found = {key: value for key, value in vars(module).items() if callable(value) and not key.startswith("_")}
    try:
        tools = worker_tools({name: found[name] for name in wanted if name in found})
    except TypeError as error:
        return Handlers({}, _missing(f'"{file}": {shortened(str(error))}'))
    absent = next((name for name in wanted if name not in tools), None)
    if absent is None:
        return Handlers(tools)
    own = [key for key, value in found.items() if inspect.isfunction(value)]
    message = f'"{file}" has no function "{absent}"'
    return Handlers(tools, _missing(message, did_you_mean(absent, own)))


def _missing(message: str, hint: str | None = None) -> Diagnostic:
    return problem("E_MISSING_WORKER", message, hint=hint)
