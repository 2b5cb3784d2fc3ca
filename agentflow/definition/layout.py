"""Positions of the nodes and edges of a drawn graph, in layers from top to bottom (after Sugiyama).

Pure and deterministic: the same graph gives the same positions, and a node that is added moves only what
stands beside and below it. A graph inside a node is laid out by itself and stands in the node's box. Written
here because the layout libraries of PyPI are unmaintained, copyleft or need a program of the system.
"""

from __future__ import annotations

import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import msgspec

from agentflow.definition.drawing import DrawnWay, inner_of, joins_of, nodes_of, ways_of
from agentflow.definition.ir import Node, Workflow
from agentflow.definition.kinds import kind_of

__all__ = ["DrawnEdge", "DrawnNode", "GraphLayout", "Point", "lay_out"]

_NODE_HEIGHT = 44.0
_CHARACTER, _WIDE_CHARACTER, _SMALL_CHARACTER = 7.8, 13.0, 6.0
_PADDING = 40.0
_MIN_WIDTH, _MAX_WIDTH = 96.0, 260.0
_JOIN = 22.0
_EDGE_OF_RUN = (72.0, 26.0)
_GAP_X, _GAP_Y = 28.0, 46.0
_MARGIN = 16.0
_HEADER = 44.0
_SWEEPS = 8


class DrawnNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node with its box: `x` and `y` are the upper left corner, in pixels at 100 %.

    `id` is the path of the step (`outer/inner`). `parent` is the node whose inner graph it belongs to;
    `group` is true if it has such a graph, which is drawn inside its box. `kind` is `join` for a fan-in.
    """

    id: str
    label: str
    kind: str
    shape: str
    x: float
    y: float
    width: float
    height: float
    parent: str | None = None
    group: bool = False
    for_each: bool = False
    conditional: bool = False


class Point(msgspec.Struct, frozen=True):
    """A place in a drawing, in pixels at 100 %."""

    x: float
    y: float


class DrawnEdge(msgspec.Struct, frozen=True, kw_only=True):
    """A way from node to node: the points of its line, and where its label stands. `dashed`: conditional."""

    source: str
    target: str
    points: list[Point]
    label: str | None = None
    label_at: Point | None = None
    dashed: bool = False


class GraphLayout(msgspec.Struct, frozen=True, kw_only=True):
    """A drawing: its size in pixels, its nodes (a group before what is in it), and its edges."""

    name: str
    width: float
    height: float
    nodes: list[DrawnNode]
    edges: list[DrawnEdge]


class _Box(NamedTuple):
    id: str
    width: float
    height: float


class _Placed(NamedTuple):
    width: float
    height: float
    nodes: list[DrawnNode]
    edges: list[DrawnEdge]


def lay_out(workflow: Workflow) -> GraphLayout:
    """Return the layout of a graph. Takes about 1 ms per 20 nodes."""
    ways: dict[str, list[DrawnWay]] = defaultdict(list)
    for way in ways_of(workflow):
        ways[_level(way.source)].append(way)
    placed = _place(workflow, "", ways)
    return GraphLayout(
        name=workflow.name,
        width=placed.width,
        height=placed.height,
        nodes=placed.nodes,
        edges=placed.edges,
    )


def _level(path: str) -> str:
    head, slash, _ = path.rpartition("/")
    return head + slash


def _drawn(node: Node, prefix: str, width: float, height: float) -> DrawnNode:
    """Return a node at the corner of its graph."""
    kind = kind_of(node)
    return DrawnNode(
        id=prefix + node.id,
        label=node.id,
        kind=kind.name,
        shape=kind.shape,
        x=0,
        y=0,
        width=width,
        height=height,
        parent=prefix[:-1] or None,
        group=inner_of(node) is not None,
        for_each=node.for_each is not None,
        conditional=node.guard is not None,
    )


def _width(node: Node) -> float:
    """Return the width of a node's box: its name, and below it its kind, find room in it."""
    name = sum(_WIDE_CHARACTER if unicodedata.east_asian_width(c) in "WF" else _CHARACTER for c in node.id)
    told = kind_of(node).name + (", for each item" if node.for_each is not None else "")
    return min(max(name + _PADDING, len(told) * _SMALL_CHARACTER + _PADDING / 2, _MIN_WIDTH), _MAX_WIDTH)


