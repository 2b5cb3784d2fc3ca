"""ToolExecutor: calls of functions that the embedding program makes itself (page 003 §1).

It is asked for each function and each worker handler that is registered nowhere. A request holds what was
resolved for one call, never the scope of the run.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, runtime_checkable

import msgspec

from agentflow.definition.ir import ServiceSpec
from agentflow.definition.node import WORKER_PREFIX, WORKERS
from agentflow.tools.invoke import run_function
from agentflow.tools.output import checked_output
from agentflow.tools.service import Service
from agentflow.tools.tool import Tool, ToolContext, ToolError

__all__ = [
    "NO_EXECUTOR",
    "ExecutorTool",
    "ToolExecutor",
    "ToolNotFound",
    "ToolRequest",
    "call_executor",
    "executor_service",
    "executor_tool",
]


class ToolRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One call. `tool` is the name that the document has, `service.function` or `worker:handler`; `input` is
    the evaluated argument. The key is the same for all attempts of one call."""

    tool: str
    input: Any
    workflow_id: str
    node_id: str
    iteration: int | None
    attempt: int
    call_id: str
    idempotency_key: str


@runtime_checkable
class ToolExecutor(Protocol):
    """Makes calls of functions. `execute_tool` may be asynchronous; a plain one runs in a thread.

    It returns JSON. It raises ToolNotFound for a name that it does not know, ToolError for failures whose
    category a policy reads; all else is `tool_execution_failed`.
    """

    def execute_tool(self, request: ToolRequest, /) -> Any:
        """Make one call."""
        ...


class ToolNotFound(ToolError):
    """The executor has no function of this name."""

    def __init__(self, name: str) -> None:
        info = ToolError.of("policy", "tool_not_found", f"the tool executor has no {name}").info
        super().__init__(info, executed=False)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExecutorTool(Tool):
    """A function of an executor. `asked` is its name in the document."""

    executor: ToolExecutor
    asked: str

    def __post_init__(self) -> None:
        Tool.__post_init__(self)
        if self.asked.startswith(WORKER_PREFIX):
            object.__setattr__(self, "name", self.asked)


class _NoExecutor:
    """Stands for an executor that is not there: every call fails."""

    def execute_tool(self, request: ToolRequest, /) -> Any:
        message = f"{request.tool} is registered nowhere, and there is no tool executor"
        raise ToolError.of("policy", "missing_tool_executor", message, executed=False)


NO_EXECUTOR = _NoExecutor()


def executor_tool(executor: ToolExecutor, name: str) -> ExecutorTool:
    """Return the tool that an executor is asked for by this name. What it does is unknown, so its calls are
    not repeated without need."""
    if name.startswith(WORKER_PREFIX):
        service, function = WORKERS, name.removeprefix(WORKER_PREFIX)
    else:
        service, _, function = name.rpartition(".")
    return ExecutorTool(
        service=service,
        function=function,
        description="",
        input_schema={},
        private=True,
        executor=executor,
        asked=name,
    )


class _ExecutorService(Service):
    async def call(self, tool: Tool, arguments: Any, ctx: ToolContext) -> Any:
        """Ask the executor."""
        assert isinstance(tool, ExecutorTool)
        return await call_executor(tool, arguments, ctx)

    def _identify(self) -> tuple[Any, ...]:
        asked = sorted((name, id(getattr(tool, "executor", tool))) for name, tool in self.tools.items())
        return (self.name, "executor", tuple(asked))


async def call_executor(tool: ExecutorTool, arguments: Any, ctx: ToolContext) -> Any:
    """Return what the executor gives for one call, as JSON-able builtins. Raises ToolError."""
    request = ToolRequest(
        tool=tool.asked,
        input=arguments,
        workflow_id=ctx.workflow_id,
        node_id=ctx.step_id,
        iteration=ctx.iteration,
        attempt=ctx.attempt,
        call_id=ctx.call_id,
        idempotency_key=ctx.idempotency_key,
    )
    execute = tool.executor.execute_tool
    is_async = inspect.iscoroutinefunction(execute)
    return await checked_output(
        tool, await run_function(partial(execute, request), tool.asked, is_async=is_async)
    )


def executor_service(name: str, tools: Iterable[ExecutorTool]) -> Service:
    """Return the service that asks an executor for these functions."""
    return _ExecutorService(name, ServiceSpec(type="python"), {tool.function: tool for tool in tools})
