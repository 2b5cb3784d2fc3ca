"""The ways of node-graph YAML: edges become `next`, and nodes without one get the way that is meant (§12).

A node on no branch leads to the end; the last node of a loop's body back to its loop; the last of a branch
nowhere. `parallel` joins where its branches meet, `merge` takes the nodes that lead to it.
"""

from __future__ import annotations

from typing import Any, cast

from agentflow.definition.ir_vocabulary import ir_document
from agentflow.definition.node_yaml_kinds import NodeBody
from agentflow.definition.report import Report, shown
from agentflow.definition.rewriting import Rewriting, elements_of, made
from agentflow.definition.shapes import ArrayOf, Shape
from agentflow.definition.source_tree import Array, Node, Object, to_value
from agentflow.definition.structure import Found

__all__ = ["Ways"]

_END = "__end"
_TARGETS = frozenset({"next", "body", "default", "branches", "routes", "on_error"})


class Ways:
    """Completes the ways of the nodes. `needs_end`: some way leads to the synthetic end."""

    def __init__(self, document: Found, bodies: list[NodeBody], rewriting: Rewriting, report: Report) -> None:
        self.is_damaged = False
        self.needs_end = False
        self._rewriting = rewriting
        self._report = report
        self._by_id: dict[str, NodeBody] = {}
        for body in bodies:
            self._by_id.setdefault(body.id, body)
        edges = document.get("edges")
        for edge in cast("list[Found]", edges.value) if edges else []:
            self._add_edge(edge)

    def close(self, entry: str | None) -> None:
        """Give a way on to every node that lacks one."""
        self._join_branches()
        if entry is not None and not self.is_damaged:
            self._walk(entry.strip())
        for body in self._by_id.values():
            if body.kind == "merge" and "sources" not in body.fields:
                self._add_sources(body)
        ends = any(body.kind == "end" for body in self._by_id.values())
        self.needs_end = self.needs_end or not ends

    # -- edges ----------------------------------------------------------------------------------

    def _add_edge(self, edge: Found) -> None:
        source, target = edge.get("from"), edge.get("to")
        if source is None or target is None:
            self.is_damaged = True
            return
        body = self._by_id.get(source.value.strip())
        if target.value.strip() not in self._by_id:
            self._unknown("E_UNKNOWN_EDGE_TO", target)
        if body is None:
            self._unknown("E_UNKNOWN_EDGE_FROM", source)
            return
        if target.value.strip() not in self._by_id or not body.kind:
            return
        problem = None
        if body.kind == "end":
            problem = "E_EDGE_FROM_END", f'nothing comes after the end "{shown(body.id)}"'
        elif not _leads_on(body):
            message = f'the {body.written} "{shown(body.id)}" leads to its own targets'
            problem = "E_EDGE_FROM_SWITCH", message
        elif "next" in body.fields:
            message = f'there is another way on from "{shown(body.id)}"'
            problem = "E_DUPLICATE_EDGE_FROM", message
        if problem is not None:
            self.is_damaged = True
            self._report.error(*problem, source.place, source.pointer, "remove the edge")
            return
        body.fields["next"] = target

    def _unknown(self, code: str, found: Found) -> None:
        self.is_damaged = True
        name = found.value.strip()
        hint = self._report.did_you_mean(name, list(self._by_id))
        self._report.error(code, f'there is no node "{shown(name)}"', found.place, found.pointer, hint)

    # -- ways that are meant --------------------------------------------------------------------

    def _join_branches(self) -> None:
        """Let each parallel node go on where its branches meet."""
        for body in self._by_id.values():
            if body.kind != "parallel" or "next" in body.fields:
                continue
            branches = body.fields.get("branches")
            starts = [str(to_value(b.node)).strip() for b in elements_of(branches)] if branches else []
            reached = [self._reached(start) for start in starts]
            if len(reached) < 2:
                continue
            meeting = [name for name in reached[0] if all(name in other for other in reached)]
            if meeting:
                body.fields["next"] = made(meeting[0], body.found)

    def _reached(self, start: str) -> dict[str, None]:
        """Return the nodes that a branch reaches, in breadth-first order."""
        found, level = {start: None}, [start]
        while level:
            targets = [t for name in level for t in self._targets(name)]
            level = [t for t in dict.fromkeys(targets) if t not in found]
            found |= dict.fromkeys(level)
        return found

    def _targets(self, name: str) -> list[str]:
        body = self._by_id.get(name)
        if body is None:
            return []
        keys = [key for key in body.fields if key in _TARGETS or key.startswith("on_")]
        return [t for key in keys for t in _names_in(key, body.fields[key].node) if t in self._by_id]

    def _walk(self, entry: str) -> None:
        """Walk from the entry, outer paths first; `leads` is where the last node of a path leads."""
        seen: set[str] = set()
        todo: list[tuple[str, str | None]] = [(entry, _END)]
        later: list[tuple[str, str | None]] = []
        while todo or later:
            name, leads = todo.pop() if todo else later.pop(0)
            body = self._by_id.get(name)
            if name in seen or body is None:
                continue
            seen.add(name)
            if "next" not in body.fields and _leads_on(body) and leads is not None:
                if leads == _END:
                    self.needs_end = True
                body.fields["next"] = made(leads, body.found)
            for key in [key for key in body.fields if key in _TARGETS or key.startswith("on_")]:
                names = _names_in(key, body.fields[key].node)
                if key in ("branches", "body"):
                    inner = body.id if body.kind == "loop" else None
                    later += [(target, inner) for target in names]
                else:
                    todo += [(target, leads) for target in names]

    def _add_sources(self, body: NodeBody) -> None:
        openers = {b.id for b in self._by_id.values() if "branches" in b.fields}
        leading = [name for name in self._by_id if body.id in self._targets(name) and name not in openers]
        sources = [made(name, body.found) for name in leading]
        body.fields["sources"] = self._rewriting.array(sources, body.found)


def _leads_on(body: NodeBody) -> bool:
    """Return whether a node goes on by `next`. A question with two answers has a way for each."""
    return "next" in _fields_of(body.kind) and not body.fields.keys() & {"on_approve", "on_reject"}


def _fields_of(kind: str) -> Any:
    nodes = cast("ArrayOf", ir_document().fields["nodes"].kind)
    return cast("Shape", nodes.of).variants.get(kind, {})


def _names_in(key: str, node: Node) -> list[str]:
    """Return the targets in a field: a name, a list of names, or objects with `next`."""
    if isinstance(node, Array):
        return [name for item in node.items for name in _names_in(key, item)]
    if isinstance(node, Object):
        member = node.members.get("next")
        return _names_in(key, member.node) if member is not None else []
    value = node.value
    return [value.strip()] if isinstance(value, str) else []
