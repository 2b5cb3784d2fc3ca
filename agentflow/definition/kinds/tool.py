"""`tool`: one call of one function."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from agentflow.definition.node import NodeBase
from agentflow.definition.report import shown

if TYPE_CHECKING:
    from agentflow.definition.node_report import NodeReport

SHAPE = "box"


class ToolNode(NodeBase, frozen=True, kw_only=True, omit_defaults=True, tag="tool"):
    """One function call: `tool` is `service.function`. `input` as for an agent."""

    tool: str
    input: Any = msgspec.UNSET
    next: str | None = None


Spec = ToolNode


def ports(spec: ToolNode) -> tuple[tuple[str, str], ...]:
    """Return `next`, if it is set."""
    return () if spec.next is None else (("next", spec.next),)


def label(spec: ToolNode, port: str) -> str | None:
    """Return None: the edge has no label."""


def check(spec: ToolNode, at: NodeReport) -> None:
    """Check the name of the function and the template of its arguments."""
    at.template("input", spec.input)
    service, dot, function = spec.tool.rpartition(".")
    if not dot or not service.strip() or not function.strip():
        at.error("E_VALUE", f'tool "{shown(spec.tool)}" is not written as service.function', "tool")
