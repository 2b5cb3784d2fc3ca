"""Stages 4 and 5 of the request pipeline: verifier and writer, functions without a model (page 004)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import msgspec

from agentflow.definition.pipeline_nodes import STAGES, stage_of
from agentflow.engine.decisions import Decisions, step_completed
from agentflow.engine.kinds.kind import Prepared
from agentflow.engine.kinds.tool import Tool
from agentflow.engine.pipeline import EXECUTE, PipelineState
from agentflow.events import catalogue as ev
from agentflow.events.families.pipeline import ArtifactCheck

if TYPE_CHECKING:
    from agentflow.definition.failure import ErrorInfo
    from agentflow.engine.activation import Activation
    from agentflow.engine.state import RunState

__all__ = ["STAGE_TOOL"]


class StageTool(Tool):
    """Calls the function of the stage with what the log holds; its output is the value of the stage."""

    ends_itself = True
    announces_end = True
    said = None

    def compile(self, node: Any) -> Any:
        """Return no template: the arguments are those of the stage."""
        return None

    def prepare(self, state: RunState, activation: Activation) -> Prepared | ErrorInfo:
        """Return the arguments of the function."""
        pipeline = state.pipeline
        assert pipeline is not None
        is_verify = stage_of(activation.node.spec) == "verify"
        data = _to_verify(pipeline, state) if is_verify else _to_write(pipeline, state)
        return Prepared(data, {"input": data})

    def end(self, state: RunState, activation: Activation, now: int) -> Decisions:
        """Return the end of the step with the value of the stage."""
        member = "verifier_output" if stage_of(activation.node.spec) == "verify" else "final_output"
        return step_completed(state, activation, now, output=activation.output[member])

    def before_end(self, state: RunState, activation: Activation, output: Any, now: int) -> Decisions:
        """Return the events of the stage: checks and verdicts, or `plan.finalized`."""
        pipeline = state.pipeline
        assert pipeline is not None
        if stage_of(activation.node.spec) == "write":
            return [] if pipeline.final_output is not None else [ev.PlanFinalized(final_output=output)]
        if pipeline.verifier_output is not None:
            return []
        found: dict[str, Any] = activation.output
        return [
            ev.VerificationStarted(steps=tuple(f"{EXECUTE}/{v['step_id']}" for v in output["verdicts"])),
            *(_artifact_checked(activation, one) for one in found.get("checks") or ()),
            *(_verdict(activation, v, found) for v in output["verdicts"]),
            ev.VerificationCompleted(verifier_output=output),
        ]


def _scope(activation: Activation, step_id: str) -> dict[str, Any]:
    return {"step_id": f"{EXECUTE}/{step_id}", "iteration": None, "activation": activation.base_key}


def _artifact_checked(activation: Activation, one: dict[str, Any]) -> Any:
    return ev.VerificationArtifactChecked(
        **_scope(activation, one["step_id"]),
        artifact=one.get("artifact"),
        expected=one.get("expected"),
        checks=tuple(msgspec.convert(check, ArtifactCheck) for check in one.get("checks") or ()),
        evidence=one.get("evidence"),
    )


def _verdict(activation: Activation, verdict: dict[str, Any], found: dict[str, Any]) -> Any:
    codes: dict[str, Any] = found.get("codes") or {}
    return ev.VerificationStepVerdict(
        **_scope(activation, verdict["step_id"]),
        verdict=verdict["verdict"],
        reason=verdict["reason"],
        codes=tuple(codes.get(verdict["step_id"]) or ()),
    )


def _to_verify(pipeline: PipelineState, state: RunState) -> dict[str, Any]:
    """Return what the verifier holds the results against."""
    return {
        "plan": pipeline.plan,
        "executor_output": pipeline.executor_output,
        "workspace": pipeline.workspace(state.workflow_id),
        "before": pipeline.before,
        "calls": pipeline.calls,
        "classes": {
            step["id"]: pipeline.toolsets.class_of(step.get("toolsets") or []) for step in pipeline.steps()
        },
        "verify_network": pipeline.settings.get("verify_network", True),
        "allowed_hosts": list(pipeline.settings.get("allowed_hosts") or []),
    }


def _to_write(pipeline: PipelineState, state: RunState) -> dict[str, Any]:
    """Return what the writer assembles."""
    return {
        "normalized_request": pipeline.normalized,
        "plan": pipeline.plan,
        "executor_output": pipeline.executor_output,
        "verifier_output": pipeline.verifier_output,
        "errors": _errors(state),
        "execution": pipeline.execution,
        "message": pipeline.user_input,
        "checks": pipeline.checks,
        "unchecked": pipeline.unchecked,
        "approvals": list(pipeline.approvals),
        "adjustments": msgspec.to_builtins(list(pipeline.adjustments)),
        "usage": msgspec.to_builtins(state.usage),
    }


def _errors(state: RunState) -> list[str]:
    """Return what failed the stages before, in their order."""
    found: list[str] = []
    for stage in STAGES:
        place = state.nodes.get(stage)
        if place is not None and place.status == "failed" and place.error is not None:
            error = cast("dict[str, Any]", place.error)
            found.append(f"{error['category']}/{error['code']}: {error['message']}")
    return found


STAGE_TOOL = StageTool()
