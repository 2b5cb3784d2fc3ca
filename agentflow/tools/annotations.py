"""Annotations of parameters: what JSON Schema shows of them, and how JSON becomes their values.

msgspec knows builtins, Structs, dataclasses, TypedDicts, NamedTuples, enums and dates. What it does not know
is replaced here before it sees the annotation: paths, pydantic's models, dataclasses and `Field`, unions of
classes that only their members tell apart, and texts in `Annotated`. pydantic is used where the program has
imported it, and never imported for others.
"""

from __future__ import annotations

import dataclasses
import sys
import typing
from collections.abc import Callable, Mapping
from pathlib import PurePath
from types import UnionType
from typing import Annotated, Any, Final, Union, cast, get_args, get_origin, is_typeddict

import msgspec
import typing_extensions

from agentflow.typed_output import problem_of_model

__all__ = ["Indescribable", "Misfit", "Schemas", "decode_other", "of_pydantic", "usable"]

_ADAPTER: Final = "__agentflow_adapter__"
_DEFS: Final = "#/$defs/"
_ALIASES: Final = (typing_extensions.TypeAliasType, getattr(typing, "TypeAliasType", ()))
_WAY_OUT: Final = (
    "use builtins, a dataclass, a msgspec.Struct, a TypedDict, a pydantic model, an Enum or a Literal, or Any"
)


class Indescribable(TypeError):
    """No JSON Schema describes a type; the message names it, and the way out."""

    def __init__(self, annotation: Any, why: str = "") -> None:
        reason = f" ({why})" if why else ""
        super().__init__(f"no JSON Schema describes {_name(annotation)}{reason}; {_WAY_OUT}")


class Misfit(ValueError):
    """A value is not one of an annotation; the message says why, without the value."""


class _Adapter:
    """A schema with its definitions, and what makes a value of JSON."""

    def __init__(self, schema: Callable[[Schemas], dict[str, Any]], decode: Callable[[Any], Any]) -> None:
        self.schema = schema
        self.decode = decode


class Schemas:
    """The schemas of one function. They share `definitions`, in which each name has one meaning."""

    def __init__(self) -> None:
        self.definitions: dict[str, Any] = {}

    def of(self, annotation: Any) -> dict[str, Any]:
        """Return the schema of an annotation that `usable` returned. Raises Indescribable."""
        try:
            (root,), components = msgspec.json.schema_components(
                [annotation], schema_hook=self._other, ref_template=_DEFS + "{name}"
            )
        except Indescribable:
            raise
        except (TypeError, ValueError) as error:
            raise Indescribable(annotation, _reason(error)) from None
        return self.merged(root, components)

    def merged(self, root: dict[str, Any], components: Mapping[str, Any]) -> dict[str, Any]:
        """Add definitions under names that are free; return the root, its references in step."""
        taken = {
            name: self._free(name)
            for name, schema in components.items()
            if self.definitions.get(name, schema) != schema
        }
        renamed = {_DEFS + old: _DEFS + new for old, new in taken.items()}
        for name, schema in components.items():
            self.definitions[taken.get(name, name)] = _with_references(schema, renamed)
        return cast("dict[str, Any]", _with_references(root, renamed))

    def _free(self, name: str) -> str:
        number = 2
        while f"{name}_{number}" in self.definitions:
            number += 1
        return f"{name}_{number}"

    def _other(self, kind: type) -> dict[str, Any]:
        adapter = _adapter_of(kind)
        if adapter is None:
            raise Indescribable(kind)
        return adapter.schema(self)


def usable(annotation: Any) -> Any:
    """Return the annotation in words that msgspec has. Raises Indescribable for a union that nothing tells
    apart."""
    if isinstance(annotation, _ALIASES):
        return usable(annotation.__value__)
    origin: Any = get_origin(annotation)
    arguments = get_args(annotation)
    if origin is Annotated:
        return _annotated(annotation, arguments[0], arguments[1:])
    if origin in (Union, UnionType):
        return _union([usable(member) for member in arguments])
    if _is_pydantic_dataclass(annotation):
        return of_pydantic(annotation)
    if origin is None or not any(isinstance(a, type) or get_origin(a) for a in arguments):
        return annotation
    if isinstance(origin, type) and issubclass(origin, list | dict | set | frozenset | tuple | Mapping):
        return cast("Any", origin)[tuple(a if a is Ellipsis else usable(a) for a in arguments)]
    return annotation


def of_pydantic(annotation: Any) -> Any:
    """Return a stand-in for an annotation that pydantic describes and converts."""
    import pydantic

    try:
        adapter: Any = pydantic.TypeAdapter(annotation)
        schema: dict[str, Any] = adapter.json_schema(ref_template=_DEFS + "{model}")
    except pydantic.PydanticUserError as error:
        raise Indescribable(annotation, error.code or "") from None

    def shown(schemas: Schemas) -> dict[str, Any]:
        root = {key: value for key, value in schema.items() if key != "$defs"}
        return schemas.merged(root, schema.get("$defs", {}))

    return _stand_in(_name(annotation), shown, lambda value: _validated(adapter.validate_python, value))


def decode_other(kind: type, value: Any) -> Any:
    """Make a value of a class that msgspec does not know. Raises Misfit."""
    adapter = _adapter_of(kind)
    if adapter is None:
        raise NotImplementedError(_name(kind))
    return adapter.decode(value)


