"""Workflows as the tools of a Model Context Protocol server: each call of one is a durable run.

Progress of the run goes to a caller that asked for it, and a call that its caller cancels cancels its run. A
caller that goes away cancels nothing: its run goes on, and its id leads back to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import aclosing, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import mcp_types as types
import msgspec
from mcp.server.context import CallNext, ServerRequestContext
from mcp.server.lowlevel import Server

from agentflow.definition.call_schema import input_of_call, input_schema
from agentflow.errors import AgentflowError, ConfigurationError
from agentflow.events import catalogue as ev
from agentflow.events.envelope import decode
from agentflow.tools.tool import tool_name

if TYPE_CHECKING:
    from agentflow.cli.target import Target
    from agentflow.definition.loader import Definition
    from agentflow.records.runs import RunResult

    Submitted = tuple[Definition, Any]

__all__ = ["WorkflowTools"]

_STEPS = ("workflow.step_started", "workflow.step_completed", "workflow.step_failed", "workflow.step_skipped")
_FOLLOWED = (
    *_STEPS,
    *(f"workflow.{name}" for name in ("waiting", "paused", "completed", "failed", "cancelled")),
)
_ENDS = frozenset({"workflow.step_completed", "workflow.step_failed", "workflow.step_skipped"})


class WorkflowTools:
    """The tools of a server, and the runs that their calls have begun.

    `subjects` are definitions with what is submitted for each; `cancels_when_gone`: a caller cancels a call
    by closing its stream, as over HTTP. Raises ConfigurationError if two have one name.
    """

    def __init__(
        self, target: Target, subjects: Iterable[Submitted], *, version: str, cancels_when_gone: bool
    ) -> None:
        self._target = target
        self._subjects: dict[str, Submitted] = {}
        for definition, subject in subjects:
            name = tool_name("", definition.name)
            if name in self._subjects:
                raise ConfigurationError(f"two workflows have the name {name}", hint="rename one of them")
            self._subjects[name] = (definition, subject)
        self._cancels_when_gone = cancels_when_gone
        self._cancelled: dict[Any, asyncio.Event] = {}  # by request
        self._closing = asyncio.Event()
        self._background: set[asyncio.Task[None]] = set()
        self.server = Server[Any](
            "agentflow", version=version, on_list_tools=self._list_tools, on_call_tool=self._call_tool
        )
        self.server.middleware.append(self._observe)

    async def close(self) -> None:
        """Leave the runs of callers that are gone as they are; wait until those that were cancelled are told
        so."""
        self._closing.set()
        if self._background:
            await asyncio.wait(self._background)

    async def _observe(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> Any:
        if ctx.method == "notifications/cancelled":
            event = self._cancelled.get((ctx.params or {}).get("requestId"))
            if event is not None:
                event.set()
        return await call_next(ctx)

    async def _list_tools(self, ctx: Any, params: Any) -> types.ListToolsResult:
        tools = [
            types.Tool(
                name=name,
                description=f"Run the workflow {definition.name}.",
                input_schema=input_schema(definition),
            )
            for name, (definition, _) in self._subjects.items()
        ]
        return types.ListToolsResult(tools=tools)

    async def _call_tool(
        self, ctx: ServerRequestContext[Any, Any], params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        if params.name not in self._subjects:
            known = ", ".join(self._subjects)
            return _failed(f"there is no tool {params.name}; there are {known}")
        definition, subject = self._subjects[params.name]
        given = input_of_call(definition, params.arguments or {})
        try:
            run_id = await self._target.submit(subject, given)
        except AgentflowError as error:
            return _failed(str(error))
        cancelled = self._cancelled[ctx.request_id] = asyncio.Event()
        forget = partial(self._cancelled.pop, ctx.request_id, None)
        try:
            await self._follow(ctx, run_id, len(definition.workflow.nodes))
            result = _result(await self._target.rest(run_id))
        except asyncio.CancelledError:
            # The notification that wants it is seen only after the call was cancelled for it.
            told = asyncio.ensure_future(self._cancel(run_id, cancelled))
            self._background.add(told)
            told.add_done_callback(self._background.discard)
            told.add_done_callback(lambda _: forget())
            raise
        forget()
        return result

    async def _cancel(self, run_id: str, cancelled: asyncio.Event) -> None:
        """Cancel the run if its caller wanted that, and did not only go away."""
        if self._closing.is_set():
            return
        if not self._cancels_when_gone:
            waits = [asyncio.ensure_future(event.wait()) for event in (cancelled, self._closing)]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for wait in waits:
                wait.cancel()
            if not cancelled.is_set():
                return
        with suppress(AgentflowError):  # it may have ended meanwhile
            await self._target.tell("cancel", run_id, reason="the caller cancelled its MCP call")

    async def _follow(self, ctx: ServerRequestContext[Any, Any], run_id: str, nodes: int) -> None:
        """Report the steps of a run until it has ended, or goes on only when somebody does something."""
        ended = 0
        async with aclosing(self._target.lines(run_id, types=_FOLLOWED)) as lines:
            async for line in lines:
                event = decode(line)
                verb = event.type.removeprefix("workflow.step_")
                if verb != event.type:
                    ended += event.type in _ENDS
                    await ctx.session.report_progress(ended, nodes, f"{event.step} {verb}")
                elif not _goes_on(event.data):
                    return


def _goes_on(data: object) -> bool:
    """Return whether a run goes on by itself after this event: at a time that is set."""
    if isinstance(data, ev.WorkflowWaiting):
        return bool(data.timers) and not data.requests
    return isinstance(data, ev.WorkflowPaused) and data.resume_after is not msgspec.UNSET


def _result(run: RunResult[Any]) -> types.CallToolResult:
    about: dict[str, Any] = {"workflow_id": run.workflow_id, "state": run.state}
    if run.state == "completed":
        about["output"] = run.output
        text = run.output if isinstance(run.output, str) else msgspec.json.encode(run.output).decode()
        return types.CallToolResult(
            content=[types.TextContent(type="text", text=text)], structured_content=about
        )
    if run.error is not None:
        about["error"] = msgspec.to_builtins(run.error)
        text = f"{run.workflow_id} {run.state}: {run.error.message}"
    else:
        text = f"{run.workflow_id} is {run.state}: see `agentflow show {run.workflow_id}`"
    return types.CallToolResult(
        content=[types.TextContent(type="text", text=text)], structured_content=about, is_error=True
    )


def _failed(text: str) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(type="text", text=text)], is_error=True)
