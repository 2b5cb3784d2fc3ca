"""Where a graph comes from: its own JSON, or a document whose values have places.

Checks work on the graph, and name values by JSON pointers into it. An Origin turns these into the places,
pointers and words of the source, and gives the texts of templates as they are written there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, cast

import msgspec

from agentflow.definition.report import NOWHERE
from agentflow.definition.source_text import Source
from agentflow.definition.source_tree import Place, Positions, Scalar, child_pointer
from agentflow.definition.structure import Found, strings_of

__all__ = ["DocumentOrigin", "ExpressionLimits", "Origin", "Words", "Written"]

ROOTS = frozenset(
    {
        *("steps", "inputs", "item", "index", "input", "nodes", "globals", "state"),
        *("last_llm_output", "last_tool_output", "map_item", "map_index", "item_index", "signal", "message"),
    }
)
"""The names that begin a path in the expressions of a graph (page 003 §3)."""


class Words(msgspec.Struct, frozen=True, kw_only=True):
    """What a format calls a node and its guard, and the codes that it has for wrong ids."""

    node: str = "node"
    id: str = "id"
    guard: str = "guard"
    unknown: str = "E_UNKNOWN_REFERENCE"
    duplicate: str = "E_DUPLICATE_NODE_ID"
    reserved: str = "E_INVALID_NODE_ID"
    reserved_hint: str | None = "choose another id"
    start_hint: str = "add a StartNode"


class ExpressionLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How large an expression of a format may be (page 003 §6)."""

    characters: int = 2_048
    operators: int = 64
    depth: int = 24
    segments: int = 16


class Written(NamedTuple):
    """A text of the source; `scalar` is where it stands, None if it has no place."""

    text: str
    pointer: str
    source: Source | None = None
    scalar: Scalar | None = None
    start: int = 0
    """Characters of the scalar before the text: blanks, braces, `$.`."""

    def place(self, offset: int) -> Place:
        """Return the place of the character at an offset."""
        if self.source is None or self.scalar is None:
            return NOWHERE
        return self.source.place(self.scalar, offset + self.start)

    @property
    def is_cut(self) -> bool:
        """True if YAML ended the text at ` #`."""
        source, scalar = self.source, self.scalar
        return source is not None and scalar is not None and source.is_cut_by_comment(scalar)


class Origin:
    """The origin of a graph that was built as one: pointers are its own, and places are not known.

    `hidden`: nodes that the source has no name for. `lints`: warn of the style of texts. `counts`: a message
    says at which character an expression is wrong.
    """

    words = Words()
    roots: frozenset[str] | None = ROOTS
    braces: tuple[str, ...] = ("${{", "{{")
    hidden: frozenset[str] = frozenset()
    lints = False
    counts = True
    limits: ExpressionLimits | None = None

    def find(self, pointer: str) -> tuple[Place, str] | None:
        """Return place and pointer in the source of a value, None for one that the front end made itself."""
        return NOWHERE, pointer

    def strings(self, pointer: str, value: Any) -> Iterator[Written]:
        """Yield the texts inside a field, in the order of the source."""
        if isinstance(value, str):
            yield Written(value, pointer)
        elif isinstance(value, list | tuple):
            for i, item in enumerate(cast("list[Any]", value)):
                yield from self.strings(f"{pointer}/{i}", item)
        elif isinstance(value, dict):
            for key, item in cast("dict[str, Any]", value).items():
                yield from self.strings(child_pointer(pointer, key), item)

    def field(self, name: str) -> str:
        """Return the key that the source has for a field of a node."""
        return name.replace("/", ".")

    def is_excused(self, name: str, known: Callable[[], bool]) -> bool:
        """Return True if an id that no node has follows from one that was reported as wrong."""
        return False

    def is_unsure(self, pointer: str) -> bool:
        """Return True if the dependencies of a node were reported as wrong."""
        return False


class DocumentOrigin(Origin):
    """The origin of a graph that a front end made of a document.

    `fields` has what stands in the source, by pointer into the graph; `keys` the places of whole nodes.
    `names` translates fields of nodes to keys. What is in neither was not written, and is not reported.
    """

    braces = ("${{",)
    roots = None
    hidden = frozenset({"__start", "__end"})
    lints = True
    counts = False

    def __init__(self, words: Words, source: Source | None = None) -> None:
        self.words = words
        self.fields: dict[str, Found] = {}
        self.keys: dict[str, tuple[Place, str]] = {}
        self.names: dict[str, str] = {}
        self.refused: set[str] = set()
        self.unsure: set[str] = set()
        self.has_nameless = False
        self._source = source

    def find(self, pointer: str) -> tuple[Place, str] | None:
        if pointer in self.keys:
            return self.keys[pointer]
        field = pointer
        while field and field not in self.fields:
            field = field.rpartition("/")[0]
        if not field:
            return None
        found, inner = self.fields[field], pointer[len(field) :]
        return Positions(found.node).at(inner), found.pointer + inner

    def strings(self, pointer: str, value: Any) -> Iterator[Written]:
        found = self.fields.get(pointer)
        if found is None:
            if isinstance(value, dict):
                for key, item in cast("dict[str, Any]", value).items():
                    yield from self.strings(child_pointer(pointer, key), item)
            return
        for scalar, inner in strings_of(found.node, found.pointer):
            yield Written(str(scalar.value), inner, self._source, scalar)

    def field(self, name: str) -> str:
        return self.names.get(name, name)

    def is_excused(self, name: str, known: Callable[[], bool]) -> bool:
        return name in self.refused or (self.has_nameless and not known())

    def is_unsure(self, pointer: str) -> bool:
        return pointer in self.unsure
