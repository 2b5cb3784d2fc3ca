"""Fields of NodeBase that have no effect where they stand (page 003 §2): each is refused with the reason."""

from __future__ import annotations

from typing import Any

from agentflow.definition.connections import waits_by_rule
from agentflow.definition.ir import ErrorRoute, Node
from agentflow.definition.ir_report import IrReport
from agentflow.definition.kinds import Kind, kind_of

__all__ = ["check_common_fields"]

_WAITING = ("guard", "for_each", "max_parallel")
"""Fields that only a node of a dependency graph has, beside `depends_on` and `join`."""
_DEFAULTS: dict[str, Any] = {"depends_on": (), "join": "any", "required": True, "on_error": "fail"}
_WORK = ("on_error", "required", "set_globals", "update_globals")
_GATES = ("approval", "budget", "cache", "policy")


def check_common_fields(node: Node, path: str, report: IrReport) -> None:
    """Report every field that would be silently ignored."""
    kind = kind_of(node)
    waits = waits_by_rule(node)
    if waits:
        _check_waiting(node, path, report)
    elif "dependency" in kind.takes:
        why, hint = f'"{node.id}" is entered by tokens', 'set join to "all_succeeded"'
        _refuse(node, ("depends_on", *_WAITING), why, hint, path, report)
    else:
        why = f'"{node.id}" is {_article(kind)} {kind.name}, which tokens enter'
        _refuse(
            node,
            ("depends_on", "join", *_WAITING) if not kind.is_border else _WAITING,
            why,
            None,
            path,
            report,
        )
    if kind.is_border:
        why = f'"{node.id}" is {_article(kind)} {kind.name}, which does no work'
        _refuse(node, ("join", *_WORK, *_GATES), why, None, path, report)
    else:
        why = f'"{node.id}" is {_article(kind)} {kind.name}'
        refused = [field for field in _GATES if field not in kind.takes]
        _refuse(node, refused, why, "set it on the nodes that do the work", path, report)
    _check_approval(node, kind, path, report)


def _check_waiting(node: Node, path: str, report: IrReport) -> None:
    why, hint = f'"{node.id}" waits by rule {node.join}', "let the next node depend on it"
    _refuse(node, ("next",), why, hint, path, report)
    if isinstance(node.on_error, ErrorRoute):
        message = f"{why}: on_error.next has no effect"
        hint = "let the next node depend on it, with failure() in its guard"
        report.error("E_CONFLICTING_FIELDS", message, f"{path}/on_error/next", hint)
    if node.max_parallel is not None and node.max_parallel > 0 and node.for_each is None:
        message = f'max_parallel of "{node.id}" counts iterations'
        report.error("E_CONFLICTING_FIELDS", message, f"{path}/max_parallel", "add for_each, or leave it out")


def _check_approval(node: Node, kind: Kind, path: str, report: IrReport) -> None:
    approval = node.approval
    if approval is None or "approval" not in kind.takes or approval.before in ("step", "never"):
        return
    if "calls" not in kind.takes:
        message = f'"{node.id}" is {_article(kind)} {kind.name}, which calls no functions: approval before'
        message += f" {approval.before} has no effect"
        report.error("E_CONFLICTING_FIELDS", message, f"{path}/approval/before", 'write "step"')


def _refuse(
    node: Node, fields: tuple[str, ...] | list[str], why: str, hint: str | None, path: str, report: IrReport
) -> None:
    for field in fields:
        value = getattr(node, field, None)
        if value is None or value == _DEFAULTS.get(field, {}) or (field == "max_parallel" and value < 1):
            continue
        written = node.__struct_encode_fields__[node.__struct_fields__.index(field)]
        report.error("E_CONFLICTING_FIELDS", f"{why}: {field} has no effect", f"{path}/{written}", hint)


def _article(kind: Kind) -> str:
    return "an" if kind.name[0] in "aeiou" else "a"
