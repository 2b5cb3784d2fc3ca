"""`retry_compensate`: a function that is tried again, and another one that makes up for its failure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from agentflow.definition.kinds.tool import check_tool_name
from agentflow.definition.node import Binds, Needed, NodeBase, Policy

if TYPE_CHECKING:
    from agentflow.definition.node_report import NodeReport

SHAPE = "box"
TAKES = frozenset({"approval", "budget", "calls", "policy"})
STRUCTURAL = frozenset({"next", "on_error", "on_compensated"})

_LABELS = {"next": "success", "on_compensated": "compensated"}


class RetryCompensateNode(NodeBase, frozen=True, kw_only=True, omit_defaults=True, tag="retry_compensate"):
    """Calls `tool`, up to `max_retries` times again when it fails, then `compensate_tool`.

    The inputs are templates; unset, `input` is the payload of the token and `compensate_input` the same as
    `input`. After a compensation the node leads to `on_compensated`, or on. `policy` says when the calls of
    `tool` are repeated, `compensate_policy` those of the other.
    """

    tool: str
    max_retries: int
    compensate_tool: str
    input: Any = msgspec.UNSET
    compensate_input: Any = msgspec.UNSET
    compensate_policy: Policy | None = None
    next: str | None = None
    on_compensated: str | None = None


Spec = RetryCompensateNode


def binds(spec: RetryCompensateNode) -> Binds:
    """Return both functions."""
    return Binds(tools=(Needed("tool", spec.tool), Needed("compensate_tool", spec.compensate_tool)))


def ports(spec: RetryCompensateNode) -> tuple[tuple[str, str], ...]:
    """Return the ways on."""
    pairs = (("next", spec.next), ("on_compensated", spec.on_compensated))
    return tuple((port, target) for port, target in pairs if target is not None)


def label(spec: RetryCompensateNode, port: str) -> str | None:
    """Return `success` or `compensated`."""
    return _LABELS.get(port)


def routing(spec: RetryCompensateNode) -> dict[str, str]:
    """Return nothing: what comes of the calls chooses the way."""
    return {}


def check(spec: RetryCompensateNode, at: NodeReport) -> None:
    """Check the names of both functions, their inputs and policies."""
    check_tool_name(spec.tool, at)
    check_tool_name(spec.compensate_tool, at, "compensate_tool")
    at.range("max_retries", spec.max_retries, least=0)
    at.template("input", spec.input)
    at.template("compensate_input", spec.compensate_input)
    retry = None if spec.policy is None else spec.policy.retry
    if retry is not None and retry.max_attempts != type(retry)().max_attempts:
        message = f'max_retries of "{spec.id}" counts the attempts'
        at.conflict("policy/retry/max_attempts", message, "leave it out")
    compensate = spec.compensate_policy
    if compensate is None:
        return
    other = compensate.retry
    limits = (
        ("timeout", compensate.timeout is not None),
        ("retry/timeout", other is not None and other.timeout != type(other)().timeout),
    )
    for field, is_set in limits:
        if is_set:
            message = f'the time of "{spec.id}" is limited by its policy and by the functions'
            at.conflict(f"compensate_policy/{field}", message, "set it on the function or in policy")
