"""`start`: where tokens begin."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentflow.definition.node import NodeBase

if TYPE_CHECKING:
    from agentflow.definition.node_report import NodeReport

SHAPE = "oval"
IS_START = True


class StartNode(NodeBase, frozen=True, kw_only=True, omit_defaults=True, tag="start"):
    """Where tokens begin: the run's input goes along `next` and along its `edges[]`."""

    next: str | None = None


Spec = StartNode


def ports(spec: StartNode) -> tuple[tuple[str, str], ...]:
    """Return `next`, if it is set."""
    return () if spec.next is None else (("next", spec.next),)


def label(spec: StartNode, port: str) -> str | None:
    """Return None: the edge has no label."""


def check(spec: StartNode, at: NodeReport) -> None:
    """Report nothing: the graph's own checks cover a start."""