def _adapter_of(kind: type) -> _Adapter | None:
    adapter = getattr(kind, _ADAPTER, None)
    if adapter is not None:
        return adapter
    if issubclass(kind, PurePath):
        return _Adapter(lambda _: {"type": "string"}, lambda value: kind(_text(value)))
    if _is_pydantic_model(kind):
        return _adapter_of(of_pydantic(kind))
    return None


class _AnyInstance(type):
    """The class of stand-ins. msgspec wants instances of them, and what they decode has another class."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return True


def _stand_in(name: str, schema: Callable[[Schemas], dict[str, Any]], decode: Callable[[Any], Any]) -> type:
    return _AnyInstance(name, (), {_ADAPTER: _Adapter(schema, decode)})


# --- Annotated


def _annotated(annotation: Any, inner: Any, notes: tuple[Any, ...]) -> Any:
    pydantic = sys.modules.get("pydantic")
    if pydantic is not None and any(isinstance(note, pydantic.fields.FieldInfo) for note in notes):
        return of_pydantic(annotation)
    kept: list[Any] = []
    for note in notes:
        # `Doc` of typing_extensions and of annotated-doc holds its text like this.
        text = note if isinstance(note, str) else getattr(note, "documentation", None)
        kept += [msgspec.Meta(description=text)] if isinstance(text, str) else _constraints(note)
    made = usable(inner)
    return Annotated[(made, *kept)] if kept else made


def _constraints(note: Any) -> list[Any]:
    """Return a note that msgspec knows: its own, or a bound of annotated-types."""
    if isinstance(note, msgspec.Meta):
        return [note]
    types = sys.modules.get("annotated_types")
    if types is None:
        return []
    if isinstance(note, types.GroupedMetadata):
        return [meta for single in note for meta in _constraints(single)]
    if not isinstance(note, types.BaseMetadata):
        return []
    names = {field.name for field in dataclasses.fields(note)}
    known = names & {"ge", "gt", "le", "lt", "multiple_of", "min_length", "max_length"}
    return [msgspec.Meta(**{name: getattr(note, name)}) for name in known]


# --- unions


def _union(members: list[Any]) -> Any:
    whole: Any = Union[tuple(members)]  # noqa: UP007  (members that are no types are allowed)
    try:
        msgspec.json.schema_components([whole], schema_hook=lambda _: {})
    except TypeError:
        return _tried_in_order(members)
    return whole


def _tried_in_order(members: list[Any]) -> Any:
    """Return a stand-in for a union that msgspec cannot tell apart: a value is the first member that it fits.

    A member that would leave members of an object out comes after those that know them all.
    """
    names = " or ".join(_name(member) for member in members)

    def shown(schemas: Schemas) -> dict[str, Any]:
        return {"anyOf": [schemas.of(member) for member in members]}

    def decode(value: Any) -> Any:
        for member in sorted(members, key=lambda m: _passes_over(m, value)):
            try:
                return msgspec.convert(value, member, str_keys=True, dec_hook=decode_other)
            except msgspec.ValidationError:
                continue
        raise Misfit(f"must be {names}")

    Schemas().of(_stand_in(names, shown, decode))  # refuse now what a member cannot be
    return _stand_in(names, shown, decode)


def _passes_over(member: Any, value: Any) -> int:
    """Return how many members of an object a class would leave out."""
    if not isinstance(value, dict):
        return 0
    known: set[str] | None = None
    if hasattr(member, "__struct_encode_fields__"):
        known = set(member.__struct_encode_fields__)
    elif dataclasses.is_dataclass(member):
        known = {field.name for field in dataclasses.fields(member)}
    elif is_typeddict(member):
        known = set(member.__annotations__)
    elif _is_pydantic_model(member):
        fields: Mapping[str, Any] = member.model_fields
        known = {name for key, field in fields.items() for name in (key, field.alias) if name}
    return 0 if known is None else len(cast("dict[str, Any]", value).keys() - known)


# --- pydantic


def _is_pydantic_model(kind: Any) -> bool:
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and isinstance(kind, type) and issubclass(kind, pydantic.BaseModel)


def _is_pydantic_dataclass(kind: Any) -> bool:
    dataclasses_of = sys.modules.get("pydantic.dataclasses")
    return dataclasses_of is not None and bool(
        isinstance(kind, type) and dataclasses_of.is_pydantic_dataclass(kind)
    )


def _validated(validate: Callable[[Any], Any], value: Any) -> Any:
    try:
        return validate(value)
    except ValueError as error:
        raise Misfit(f"does not fit: {problem_of_model(error, 'the value')}") from None


# --- helpers


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise Misfit("must be a string")
    return value


def _with_references(schema: Any, renamed: Mapping[str, str]) -> Any:
    if not renamed:
        return schema
    if isinstance(schema, dict):
        members = cast("dict[str, Any]", schema)
        return {
            key: renamed.get(value, value)
            if key == "$ref" and isinstance(value, str)
            else _with_references(value, renamed)
            for key, value in members.items()
        }
    if isinstance(schema, list):
        return [_with_references(element, renamed) for element in cast("list[Any]", schema)]
    return schema


def _reason(error: Exception) -> str:
    """Return which class inside a type is the reason, in our words; "" if msgspec does not tell."""
    cause = error.__cause__
    return str(cause) if isinstance(cause, Indescribable) else ""


def _name(annotation: Any) -> str:
    if isinstance(annotation, type) and get_origin(annotation) is None:
        return annotation.__qualname__.rpartition("<locals>.")[2]
    return repr(annotation).replace("typing.", "").replace("NoneType", "None")
