"""A graph in the DOT language of Graphviz. Pure; the same graph gives the same text.

Names and labels come from documents, which are not trusted: nothing in them is read as DOT, as an escape, or
as markup.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from agentflow.definition.drawing import STATE_COLOURS, inner_of, joins_of, nodes_of, ways_of
from agentflow.definition.ir import Node, Workflow
from agentflow.definition.kinds import kind_of

__all__ = ["to_dot"]

_FONT = 'fontname="Helvetica,Arial,sans-serif"'


def to_dot(workflow: Workflow, states: Mapping[str, str] | None = None) -> str:
    """Return a `digraph`: all nodes in id order, each fan-in behind them, then all edges.

    A node that runs a graph of its own stands with it in a cluster. Edges with a condition are dashed. With
    `states` (step to state) each step says its state and has its colour. Ends in a newline.
    """
    names: dict[str, str] = {}
    body = list(_nodes(workflow, "", names, states or {}, "  "))
    lines = [
        f"digraph {quoted(workflow.name)} {{",
        "  rankdir=TB;",
        f"  node [{_FONT}, fontsize=11];",
        f"  edge [{_FONT}, fontsize=9];",
        *body,
    ]
    for way in ways_of(workflow):
        told = [f"label={quoted(way.label)}"] if way.label else []
        told += ["style=dashed"] if way.dashed else []
        attributes = f" [{', '.join(told)}]" if told else ""
        lines.append(f"  {names[way.source]} -> {names[way.target]}{attributes};")
    return "\n".join([*lines, "}"]) + "\n"


def _nodes(
    workflow: Workflow, prefix: str, names: dict[str, str], states: Mapping[str, str], indent: str
) -> Iterator[str]:
    """Yield the lines of the nodes, and name each node `n0`, `n1`, … on the way."""
    for node in nodes_of(workflow):
        node_id = prefix + node.id
        name = names.setdefault(node_id, f"n{len(names)}")
        line = f"{name} [{_attributes(node, states.get(node_id))}];"
        inner = inner_of(node)
        if inner is None:
            yield indent + line
            continue
        yield f"{indent}subgraph cluster_{name} {{"
        yield f"{indent}  label={quoted(node.id)};"
        yield f"{indent}  {line}"
        yield from _nodes(inner, f"{node_id}/", names, states, indent + "  ")
        yield indent + "}"
    for join in joins_of(workflow, prefix):
        name = names.setdefault(join, f"n{len(names)}")
        yield f'{indent}{name} [label="join", shape=circle];'


def quoted(text: str) -> str:
    """Return a text as a quoted string that Graphviz shows as it is, on one line."""
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
