"""Signature of a Python function as a JSON Schema for models and as a type for converting arguments."""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Final, NamedTuple, Union, get_type_hints

import msgspec

from agentflow.tools.annotations import Indescribable, Schemas, usable
from agentflow.tools.docstrings import described

__all__ = ["Signature", "describe"]

_CONTEXT = "ctx"
_REQUIRED: Final = object()
_PYTHONS: Final = object()
"""The default is in the function's own code."""


class Signature(NamedTuple):
    """`arguments` is a Struct with a field for each parameter but `ctx`; one that a call leaves out is UNSET
    there, so that Python's own default applies. `schema` is what a model sees of it, `text` what the
    docstring says of the function."""

    arguments: type[msgspec.Struct]
    schema: dict[str, Any]
    accepts_ctx: bool
    text: str


def describe(f: Callable[..., Any]) -> Signature:
    """Return the signature of a function. Raises TypeError, with the parameter's name and the way out, for
    what no schema describes: `*args`, `**kwargs`, positional-only parameters, types without a JSON form,
    names that its module does not have."""
    hints = _hints(f)
    fields: list[Any] = []
    properties: dict[str, Any] = {}
    required: list[str] = []
    accepts_ctx = False
    schemas = Schemas()
    parameters = inspect.signature(f).parameters
    text, said = described(f, parameters.keys())
    for name, parameter in parameters.items():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise TypeError(f"parameter {parameter} cannot be given by name; name each argument")
        if name == _CONTEXT:
            accepts_ctx = True
            continue
        try:
            annotation, default = _annotation_of(hints.get(name, Any), parameter)
            made = usable(annotation)
            shown = schemas.of(made)
        except Indescribable as reason:
            raise TypeError(f'parameter "{name}": {reason}') from None
        if name in said and "description" not in shown:
            shown = {**shown, "description": said[name]}
        if default is _REQUIRED:
            fields.append((name, made))
            required.append(name)
        else:
            optional = Union[made, msgspec.UnsetType]  # noqa: UP007  (not every annotation supports `|`)
            fields.append(
                (
                    name,
                    optional,
                    msgspec.UNSET if default is _PYTHONS else msgspec.field(default_factory=default),
                )
            )
            value = parameter.default if default is _PYTHONS else default()
            shown = _with_default(shown, value)
        properties[name] = shown
    schema: dict[str, Any] = {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }
    if schemas.definitions:
        schema["$defs"] = schemas.definitions
    arguments = msgspec.defstruct("Arguments", fields, kw_only=True, forbid_unknown_fields=True)
    return Signature(arguments, schema, accepts_ctx, text)


def _hints(f: Callable[..., Any]) -> dict[str, Any]:
    """Return the types of the parameters. Raises TypeError with the parameter's name."""
    given: Any = f if inspect.isroutine(f) else getattr(type(f), "__call__", None)  # noqa: B004
    if not inspect.isroutine(given):
        raise TypeError("it is no function; write one with def")
    try:
        return get_type_hints(given, include_extras=True)
    except (NameError, TypeError, AttributeError, SyntaxError):
        return _hints_one_by_one(given)


def _hints_one_by_one(f: Any) -> dict[str, Any]:
    """Return the same for a function with an annotation that means nothing at run time; that of its result
    does not matter."""
    f = inspect.unwrap(f)
    home = getattr(f, "__globals__", {})
    hints: dict[str, Any] = {}
    for name, annotation in inspect.get_annotations(f).items():
        if name == "return" or name == _CONTEXT:
            continue
        alone = type("Alone", (), {"__annotations__": {name: annotation}})
        try:
            hints |= get_type_hints(alone, globalns=home, localns={}, include_extras=True)
        except NameError as error:
            raise TypeError(
                f'parameter "{name}": its module has no {error.name or annotation} at run time; import it'
                " at the top of the module, not only for the type checker"
            ) from None
        except (TypeError, AttributeError, SyntaxError):
            raise TypeError(f'parameter "{name}": its annotation {annotation!r} is no type') from None
    return hints


def _annotation_of(annotation: Any, parameter: inspect.Parameter) -> tuple[Any, Any]:
    """Return the annotation with what the default says of it, and where a call that leaves it out has its
    value from: `_REQUIRED`, `_PYTHONS`, or a factory."""
    default = parameter.default
    if default is parameter.empty:
        return annotation, _REQUIRED
    if default is None:
        # `x: str = None` is common, and means that null is as good as leaving it out.
        return Union[annotation, None], _PYTHONS  # noqa: UP007
    pydantic = sys.modules.get("pydantic")
    if pydantic is None or not isinstance(default, pydantic.fields.FieldInfo):
        return annotation, _PYTHONS
    field: Any = default
    made = Annotated[annotation, field]
    return made, _REQUIRED if field.is_required() else partial(field.get_default, call_default_factory=True)


def _with_default(shown: dict[str, Any], value: Any) -> dict[str, Any]:
    default = _json_default(value)
    return shown if default is msgspec.UNSET else {**shown, "default": default}


def _json_default(value: Any) -> Any:
    """Return a default as JSON, or UNSET where JSON has no word for it (a sentinel, an infinity)."""
    if isinstance(value, float) and not math.isfinite(value):
        return msgspec.UNSET
    try:
        return msgspec.to_builtins(value, str_keys=True)
    except (TypeError, ValueError, RecursionError):
        return msgspec.UNSET
