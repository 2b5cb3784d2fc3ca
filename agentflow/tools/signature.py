"""Signature of a Python function as a JSON Schema for models and as a type for converting arguments."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any, NamedTuple, Union, get_type_hints

import msgspec

__all__ = ["Signature", "describe"]

_CONTEXT = "ctx"


class Signature(NamedTuple):
    """`arguments` is a Struct with a field for each parameter but `ctx`; one that a call leaves out is UNSET
    there, so that Python's own default applies. `schema` is what a model sees of it."""

    arguments: type[msgspec.Struct]
    schema: dict[str, Any]
    accepts_ctx: bool


def describe(f: Callable[..., Any]) -> Signature:
    """Return the signature of a function. Raises TypeError, ValueError or NameError for what no schema
    describes: `*args`, `**kwargs`, positional-only parameters, types that msgspec does not know, unresolved
    names."""
    hints = _hints(f)
    fields: list[Any] = []
    defaults: dict[str, Any] = {}
    accepts_ctx = False
    for parameter in inspect.signature(f).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise TypeError(f"parameter {parameter} cannot be given by name; name each argument")
        if parameter.name == _CONTEXT:
            accepts_ctx = True
            continue
        annotation: Any = hints.get(parameter.name, Any)
        if parameter.default is parameter.empty:
            fields.append((parameter.name, annotation))
            continue
        if parameter.default is None:
            # `x: str = None` is common, and means that null is as good as leaving it out.
            annotation = Union[annotation, None]  # noqa: UP007  (not every annotation supports `|`)
        defaults[parameter.name] = parameter.default
        optional = Union[annotation, msgspec.UnsetType]  # noqa: UP007
        fields.append((parameter.name, optional, msgspec.UNSET))
    arguments = msgspec.defstruct("Arguments", fields, kw_only=True, forbid_unknown_fields=True)
    return Signature(arguments, _schema(arguments, defaults), accepts_ctx)


def _hints(f: Callable[..., Any]) -> dict[str, Any]:
    if inspect.isroutine(f):
        return get_type_hints(f, include_extras=True)
    call = getattr(type(f), "__call__", None)  # noqa: B004  (its hints, not whether it is callable)
    if not inspect.isroutine(call):
        raise TypeError("it is no function; write one with def")
    return get_type_hints(call, include_extras=True)


def _schema(arguments: type[msgspec.Struct], defaults: dict[str, Any]) -> dict[str, Any]:
    (root,), components = msgspec.json.schema_components([arguments], ref_template="#/$defs/{name}")
    own = components.pop(root["$ref"].removeprefix("#/$defs/"))
    properties: dict[str, Any] = own.get("properties", {})
    for name, value in defaults.items():
        shown = _json_default(value)
        if shown is not msgspec.UNSET:
            properties[name] = {**properties[name], "default": shown}
    schema: dict[str, Any] = {
        "type": "object",
        "properties": properties,
        "required": own.get("required", []),
        "additionalProperties": False,
    }
    if components:
        schema["$defs"] = components
    return schema


def _json_default(value: Any) -> Any:
    """Return a default as JSON, or UNSET where JSON has no word for it (a sentinel, an infinity)."""
    if isinstance(value, float) and not math.isfinite(value):
        return msgspec.UNSET
    try:
        return msgspec.to_builtins(value, str_keys=True)
    except (TypeError, ValueError, RecursionError):
        return msgspec.UNSET
