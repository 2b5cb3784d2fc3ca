"""`tool`: one call of one function."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec

from agentflow.definition.node import WORKER_PREFIX, Binds, Needed, NodeBase, next_port
from agentflow.definition.report import shown

if TYPE_CHECKING:
    from agentflow.definition.node_report import NodeReport

SHAPE = "box"
POLICY_OPTION = "tool_node_policy"
_HANDLER_FILE = re.compile(r"(?:[A-Za-z_]\w*/)*[A-Za-z_]\w*\.py")
TAKES = frozenset({"approval", "budget", "cache", "calls", "dependency", "policy"})


class ToolNode(NodeBase, frozen=True, kw_only=True, omit_defaults=True, tag="tool"):
    """One function call: `tool` is `service.function`, or `worker:HANDLER`. `input` as for an agent.

    `handler_file` is the file beside the document that has the handler, instead of `handlers.py`.
    """

    tool: str
    input: Any = msgspec.UNSET
    next: str | None = None
    handler_file: str | None = None


Spec = ToolNode
ports = next_port


def binds(spec: ToolNode) -> Binds:
    """Return the function that it calls."""
    return Binds(tools=(Needed("tool", spec.tool, file=spec.handler_file),))


def check(spec: ToolNode, at: NodeReport) -> None:
    """Check the name of the function and the template of its arguments."""
    at.template("input", spec.input)
    check_tool_name(spec.tool, at)
    if spec.handler_file is not None:
        _check_handler_file(spec.handler_file, spec, at)
    if spec.cache is not None and spec.cache.key is None:
        hint = "add a key, such as the arguments that decide the result"
        at.error("E_EMPTY_FIELD", f'cache of "{spec.id}" has no key', "cache/key", hint)


def _check_handler_file(file: str, spec: ToolNode, at: NodeReport) -> None:
    if not _HANDLER_FILE.fullmatch(file):
        hint = "name a .py file beside the document, or in a folder there, as workers/scores.py"
        at.error("E_VALUE", f'handler_file "{shown(file)}" is no path of a module', "handler_file", hint)
    elif not spec.tool.startswith(WORKER_PREFIX):
        message = f'"{spec.id}" calls no worker: handler_file has no effect'
        at.warning("W_IGNORED_FIELD", message, "handler_file", "remove it")


def check_tool_name(tool: str, at: NodeReport, field: str = "tool") -> None:
    """Require `service.function`, or `worker:HANDLER`, in a field."""
    if tool.startswith(WORKER_PREFIX) and tool.removeprefix(WORKER_PREFIX).strip():
        return
    service, dot, function = tool.rpartition(".")
    if not dot or not service.strip() or not function.strip():
        at.error("E_VALUE", f'{field} "{shown(tool)}" is not written as service.function', field)
