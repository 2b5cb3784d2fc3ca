"""A graph as Mermaid text (page 003 §11), and what drawings of a graph share. Pure; the same graph gives the
same text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from agentflow.definition.ir import Node, Workflow
from agentflow.definition.kinds import kind_of, targets_of

__all__ = ["STATE_COLOURS", "edges_of", "to_mermaid"]

STATE_COLOURS = {
    "pending": ("#ffffff", "#8a8a8a"),
    "running": ("#cfe8ff", "#1f6fb2"),
    "waiting": ("#fff3bf", "#b08900"),
    "succeeded": ("#d3f9d8", "#2b8a3e"),
    "failed": ("#ffe3e3", "#c92a2a"),
    "skipped": ("#f1f3f5", "#868e96"),
    "cancelled": ("#ffe8cc", "#d9480f"),
}
"""State of a step to the colours of its area and its line."""

_UNSAFE = re.compile(r"[^A-Za-z0-9_]")
# Words that Mermaid would not take for the name of a node.
_RESERVED = frozenset(
    {"class", "classDef", "click", "default", "direction", "end", "flowchart", "graph", "linkStyle"}
    | {"style", "subgraph"}
)


def to_mermaid(workflow: Workflow, states: Mapping[str, str] | None = None) -> str:
    """`flowchart TD` with all nodes in id order, then all edges: of target fields, of `depends_on`, of
    `edges[]`. Ends in a newline. With `states` (step to state) each step says its state, in its colour."""
    nodes = sorted(workflow.nodes, key=lambda node: node.id.encode())
    names = _names([node.id for node in nodes])
    lines = ["flowchart TD"]
    states = states or {}
    lines += [f'  {names[node.id]}["{_label(node, states.get(node.id))}"]' for node in nodes]
    for source, target, label in edges_of(workflow):
        arrow = f'-- "{label}" -->' if label else "-->"
        lines.append(f"  {names[source]} {arrow} {names[target]}")
    lines += _colours({names[n.id]: states[n.id] for n in nodes if n.id in states})
    return "\n".join(lines) + "\n"


def _names(ids: list[str]) -> dict[str, str]:
    """Names that Mermaid reads as one word, distinct."""
    names: dict[str, str] = {}
    used: set[str] = set()
    for node_id in ids:
        base = _UNSAFE.sub("_", node_id)
        if base in _RESERVED or (not base[:1].isalpha() and not base.startswith("_")):
            base = f"n_{base}"
        name, suffix = base, 2
        while name in used:
            name, suffix = f"{base}_{suffix}", suffix + 1
        used.add(name)
        names[node_id] = name
    return names


def _label(node: Node, state: str | None) -> str:
    text = f"{node.id}\\n({kind_of(node).name})" + (f"\\n{state}" if state else "")
    return text.replace('"', '\\"')


def _colours(states: dict[str, str]) -> Iterator[str]:
    for state in sorted(set(states.values()) & STATE_COLOURS.keys()):
        fill, line = STATE_COLOURS[state]
        yield f"  classDef {state} fill:{fill},stroke:{line},color:#000000"
        yield f"  class {','.join(name for name, s in states.items() if s == state)} {state}"


def edges_of(workflow: Workflow) -> Iterator[tuple[str, str, str | None]]:
    """Source, target and label of every edge, nodes in id order."""
    nodes = sorted(workflow.nodes, key=lambda node: node.id.encode())
    for node in nodes:
        for port, target in targets_of(node):
            yield node.id, target, "error" if port == "on_error/next" else kind_of(node).label(node, port)
    for node in nodes:
        for _, source in kind_of(node).references(node):
            yield source, node.id, "source"
    for node in nodes:
        for dependency in node.depends_on:
            yield dependency, node.id, None
    for edge in workflow.edges:
        yield edge.source, edge.target, "error" if edge.kind == "error" else edge.name
