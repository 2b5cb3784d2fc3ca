"""The page `keys`: every key of workflow documents, from the vocabulary of the loader."""

from __future__ import annotations

import json
from collections.abc import Mapping

from msgspec import UNSET

from agentflow.definition.shapes import (
    ArrayOf,
    Const,
    Duration,
    Enum,
    ErrorName,
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

Sections are named by the place of their keys: *workflow.steps.agent* are the keys of `agent` in a step. An object that may stand
in several places has one section, named by the first.
"""


class _Sections:
    """The sections of the page: one for each object, titled by the first place where it may stand."""

    def __init__(self) -> None:
        self._titles: dict[int, str] = {}
        self.text = ""

    def title_of(self, shape: Shape, place: str) -> str:
        """Return the title of the section that describes an object; write it, and those within it, at first use."""
        if id(shape) not in self._titles:
            title = f"{place}, over HTTP" if place in self._titles.values() else place
            self._titles[id(shape)] = title
            self._write(title, shape, "" if shape in (STEP_DOCUMENT, AGENT_LIST) else f"{place}.")
        return self._titles[id(shape)]

    def _write(self, title: str, shape: Shape, prefix: str) -> None:
        own = f"\n## {title}\n\n" + self._begin(shape)
        before, self.text = self.text, ""
        own += self._fields(shape.fields, prefix)
        for value, fields in shape.variants.items():
            own += f"\nWith `{shape.by}: {value}`:\n\n" + self._fields(fields, prefix)
        if shape.other is not None:
            own += "\nFurther keys are taken as they are.\n"
        self.text = before + own + self.text  # what stands within it comes behind it

    @staticmethod
    def _begin(shape: Shape) -> str:
        return "" if shape.name != "secret" else "In place of a text:\n\n"

    def _fields(self, fields: Mapping[str, Field], prefix: str) -> str:
        rows = [
            (f"`{key}`", self._kind(field.kind, prefix + key), _default(field), field.about)
            for key, field in fields.items()
        ]
        return table(("key", "value", "default", "what it is for"), rows)

    def _kind(self, kind: Kind, place: str) -> str:
        match kind:
            case Shape():
                return f"object: *{self.title_of(kind, place)}*"
            case OneOf():
                parts = [self._kind(part, place) for part in kind.by_type.values()]
                return " or ".join(dict.fromkeys(parts))
            case ArrayOf():
                return f"array of {self._kind(kind.of, place)}"
            case Map():
                return f"names, each with {self._kind(kind.of, place)}"
            case _:
                return _scalar(kind) + (" *T*" if getattr(kind, "template", False) else "")


def make_keys() -> str:
    """Return the page."""
    sections = _Sections()
    sections.title_of(STEP_DOCUMENT, "Document of steps")
    sections.title_of(AGENT_LIST, "Document of agents")
    return _INTRO + sections.text


def _default(field: Field) -> str:
    if field.required:
        return "**required**"
    if field.default is UNSET:
        return ""
    return f"`{json.dumps(field.default)}`"


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
        case ErrorName():
            return "category or code of an error"
        case Schema():
            return "JSON Schema"
        case Json():
            return " or ".join(kind.types) if kind.types else "any value"
        case Text():
            return "text"
        case _:
            raise TypeError(kind)
