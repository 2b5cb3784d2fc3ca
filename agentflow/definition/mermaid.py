"""A graph as Mermaid text (page 003 §11, page 002 §14). Pure; the same graph gives the same text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from agentflow.definition.drawing import STATE_COLOURS, inner_of, joins_of, nodes_of, ways_of
from agentflow.definition.ir import Node, Workflow
from agentflow.definition.kinds import kind_of

__all__ = ["to_mermaid"]

_UNSAFE = re.compile(r"[^A-Za-z0-9_]")
# Words that Mermaid would not take for the name of a node.
_RESERVED = frozenset(
    {"class", "classDef", "click", "default", "direction", "end", "flowchart", "graph", "linkStyle"}
    | {"style", "subgraph"}
)


def to_mermaid(workflow: Workflow, states: Mapping[str, str] | None = None) -> str:
    """Return a `flowchart TD`: all nodes in id order, each fan-in behind them, then all edges.

    A node that runs a graph of its own is a `subgraph`. Edges with a condition are dashed. Ends in a newline.
    With `states` (step to state) each step says its state, in its colour.
    """
    states = states or {}
    names = _names(list(_ids(workflow)))
    lines = ["flowchart TD", *_nodes(workflow, "", names, states, "  ")]
    for way in ways_of(workflow):
        label = None if way.label is None else f'"{_escaped(way.label)}"'
        if way.dashed:
            arrow = f"-. {label} .->" if label else "-.->"
        else:
            arrow = f"-- {label} -->" if label else "-->"
        lines.append(f"  {names[way.source]} {arrow} {names[way.target]}")
    lines += _colours({names[i]: states[i] for i in _ids(workflow) if i in states})
    return "\n".join(lines) + "\n"


def _ids(workflow: Workflow, prefix: str = "") -> Iterator[str]:
    """Yield the ids of nodes and joins, those of inner graphs behind their node."""
    for node in nodes_of(workflow):
        yield prefix + node.id
        inner = inner_of(node)
        if inner is not None:
            yield from _ids(inner, f"{prefix}{node.id}/")
    yield from joins_of(workflow, prefix)


def _nodes(
    workflow: Workflow, prefix: str, names: Mapping[str, str], states: Mapping[str, str], indent: str
) -> Iterator[str]:
    for node in nodes_of(workflow):
        node_id = prefix + node.id
        box = f'{names[node_id]}["{_label(node, states.get(node_id))}"]'
        inner = inner_of(node)
        if inner is None:
            yield indent + box
        else:
            yield f"{indent}subgraph {box}"
            yield from _nodes(inner, f"{node_id}/", names, states, indent + "  ")
            yield f"{indent}end"
    for join in joins_of(workflow, prefix):
        yield f'{indent}{names[join]}(("join"))'


def _names(ids: list[str]) -> dict[str, str]:
    """Return names that Mermaid reads as one word, distinct."""
    names: dict[str, str] = {}
    used: set[str] = set()
    for node_id in ids:
        base = _UNSAFE.sub("_", node_id.rstrip("\0"))
        if base in _RESERVED or (not base[:1].isalpha() and not base.startswith("_")):
            base = f"n_{base}"
        name, suffix = base, 2
        while name in used:
            name, suffix = f"{base}_{suffix}", suffix + 1
        used.add(name)
        names[node_id] = name
    return names


def _label(node: Node, state: str | None) -> str:
    return _escaped(node.id) + f"\\n({kind_of(node).name})" + (f"\\n{state}" if state else "")


def _escaped(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text).replace('"', '\\"')


def _colours(states: dict[str, str]) -> Iterator[str]:
    for state in sorted(set(states.values()) & STATE_COLOURS.keys()):
        fill, line = STATE_COLOURS[state]
        yield f"  classDef {state} fill:{fill},stroke:{line},color:#000000"
        yield f"  class {','.join(name for name, s in states.items() if s == state)} {state}"
