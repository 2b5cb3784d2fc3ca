"""A graph as Mermaid text (page 003 §11). Pure; the same graph gives the same text."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from agentflow.definition.ir import ConditionNode, EndNode, Node, Workflow

__all__ = ["to_mermaid"]

_UNSAFE = re.compile(r"[^A-Za-z0-9_]")


def to_mermaid(workflow: Workflow) -> str:
    """`flowchart TD` with all nodes in id order, then all edges: of target fields, of `depends_on`, of
    `edges[]`. Ends in a newline."""
    nodes = sorted(workflow.nodes, key=lambda node: node.id.encode())
    names = _names([node.id for node in nodes])
    lines = ["flowchart TD"]
    lines += [f'  {names[node.id]}["{_label(node)}"]' for node in nodes]
    for source, target, label in _edges(nodes, workflow):
        arrow = f'-- "{label}" -->' if label else "-->"
        lines.append(f"  {names[source]} {arrow} {names[target]}")
    return "\n".join(lines) + "\n"


def _names(ids: list[str]) -> dict[str, str]:
    """Names that Mermaid reads as one word, distinct."""
    names: dict[str, str] = {}
    used: set[str] = set()
    for node_id in ids:
        base = _UNSAFE.sub("_", node_id)
        if not base[:1].isalpha() and not base.startswith("_"):
            base = f"n_{base}"
        name, suffix = base, 2
        while name in used:
            name, suffix = f"{base}_{suffix}", suffix + 1
        used.add(name)
        names[node_id] = name
    return names


def _label(node: Node) -> str:
    kind = msgspec.to_builtins(node)["type"]
    return f"{node.id}\\n({kind})".replace('"', '\\"')


def _edges(nodes: list[Node], workflow: Workflow) -> Iterator[tuple[str, str, str | None]]:
    for node in nodes:
        if isinstance(node, ConditionNode):
            yield node.id, node.on_true, "true"
            yield node.id, node.on_false, "false"
        elif not isinstance(node, EndNode) and node.next is not None:
            yield node.id, node.next, None
    for node in nodes:
        for dependency in node.depends_on:
            yield dependency, node.id, None
    for edge in workflow.edges:
        yield edge.source, edge.target, None
