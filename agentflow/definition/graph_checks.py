"""The graph that `depends_on` makes: ids, unknown dependencies, cycles, who is before whom.

Works on checked structures; reports and goes on, so that a graph with a cycle can be checked further.
"""

from __future__ import annotations

from typing import Any, cast

import msgspec

from agentflow.definition.report import Report, shown
from agentflow.definition.structure import Found

__all__ = ["Ancestors", "Graph", "build_graph", "components"]

_SHOWN_CYCLE = 12


class Ancestors(msgspec.Struct, frozen=True):
    """A set of steps: bit i of `mask` stands for the step whose `order` is i."""

    mask: int
    order: dict[str, int]

    def __contains__(self, step_id: str) -> bool:
        index = self.order.get(step_id)
        return index is not None and bool(self.mask >> index & 1)


class Graph(msgspec.Struct):
    """Steps by id in declared order (the first of equal ids), their direct dependencies, and for each
    the set of steps before it, directly or not, as a bit mask over `order`. `refused`: ids that were
    reported as wrong. `unsure`: pointers of steps whose dependencies were. `nameless`: some step has a wrong
    id, so that a name without a neighbour may be its."""

    steps: dict[str, Found] = {}
    depends_on: dict[str, tuple[str, ...]] = {}
    order: dict[str, int] = {}
    before: dict[str, int] = {}
    refused: set[str] = set()
    by_pointer: dict[str, tuple[str, ...]] = {}
    unsure: set[str] = set()
    nameless: bool = False

    def is_reported(self, name: str, report: Report) -> bool:
        """Return True if an id that no step has is the consequence of an id that was reported as wrong."""
        return name in self.refused or (self.nameless and report.nearest(name, self.steps) is None)

    def before_step(self, step: Found) -> Ancestors:
        """The steps before a step, also of one whose id is wrong or used twice."""
        mask = 0
        for dependency in self.by_pointer.get(step.pointer, ()):
            mask |= self.before.get(dependency, 0) | 1 << self.order[dependency]
        return Ancestors(mask, self.order)


def build_graph(steps: list[Found], report: Report) -> Graph:
    """The graph of the steps; reports E_DUPLICATE_ID, E_UNKNOWN_DEPENDENCY, W_DUPLICATE, E_CYCLE."""
    graph = Graph()
    for step in steps:
        _name(step, graph, report)
    ids = list(graph.steps)
    graph.order = {step_id: i for i, step_id in enumerate(ids)}
    for step in steps:
        found = _dependencies(step, ids, graph, report)
        graph.by_pointer[step.pointer] = found
        step_id: str | None = step.plain("id")
        if step_id is not None and graph.steps[step_id] is step:
            graph.depends_on[step_id] = found
    _close(graph, report)
    return graph


def _name(step: Found, graph: Graph, report: Report) -> None:
    step_id = step.get("id")
    if step_id is None:
        graph.nameless |= step.has("id")
        written = step.json().get("id")
        if isinstance(written, str):
            graph.refused.add(written)
        return
    if step_id.value.startswith("__"):
        report.error(
            "E_VALUE",
            f'id "{step_id.value}" is reserved: it begins with "__"',
            step_id.place,
            step_id.pointer,
            hint="choose another name",
        )
    first = graph.steps.setdefault(step_id.value, step)
    if first is not step:
        earlier = first.value["id"]
        where = f" at {earlier.place[0]}:{earlier.place[1]}" if earlier.place[0] else ""
        report.error(
            "E_DUPLICATE_ID",
            f'step id "{step_id.value}" is already used{where}',
            step_id.place,
            step_id.pointer,
            hint="give each step an id of its own",
        )


def _dependencies(step: Found, ids: list[str], graph: Graph, report: Report) -> tuple[str, ...]:
    declared: list[Found] = step.plain("depends_on", [])
    written: Any = step.json().get("depends_on") if step.has("depends_on") else []
    if not isinstance(written, list) or len(cast("list[Any]", written)) != len(declared):
        graph.unsure.add(step.pointer)
    name = step.plain("id", "a step")
    seen: dict[str, None] = {}
    for dependency in declared:
        wanted: str = dependency.value
        if wanted in seen:
            message = f'"{shown(wanted)}" is listed twice'
            report.warning("W_DUPLICATE", message, dependency.place, dependency.pointer)
        elif wanted not in graph.steps:
            graph.unsure.add(step.pointer)
            if graph.is_reported(wanted, report):
                continue
            report.error(
                "E_UNKNOWN_DEPENDENCY",
                f'"{name}" depends on unknown step "{shown(wanted)}"',
                dependency.place,
                dependency.pointer,
                report.did_you_mean(wanted, ids),
            )
        seen[wanted] = None
    return tuple(d for d in seen if d in graph.steps)


def _close(graph: Graph, report: Report) -> None:
    """Fills `before` and reports each cycle once, at its first step."""
    order = graph.order
    for component in components(graph.depends_on):
        inside = set(component)
        mask = 0
        for step_id in component:
            for dependency in graph.depends_on[step_id]:
                mask |= graph.before.get(dependency, 0) | 1 << order[dependency]
        for step_id in component:
            graph.before[step_id] = mask
        first = min(component, key=order.__getitem__)
        if len(component) > 1 or first in graph.depends_on[first]:
            _report_cycle(graph, first, inside, report)


def components(edges: dict[str, tuple[str, ...]]) -> list[list[str]]:
    """Strongly connected components (Tarjan), each after all that it depends on. Does not recurse."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    on_stack: set[str] = set()
    result: list[list[str]] = []
    for root in edges:
        if root in index:
            continue
        work = [(root, iter(edges[root]))]
        index[root] = low[root] = len(index)
        stack.append(root)
        on_stack.add(root)
        while work:
            node, targets = work[-1]
            for target in targets:
                if target not in index:
                    index[target] = low[target] = len(index)
                    stack.append(target)
                    on_stack.add(target)
                    work.append((target, iter(edges[target])))
                    break
                if target in on_stack:
                    low[node] = min(low[node], index[target])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    component = _pop_until(node, stack)
                    on_stack.difference_update(component)
                    result.append(component)
    return result


def _pop_until(node: str, stack: list[str]) -> list[str]:
    component: list[str] = []
    while True:
        component.append(stack.pop())
        if component[-1] == node:
            return component


def _report_cycle(graph: Graph, first: str, inside: set[str], report: Report) -> None:
    cycle = _shortest_cycle(graph.depends_on, first, inside)
    if len(cycle) > _SHOWN_CYCLE:
        cycle = [*cycle[: _SHOWN_CYCLE - 2], "…", cycle[-1]]
    step = graph.steps[first]
    report.error(
        "E_CYCLE",
        f"steps form a cycle: {' → '.join(cycle)}",
        step.key,
        step.pointer,
        hint="remove one of these dependencies",
    )


def _shortest_cycle(edges: dict[str, tuple[str, ...]], first: str, inside: set[str]) -> list[str]:
    came_from: dict[str, str] = {}
    level = [first]
    while level:
        following: list[str] = []
        for node in level:
            for target in edges[node]:
                if target == first:
                    path = [node]
                    while path[-1] != first:
                        path.append(came_from[path[-1]])
                    return [*reversed(path), first]
                if target in inside and target not in came_from:
                    came_from[target] = node
                    following.append(target)
        level = following
    raise AssertionError("a component without a cycle")
