"""A step of a plan that is one call: the runtime makes it, and no delegate is asked (page 004 §8)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from agentflow.definition.toolsets import StepContext
from agentflow.engine.decisions import Decisions
from agentflow.engine.kinds.kind import Prepared
from agentflow.engine.kinds.stage_agent import PlanStep, end_of_step, plan_step
from agentflow.engine.kinds.tool import Tool

if TYPE_CHECKING:
    from agentflow.definition.failure import ErrorInfo
    from agentflow.engine.activation import Activation
    from agentflow.engine.state import RunState

__all__ = ["PLAN_STEP_CALL"]


class PlanStepCall(PlanStep, Tool):
    """Makes the call of the step with the parameters of the plan; its output is that of the step.

    Toolsets, approval, evidence and verification are those of any step of a plan.
    """

    ends_itself = True
    said = None

    def compile(self, node: Any) -> Any:
        """Return no template: text of a plan is data."""
        return None

    def prepare(self, state: RunState, activation: Activation) -> Prepared | ErrorInfo:
        """Return the parameters as they stand in the plan."""
        parameters: dict[str, Any] = plan_step(activation)["call"]["parameters"]
        return Prepared({"parameters": parameters}, {"input": parameters})

    def context(self, state: RunState, activation: Activation) -> Any:
        """Return where the function works."""
        assert state.pipeline is not None
        return StepContext(workspace=state.pipeline.workspace(state.workflow_id))

    def approval_subject(self, state: RunState, activation: Activation) -> tuple[dict[str, Any], str, Any]:
        """Return what a person decides about, with the call, its digest, and the policy that asks."""
        subject, digest, policy = super().approval_subject(state, activation)
        return {**subject, "call": plan_step(activation)["call"]}, digest, policy

    def started(self, state: RunState, activation: Activation, data: Any, ts: int) -> None:
        """Keep what the expected files were; the call gets the parameters alone."""
        assert state.pipeline is not None
        state.pipeline.note_start(activation.node.name, data.input)
        activation.input = data.input.get("parameters")

    def start(self, state: RunState, activation: Activation, prepared: Prepared, now: int) -> Decisions:
        """Make the call at once, unless a budget may forbid it."""
        parameters = prepared.input["parameters"]
        return super().start(state, activation, Prepared(parameters, prepared.subject), now)

    def end(self, state: RunState, activation: Activation, now: int) -> Decisions:
        """Return the end of the step as a StepResult: a text stands as it is, any other value as JSON."""
        value = activation.output
        text = value if isinstance(value, str) else msgspec.json.encode(value, order="sorted").decode()
        result: dict[str, Any] = {
            "step_id": activation.node.name,
            "status": "done",
            "output": text,
            "error": None,
            "artifacts": [],
        }
        return end_of_step(state, activation, result, now)


PLAN_STEP_CALL = PlanStepCall()
