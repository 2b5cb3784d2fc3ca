"""The page `event-types`: every type of event with its fields, from the Structs of the catalogue."""

from __future__ import annotations

import inspect
from typing import Any

import msgspec

from agentflow.events.catalogue import TERMINAL_TYPES, TYPES
from agentflow.events.envelope import Event
from tests.docs.references.tables import GENERATED, table

__all__ = ["make_event_types"]


def make_event_types() -> str:
    """Return the page."""
    text = f"""# Events

{GENERATED}

The log of a run is a list of these events. `agentflow events ID` prints them, one JSON object a line;
`agentflow schema event` prints their JSON Schema. Readers must accept types and fields that they do not know.

## The envelope

{_fields(Event)}
`offset` counts from 0 without a gap. Exactly one of {", ".join(f"`{name}`" for name in sorted(TERMINAL_TYPES))} is the last
event of a run that has ended. `custom.NAME` is an event that a program added.

The fields below stand in `data`. A field that is marked *optional* may be absent.

"""
    for name, kind in TYPES.items():
        text += f"## `{name}`\n\n{_about(kind)}\n\n{_fields(kind)}\n"
    return text.rstrip("\n") + "\n"


def _about(kind: type[Any]) -> str:
    return " ".join((inspect.getdoc(kind) or "").split())


def _fields(kind: type[Any]) -> str:
    fields = msgspec.inspect.type_info(kind).fields  # type: ignore[union-attr]
    rows = [
        (f"`{field.encode_name}`", _type(field.type), "" if field.required else "optional")
        for field in fields
    ]
    return table(("field", "value", ""), rows) if rows else "No fields.\n"


def _type(kind: msgspec.inspect.Type) -> str:
    match kind:
        case msgspec.inspect.UnionType(types=types):
            return " or ".join(dict.fromkeys(_type(part) for part in types if not _is_absent(part)))
        case msgspec.inspect.LiteralType(values=values):
            return " · ".join(f"`{value}`" for value in values)
        case msgspec.inspect.VarTupleType(item_type=item) | msgspec.inspect.ListType(item_type=item):
            return f"array of {_type(item)}"
        case msgspec.inspect.DictType() | msgspec.inspect.TypedDictType():
            return "object"
        case msgspec.inspect.StructType(cls=cls):
            inner = ", ".join(f"`{name}`" for name in cls.__struct_encode_fields__)
            return f"object ({inner})" if inner else "object"
        case msgspec.inspect.AnyType() | msgspec.inspect.RawType():
            return "any value"
        case _:
            names = {
                "StrType": "text",
                "IntType": "integer",
                "FloatType": "number",
                "BoolType": "boolean",
                "NoneType": "null",
            }
            return names.get(type(kind).__name__, type(kind).__name__)


def _is_absent(kind: msgspec.inspect.Type) -> bool:
    return isinstance(kind, msgspec.inspect.CustomType) or "Unset" in type(kind).__name__