def _place(workflow: Workflow, prefix: str, ways: Mapping[str, Sequence[DrawnWay]]) -> _Placed:
    boxes: list[_Box] = []
    inner: dict[str, _Placed] = {}
    drawn: dict[str, DrawnNode] = {}
    for node in nodes_of(workflow):
        path, kind, graph = prefix + node.id, kind_of(node), inner_of(node)
        width = _width(node)
        height = _NODE_HEIGHT
        if kind.shape == "oval":
            width, height = _EDGE_OF_RUN
        if graph is not None:
            inner[path] = found = _place(graph, f"{path}/", ways)
            width, height = max(width, found.width), found.height + _HEADER
        boxes.append(_Box(path, width, height))
        drawn[path] = _drawn(node, prefix, width, height)
    for join in joins_of(workflow, prefix):
        boxes.append(_Box(join, _JOIN, _JOIN))
        drawn[join] = DrawnNode(
            id=join.removesuffix("\0"),
            label="join",
            kind="join",
            shape="circle",
            x=0,
            y=0,
            width=_JOIN,
            height=_JOIN,
            parent=prefix[:-1] or None,
        )
    mine = [way for way in ways.get(prefix, ()) if way.source in drawn and way.target in drawn]
    # A graph that ends when nothing moves any more has an end that no way leads to.
    reached = {way.target for way in mine}
    boxes = [box for box in boxes if drawn[box.id].kind != "end" or box.id in reached or len(boxes) < 3]
    corners, lines, size = _Level(boxes, mine).solve()
    nodes: list[DrawnNode] = []
    edges = [
        DrawnEdge(
            source=way.source.removesuffix("\0"),
            target=way.target.removesuffix("\0"),
            points=[Point(*point) for point in points],
            label=way.label,
            label_at=_middle(points) if way.label else None,
            dashed=way.dashed,
        )
        for way, points in zip(mine, lines, strict=True)
    ]
    for box in boxes:
        x, y = corners[box.id]
        nodes.append(msgspec.structs.replace(drawn[box.id], x=x, y=y))
        if box.id in inner:
            shift = x + (box.width - inner[box.id].width) / 2, y + _HEADER
            nodes += [_moved_node(one, *shift) for one in inner[box.id].nodes]
            edges += [_moved_edge(one, *shift) for one in inner[box.id].edges]
    return _Placed(*size, nodes, edges)


def _moved_node(node: DrawnNode, x: float, y: float) -> DrawnNode:
    return msgspec.structs.replace(node, x=round(node.x + x, 1), y=round(node.y + y, 1))


def _moved_edge(edge: DrawnEdge, x: float, y: float) -> DrawnEdge:
    points = [Point(round(one.x + x, 1), round(one.y + y, 1)) for one in edge.points]
    at = edge.label_at
    moved = None if at is None else Point(round(at.x + x, 1), round(at.y + y, 1))
    return msgspec.structs.replace(edge, points=points, label_at=moved)


