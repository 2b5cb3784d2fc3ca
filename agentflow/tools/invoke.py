"""One call of one function: arguments to types, types to JSON, every failure as data.

The caller sets the time limit and decides about repeating. A sync function runs in a thread of its own;
when the call is cancelled it is left behind, since a thread cannot be stopped, and its outcome is unknown.
"""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from functools import partial
from types import AsyncGeneratorType, CoroutineType
from typing import Any, NoReturn

import msgspec

from agentflow.definition.failure import describe_exception
from agentflow.definition.type_errors import explain
from agentflow.forked_child import end_forked_child
from agentflow.threads import in_thread
from agentflow.tools.annotations import Misfit, decode_other
from agentflow.tools.output import breaches, checked_output, plain_output
from agentflow.tools.tool import PythonTool, ToolContext, ToolError

__all__ = ["invoke", "invoke_late", "run_function"]

_MAX_MESSAGE = 2_000
# Beyond this a float has no fraction to lose, and may stand for many integers.
_EXACT = 2**53
_PLAIN = frozenset({dict, list, str, int, float, bool, type(None)})


async def invoke(tool: PythonTool, arguments: dict[str, Any], ctx: ToolContext) -> Any:
    """Call the function and give its result as JSON-able builtins. Raises as `invoke_late` does."""
    return await invoke_late(tool, arguments, lambda: ctx)


async def invoke_late(tool: PythonTool, arguments: dict[str, Any], ctx: Callable[[], ToolContext]) -> Any:
    """Call the function and give its result as JSON-able builtins. `ctx` is called when the context of the
    call is needed: by a function that takes it, or tells of progress.

    Raises ToolError: `invalid_tool_input` (not called), `tool_execution_failed` (it raised),
    `invalid_tool_output` (no JSON, over `max_output_bytes`, or in breach of `output_schema`). Raises
    CancelledError only when the caller itself is cancelled.
    """
    values = _convert(tool, arguments)
    if tool.accepts_ctx:
        values["ctx"] = ctx()
    if tool.is_async:
        process = os.getpid()
        try:
            result = tool.call(**values)
            if result.__class__ is CoroutineType:
                result = await result
                if result.__class__ is AsyncGeneratorType:
                    result = await _finished(result, lambda value: ctx().progress(value))
            elif result.__class__ not in _PLAIN:
                result = await _finished(result, lambda value: ctx().progress(value))
        except BaseException as error:
            _raise_for(error, tool.name, process)
        if os.getpid() != process:
            end_forked_child(None)
    else:
        call = partial(tool.call, **values)
        result = await run_function(
            call, tool.name, is_async=False, progress=lambda value: ctx().progress(value)
        )
    if tool.output_schema is None and not tool.sensitive:
        return plain_output(tool, result)
    return await checked_output(tool, result)


async def run_function(
    call: Callable[[], Any], name: str, *, is_async: bool, progress: Callable[[Any], None] | None = None
) -> Any:
    """Return what a function of the user returns: on the loop if it is asynchronous, else in a thread.

    A generator tells `progress` with what it yields; its result is what it returns, else the last that it
    yielded. A child that the function forks, and that comes back from it, ends here.

    Raises ToolError (`tool_execution_failed`) for all that it raises; CancelledError only when the caller
    itself is cancelled.
    """
    process = os.getpid()
    try:
        if is_async:
            result = call()
        else:
            made = call if progress is None else partial(_last_of, call, progress)
            result = await in_thread(made, f"agentflow tool {name}")
        if result.__class__ not in _PLAIN:
            result = await _finished(result, progress)
    except BaseException as error:
        _raise_for(error, name, process)
    if os.getpid() != process:
        end_forked_child(None)
    return result


async def _finished(result: Any, progress: Callable[[Any], None] | None) -> Any:
    """Return what comes of what a function has returned: awaited, if that is to be, also by a function around
    one, and the last of what an asynchronous generator gives."""
    if inspect.isawaitable(result):
        result = await result
    if progress is not None and result.__class__ is AsyncGeneratorType:
        made: Any = result
        result = await _last_of_async(made, progress)
    return result


def _raise_for(error: BaseException, name: str, process: int) -> NoReturn:
    """Raise what becomes of an error that came out of a function; `process` is the one that called it."""
    if os.getpid() != process:
        end_forked_child(error)
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        if task is None or not task.cancelling():
            raise _failed(f"{name} cancelled itself") from None
    elif isinstance(error, Exception | SystemExit) and not isinstance(error, ToolError):
        # TimeoutError too: the function's own is not to be taken for the caller's.
        raise _failed(_told(name, error)) from error
    try:
        raise error
    finally:
        del error  # its traceback holds this frame: a cycle with all that the call had


def _last_of(call: Callable[[], Any], progress: Callable[[Any], None]) -> Any:
    """Call the function; iterate what it returns, in the same thread, if that is a generator."""
    made = call()
    if not inspect.isgenerator(made):
        return made
    last: Any = None
    while True:
        try:
            last = next(made)
        except StopIteration as end:
            return last if end.value is None else end.value
        progress(last)


async def _last_of_async(made: AsyncGenerator[Any, None], progress: Callable[[Any], None]) -> Any:
    last: Any = None
    async with aclosing(made):
        async for value in made:
            last = value
            progress(value)
    return last


def _failed(message: str) -> ToolError:
    return ToolError.of("tool", "tool_execution_failed", message)


def _told(name: str, error: BaseException) -> str:
    message = f"{name} raised {describe_exception(error)}"
    return message if len(message) <= _MAX_MESSAGE else message[: _MAX_MESSAGE - 1] + "…"


def _convert(tool: PythonTool, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments in the annotated types, without those that were left out."""
    scalars = tool.scalars
    if scalars is not None and len(scalars) == len(arguments):
        for name, value in arguments.items():
            if value.__class__ is not scalars.get(name):
                break
        else:
            return arguments.copy()
    try:
        try:
            converted = _decoded(arguments, tool)
        except msgspec.ValidationError:
            # To JSON Schema 2.0 is an integer; to msgspec it is none.
            converted = _decoded(_integral(arguments), tool)
    except (msgspec.ValidationError, RecursionError) as error:
        details = breaches(tool.input_schema, arguments)
        problem = "the arguments are nested too deeply"
        if isinstance(error, msgspec.ValidationError):
            found = explain(error, tool.arguments)
            if isinstance(error.__cause__, Misfit):
                found = found._replace(message=str(error.__cause__))
            problem = found.sentence("the input")
        message = f"{tool.name}: {problem}"
        raise ToolError.of(
            "invalid_input", "invalid_tool_input", message, executed=False, details=details
        ) from None
    given = msgspec.structs.asdict(converted)
    if tool.arguments.__struct_defaults__:
        return {name: value for name, value in given.items() if value is not msgspec.UNSET}
    return given


def _decoded(arguments: Any, tool: PythonTool) -> Any:
    return msgspec.convert(arguments, tool.arguments, str_keys=True, dec_hook=decode_other)


def _integral(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer() and abs(value) <= _EXACT:
        return int(value)
    if isinstance(value, dict):
        return {key: _integral(member) for key, member in value.items()}  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, list):
        return [_integral(element) for element in value]  # pyright: ignore[reportUnknownVariableType]
    return value
