"""Another definition for a run that goes on or is forked: it must be joined in the same way (page 002 §9)."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import msgspec

from agentflow.definition.compare import compare, unfit_results
from agentflow.definition.ir import Workflow
from agentflow.definition.signature import signature_change
from agentflow.errors import GraphSignatureMismatch

if TYPE_CHECKING:
    from agentflow.engine import RunState

__all__ = ["check_results", "check_same_graph"]

_SHOWN = 20


def check_same_graph(workflow_id: str, old: Workflow, new: Workflow) -> None:
    """Raise GraphSignatureMismatch if a run that is pinned to `old` cannot go on with `new`; it says which
    steps and edges differ, and how."""
    change = signature_change(old, new)
    if not change:
        return
    found = [one.message for one in compare(old, new) if one.structural]
    raise GraphSignatureMismatch(
        f"{workflow_id} began with another graph than {new.name or 'the definition'} is now: {_told(found)}",
        hint="prompts, models, limits and code may change; for other steps or edges start a new run",
        details=msgspec.to_builtins(change),
    )


def check_results(workflow_id: str, source: RunState, cut: Collection[str], new: Workflow) -> None:
    """Raise GraphSignatureMismatch if a result that a fork keeps breaks a schema of its new definition."""
    kept: dict[str, Any] = {
        step_id: place.output
        for step_id, place in source.nodes.items()
        if place.status == "succeeded" and step_id not in cut
    }
    broken = unfit_results(new, kept)
    if not broken:
        return
    found = [one.message for one in broken]
    steps = [one.node for one in broken]
    raise GraphSignatureMismatch(
        f"results of {workflow_id} do not fit the definition: {_told(found)}",
        hint=f"begin these steps anew: fork from {steps[0]}",
        details={"added": [], "removed": [], "changed": steps},
    )


def _told(found: list[str]) -> str:
    more = f" (and {len(found) - _SHOWN} more)" if len(found) > _SHOWN else ""
    return "; ".join(found[:_SHOWN]) + more
