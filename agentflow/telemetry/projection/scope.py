"""Which step an event is of: the attributes that say so, and the key under which its spans are kept."""

from __future__ import annotations

from typing import Any

from agentflow.telemetry import conventions as c

__all__ = ["scope_of", "unit_of"]


def unit_of(data: Any) -> str:
    iteration: Any = data.iteration
    return f"{data.activation}[{iteration}]" if isinstance(iteration, int) else data.activation


def scope_of(data: Any) -> dict[str, Any]:
    found = {c.STEP_ID: data.step_id, c.ACTIVATION: data.activation}
    if data.iteration is not None:
        found[c.ITERATION] = data.iteration
    return found
