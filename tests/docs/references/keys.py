"""The page `keys`: every key of workflow documents, from the vocabulary of the loader."""

from __future__ import annotations

import json

from msgspec import UNSET

from agentflow.definition.shapes import (
    ArrayOf,
    Const,
    Duration,
    Enum,
    Field,
    Id,
    Json,
    Kind,
    Map,
    Number,
    OneOf,
    Schema,
    Shape,
    Text,
)
from agentflow.definition.vocabulary import AGENT_LIST, STEP_DOCUMENT
from tests.docs.references.tables import GENERATED, table

__all__ = ["make_keys"]

_INTRO = f"""# Keys of workflow documents

{GENERATED}

`agentflow check FILE` checks a document against it, and `agentflow schema workflow` prints it as a JSON Schema
for editors. A document has either `workflow` (steps) or `agents` (a list of agents that work one after the other).

*T* marks a field in which `${{{{ }}}}` is evaluated (see `agentflow help expressions`). A duration is written as `500ms`, `30s`,
`5m`, `1h` or `1d`, or as a number of seconds. Keys that begin with `x-` are ignored.
"""


class _Sections:
    """Objects that still have to be described, each once."""

    def __init__(self) -> None:
        self._titles: dict[int, str] = {}
        self._used: set[str] = set()
        self.queue: list[tuple[str, Shape]] = []

    def title_of(self, shape: Shape, key: str) -> str:
        """Return the title of the section that describes an object, and put it in the queue at first use."""
        if id(shape) not in self._titles:
            title, number = key, 2
            while title in self._used:
                title, number = f"{key} ({shape.name} {number})", number + 1
            self._used.add(title)
            self._titles[id(shape)] = title
            self.queue.append((title, shape))
        return self._titles[id(shape)]


def make_keys() -> str:
    """Return the page."""
    sections = _Sections()
    sections.title_of(STEP_DOCUMENT, "Document of steps")
    sections.title_of(AGENT_LIST, "Document of agents")
    text = _INTRO
    done = 0
    while done < len(sections.queue):
        title, shape = sections.queue[done]
        done += 1
        text += f"\n## {title}\n\n" + _fields(shape.fields, sections)
        for value, fields in shape.variants.items():
            text += f"\nWith `{shape.by}: {value}`:\n\n" + _fields(fields, sections)
        if shape.other is not None:
            text += "\nFurther keys are taken as they are.\n"
    return text


def _fields(fields: dict[str, Field], sections: _Sections) -> str:  # type: ignore[type-arg]
    rows = [
        (f"`{key}`", _kind(field.kind, key, sections), _default(field), field.about)
        for key, field in fields.items()
    ]
    return table(("key", "value", "default", "what it is for"), rows)


def _default(field: Field) -> str:
    if field.required:
        return "**required**"
    if field.default is UNSET:
        return ""
    return f"`{json.dumps(field.default)}`"


def _kind(kind: Kind, key: str, sections: _Sections) -> str:
    match kind:
        case Shape():
            return f"object: *{sections.title_of(kind, key)}*"
        case OneOf():
            parts = [_kind(part, key, sections) for part in kind.by_type.values()]
            return " or ".join(dict.fromkeys(parts))
        case ArrayOf():
            return f"array of {_kind(kind.of, key, sections)}"
        case Map():
            return f"names, each with {_kind(kind.of, key, sections)}"
        case _:
            return _scalar(kind) + (" *T*" if getattr(kind, "template", False) else "")


def _scalar(kind: Kind) -> str:
    match kind:
        case Enum():
            return " · ".join(f"`{value}`" for value in kind.values)
        case Const():
            return " · ".join(f"`{json.dumps(value)}`" for value in kind.allowed)
        case Number():
            least = "" if kind.minimum is None else f" ≥ {kind.minimum:g}"
            most = "" if kind.maximum is None else f", ≤ {kind.maximum:g}"
            return ("integer" if kind.integer else "number") + least + most
        case Duration():
            return "duration"
        case Id():
            return "name"
        case Schema():
            return "JSON Schema"
        case Json():
            return " or ".join(kind.types) if kind.types else "any value"
        case Text():
            return "text"
        case _:
            raise TypeError(kind)
