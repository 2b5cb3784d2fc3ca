"""What an activation may do by its `capabilities` and those of the nodes around it (page 003 §3), as far as
only the run can tell: what handlers read, write and call, and graphs that become known in the run."""

from __future__ import annotations

from typing import Literal

from agentflow.definition.capability_checks import allows, allows_call
from agentflow.definition.failure import ErrorInfo
from agentflow.definition.node import Capabilities
from agentflow.engine.activation import Activation

__all__ = ["denied_call", "denied_read", "denied_write", "grants_of", "scope_denied"]


def grants_of(activation: Activation) -> tuple[Capabilities, ...]:
    """Return the grants of a node and of all that it runs in, its own first."""
    found: list[Capabilities] = []
    around: Activation | None = activation
    while around is not None:
        own = around.node.spec.capabilities
        if own is not None:
            found.append(own)
        around = around.path.opener
    return tuple(found)


def denied_write(activation: Activation, keys: list[str]) -> ErrorInfo | None:
    """Return the error of a write of the shared state that the node may not make; None if it may make all."""
    grants = grants_of(activation)
    for key in keys if grants else ():
        if not all(allows(grant.write, f"state.{key}") for grant in grants):
            return scope_denied(activation.node.id, f"state.{key}", "write")
    return None


def denied_read(grants: tuple[Capabilities, ...], step: str, key: str) -> ErrorInfo | None:
    """Return the error of a read of the shared state by a handler of `step`; None if it may read the key."""
    if all(allows(grant.read, f"state.{key}") for grant in grants):
        return None
    return scope_denied(step, f"state.{key}", "read")


def denied_call(
    grants: tuple[Capabilities, ...], step: str, kind: Literal["tools", "models"], name: str
) -> ErrorInfo | None:
    """Return the error of a call by a handler of `step` of a function or model; None if it may make it."""
    if all(allows_call(getattr(grant, kind), name) for grant in grants):
        return None
    if kind == "models":
        return scope_denied(step, f"models.{name}", "call")
    message = f"{step} may not call {name}: its capabilities do not have it"
    return ErrorInfo(category="policy", code="tool_not_attached", message=message)


def scope_denied(step: str, area: str, op: str) -> ErrorInfo:
    """Return the error of an access that the capabilities of the node do not allow."""
    return ErrorInfo(
        category="policy",
        code="scope_access_denied",
        message=f"{step} may not {op} {area}: its capabilities do not have it",
        details={"step_id": step, "area": area, "op": op},
    )
