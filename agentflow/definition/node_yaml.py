"""Node-graph YAML (page 003 §12) to a graph: rewritten as a graph document, which is then read as such.

The rewritten document keeps the places of the values; its JSON pointers are translated back. There is no
second checker, and no second walker.
"""

from __future__ import annotations

from typing import cast

from agentflow.definition.ir import Workflow
from agentflow.definition.ir_document import compile_ir_document
from agentflow.definition.node_yaml_kinds import NodeBody
from agentflow.definition.node_yaml_vocabulary import node_yaml
from agentflow.definition.node_yaml_ways import Ways
from agentflow.definition.report import Report, shown
from agentflow.definition.rewriting import Parts, Rewriting, made, parts_of
from agentflow.definition.source_text import Source
from agentflow.definition.source_tree import Object, Positions
from agentflow.definition.structure import Found, check_structure

__all__ = ["compile_node_yaml"]

_START, _END = "__start", "__end"
_KEPT = ("metadata", "globals", "services", "models")


def compile_node_yaml(root: Object, source: Source, report: Report) -> tuple[Workflow, Positions]:
    """Return the normal form of the graph that a document means, and where its nodes stand.

    All problems go to the report; with an error among them the graph must not be used.
    """
    document = check_structure(root, node_yaml(), report)
    rewriting = Rewriting()
    tree, damaged = _NodeYaml(document, report, rewriting).rewrite()
    inner = Report()
    compiled = compile_ir_document(tree, source, inner, damaged=damaged)
    report.take(inner, rewriting.original)
    return compiled


class _NodeYaml:
    def __init__(self, document: Found, report: Report, rewriting: Rewriting) -> None:
        self._document = document
        self._report = report
        self._rewriting = rewriting
        listed = document.get("nodes")
        self._nodes: list[Found] = cast("list[Found]", listed.value) if listed else []
        self._damaged = bool(listed) and len(listed.json()) != len(self._nodes)

    def rewrite(self) -> tuple[Object, bool]:
        """Return the graph document, and whether parts of it are missing."""
        document = self._document
        bodies = [NodeBody(node, self._rewriting, self._report) for node in self._nodes]
        ways = Ways(document, bodies, self._rewriting, self._report)
        entry = self._entry([body.id for body in bodies])
        ways.close(entry.value if entry is not None else None)
        top: Parts = {"version": made("v0", document)}
        name = document.get("id")
        if name is not None:
            top["name"] = top["id"] = name
        else:
            top["name"] = made("workflow", document)
            self._damaged = True
        top |= {key: part for key in _KEPT if (part := document.get(key)) is not None}
        self._add_options(top)
        self._add_defaults(top, {body.kind for body in bodies})
        nodes = [self._rewriting.object(body.fields, body.found) for body in bodies]
        if nodes:
            nodes += self._borders(entry, ways)
        listed = document.get("nodes")
        where = listed or document
        top["nodes"] = self._rewriting.array(nodes, where)
        tree = self._rewriting.finish(self._rewriting.object(top, document))
        return tree, self._damaged or ways.is_damaged or any(body.is_damaged for body in bodies)

    def _entry(self, ids: list[str]) -> Found | None:
        """Return the entry, which names a node; None, reported, if it does not."""
        document, report = self._document, self._report
        entry = document.get("entry_node")
        if entry is None or not entry.value.strip():
            if entry is not None or not document.has("entry_node"):
                place, path = (entry.place, entry.pointer) if entry else (document.key, "")
                report.error("E_MISSING_ENTRY", "document has no entry_node", place, path, "name a node")
        elif entry.value.strip() not in ids:
            message = f'entry_node "{shown(entry.value)}" names no node'
            hint = report.did_you_mean(entry.value.strip(), ids)
            report.error("E_MISSING_ENTRY", message, entry.place, entry.pointer, hint)
        else:
            return entry
        self._damaged = True
        return None

    def _borders(self, entry: Found | None, ways: Ways) -> list[Found]:
        where = entry or self._document
        first = entry or made(self._nodes[0].plain("id", _END) if self._nodes else _END, where)
        start: Parts = {"id": made(_START, where), "type": made("start", where), "next": first}
        found = [self._rewriting.object(start, where)]
        if ways.needs_end:
            end: Parts = {"id": made(_END, where), "type": made("end", where)}
            found.append(self._rewriting.object(end, where))
        return found

    def _add_options(self, top: Parts) -> None:
        document = self._document
        options, defaults = document.get("options"), document.get("defaults")
        limit = defaults.get("max_concurrency") if defaults else None
        fields = parts_of(options) if options is not None else {}
        if limit is not None:
            fields.setdefault("max_parallel", limit)
        if fields:
            top["options"] = self._rewriting.object(fields, options or cast("Found", defaults))

    def _add_defaults(self, top: Parts, kinds: set[str]) -> None:
        """Give the defaults to each kind that does work."""
        from agentflow.definition.kinds import KINDS

        defaults = self._document.get("defaults")
        policy = NodeBody.policy(defaults, self._rewriting) if defaults is not None else None
        if defaults is None or policy is None:
            return
        working = sorted(kind for kind in kinds if kind in KINDS and "policy" in KINDS[kind].takes)
        each = dict.fromkeys(working, policy)
        if each:
            top["defaults"] = self._rewriting.object(each, defaults)
