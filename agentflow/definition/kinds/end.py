"""`end`: where a run ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from agentflow.definition.node import NodeBase

if TYPE_CHECKING:
    from agentflow.definition.node_report import NodeReport

SHAPE = "oval"
IS_END = True


class EndNode(NodeBase, frozen=True, kw_only=True, omit_defaults=True, tag="end"):
    """The end. With `drain`, live paths are awaited. `output` is a template; without it the output is
    the payload that arrived, or for a dependency graph `{leaf step: result or null}`."""

    output: Any = msgspec.UNSET
    drain: bool = False


Spec = EndNode


def ports(spec: EndNode) -> tuple[tuple[str, str], ...]:
    """Return nothing: no node comes after an end."""
    return ()


def check(spec: EndNode, at: NodeReport) -> None:
    """Check the template of the output."""
    at.template("output", spec.output)
