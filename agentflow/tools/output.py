"""Results of functions as JSON: values that an event can hold, or the place of one that it cannot."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Iterator
from pathlib import PurePath
from typing import Any, cast

import msgspec

from agentflow import known_secrets
from agentflow.definition.redaction import redact
from agentflow.json_numbers import costly_numbers
from agentflow.lazy import LazySequence
from agentflow.tools.media import media_block
from agentflow.tools.tool import Tool, ToolError

__all__ = ["Unwritable", "breaches", "checked_output", "plain_output", "progress_value", "to_json"]


_BINARY = (bytes, bytearray, memoryview)


async def checked_output(tool: Tool, result: Any) -> Any:
    """Return the result of a function as an event may hold it: JSON-able builtins, of a sensitive function
    without what stands under the keys of secrets and without known secrets. What takes long to judge by
    `output_schema` is judged off the event loop.

    Raises ToolError (`invalid_tool_output`): no JSON, over `max_output_bytes`, or in breach of
    `output_schema`.
    """
    value = plain_output(tool, result)
    if tool.output_schema is not None:
        from agentflow.judge import judge_aside

        await judge_aside(tool.output_schema, value)
        details = breaches(tool.output_schema, value)
        if details is not None:
            message = f"the result of {tool.name} does not satisfy its schema"
            raise ToolError.of("tool", "invalid_tool_output", message, details=details)
    return redact(known_secrets.hide(value)) if tool.sensitive else value


def plain_output(tool: Tool, result: Any) -> Any:
    """Return the result of a function as `checked_output` does, of one that has no `output_schema` and is not
    sensitive."""
    if isinstance(result, _BINARY):
        result = media_block(bytes(cast("bytes", result)))
    try:
        value, size = to_json(result)
    except Unwritable as error:
        where = f" at {error.path}" if error.path else ""
        message = f"the result of {tool.name} cannot be written as JSON{where}: {error}"
        raise ToolError.of("tool", "invalid_tool_output", message, path=error.path or None) from None
    if size > tool.max_output_bytes:
        message = f"the result of {tool.name} has {size:,} bytes, the limit is {tool.max_output_bytes:,}"
        raise ToolError.of("tool", "invalid_tool_output", message)
    return value


_MAX_PROGRESS = 64 * 1024


def progress_value(tool: Tool, value: Any) -> Any:
    """Return what a function tells while it works as JSON-able builtins without known secrets. Raises
    ValueError for what is no JSON, or has more than 64 KiB."""
    try:
        made, size = to_json(value)
    except Unwritable as error:
        raise ValueError(f"progress of {tool.name} cannot be written as JSON: {error}") from None
    if size > _MAX_PROGRESS:
        raise ValueError(f"progress of {tool.name} has {size:,} bytes, the limit is {_MAX_PROGRESS:,}")
    return known_secrets.hide(made)


def breaches(schema: dict[str, Any], value: Any) -> dict[str, Any] | None:
    """Return every breach with its path, for the agent to mend; None if there is none."""
    from agentflow.definition.schemas import validate

    issues = validate(schema, value)
    return {"errors": [{"path": i.path, "message": i.message} for i in issues]} if issues else None


class Unwritable(Exception):
    """A value has no JSON form; `path` is a JSON pointer to it in the result, "" for the result itself."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(message)
        self.path = path


def to_json(result: Any) -> tuple[Any, int]:
    """Return the result as builtins (dict with string keys, list, str, int, float, bool, None), and its size
    in bytes of compact JSON. Structs, dataclasses, models of pydantic, enums, dates, paths, sets, bytes
    (base64) and the like are converted, and nothing is shared with the function. Raises Unwritable, also for
    NaN and infinities."""
    small = _small_json(result)
    if small is not None:
        return small
    try:
        value = msgspec.to_builtins(result, str_keys=True, enc_hook=_encode_other)
        encoded = msgspec.json.encode(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise Unwritable(_culprit(result), _why(error)) from None
    except RecursionError:
        raise Unwritable("", "it refers to itself, or is nested too deeply") from None
    costly = costly_numbers(encoded)
    if costly is not None:
        raise Unwritable("", f"it holds {costly}, which take too long to read again")
    if b"null" in encoded:  # what msgspec also writes for NaN and infinities
        for path, leaf in _leaves(value):
            if isinstance(leaf, float) and not math.isfinite(leaf):
                raise Unwritable(path, f"{leaf} is no JSON number")
    # Read back, so that a caller sees the very value that an event will hold (a tuple is a list there).
    return msgspec.json.decode(encoded), len(encoded)


def _small_json(result: Any) -> tuple[Any, int] | None:
    """Return the same as `to_json` for a small object of whole numbers and texts, None for all else."""
    if result.__class__ is not dict or len(result) > _MAX_SMALL:
        return None
    for key, value in result.items():
        if key.__class__ is not str or value.__class__ not in _SCALARS:
            return None
    try:
        return result.copy(), len(msgspec.json.encode(result))
    except (TypeError, ValueError, OverflowError):
        return None  # `to_json` says why


_MAX_SMALL = 32
_SCALARS = frozenset({str, int, bool, type(None)})


def _encode_other(value: Any) -> Any:
    """Return what msgspec does not know as builtins."""
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, LazySequence):
        return cast("LazySequence[Any]", value).made()
    pydantic = sys.modules.get("pydantic")
    if pydantic is not None and isinstance(value, pydantic.BaseModel):
        return value.model_dump(mode="json", by_alias=True)
    raise TypeError(f"a value of type {type(value).__name__}")


def _why(error: Exception) -> str:
    if isinstance(error, UnicodeEncodeError):
        return "text with half of a surrogate pair"
    return str(error)


def _culprit(result: Any) -> str:
    """Return the path of the first leaf that cannot be written by itself; "" if it is none of them."""
    for path, leaf in _leaves(result):
        try:
            msgspec.json.encode(msgspec.to_builtins(leaf, str_keys=True, enc_hook=_encode_other))
        except (TypeError, ValueError, OverflowError, RecursionError):
            return path
    return ""


def _leaves(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield every value that is no container, in order. Iterative, since the value may be of any depth."""
    stack: list[tuple[str, Any]] = [("", value)]
    while stack:
        path, value = stack.pop()
        members = _members(value)
        if members is None:
            yield path, value
        else:
            inner = [(f"{path}/{_escape(key)}", member) for key, member in members]
            stack.extend(reversed(inner))


def _members(value: Any) -> list[tuple[Any, Any]] | None:
    if isinstance(value, dict):
        return list(cast("dict[Any, Any]", value).items())
    if isinstance(value, list | tuple | set | frozenset):
        return list(enumerate(cast("list[Any]", value)))
    if isinstance(value, msgspec.Struct):
        fields = [(name, getattr(value, name)) for name in value.__struct_fields__]
        return [field for field in fields if field[1] is not msgspec.UNSET]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]
    return None


def _escape(key: object) -> str:
    return str(key).replace("~", "~0").replace("/", "~1")
