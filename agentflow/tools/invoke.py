"""One call of one function: arguments to types, types to JSON, every failure as data.

The caller sets the time limit and decides about repeating. A sync function runs in a thread of its own;
when the call is cancelled it is left behind, since a thread cannot be stopped, and its outcome is unknown.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec

from agentflow.definition.failure import Category, ErrorInfo
from agentflow.definition.schemas import validate
from agentflow.tools.output import Unwritable, to_json
from agentflow.tools.tool import Tool, ToolContext, ToolError

__all__ = ["invoke"]

_MAX_MESSAGE = 2_000
# Beyond this a float has no fraction to lose, and may stand for many integers.
_EXACT = 2**53


async def invoke(tool: Tool, arguments: dict[str, Any], ctx: ToolContext) -> Any:
    """Call the function and give its result as JSON-able builtins.

    Raises ToolError: `invalid_tool_input` (not called), `tool_execution_failed` (it raised),
    `invalid_tool_output` (no JSON, over `max_output_bytes`, or in breach of `output_schema`). Raises
    CancelledError only when the caller itself is cancelled.
    """
    values = _convert(tool, arguments)
    if tool.accepts_ctx:
        values["ctx"] = ctx
    call = partial(tool.call, **values)
    try:
        result = await call() if tool.is_async else await _in_thread(call, tool.name)
        if inspect.isawaitable(result):  # a plain function around an async one
            result = await result
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise _failed("tool", "tool_execution_failed", f"{tool.name} cancelled itself") from None
    except (Exception, SystemExit) as error:
        # TimeoutError too: the function's own is not to be taken for the caller's.
        raise _failed("tool", "tool_execution_failed", _told(tool, error)) from error
    return _output(tool, result)


def _told(tool: Tool, error: BaseException) -> str:
    message = f"{tool.name} raised {type(error).__name__}: {error}".rstrip(": ")
    return message if len(message) <= _MAX_MESSAGE else message[: _MAX_MESSAGE - 1] + "…"


def _convert(tool: Tool, arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments in the annotated types, without those that were left out."""
    try:
        try:
            converted = msgspec.convert(arguments, tool.arguments, str_keys=True)
        except msgspec.ValidationError:
            # To JSON Schema 2.0 is an integer; to msgspec it is none.
            converted = msgspec.convert(_integral(arguments), tool.arguments, str_keys=True)
    except (msgspec.ValidationError, RecursionError) as error:
        details = _errors(tool.input_schema, arguments)
        message = f"{tool.name}: {error}"
        raise _failed("invalid_input", "invalid_tool_input", message, details=details) from None
    given = ((name, getattr(converted, name)) for name in tool.arguments.__struct_fields__)
    return {name: value for name, value in given if value is not msgspec.UNSET}


def _errors(schema: dict[str, Any], value: Any) -> dict[str, Any] | None:
    """Every breach with its path, for the agent to mend; None if there is none."""
    issues = validate(schema, value)
    return {"errors": [{"path": i.path, "message": i.message} for i in issues]} if issues else None


def _integral(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer() and abs(value) <= _EXACT:
        return int(value)
    if isinstance(value, dict):
        return {key: _integral(member) for key, member in value.items()}  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, list):
        return [_integral(element) for element in value]  # pyright: ignore[reportUnknownVariableType]
    return value


async def _in_thread(call: Callable[[], Any], name: str) -> Any:
    """Run `call` in a daemon thread with a copy of the caller's context variables.

    Not one of a pool: a function that never returns must neither take a place from the calls of others
    nor hold up the end of the process, which waits for the threads of pools.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[tuple[bool, Any]] = loop.create_future()
    context = contextvars.copy_context()

    def settle(outcome: tuple[bool, Any]) -> None:
        if not done.done():
            done.set_result(outcome)

    def work() -> None:
        try:
            outcome = True, context.run(call)
        except BaseException as error:
            outcome = False, error
        with suppress(RuntimeError):  # the loop has ended: nobody waits any more
            loop.call_soon_threadsafe(settle, outcome)

    threading.Thread(target=work, name=f"agentflow tool {name}", daemon=True).start()
    succeeded, result = await done
    if succeeded:
        return result
    raise result


def _output(tool: Tool, result: Any) -> Any:
    try:
        value, size = to_json(result)
    except Unwritable as error:
        where = f" at {error.path}" if error.path else ""
        message = f"the result of {tool.name} cannot be written as JSON{where}: {error}"
        raise _failed("tool", "invalid_tool_output", message, path=error.path) from None
    if size > tool.max_output_bytes:
        message = f"the result of {tool.name} has {size:,} bytes, the limit is {tool.max_output_bytes:,}"
        raise _failed("tool", "invalid_tool_output", message)
    if tool.output_schema is not None:
        details = _errors(tool.output_schema, value)
        if details is not None:
            message = f"the result of {tool.name} does not satisfy its schema"
            raise _failed("tool", "invalid_tool_output", message, details=details)
    return value


def _failed(
    category: Category,
    code: str,
    message: str,
    *,
    path: str | None = None,
    details: dict[str, Any] | None = None,
) -> ToolError:
    info = ErrorInfo(category=category, code=code, message=message, path=path or None, details=details)
    return ToolError(info)
