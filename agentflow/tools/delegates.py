"""Foreign delegates: services whose function `delegate_task` works on steps of plans (page 004 §8)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec

from agentflow.definition.delegates import (
    DELEGATE_TASK,
    PING,
    DelegateError,
    DelegateResult,
    DelegateTask,
    category_of,
)
from agentflow.definition.ir import ServiceSpec
from agentflow.tools.python import make_tool
from agentflow.tools.service import Service
from agentflow.tools.tool import Tool, ToolContext, ToolError

__all__ = ["DelegateError", "DelegateResult", "DelegateTask", "delegate_service", "is_there"]

_LIMIT_S = 600.0


class _DelegateService(Service):
    """Keeps `code`, `http_status` and `retry_after` of what the adapter raises: they decide what follows."""

    async def call(self, tool: Tool, arguments: dict[str, Any], ctx: ToolContext) -> Any:
        """Call a function and return its result as JSON-able builtins. Raises ToolError."""
        try:
            return await super().call(tool, arguments, ctx)
        except ToolError as error:
            cause = error.__cause__
            if cause is None or error.info.code != "tool_execution_failed":
                raise
            raise _told(error, cause) from cause


def _told(error: ToolError, cause: BaseException) -> ToolError:
    code, status = getattr(cause, "code", None), getattr(cause, "http_status", None)
    status = status if isinstance(status, int) else getattr(cause, "status_code", None)
    code, status = code if isinstance(code, str) else None, status if isinstance(status, int) else None
    category = category_of(code, status)
    if category is None and isinstance(cause, TimeoutError):
        category, code = "timeout", "delegate_timeout"
    elif category is None and isinstance(cause, ConnectionError):
        category, code = "transient", "network_error"
    wait = getattr(cause, "retry_after", None)
    details = {"retry_after": float(wait)} if isinstance(wait, int | float) else None
    info = msgspec.structs.replace(
        error.info,
        category=category or error.info.category,
        code=code or error.info.code,
        http_status=status,
        details=details,
    )
    return ToolError(info, executed=error.executed, unknown=error.unknown)


def delegate_service(
    name: str,
    delegate_task: Callable[..., Any],
    *,
    ping: Callable[..., Any] | None = None,
    max_concurrency: int = 8,
) -> Service:
    """Return a service that works on steps of plans, to register with a Runtime and name as
    `pipeline.delegate`.

    `delegate_task(task: DelegateTask)` returns a DelegateResult, a StepResult as a dict, or the JSON text of
    the envelope of page 004 §8; with a parameter `ctx: ToolContext` it reports its calls by
    `ctx.record_tool_call`. An attempt is cancelled after `retry.timeout` of its step. What it raises may have
    `code` and `http_status`, which decide about retries. `ping()` returns whether the delegate is there; it
    is asked for 2 s at most.

    Raises TypeError for a function whose parameters cannot be described by a JSON Schema.
    """
    spec = ServiceSpec(type="python", max_concurrency=max_concurrency)
    made = make_tool(name, delegate_task, spec)
    tools: dict[str, Tool] = {
        DELEGATE_TASK: replace(made, function=DELEGATE_TASK, private=True, timeout=_LIMIT_S)
    }
    if ping is not None:
        made = make_tool(name, ping, spec)
        tools[PING] = replace(made, function=PING, private=True, side_effect="none", idempotent=True)
    return _DelegateService(name, spec, tools)


async def is_there(service: Service | None, workflow_id: str, timeout: float) -> bool:
    """Return whether a delegate answers its ping within `timeout` seconds, once its program has been started.
    One without a ping is there if its service can be used."""
    if service is None or DELEGATE_TASK not in service.tools or not service.is_available():
        return False
    await service.open()
    ping = service.tools.get(PING)
    if ping is None:
        return True
    context = ToolContext(
        context=None,
        workflow_id=workflow_id,
        step_id="",
        iteration=None,
        call_id="",
        idempotency_key="",
        attempt=1,
    )
    try:
        async with asyncio.timeout(timeout):
            return await service.call(ping, {}, context) is not False
    except (ToolError, TimeoutError):
        return False