def _middle(points: Sequence[tuple[float, float]]) -> Point:
    (ax, ay), (bx, by) = points[(len(points) - 1) // 2], points[(len(points) - 1) // 2 + 1]
    return Point(round((ax + bx) / 2, 1), round((ay + by) / 2, 1))


class _Level:
    """The boxes of one graph, without what is inside them. Boxes and the places where long edges pass
    through a layer are numbered items, and edges run between neighbouring layers alone."""

    def __init__(self, boxes: Sequence[_Box], ways: Sequence[DrawnWay]) -> None:
        self._boxes = boxes
        self._ways = ways
        index = {box.id: i for i, box in enumerate(boxes)}
        self._ends = [(index[way.source], index[way.target]) for way in ways]
        self._width = [box.width for box in boxes]
        self._height = [box.height for box in boxes]

    def solve(
        self,
    ) -> tuple[dict[str, tuple[float, float]], list[list[tuple[float, float]]], tuple[float, float]]:
        """Return the corners by id, the points of each way, and the size."""
        layer = self._layers()
        chains = self._chains(layer)
        above, below = self._neighbours(chains)
        rows = self._ordered(layer, above, below)
        x = self._columns(rows, above, below)
        y, height = self._rows(rows)
        width = max((x[i] + self._width[i] / 2 for i in range(len(x))), default=0) + _MARGIN
        corners = {
            box.id: (
                round(x[i] - box.width / 2, 1),
                round(y[layer[i]] + (height[layer[i]] - box.height) / 2, 1),
            )
            for i, box in enumerate(self._boxes)
        }
        lines = [self._line(way, chain, layer, x, y, height) for way, chain in enumerate(chains)]
        bottom = (y[-1] + height[-1] if y else 0) + _MARGIN
        return corners, lines, (round(max(width, 2 * _MARGIN), 1), round(max(bottom, 2 * _MARGIN), 1))

    def _layers(self) -> list[int]:
        """Return the layer of each box: the longest way from a box without a source. Edges that close a
        cycle, found by a depth-first walk in the order of ids, are taken backwards."""
        count = len(self._boxes)
        out: list[list[int]] = [[] for _ in range(count)]
        for source, target in self._ends:
            if source != target:
                out[source].append(target)
        self._turned = self._back_edges(out)
        forward: list[list[int]] = [[] for _ in range(count)]
        waiting = [0] * count
        for source, target in self._ends:
            if source == target:
                continue
            a, b = (target, source) if (source, target) in self._turned else (source, target)
            forward[a].append(b)
            waiting[b] += 1
        layer = [0] * count
        ready = [i for i in range(count) if waiting[i] == 0]
        for i in ready:
            for target in forward[i]:
                layer[target] = max(layer[target], layer[i] + 1)
                waiting[target] -= 1
                if waiting[target] == 0:
                    ready.append(target)
        return layer

    @staticmethod
    def _back_edges(out: Sequence[Sequence[int]]) -> set[tuple[int, int]]:
        entered = {target for targets in out for target in targets}
        roots = [i for i in range(len(out)) if i not in entered] + list(range(len(out)))
        state, turned = [0] * len(out), set[tuple[int, int]]()
        for root in roots:
            if state[root]:
                continue
            state[root] = 1
            stack = [(root, iter(out[root]))]
            while stack:
                node, targets = stack[-1]
                for target in targets:
                    if state[target] == 1:
                        turned.add((node, target))
                    elif state[target] == 0:
                        state[target] = 1
                        stack.append((target, iter(out[target])))
                        break
                else:
                    state[node] = 2
                    stack.pop()
        return turned

    def _chains(self, layer: list[int]) -> list[list[int]]:
        """Return for each way the items that it passes, from the upper to the lower end; adds the items of
        long ways. A way from a box to itself passes none."""
        chains: list[list[int]] = []
        for source, target in self._ends:
            if source == target:
                chains.append([source])
                continue
            upper, lower = (target, source) if (source, target) in self._turned else (source, target)
            chain = [upper]
            for between in range(layer[upper] + 1, layer[lower]):
                chain.append(len(layer))
                layer.append(between)
                self._width.append(6.0)
                self._height.append(0.0)
            chains.append([*chain, lower])
        return chains

    def _neighbours(self, chains: Iterable[Sequence[int]]) -> tuple[list[list[int]], list[list[int]]]:
        above: list[list[int]] = [[] for _ in self._width]
        below: list[list[int]] = [[] for _ in self._width]
        for chain in chains:
            for a, b in pairwise(chain):
                below[a].append(b)
                above[b].append(a)
        return above, below

    def _ordered(
        self, layer: Sequence[int], above: Sequence[Sequence[int]], below: Sequence[Sequence[int]]
    ) -> list[list[int]]:
        """Return the items of each layer from left to right, by the mean of their neighbours' places."""
        rows: list[list[int]] = [[] for _ in range(max(layer, default=-1) + 1)]
        for item in range(len(self._width)):
            rows[layer[item]].append(item)
        place = [0.0] * len(self._width)
        for row in rows:
            for at, item in enumerate(row):
                place[item] = at
        for sweep in range(_SWEEPS):
            near = above if sweep % 2 == 0 else below
            for row in rows if sweep % 2 == 0 else reversed(rows):
                keys = {
                    i: sum(place[n] for n in near[i]) / len(near[i]) if near[i] else place[i] for i in row
                }
                row.sort(key=keys.__getitem__)
                for at, item in enumerate(row):
                    place[item] = at
        return rows

    def _columns(
        self,
        rows: Sequence[Sequence[int]],
        above: Sequence[Sequence[int]],
        below: Sequence[Sequence[int]],
    ) -> list[float]:
        """Return the centre of each item: over its neighbours where the order leaves room."""
        x = [0.0] * len(self._width)
        for row in rows:
            at = 0.0
            for item in row:
                x[item] = at + self._width[item] / 2
                at += self._width[item] + _GAP_X
        for sweep in range(_SWEEPS):
            near = above if sweep % 2 == 0 else below
            for row in rows if sweep % 2 == 0 else reversed(rows):
                wanted = [sum(x[n] for n in near[i]) / len(near[i]) if near[i] else x[i] for i in row]
                for item, place in zip(row, self._spread(row, wanted), strict=True):
                    x[item] = place
        left = min((x[i] - self._width[i] / 2 for i in range(len(x))), default=0)
        return [place - left + _MARGIN for place in x]

    def _spread(self, row: Sequence[int], wanted: Sequence[float]) -> list[float]:
        """Return places in the order of `row`, as near to the wanted ones as the widths allow: the least
        squares fit, by merging blocks that overlap (pool adjacent violators)."""
        offsets, at = list[float](), 0.0
        for before, item in zip([None, *row], row, strict=False):
            if before is not None:
                at += (self._width[before] + self._width[item]) / 2 + _GAP_X
            offsets.append(at)
        blocks: list[tuple[float, int]] = []
        for place, offset in zip(wanted, offsets, strict=True):
            total, count = place - offset, 1
            while blocks and blocks[-1][0] / blocks[-1][1] > total / count:
                more, items = blocks.pop()
                total, count = total + more, count + items
            blocks.append((total, count))
        starts = [total / count for total, count in blocks for _ in range(count)]
        return [start + offset for start, offset in zip(starts, offsets, strict=True)]

    def _rows(self, rows: Sequence[Sequence[int]]) -> tuple[list[float], list[float]]:
        """Return the upper edge and the height of each layer."""
        height = [max((self._height[i] for i in row), default=0.0) for row in rows]
        y, at = list[float](), _MARGIN
        for one in height:
            y.append(at)
            at += one + _GAP_Y
        return y, height

    def _line(
        self,
        way: int,
        chain: Sequence[int],
        layer: Sequence[int],
        x: Sequence[float],
        y: Sequence[float],
        height: Sequence[float],
    ) -> list[tuple[float, float]]:
        source, target = self._ends[way]
        if source == target:
            right = x[source] + self._width[source] / 2
            middle = y[layer[source]] + height[layer[source]] / 2
            loop = [
                (right, middle - 8),
                (right + 18, middle - 8),
                (right + 18, middle + 8),
                (right, middle + 8),
            ]
            return [(round(px, 1), round(py, 1)) for px, py in loop]
        points: list[tuple[float, float]] = []
        for at, item in enumerate(chain):
            top, tall = y[layer[item]], height[layer[item]]
            free = (tall - self._height[item]) / 2
            if at == 0:
                points.append((x[item], top + tall - free))
            elif at == len(chain) - 1:
                points.append((x[item], top + free))
            else:
                points += [(x[item], top), (x[item], top + tall)]
        if (source, target) in self._turned:
            points.reverse()
        return [(round(px, 1), round(py, 1)) for px, py in points]
