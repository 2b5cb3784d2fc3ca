"""Cycles of a directed graph: its strongly connected components, and the shortest way round."""

from __future__ import annotations

__all__ = ["components", "shortest_cycle"]


def components(edges: dict[str, list[str]]) -> list[list[str]]:
    """Return strongly connected components (Tarjan), each after all that it depends on. Does not recurse."""
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


def shortest_cycle(edges: dict[str, list[str]], first: str, inside: set[str]) -> list[str]:
    """Return the shortest way from a node of a component back to it; it begins and ends with the node."""
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
