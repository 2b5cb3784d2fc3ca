"""A graph as an SVG picture. Pure; the same graph gives the same text.

Names and labels come from documents, which are not trusted: they are escaped, and the picture has no script,
no link and no reference to anything outside.
"""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from agentflow.definition.drawing import STATE_COLOURS
from agentflow.definition.ir import Workflow
from agentflow.definition.layout import DrawnEdge, DrawnNode, lay_out

__all__ = ["STATE_SIGNS", "to_svg"]

STATE_SIGNS = {
    "pending": "○",
    "running": "▶",
    "waiting": "◔",
    "succeeded": "✓",
    "failed": "✕",
    "skipped": "–",
    "cancelled": "⊘",
}
"""State of a step to the sign that says it without colour."""

_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"
_PLAIN = ("#ffffff", "#8a8a8a")


def to_svg(workflow: Workflow, states: Mapping[str, str] | None = None) -> str:
    """Return the picture; with `states` (step to state) each step has the colour and the sign of its state.

    Ends in a newline.
    """
    states = states or {}
    drawn = lay_out(workflow)
    size = f'width="{drawn.width:g}" height="{drawn.height:g}" viewBox="0 0 {drawn.width:g} {drawn.height:g}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="{_FONT}" font-size="12" role="img">',
        f"<title>{_text(drawn.name)}</title>",
        '<defs><marker id="end" viewBox="0 0 8 8" refX="7.5" refY="4" markerWidth="8" markerHeight="8"'
        ' orient="auto"><path d="M0 0.5 L8 4 L0 7.5 z" fill="#667085"/></marker></defs>',
        f'<rect width="{drawn.width:g}" height="{drawn.height:g}" fill="#ffffff"/>',
        *(_node(node, states.get(node.id)) for node in drawn.nodes),
        *(_edge(edge) for edge in drawn.edges),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _text(text: str) -> str:
    """Return a text as XML: characters that XML cannot have become a blank."""
    return escape("".join(c if c.isprintable() else " " for c in text))


def _node(node: DrawnNode, state: str | None) -> str:
    fill, line = STATE_COLOURS.get(state or "", _PLAIN)
    middle = node.x + node.width / 2
    if node.kind == "join":
        radius = node.width / 2
        place = f'cx="{middle:g}" cy="{node.y + radius:g}" r="{radius:g}"'
        return f'<circle {place} fill="#ffffff" stroke="{line}"/>'
    if node.kind in ("start", "end"):
        place = f'x="{node.x:g}" y="{node.y:g}" width="{node.width:g}" height="{node.height:g}" rx="13"'
        label = f'x="{middle:g}" y="{node.y + 17:g}" text-anchor="middle" fill="#475467"'
        return f'<rect {place} fill="#ffffff" stroke="{line}"/><text {label}>{node.kind}</text>'
    dashed = ' stroke-dasharray="5 4"' if node.conditional or state == "skipped" else ""
    box = (
        f'<rect x="{node.x:g}" y="{node.y:g}" width="{node.width:g}" height="{node.height:g}" rx="8"'
        f' fill="{"#f8fafc" if node.group else fill}" stroke="{line}"{dashed}/>'
    )
    sign = f"{STATE_SIGNS[state]} " if state in STATE_SIGNS else ""
    kind = f"{node.kind}, for each item" if node.for_each else node.kind
    told = f"{kind} · {state}" if state else kind
    label = node.label if len(node.label) <= 30 else f"{node.label[:29]}…"
    return (
        f"<g>{box}"
        f'<text x="{middle:g}" y="{node.y + 19:g}" text-anchor="middle" font-weight="600" fill="#101828">'
        f"{_text(sign + label)}</text>"
        f'<text x="{middle:g}" y="{node.y + 34:g}" text-anchor="middle" font-size="10" fill="#475467">'
        f"{_text(told)}</text></g>"
    )


def _edge(edge: DrawnEdge) -> str:
    begin, *rest = [f"{x:g} {y:g}" for x, y in ((point.x, point.y) for point in edge.points)]
    dashed = ' stroke-dasharray="5 4"' if edge.dashed else ""
    line = (
        f'<path d="M{begin} L{" L".join(rest)}" fill="none" stroke="#667085"{dashed} marker-end="url(#end)"/>'
    )
    if edge.label is None or edge.label_at is None:
        return line
    x, y = edge.label_at.x, edge.label_at.y
    label = edge.label if len(edge.label) <= 40 else f"{edge.label[:39]}…"
    return (
        f'{line}<text x="{x:g}" y="{y:g}" text-anchor="middle" font-size="10" fill="#475467" stroke="#ffffff"'
        f' stroke-width="4" paint-order="stroke">{_text(label)}</text>'
    )
