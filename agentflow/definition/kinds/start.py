"""`start`: where tokens begin."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentflow.definition.node import NodeBase, next_port

if TYPE_CHECKING:
    from agentflow.definition.node_report import NodeReport

SHAPE = "oval"
IS_START = True


class StartNode(NodeBase, frozen=True, kw_only=True, omit_defaults=True, tag="start"):
    """Where tokens begin: the run's input goes along `next` and along its `edges[]`."""

    next: str | None = None


Spec = StartNode
ports = next_port


def check(spec: StartNode, at: NodeReport) -> None:
    """Report nothing: the graph's own checks cover a start."""
