"""The gate of the request pipeline: a person reviews the plan, or it opens at once (page 004 §7)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentflow.definition.failure import ErrorInfo
from agentflow.definition.stage_schemas import PLAN
from agentflow.engine.decisions import Decisions, scope_fields, step_completed, step_fields
from agentflow.engine.ids import derive
from agentflow.engine.kinds.human_in_the_loop import Human
from agentflow.engine.kinds.kind import Prepared
from agentflow.engine.kinds.stage_agent import PlanStep, end_of_step, plan_step
from agentflow.engine.pipeline import PipelineState, accepted_events
from agentflow.events import catalogue as ev

if TYPE_CHECKING:
    from agentflow.engine.activation import Activation
    from agentflow.engine.state import RunState

__all__ = ["PLAN_STEP_HUMAN", "REVIEW", "REVIEW_SCHEMA"]

REVIEW_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "decision": {"enum": ["execute", "reject"]},
        "plan": PLAN,
        "plan_digest": {"type": "string"},
        "reason": {"type": "string"},
    },
    "required": ["decision"],
    "additionalProperties": False,
}


class Review(Human):
    """Opens at once if execution was requested, else waits for `execute` or `reject`."""

    announces_end = True
    prepares_form = False

    def prepare(self, state: RunState, activation: Activation) -> Prepared | ErrorInfo:
        """Return what a person reviews: the plan is that of `plan.proposed`, named by its digest."""
        pipeline = _pipeline(state)
        plan = pipeline.plan or {}
        shown = {
            "input_type": "form",
            "prompt": "Execute this plan?",
            "plan_digest": pipeline.digest,
            "summary": plan.get("summary"),
            "steps": [step["id"] for step in pipeline.steps()],
        }
        return Prepared(shown, shown)

    def next(self, state: RunState, activation: Activation, now: int) -> Decisions:
        """Go on with an accepted plan, open at once, or ask."""
        pipeline = _pipeline(state)
        if self.is_idle(activation) or activation.local == "rejected":
            return []
        if pipeline.accepted or pipeline.execution_requested or activation.local is not None:
            output = {"decision": "execute", "plan_digest": pipeline.digest}
            return step_completed(state, activation, now, output=output)
        asked = ev.InputRequested(
            **scope_fields(activation),
            request_id=derive("req_", now, state.workflow_id, "review", activation.key),
            request_type="review",
            request=activation.input,
            response_schema=REVIEW_SCHEMA,
        )
        waits = ev.WorkflowStepWaiting(**step_fields(activation), for_="input", ref=asked.request_id)
        return [asked, waits]

    def before_end(self, state: RunState, activation: Activation, output: Any, now: int) -> Decisions:
        """Return `plan.accepted` and `plan.compiled`, if the command that accepted the plan did not."""
        pipeline = _pipeline(state)
        by = activation.local if isinstance(activation.local, str) else None
        missing = accepted_events(pipeline, by=by) if pipeline.graph is None else []
        return missing[1:] if pipeline.accepted else missing  # the append of a command may have been cut

    def answered(self, state: RunState, activation: Activation, data: Any, ts: int) -> None:
        """Keep who decided, or that the plan was rejected."""
        executes = isinstance(data, ev.InputReceived) and data.value["decision"] == "execute"
        activation.local = data.by if executes else "rejected"

    def view(self, activation: Activation, place: Any) -> dict[str, Any]:
        """Return nothing beside the output."""
        return {}


def _pipeline(state: RunState) -> PipelineState:
    assert state.pipeline is not None
    return state.pipeline


class PlanStepHuman(PlanStep, Human):
    """A step of the plan that a person does, and reports as a StepResult."""

    ends_itself = False

    def prepare(self, state: RunState, activation: Activation) -> Prepared | ErrorInfo:
        """Return the step as the person sees it."""
        step = plan_step(activation)
        shown = {
            "input_type": "form",
            "prompt": f"{step['title']}\n\n{step['action']}".strip(),
            "step_id": step["id"],
        }
        return Prepared(shown, shown)

    def started(self, state: RunState, activation: Activation, data: Any, ts: int) -> None:
        """Keep what the expected files were."""
        super().started(state, activation, data, ts)
        _pipeline(state).note_start(activation.node.name, data.input)

    def next(self, state: RunState, activation: Activation, now: int) -> Decisions:
        """Ask, or end with what the person reported."""
        answer = activation.local
        response: Any = None if answer is None else answer.response
        if isinstance(response, dict) and not self.is_idle(activation):
            result: dict[str, Any] = {**response, "step_id": activation.node.name}
            return end_of_step(state, activation, result, now)
        return super().next(state, activation, now)


REVIEW = Review()
PLAN_STEP_HUMAN = PlanStepHuman()
