"""What the nodes of a graph do beyond their `capabilities` (page 003 §3), found from roots and names.

A path whose member is chosen at run time reads its whole area, so that expressions leave nothing to check
later; `engine.grants` checks what handlers do and graphs that are values.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from agentflow.definition.expression_checks import Read
from agentflow.definition.ir import AgentSpec, Capabilities, ModelRef, Node, NodeBase, Workflow, agent_of
from agentflow.definition.ir_report import IrReport
from agentflow.definition.report import shown

__all__ = ["allows", "allows_call", "check_capabilities"]

_AREAS: dict[str, tuple[str, ...]] = {
    "read": ("input", "nodes", "globals", "state"),
    "write": ("globals", "state"),
}
_OF_ROOT = {"inputs": "input", "steps": "nodes"}
_OUTPUTS = ("last_llm_output", "last_tool_output")
_SHARED = ("globals", "state")
"""Areas that an inner graph has in common with the graph around it."""


def check_capabilities(workflow: Workflow, reads: list[Read], report: IrReport) -> None:
    """Report what a node reads, writes or calls beyond its grant, and grants beyond those around them."""
    own = {node.id: node.capabilities for node in workflow.nodes if node.capabilities is not None}
    if not own and not report.grants:
        return
    for read in reads:
        grant = own.get(read.node_id or "")
        area = "nodes" if read.root in _OUTPUTS else _area_of(read)
        denied = grant is not None and not allows(grant.read, area)
        if area.partition(".")[0] in _SHARED:
            denied = denied or any(not allows(outer.read, area) for outer in report.grants)
        if denied and area.partition(".")[0] in _AREAS["read"]:
            message = f'"{shown(read.node_id or "")}" may not read {shown(area)}'
            report.failed = True
            report.report.error(
                "E_CAPABILITY_DENIED", message, read.place, read.path, "add it to capabilities.read"
            )
    for i, node in enumerate(workflow.nodes):
        grants = report.grants
        if node.capabilities is not None:
            _check_areas(node.capabilities, workflow, f"/nodes/{i}/capabilities", report)
            _check_subset(node.capabilities, node, f"/nodes/{i}/capabilities", report)
            grants = (*grants, node.capabilities)
        _check_writes(node, grants, f"/nodes/{i}", report)
        _check_calls(node, grants, f"/nodes/{i}", report)


def _area_of(read: Read) -> str:
    return ".".join((_OF_ROOT.get(read.root, read.root), *read.members[:1]))


def allows(granted: tuple[str, ...] | None, area: str) -> bool:
    """Return whether a grant has an area, or one that holds it. `nodes` alone is all of them."""
    if granted is None:
        return True
    return any(area == one or area.startswith(f"{one}.") for one in granted)


def allows_call(granted: tuple[str, ...] | None, name: str) -> bool:
    """Return whether a grant has a function or a model, or `*` of its service or provider."""
    if granted is None or name in granted:
        return True
    provider, colon, _ = name.partition(":")
    return (f"{provider}:*" if colon else f"{name.rpartition('.')[0]}.*") in granted


def _check_areas(grant: Capabilities, workflow: Workflow, path: str, report: IrReport) -> None:
    """Report areas that are none."""
    names = {node.id for node in workflow.nodes}
    for field, areas in _AREAS.items():
        named: tuple[str, ...] = getattr(grant, field) or ()
        for i, area in enumerate(named):
            root, _, member = area.partition(".")
            if root not in areas:
                hint = f"one of {', '.join(areas)}, or a part as {areas[0]}.NAME"
                report.error("E_VALUE", f'there is no area "{shown(area)}"', f"{path}/{field}/{i}", hint)
            elif root == "nodes" and member and member.partition(".")[0] not in names:
                hint = report.report.did_you_mean(member, names)
                report.error(
                    "E_UNKNOWN_REFERENCE", f'unknown node "{shown(member)}"', f"{path}/{field}/{i}", hint
                )


def _check_subset(grant: Capabilities, node: Node, path: str, report: IrReport) -> None:
    """Report what a node inside a subgraph is granted and its caller is not."""
    for field in ("read", "write", "tools", "models"):
        allowed_by = allows if field in _AREAS else allows_call
        named: tuple[str, ...] = getattr(grant, field) or ()
        for i, name in enumerate(named):
            shared = field not in _AREAS or name.partition(".")[0] in _SHARED
            if shared and any(not allowed_by(getattr(outer, field), name) for outer in report.grants):
                message = f'"{shown(node.id)}" is granted {shown(name)}, which its subgraph may not'
                report.error("E_CAPABILITY_DENIED", message, f"{path}/{field}/{i}", "narrow it")


def _check_writes(node: Node, grants: tuple[Capabilities, ...], path: str, report: IrReport) -> None:
    for field in ("set_globals", "update_globals"):
        for key in getattr(node, field):
            if any(not allows(grant.write, f"globals.{key}") for grant in grants):
                message = f'"{shown(node.id)}" may not write globals.{shown(key)}'
                at = f"{path}/{field}/{key.replace('~', '~0').replace('/', '~1')}"
                report.error("E_CAPABILITY_DENIED", message, at, "add it to capabilities.write")


def _check_calls(node: Node, grants: tuple[Capabilities, ...], path: str, report: IrReport) -> None:
    for kind, found in (("tools", _tools_of(node)), ("models", _models_of(node))):
        for field, name in found:
            if any(not allows_call(getattr(grant, kind), name) for grant in grants):
                message = f'"{shown(node.id)}" may not call {shown(name)}'
                hint = f"add it to capabilities.{kind}"
                report.error("E_CAPABILITY_DENIED", message, f"{path}/{field}", hint)


def _tools_of(node: NodeBase) -> Iterator[tuple[str, str]]:
    """Yield the functions that a node names, with their fields."""
    for field in ("tool", "compensate_tool"):
        name = getattr(node, field, None)
        if isinstance(name, str):
            yield field, name
    agent = agent_of(node)
    if agent is not None and agent.functions is None:
        yield "agent/functions", "*.*"
    for i, ref in enumerate((agent.functions if agent is not None else None) or ()):
        yield f"agent/functions/{i}", f"{ref.service}.{ref.function}" if ref.service else ref.function
    for i, tool in enumerate(getattr(node, "tools", None) or ()):
        name = _name_of_tool(tool)
        if name is not None:
            yield f"tools/{i}", name


def _name_of_tool(tool: Any) -> str | None:
    return tool if isinstance(tool, str) else getattr(tool, "name", None)


def _models_of(node: NodeBase) -> Iterator[tuple[str, str]]:
    """Yield the models that a node names, with their fields."""
    agent: AgentSpec | None = agent_of(node)
    named: list[tuple[str, Any]] = [("model", getattr(node, "model", None))]
    if agent is not None:
        named = [("agent/model", agent.model)]
        named += [(f"agent/fallback/{i}", model) for i, model in enumerate(agent.fallback)]
    for field, model in named:
        if isinstance(model, ModelRef):
            yield field, model.name if model.provider else model.model
        elif isinstance(model, str):
            yield field, model
