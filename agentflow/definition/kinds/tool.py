"""`tool`: one call of one function."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from agentflow.definition.node import Binds, Needed, NodeBase, next_port
from agentflow.definition.report import shown

if TYPE_CHECKING:
    from agentflow.definition.node_report import NodeReport

SHAPE = "box"
_WORKER = "worker:"
TAKES = frozenset({"approval", "budget", "cache", "calls", "dependency", "policy"})


class ToolNode(NodeBase, frozen=True, kw_only=True, omit_defaults=True, tag="tool"):
    """One function call: `tool` is `service.function`. `input` as for an agent."""

    tool: str
    input: Any = msgspec.UNSET
    next: str | None = None


Spec = ToolNode
ports = next_port


def binds(spec: ToolNode) -> Binds:
    """Return the function that it calls."""
    return Binds(tools=(Needed("tool", spec.tool),))


def check(spec: ToolNode, at: NodeReport) -> None:
    """Check the name of the function and the template of its arguments."""
    at.template("input", spec.input)
    check_tool_name(spec.tool, at)
    if spec.cache is not None and spec.cache.key is None:
        hint = "add a key, such as the arguments that decide the result"
        at.error("E_EMPTY_FIELD", f'cache of "{spec.id}" has no key', "cache/key", hint)


def check_tool_name(tool: str, at: NodeReport, field: str = "tool") -> None:
    """Require `service.function`, or `worker:HANDLER`, in a field."""
    if tool.startswith(_WORKER) and tool.removeprefix(_WORKER).strip():
        return
    service, dot, function = tool.rpartition(".")
    if not dot or not service.strip() or not function.strip():
        at.error("E_VALUE", f'{field} "{shown(tool)}" is not written as service.function', field)
