"""The graph document (`ir/v0`, page 003 §2): JSON or YAML to the normal form of a graph.

Structure is checked by the shapes of `ir_vocabulary`; what is right is lowered to the Structs of the graph,
in normal form, and checked as every graph is.
"""

from __future__ import annotations

import re
from typing import Any

from agentflow.definition.graph_origin import GraphOrigin
from agentflow.definition.ir import Workflow, canonical_json, decode_ir
from agentflow.definition.ir_checks import check_graph
from agentflow.definition.ir_lowering import GraphLowering
from agentflow.definition.ir_report import IrReport
from agentflow.definition.ir_vocabulary import ir_document
from agentflow.definition.report import Report
from agentflow.definition.source_text import Source
from agentflow.definition.source_tree import Object, Place, Positions
from agentflow.definition.structure import check_structure

__all__ = ["compile_ir_document"]


def compile_ir_document(
    root: Object, source: Source, report: Report, *, damaged: bool = False
) -> tuple[Workflow, Positions]:
    """Return the normal form of a graph document, and where its nodes stand. Of one that is `damaged`,
    parts are missing already.

    All problems go to the report; with an error among them the graph must not be used.
    """
    document = check_structure(root, ir_document(), report)
    origin = GraphOrigin(source)
    origin.has_gaps = damaged
    wire = GraphLowering(report, origin).graph(document, "")
    return _checked(wire, origin, root, report)


def _checked(
    wire: dict[str, Any], origin: GraphOrigin, root: Object, report: Report
) -> tuple[Workflow, Positions]:
    graph = decode_ir(canonical_json(wire))
    inner = IrReport(report, origin)
    inner.failed = origin.is_damaged
    check_graph(graph, inner)
    return graph, _NodePositions(root, graph, origin)


class _NodePositions(Positions):
    """Positions that also know where the nodes of the graph stand, by the positions that binding tells."""

    def __init__(self, root: Object, graph: Workflow, origin: GraphOrigin) -> None:
        super().__init__(root)
        self._order = {node.index: i for i, node in reversed(list(enumerate(graph.nodes)))}
        self._origin = origin

    def at(self, pointer: str) -> Place:
        found = _OF_NODE.match(pointer)
        index = self._order.get(int(found[1])) if found is not None else None
        if found is None or index is None:
            return super().at(pointer)
        rest = pointer[found.end() :].replace("/attachedFunctions", "/tools")
        place = self._origin.find(f"/nodes/{index}{rest}")
        return place[0] if place is not None else (None, None)


_OF_NODE = re.compile(r"/(?:nodes|workflow/steps|agents)/([0-9]{1,6})(?=/|$)")
