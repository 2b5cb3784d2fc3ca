"""A graph in the DOT language of Graphviz. Pure; the same graph gives the same text.

Names and labels come from documents, which are not trusted: nothing in them is read as DOT, as an escape, or
as markup.
"""

from __future__ import annotations

from collections.abc import Mapping

from agentflow.definition.ir import Node, Workflow
from agentflow.definition.kinds import kind_of
from agentflow.definition.mermaid import STATE_COLOURS, edges_of

__all__ = ["to_dot"]

_FONT = 'fontname="Helvetica,Arial,sans-serif"'


def to_dot(workflow: Workflow, states: Mapping[str, str] | None = None) -> str:
    """A `digraph` with all nodes in id order, then all edges. With `states` (step to state) each step says
    its state and has its colour. Ends in a newline."""
    nodes = sorted(workflow.nodes, key=lambda node: node.id.encode())
    names = {node.id: f"n{i}" for i, node in enumerate(nodes)}
    lines = [
        f"digraph {quoted(workflow.name)} {{",
        "  rankdir=TB;",
        f"  node [{_FONT}, fontsize=11];",
        f"  edge [{_FONT}, fontsize=9];",
    ]
    states = states or {}
    lines += [f"  {names[node.id]} [{_attributes(node, states.get(node.id))}];" for node in nodes]
    for source, target, label in edges_of(workflow):
        told = f" [label={quoted(label)}]" if label else ""
        lines.append(f"  {names[source]} -> {names[target]}{told};")
    return "\n".join([*lines, "}"]) + "\n"


def quoted(text: str) -> str:
    """A text as a quoted string that Graphviz shows as it is, on one line."""
    clean = "".join(c if c.isprintable() else " " for c in text)
    # Graphviz reads \\N and the like in labels, and entities such as &lt; in every string.
    return '"' + clean.replace("&", "&amp;").replace("\\", "\\\\").replace('"', '\\"') + '"'


def _attributes(node: Node, state: str | None) -> str:
    kind = kind_of(node)
    rows = [node.id, f"({kind.name})"]
    if node.for_each is not None:
        rows.append("for each item")
    if state is not None:
        rows.append(state)
    label = '"' + r"\n".join(quoted(row)[1:-1] for row in rows) + '"'
    styles = ["rounded"] if kind.shape == "rounded" else []
    shape = "box" if kind.shape == "rounded" else kind.shape
    attributes = [f"label={label}", f"shape={shape}"]
    if state in STATE_COLOURS:
        fill, line = STATE_COLOURS[state]
        attributes += [f'fillcolor="{fill}"', f'color="{line}"']
        styles.append("filled")
    if node.guard is not None or state == "skipped":
        styles.append("dashed")
    if styles:
        attributes.append(f'style="{",".join(styles)}"')
    return ", ".join(attributes)
