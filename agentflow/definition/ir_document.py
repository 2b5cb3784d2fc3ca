"""The graph document (`ir/v0`, page 003 §2): JSON or YAML to the normal form of a graph.

Structure is checked by the shapes of `ir_vocabulary`; what is right is lowered to the Structs of the graph,
in normal form, and checked as every graph is.
"""

from __future__ import annotations

from typing import Any

from agentflow.definition.graph_origin import GraphOrigin
from agentflow.definition.ir import Workflow, canonical_json, decode_ir
from agentflow.definition.ir_checks import check_graph
from agentflow.definition.ir_lowering import GraphLowering
from agentflow.definition.ir_report import IrReport
from agentflow.definition.ir_vocabulary import ir_document
from agentflow.definition.report import NOWHERE, Report
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
    return graph, _NodePositions(root, origin)


class _NodePositions(Positions):
    """Positions that also know where the nodes of the graph stand, whose order is another one."""

    def __init__(self, root: Object, origin: GraphOrigin) -> None:
        super().__init__(root)
        self._origin = origin

    def find(self, pointer: str) -> tuple[Place, str]:
        if not pointer.startswith(("/nodes/", "/graphs/")):
            return super().at(pointer), pointer
        return self._origin.find(pointer) or (NOWHERE, pointer)

    def at(self, pointer: str) -> Place:
        return self.find(pointer)[0]
