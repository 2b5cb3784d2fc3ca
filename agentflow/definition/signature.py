"""The signature of a graph: what its steps are and how they are joined (page 002 §9).

Runs go on with another definition, and forks take one, if the signatures are equal. Pure.
"""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from agentflow.definition.ir import Edge, Node, Workflow, canonical_json
from agentflow.definition.kinds import kind_of, targets_of

__all__ = ["SignatureChange", "conditions_of", "edge_shape", "node_shape", "signature", "signature_change"]

_LIMITS = frozenset({"timeout"})
"""Fields of an edge that are limits, and no structure."""


class SignatureChange(msgspec.Struct, frozen=True, kw_only=True):
    """By what two graphs differ that have two signatures: ids of steps, and `shared.<key>` for reducers."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed)


def signature(workflow: Workflow) -> str:
    """Return `sha256:` + hex over what the steps are and how they are joined.

    That is: ids, kinds, accepted and emitted types, dependencies, joins, conditions, targets; edges with
    their kind, ends, order and predicates; reducers; the signatures of inner graphs. Import paths, prompts,
    models, policies, limits and descriptions do not count.
    """
    edges = _edges(workflow)
    shape: dict[str, Any] = {
        "nodes": {node.id: node_shape(node) for node in workflow.nodes},
        "edges": sorted((edge for found in edges.values() for edge in found), key=canonical_json),
    }
    reducers = _reducers(workflow)
    if reducers:
        shape["reducers"] = reducers
    return "sha256:" + hashlib.sha256(canonical_json(shape)).hexdigest()


def signature_change(old: Workflow, new: Workflow) -> SignatureChange:
    """Return by what the signatures differ; false exactly if they are equal.

    A step is changed if its own shape differs, or that of an edge that leaves it.
    """
    before = {node.id: node_shape(node) for node in old.nodes}
    after = {node.id: node_shape(node) for node in new.nodes}
    was, now = _edges(old), _edges(new)
    changed = [i for i in after if i in before and (before[i] != after[i] or was.get(i) != now.get(i))]
    reduced, reduces = _reducers(old), _reducers(new)
    keys = [key for key in dict.fromkeys([*reduced, *reduces]) if reduced.get(key) != reduces.get(key)]
    return SignatureChange(
        added=tuple(i for i in after if i not in before),
        removed=tuple(i for i in before if i not in after),
        changed=(*changed, *(f"shared.{key}" for key in keys)),
    )


def node_shape(node: Node) -> dict[str, Any]:
    """Return what of a node belongs to the signature."""
    kind = kind_of(node)
    named = kind.routing is not None
    return {
        **(kind.structure(node) if kind.structure is not None else {}),
        "kind": kind.name,
        "depends_on": sorted(set(node.depends_on)),
        "join": node.join,
        "conditions": conditions_of(node),
        "targets": {(named and kind.label(node, port)) or port: target for port, target in targets_of(node)},
    }


def conditions_of(node: Node) -> dict[str, str]:
    """Return the expressions by which a node decides whether and where it goes on."""
    given = {"if": node.guard, "for_each": node.for_each}
    routing = kind_of(node).routing
    if routing is not None:
        given |= routing(node)
    return {name: text for name, text in given.items() if text is not None}


def edge_shape(edge: Edge) -> list[Any]:
    """Return what of an edge belongs to the signature, but for its place among others."""
    more = {key: value for key, value in msgspec.to_builtins(edge).items() if key not in _LIMITS}
    return [edge.kind, more.pop("source"), more.pop("target"), *([more] if more.keys() - {"kind"} else [])]


def _edges(workflow: Workflow) -> dict[str, list[list[Any]]]:
    """Return the shapes of edges by source, in order; of a fan-in with its place among the sources."""
    found: dict[str, list[list[Any]]] = {}
    arriving: dict[tuple[str, str | None], int] = {}
    for edge in workflow.edges:
        place: list[int] = [len(found.get(edge.source, ()))]
        if edge.kind == "fan_in":
            join = (edge.target, edge.group)
            place.append(arriving.get(join, 0))
            arriving[join] = place[1] + 1
        found.setdefault(edge.source, []).append([*edge_shape(edge), place])
    return found


def _reducers(workflow: Workflow) -> dict[str, str]:
    return {key: spec.reducer for key, spec in workflow.shared.items() if spec.reducer is not None}
