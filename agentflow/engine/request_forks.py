"""What a fork of a request from its failure keeps: done steps with their results, and no grant."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentflow.definition.pipeline_nodes import STAGES
from agentflow.engine.pipeline import EXECUTE
from agentflow.engine.replay import RUN_EVENTS, BaseEvent
from agentflow.engine.state import RunState
from agentflow.events import catalogue as ev

__all__ = ["base_of_request"]

_OF_STAGE: dict[type, str] = {
    ev.PlanNormalized: "normalize",
    ev.PlanProposed: "plan",
    ev.PlanEdited: "review",
    ev.PlanAccepted: "review",
    ev.PlanRejected: "review",
    ev.PlanCompiled: "review",
    ev.PlanExecuted: "verify",  # said when the stage ends, which begins with the fork anew
    ev.VerificationStarted: "verify",
    ev.VerificationArtifactChecked: "verify",
    ev.VerificationStepVerdict: "verify",
    ev.VerificationCompleted: "verify",
    ev.PlanFinalized: "write",
}
_UNDONE = frozenset({"failed", "skipped", "cancelled", "pending", "running", "waiting"})


def base_of_request(state: RunState, events: Sequence[BaseEvent]) -> list[int] | None:
    """Return the indexes of the events that a fork from the failure of a request keeps; None if nothing of it
    has failed or was skipped."""
    pipeline = state.pipeline
    assert pipeline is not None
    first = _first_undone(state)
    redone = frozenset[str]()
    if first is None:
        names = [f"{EXECUTE}/{step['id']}" for step in pipeline.steps()]
        redone = frozenset(n for n in names if n not in state.nodes or state.nodes[n].status in _UNDONE)
        verdicts = (pipeline.verifier_output or {}).get("verdicts") or ()
        if not redone and all(verdict["verdict"] == "pass" for verdict in verdicts):
            return None
        first = EXECUTE if redone else "verify"
    limit = _index(first)
    return [i for i, event in enumerate(events) if _is_kept(event.data, limit, redone)]


def _index(stage: str) -> int:
    return [str(one) for one in STAGES].index(stage)


def _first_undone(state: RunState) -> str | None:
    """Return the stage before the execution that failed or stayed blocked."""
    for stage in ("normalize", "plan"):
        place = state.nodes[stage]
        output: dict[str, Any] = place.output or {}
        is_blocked = output.get("status") == "blocked"
        if place.status != "succeeded" or is_blocked:
            return stage
    return None if state.nodes["review"].status == "succeeded" else "review"


def _is_kept(data: Any, limit: int, redone: frozenset[str]) -> bool:
    if isinstance(data, RUN_EVENTS):
        return False
    stage = _OF_STAGE.get(data.__class__)
    if stage is not None:
        is_executed = isinstance(data, ev.PlanExecuted) and limit > _index(EXECUTE)
        return is_executed or _index(stage) < limit
    step = getattr(data, "step_id", None)
    if not isinstance(step, str):
        return not isinstance(data, ev.SystemStateSaved)
    outer, _, inner = step.partition("/")
    if inner:
        return limit >= _index(EXECUTE) and step not in redone
    if outer == EXECUTE and limit == _index(EXECUTE):
        return not isinstance(data, ev.WorkflowStepCompleted)
    return outer in STAGES and _index(outer) < limit
