"""One call of one function: arguments to types, types to JSON, every failure as data.

The caller sets the time limit and decides about repeating. A sync function runs in a worker thread; when
the call is cancelled it is left behind, since a thread cannot be stopped, and its outcome is unknown.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import anyio.to_thread
import msgspec

from agentflow.definition.failure import Category, ErrorInfo
from agentflow.tools.tool import Tool, ToolContext, ToolError

__all__ = ["invoke"]


async def invoke(tool: Tool, arguments: dict[str, Any], ctx: ToolContext) -> Any:
    """Call the function and give its result as JSON-able builtins. Raises ToolError."""
    try:
        converted = msgspec.convert(arguments, tool.arguments)
    except msgspec.ValidationError as error:
        raise _failed("invalid_input", "invalid_tool_input", f"{tool.name}: {error}") from None
    values = {name: getattr(converted, name) for name in tool.arguments.__struct_fields__}
    if tool.accepts_ctx:
        values["ctx"] = ctx
    try:
        if tool.is_async:
            result = await tool.call(**values)
        else:
            result = await anyio.to_thread.run_sync(partial(tool.call, **values), abandon_on_cancel=True)
    except TimeoutError as error:
        # The function's own time-out: not to be taken for the caller's.
        raise _failed("tool", "tool_execution_failed", f"{tool.name} raised TimeoutError: {error}") from error
    except Exception as error:
        message = f"{tool.name} raised {type(error).__name__}: {error}"
        raise _failed("tool", "tool_execution_failed", message) from error
    return _output(tool, result)


def _output(tool: Tool, result: Any) -> Any:
    try:
        value = msgspec.to_builtins(result, str_keys=True)
        size = len(msgspec.json.encode(value))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        message = f"the result of {tool.name} cannot be written as JSON: {error}"
        raise _failed("tool", "invalid_tool_output", message) from None
    if size > tool.max_output_bytes:
        message = f"the result of {tool.name} has {size} bytes, the limit is {tool.max_output_bytes}"
        raise _failed("tool", "invalid_tool_output", message)
    return value


def _failed(category: Category, code: str, message: str) -> ToolError:
    return ToolError(ErrorInfo(category=category, code=code, message=message))
