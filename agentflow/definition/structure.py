"""Checks a document against the shapes of its format: keys, types, ranges (page 001 §1).

Every problem is reported; what is right is kept, so that later checks see as much as possible. Graph and
expressions are not looked into here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from agentflow.definition.leaves import Leaf, Problem, check_leaf, either, is_name, type_name
from agentflow.definition.report import Report, known_names, shown
from agentflow.definition.shapes import (
    ArrayOf,
    Field,
    Json,
    Kind,
    Map,
    OneOf,
    Shape,
    Text,
)
from agentflow.definition.source_tree import (
    Array,
    Member,
    Node,
    Object,
    Place,
    Scalar,
    child_pointer,
    json_type,
    to_value,
)

__all__ = ["Found", "check_structure", "fields_of", "strings_of"]

_SHORTEST_BEGINNING = 4
"""Characters of a key that is written in part: `max_cost` for `max_cost_usd`."""


class Found(msgspec.Struct, frozen=True):
    """A checked value with its place.

    `value` is a plain value for leaves (seconds for a duration), a list of Found for arrays, a dict of
    Found for shapes and maps; members that were wrong are left out. `key` is the place of its key, of an
    array element its first token. `meant`: keys that the source probably means by unknown ones.
    """

    value: Any
    node: Node
    pointer: str
    key: Place
    meant: frozenset[str] = frozenset()

    @property
    def place(self) -> Place:
        """Where the value begins."""
        return self.node.line, self.node.column

    def get(self, name: str) -> Found | None:
        """Return the member of that name, if it is there and right."""
        return self.value.get(name)

    def plain(self, name: str, default: Any = None) -> Any:
        """Return the plain value of a member, or `default`."""
        member: Found | None = self.value.get(name)
        return default if member is None else member.value

    def has(self, name: str) -> bool:
        """Return True if the source has this key, right or wrong, or one that probably means it."""
        return isinstance(self.node, Object) and (name in self.node.members or name in self.meant)

    def items(self) -> list[tuple[str, Found]]:
        """Return the members of a shape or map, in source order."""
        return list(self.value.items())

    def written(self, name: str) -> Any:
        """Return the plain JSON value of a member as it stands in the source, right or wrong; None if
        absent."""
        member = self.node.members.get(name) if isinstance(self.node, Object) else None
        return None if member is None else to_value(member.node)

    def json(self) -> Any:
        """Return the plain JSON value as it stands in the source."""
        return to_value(self.node)


def strings_of(node: Node, pointer: str) -> Iterator[tuple[Scalar, str]]:
    """Yield every string value in a tree with its pointer, in source order; mapping keys are left out."""
    if isinstance(node, Scalar):
        if isinstance(node.value, str):
            yield node, pointer
    elif isinstance(node, Array):
        for i, item in enumerate(node.items):
            yield from strings_of(item, f"{pointer}/{i}")
    else:
        for key, member in node.members.items():
            yield from strings_of(member.node, child_pointer(pointer, key))


def check_structure(root: Object, shape: Shape, report: Report) -> Found:
    """Return the checked document; problems go to the report. Values that are wrong are missing in it."""
    return _Checker(report).shape(root, shape, "", (1, 1) if root.line is not None else (None, None))


def fields_of(shape: Shape, node: Node) -> Mapping[str, Field]:
    """Return the fields that an object of a shape may have: those of its variant, if it chooses one."""
    if shape.by is None or not isinstance(node, Object):
        return shape.fields
    chooser = node.members.get(shape.by)
    chosen = to_value(chooser.node) if chooser and isinstance(chooser.node, Scalar) else None
    if isinstance(chosen, str) and chosen.strip() in shape.variants:
        return {**shape.fields, **shape.variants[chosen.strip()]}
    # What a key holds that two of them have cannot be known without the one that is meant.
    every: dict[str, Field] = {}
    for variant in shape.variants.values():
        for key, field in variant.items():
            known = every.get(key, shape.fields.get(key, field))
            kind = field.kind if known.kind == field.kind else Json()
            every[key] = msgspec.structs.replace(field, required=False, kind=kind)
    return {**shape.fields, **every}


def _has_variant(shape: Shape, node: Object) -> bool:
    chooser = node.members.get(shape.by or "")
    chosen = to_value(chooser.node) if chooser and isinstance(chooser.node, Scalar) else None
    return isinstance(chosen, str) and chosen.strip() in shape.variants


class _Checker:
    def __init__(self, report: Report) -> None:
        self._report = report

    def shape(self, node: Object, shape: Shape, pointer: str, key_place: Place) -> Found:
        fields = fields_of(shape, node)
        values: dict[str, Found] = {}
        meant: set[str] = set()
        for key, member in node.members.items():
            at = child_pointer(pointer, key)
            kind = fields[key].kind if key in fields else shape.other if key not in shape.refused else None
            if key.startswith("x-") and key not in fields:
                continue
            if kind is None and shape.lenient and not _has_variant(shape, node):
                continue
            if kind is None:
                absent = [name for name in fields if name not in node.members and name not in meant]
                meant.add(self._unknown(key, member, shape, fields, absent, at) or "")
            elif (found := self._field(member, key, kind, at, shape.code)) is not None:
                values[key] = found
        for key, wanted in fields.items():
            if wanted.required and key not in node.members and key not in meant:
                self._missing(key, wanted, shape, pointer, key_place)
        return Found(values, node, pointer, key_place, frozenset(meant))

    def _missing(self, key: str, wanted: Field, shape: Shape, pointer: str, place: Place) -> None:
        name = shape.name
        index = pointer.rpartition("/")[2]
        if wanted.code != "E_REQUIRED" and index.isdigit():
            name = f"{name} {int(index) + 1}"
        self._report.error(wanted.code, f'{name} has no "{key}"', place, pointer)

    def _unknown(
        self,
        key: str,
        member: Member,
        shape: Shape,
        fields: Mapping[str, Field],
        absent: list[str],
        pointer: str,
    ) -> str | None:
        """Report a key that the shape lacks; return the absent key that is probably meant."""
        place = member.line, member.column
        if "${{" in key:
            self._in_key(place, pointer)
            return None
        meant = hint = None
        if key in shape.refused:
            hint = "credentials and addresses live in the daemon's configuration"
        else:
            meant = self._meant(key, shape, absent)
            nearest = meant or self._report.nearest(key, fields)
            hint = f'did you mean "{nearest}"?' if nearest else known_names(absent or list(fields))
        self._report.error("E_UNKNOWN_KEY", f'unknown key "{shown(key)}"', place, pointer, hint)
        return meant

    def _meant(self, key: str, shape: Shape, absent: list[str]) -> str | None:
        """Return the absent key that another word or spelling stands for; a required one first."""
        other = shape.synonyms.get(key.casefold().replace("-", "_"))
        if other in absent:
            return other
        begun = [name for name in absent if len(key) >= _SHORTEST_BEGINNING and name.startswith(f"{key}_")]
        if len(begun) == 1:
            return begun[0]
        return self._report.nearest(key, absent)

    def _field(self, member: Member, name: str, kind: Kind, pointer: str, code: str | None) -> Found | None:
        return self._check(member.node, name, kind, pointer, (member.line, member.column), code)

    def _check(
        self, node: Node, name: str, kind: Kind, pointer: str, key: Place, code: str | None
    ) -> Found | None:
        """Return the checked value of `node`, or None. `code` replaces E_TYPE and E_VALUE."""
        if isinstance(node, Scalar) and node.style == "refused":
            return None
        if isinstance(kind, Json):
            return self._json(node, name, kind, pointer, key, code)
        templated = isinstance(kind, Text) and kind.template
        if isinstance(kind, OneOf):
            code = code or kind.code
            chosen = kind.by_type.get(type_name(node))
            if chosen is not None:
                return self._check(node, name, chosen, pointer, key, code)
            templated = False
        if isinstance(node, Scalar) and isinstance(node.value, str) and "${{" in node.value and not templated:
            self._not_allowed(name, node, pointer)
            return None
        if isinstance(kind, Shape) and isinstance(node, Object):
            return self.shape(node, kind, pointer, key)
        if isinstance(kind, Map) and isinstance(node, Object):
            return self._map(node, name, kind, pointer, key, code)
        if isinstance(kind, ArrayOf) and isinstance(node, Array):
            return self._array(node, name, kind, pointer, key, code)
        problem = check_leaf(node, kind)
        if isinstance(problem, Leaf):
            return Found(problem.value, node, pointer, key)
        self._wrong(node, name, problem, pointer, code)
        return None

    def _json(
        self, node: Node, name: str, kind: Json, pointer: str, key: Place, code: str | None
    ) -> Found | None:
        text = node.value if isinstance(node, Scalar) else None
        if isinstance(text, str) and "${{" in text and not kind.template:
            self._not_allowed(name, node, pointer)
            return None
        if kind.types and type_name(node) not in kind.types:
            self._wrong(node, name, Problem("E_TYPE", f"must be {either(kind.types)}"), pointer, code)
            return None
        ok = self._no_expressions(node, name, kind.template, pointer)
        return Found(to_value(node), node, pointer, key) if ok else None

    def _no_expressions(self, node: Node, name: str, template: bool, pointer: str) -> bool:
        """Report `${{` in keys, and in values that are no templates."""
        if isinstance(node, Scalar):
            if template or not isinstance(node.value, str) or "${{" not in node.value:
                return True
            self._not_allowed(name, node, pointer)
            return False
        ok = True
        if isinstance(node, Array):
            for i, item in enumerate(node.items):
                ok &= self._no_expressions(item, name, template, f"{pointer}/{i}")
            return ok
        for key, member in node.members.items():
            at = child_pointer(pointer, key)
            if "${{" in key:
                self._in_key((member.line, member.column), at)
                ok = False
            ok &= self._no_expressions(member.node, name, template, at)
        return ok

    def _map(
        self, node: Object, name: str, kind: Map, pointer: str, key_place: Place, code: str | None
    ) -> Found:
        values: dict[str, Found] = {}
        for key, member in node.members.items():
            at = child_pointer(pointer, key)
            place = member.line, member.column
            if "${{" in key:
                self._in_key(place, at)
            elif not kind.any_key and key.startswith("x-"):
                continue
            elif not kind.any_key and not (is_name(key, 64)):
                self._report.error(
                    "E_VALUE", f'"{shown(key)}" is not a name', place, at, hint="use letters, digits, _ and -"
                )
            elif (found := self._field(member, f"{name}.{shown(key)}", kind.of, at, code)) is not None:
                values[key] = found
        return Found(values, node, pointer, key_place)

    def _array(
        self, node: Array, name: str, kind: ArrayOf, pointer: str, key: Place, code: str | None
    ) -> Found | None:
        if kind.max is not None and len(node.items) > kind.max:
            extra = node.items[kind.max]
            self._report.error(
                "E_LIMIT",
                f"{name} has {len(node.items):,} elements, the limit is {kind.max:,}",
                (extra.line, extra.column),
                f"{pointer}/{kind.max}",
                hint="split the workflow",
            )
        items: list[Found] = []
        for i, item in enumerate(node.items[: kind.max]):
            found = self._check(
                item, f"{name}[{i}]", kind.of, f"{pointer}/{i}", (item.line, item.column), code
            )
            if found is not None:
                items.append(found)
        return Found(items, node, pointer, key)

    def _wrong(self, node: Node, name: str, problem: Problem, pointer: str, code: str | None) -> None:
        message = f"{name} {problem.message}"
        if problem.code == "E_TYPE":
            message += f", not {json_type(node)}"
        full = f"retry.{message}" if code == "E_RETRY_POLICY" and name != "retry" else message
        hint = problem.hint
        if name == "max_attempts" and problem.code == "E_VALUE" and code == "E_RETRY_POLICY":
            hint = "use retry: false"
        self._report.error(code or problem.code, full, (node.line, node.column), pointer, hint)

    def _not_allowed(self, name: str, node: Node, pointer: str) -> None:
        self._report.error(
            "E_EXPR_NOT_ALLOWED",
            f"expressions are not evaluated in {name}",
            (node.line, node.column),
            pointer,
            "write the value itself",
        )

    def _in_key(self, place: Place, pointer: str) -> None:
        self._report.error(
            "E_EXPR_NOT_ALLOWED",
            "expressions are not evaluated in keys",
            place,
            pointer,
            "write the key itself",
        )
