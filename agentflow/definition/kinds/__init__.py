"""The kinds of nodes: one module each, and the table of them.

A kind is two halves of one name. Its half here says what the node looks like: `Spec` (its Struct),
`ports(spec)` (its target fields, in the order of page 003 §4), `check(spec, at)` (what is wrong with its own
fields), `label(spec, port)` and `SHAPE` (how it is drawn), and, where the node chooses its way,
`routing(spec)` (the expressions that choose). Its half in `engine/kinds/` says what it does. Nothing else in
this package asks what kind a node has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, Union

from agentflow.definition import graph
from agentflow.definition.kinds import agent, condition, end, start, tool
from agentflow.definition.node import NodeBase

if TYPE_CHECKING:
    from agentflow.definition.node_report import NodeReport

__all__ = ["KINDS", "Kind", "kind_of", "union_of"]

Ports = tuple[tuple[str, str], ...]


class _Module(Protocol):
    @property
    def Spec(self) -> type[NodeBase]: ...  # noqa: N802
    @property
    def SHAPE(self) -> str: ...  # noqa: N802
    @property
    def ports(self) -> Callable[[Any], Ports]: ...
    @property
    def label(self) -> Callable[[Any, str], str | None]: ...
    @property
    def check(self) -> Callable[[Any, NodeReport], None]: ...


@dataclass(frozen=True, slots=True)
class Kind:
    """The half of a kind that the definition knows; see the module's docstring for its functions.

    `routing` is None for a kind that always goes on by `next`; such a node may have `edges[]` beside it.
    """

    name: str
    spec: type[NodeBase]
    ports: Callable[[Any], Ports]
    check: Callable[[Any, NodeReport], None]
    label: Callable[[Any, str], str | None]
    shape: str
    routing: Callable[[Any], dict[str, str]] | None = None
    is_start: bool = False
    is_end: bool = False

    @property
    def is_border(self) -> bool:
        """True for a start and an end: they move tokens and do no work."""
        return self.is_start or self.is_end

    @classmethod
    def of(cls, module: _Module, *, is_start: bool = False, is_end: bool = False) -> Kind:
        """Return the kind that a module makes; its name is the tag of its Spec."""
        return cls(
            name=str(module.Spec.__struct_config__.tag),
            spec=module.Spec,
            ports=module.ports,
            check=module.check,
            label=module.label,
            shape=module.SHAPE,
            routing=getattr(module, "routing", None),
            is_start=is_start,
            is_end=is_end,
        )


KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind.of(start, is_start=True),
        Kind.of(end, is_end=True),
        Kind.of(agent),
        Kind.of(tool),
        Kind.of(condition),
    )
}
"""Kinds by name. A kind that only a test knows is added here and in the table of the engine."""


def union_of(specs: Iterable[type[NodeBase]]) -> Any:
    """Return the union type of several Specs."""
    return Union[tuple(specs)]  # noqa: UP007


graph.AnyNode = union_of(kind.spec for kind in KINDS.values())


def kind_of(node: NodeBase) -> Kind:
    """Return the kind of a node."""
    return KINDS[node.__struct_config__.tag]  # type: ignore[index]
