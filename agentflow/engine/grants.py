"""What an activation may do by its `capabilities` and those of the nodes around it (page 003 §3), as far as
only the run can tell: what handlers write, and graphs that are values."""

from __future__ import annotations

from agentflow.definition.capability_checks import allows
from agentflow.definition.failure import ErrorInfo
from agentflow.definition.node import Capabilities
from agentflow.engine.activation import Activation

__all__ = ["denied_write", "grants_of", "scope_denied"]


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
            return scope_denied(activation, f"state.{key}", "write")
    return None


def scope_denied(activation: Activation, area: str, op: str) -> ErrorInfo:
    """Return the error of an access that the capabilities of the node do not allow."""
    step = activation.node.id
    return ErrorInfo(
        category="policy",
        code="scope_access_denied",
        message=f"{step} may not {op} {area}: its capabilities do not have it",
        details={"step_id": step, "area": area, "op": op},
    )
