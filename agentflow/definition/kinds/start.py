"""`start`: where tokens begin."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentflow.definition.node import NodeBase, next_port

if TYPE_CHECKING:
    from agentflow.definition.node_report import NodeReport

SHAPE = "oval"
IS_START = True


class StartNode(NodeBase, frozen=True, kw_only=True, omit_defaults=True, tag="start"):
    """Where tokens begin: the run's input goes along `next` and along its `edges[]`.

    A run whose input breaks `input_schema` is refused before it begins.
    """

    next: str | None = None
    input_schema: dict[str, Any] | bool | None = None


Spec = StartNode
ports = next_port


def check(spec: StartNode, at: NodeReport) -> None:
    """Check the schema of the input; the graph's own checks cover the rest."""
    if spec.input_schema is not None:
        at.schema("input_schema", spec.input_schema)
