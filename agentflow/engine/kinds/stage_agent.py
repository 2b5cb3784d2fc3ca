"""Stages 1 and 2 of the request pipeline, and its steps: agents whose answer is a value of the pipeline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import msgspec

from agentflow.definition.failure import ErrorInfo
from agentflow.definition.pipeline_nodes import DELEGATE, PLAN_STEP, stage_of
from agentflow.definition.stage_schemas import Step, read
from agentflow.definition.toolsets import StepContext
from agentflow.engine.agents import turns
from agentflow.engine.call_results import attempt_failed
from agentflow.engine.decisions import (
    Decisions,
    retrying,
    scope_fields,
    skipped,
    step_completed,
    step_failed,
    step_fields,
)
from agentflow.engine.ids import derive
from agentflow.engine.kinds.agent import Agent
from agentflow.engine.kinds.kind import Kind, Looked, Prepared, Probe
from agentflow.engine.pipeline import EXECUTE, MAX_CLARIFICATIONS, PipelineState, hash_of, proposed_event
from agentflow.events import catalogue as ev

if TYPE_CHECKING:
    from agentflow.engine.activation import Activation
    from agentflow.engine.agents.progress import AgentProgress
    from agentflow.engine.state import RunState

__all__ = ["PLAN_STEP_AGENT", "STAGE_AGENT", "PlanStep"]

CLARIFICATION: dict[str, Any] = {
    "type": "object",
    "properties": {"clarification": {"type": "string", "minLength": 1}},
    "required": ["clarification"],
    "additionalProperties": False,
}


class StageAgent(Agent):
    """Asks the model for the normalized request or the plan. A blocked result waits for a clarification."""

    takes_answers = True
    ends_itself = True
    announces_end = True
    events = Agent.events | {ev.InputRequested}

    def prepare(self, state: RunState, activation: Activation) -> Prepared | ErrorInfo:
        """Return what the stage sees: the user's text, or the normalized request and the toolsets."""
        pipeline, agent = _pipeline(state), activation.node.agent
        assert agent is not None
        data: dict[str, Any]
        if stage_of(activation.node.spec) == "normalize":
            data = {"request": pipeline.user_input}
            if pipeline.clarifications:
                data["clarifications"] = list(pipeline.clarifications)
        else:
            toolsets = [
                {"name": t.name, "description": t.description, "class": t.side_effect}
                for t in pipeline.toolsets
                if t.enabled
            ]
            data = {"normalized_request": pipeline.contract(), "toolsets": toolsets}
        return Prepared(data, {"input": data, "system_prompt": agent.system_prompt})

    def start(self, state: RunState, activation: Activation, prepared: Prepared, now: int) -> Decisions:
        """Open a fresh context, unless the request brought the result."""
        if self._given(state, activation) is not None:
            return []
        return super().start(state, activation, prepared, now)

    def next(self, state: RunState, activation: Activation, now: int) -> Decisions:
        """End with the result that the request brought, or take the next turn."""
        if activation.status == "waiting":
            return []
        given = self._given(state, activation)
        if given is not None:
            return self._ended(state, activation, given, now)
        if activation.agent is None and activation.due_at is None:  # after a clarification
            prepared = self.prepare(state, activation)
            return [] if isinstance(prepared, ErrorInfo) else super().start(state, activation, prepared, now)
        return super().next(state, activation, now)

    def is_idle(self, activation: Activation) -> bool:
        """Return whether a person is being asked, or the model is at work."""
        return activation.status == "waiting" or super().is_idle(activation)

    def _given(self, state: RunState, activation: Activation) -> dict[str, Any] | None:
        stage = stage_of(activation.node.spec)
        return None if stage is None else _pipeline(state).given(stage)

    def answered_with(self, state: RunState, activation: Activation, value: Any, now: int) -> Decisions:
        """Return `agent.completed`; a plan with problems is fed back, and at last blocked."""
        if stage_of(activation.node.spec) == "plan":
            errors = _pipeline(state).check(value).errors
            if errors:
                said = "; ".join(f"{e.code} at {e.path}: {e.message}" for e in errors[:20])
                error = ErrorInfo(
                    category="invalid_output",
                    code="plan_invalid",
                    message=f"the plan has {len(errors)} problems: {said}",
                    details={"errors": [msgspec.to_builtins(e) for e in errors[:20]]},
                )
                progress = activation.agent
                if progress is not None and progress.repairs < turns.MAX_REPAIRS:
                    return retrying(activation, "repair", error, 0, now)
                blockers = [f"{e.code}: {e.message}" for e in errors]
                value = {**value, "status": "blocked", "steps": [], "blockers": blockers}
        return turns.complete(activation, value, now)

    def end(self, state: RunState, activation: Activation, now: int) -> Decisions:
        """Return the end of the step with the answer."""
        return self._ended(state, activation, activation.output, now)

    def _ended(self, state: RunState, activation: Activation, value: dict[str, Any], now: int) -> Decisions:
        pipeline, stage = _pipeline(state), str(stage_of(activation.node.spec))
        if value["status"] != "blocked":
            if stage == "plan":
                value = proposed_event(pipeline, value).plan
            return step_completed(state, activation, now, output=value)
        waits = pipeline.option("on_blocked", "wait") == "wait" and self._given(state, activation) is None
        if waits and pipeline.rounds.get(stage, 0) < MAX_CLARIFICATIONS:
            return _ask(state, activation, value, pipeline.rounds.get(stage, 0), now)
        return step_completed(state, activation, now, output=value, next_port="on_error/next")

    def before_end(self, state: RunState, activation: Activation, output: Any, now: int) -> Decisions:
        """Return the event of the stage, which stands directly before the end of its step.

        A log that was cut between the two has it already.
        """
        pipeline = _pipeline(state)
        if stage_of(activation.node.spec) == "normalize":
            known = pipeline.normalized is not None
            return [] if known else [ev.PlanNormalized(normalized_request=output)]
        return [] if pipeline.plan is not None else [proposed_event(pipeline, activation.output or output)]

    def answered(self, state: RunState, activation: Activation, data: Any, ts: int) -> None:
        """Keep the clarification; the stage runs again in a fresh context."""
        pipeline, stage = _pipeline(state), str(stage_of(activation.node.spec))
        if isinstance(data, ev.InputReceived):
            pipeline.clarifications.append(data.value["clarification"])
            pipeline.rounds[stage] = pipeline.rounds.get(stage, 0) + 1
        else:
            pipeline.rounds[stage] = MAX_CLARIFICATIONS
        activation.agent, activation.result_ready = None, False


def _pipeline(state: RunState) -> PipelineState:
    assert state.pipeline is not None
    return state.pipeline


def _ask(state: RunState, activation: Activation, value: dict[str, Any], turn: int, now: int) -> Decisions:
    asked = ev.InputRequested(
        **scope_fields(activation),
        request_id=derive("req_", now, state.workflow_id, "clarification", activation.key, turn),
        request_type="clarification",
        request={"blockers": value["blockers"], "stage": stage_of(activation.node.spec)},
        response_schema=CLARIFICATION,
    )
    waits = ev.WorkflowStepWaiting(**step_fields(activation), for_="input", ref=asked.request_id)
    return [asked, waits]


_TASK = frozenset(
    {
        *("workflow_id", "step_id", "attempt", "goal", "context", "toolsets", "role", "idempotency_key"),
        *("workspace", "expected_artifacts"),
    }
)


class PlanStep(Kind):
    """What stands before every step of a plan, however it is done: toolsets, policy, approval, evidence."""

    admits = True
    approves = True
    is_delegated = False
    """True if a delegate works on it."""

    def refusal(self, state: RunState, activation: Activation, looked: Looked | None, now: int) -> Decisions:
        """Return the end of a step that its toolsets, the delegate or the policy refuse."""
        return refusal(state, activation, looked, now, delegated=self.is_delegated)

    def known_result(self, state: RunState, activation: Activation) -> dict[str, Any] | None:
        """Return the result of a step that came with an imported run, unless its plan was edited since."""
        return _pipeline(state).result_given(activation.node.name)

    def approval_subject(self, state: RunState, activation: Activation) -> tuple[dict[str, Any], str, Any]:
        """Return what a person decides about, its digest, and the policy that asks."""
        return approval_subject(state, activation)

    def probe(self, state: RunState, activation: Activation) -> Probe | None:
        """Return the expected files, whose state before the step is evidence, the services of its toolsets,
        and the delegate if it is not the built-in one."""
        return probe_of(state, activation)

    def with_probe(
        self, state: RunState, activation: Activation, prepared: Prepared, looked: Looked | None
    ) -> Prepared:
        """Return what the step starts with, the mode of execution and the state of the expected files."""
        found = with_files(prepared, looked)
        return Prepared({**found.input, **mode_of(state, looked)}, found.subject)


class PlanStepAgent(PlanStep, Agent):
    """A step of the plan: the delegate works on it with the functions of its toolsets alone."""

    ends_itself = True
    is_delegated = True

    def prepare(self, state: RunState, activation: Activation) -> Prepared | ErrorInfo:
        """Return the task of the delegate; text of the plan is data and is never evaluated."""
        agent = activation.node.agent
        assert agent is not None
        snapshot = activation.snapshot
        data = task_of(state, activation) if snapshot is None else snapshot["input"]
        data = {**data, "attempt": activation.attempt, **mode_of(state, None)}
        return Prepared(data, {"input": data, "system_prompt": agent.system_prompt})

    def context(self, state: RunState, activation: Activation) -> Any:
        """Return where the functions of the step work; no model sees it."""
        return StepContext(workspace=_pipeline(state).workspace(state.workflow_id))

    def with_probe(
        self, state: RunState, activation: Activation, prepared: Prepared, looked: Looked | None
    ) -> Prepared:
        """Return the task with the state of the expected files."""
        return with_files(prepared, looked)

    def started(self, state: RunState, activation: Activation, data: Any, ts: int) -> None:
        """Keep what the expected files were."""
        _pipeline(state).note_start(activation.node.name, data.input)

    def start(self, state: RunState, activation: Activation, prepared: Prepared, now: int) -> Decisions:
        """Open a fresh context; the delegate sees the task and nothing of the runtime's own."""
        task = {key: value for key, value in prepared.input.items() if key in _TASK}
        return super().start(state, activation, Prepared(task, prepared.subject), now)

    def answered_with(self, state: RunState, activation: Activation, value: Any, now: int) -> Decisions:
        """Return `agent.completed`; a result of another step is fed back."""
        step_id = activation.node.name
        if value["step_id"] != step_id:
            error = ErrorInfo(
                category="invalid_output",
                code="invalid_output",
                message=f'the result is for step "{value["step_id"]}", the task is "{step_id}"',
            )
            progress: AgentProgress | None = activation.agent
            if progress is not None and progress.repairs < turns.MAX_REPAIRS:
                return retrying(activation, "repair", error, 0, now)
            return attempt_failed(activation, error, now, 0.0)
        return turns.complete(activation, value, now)

    def end(self, state: RunState, activation: Activation, now: int) -> Decisions:
        """Return the end of the step: what the delegate did not do has failed."""
        return end_of_step(state, activation, activation.output, now)

    def failure(self, activation: Activation, error: ErrorInfo) -> ErrorInfo:
        """Return the failure of the step; an answer that fits no schema is `invalid_output`."""
        return error


def end_of_step(state: RunState, activation: Activation, result: dict[str, Any], now: int) -> Decisions:
    """Return the end of a step of the plan by its StepResult."""
    if result["status"] == "done":
        return step_completed(state, activation, now, output=result)
    code = str(result.get("code") or f"step_{result['status']}")
    error = ErrorInfo(
        category="agent", code=code, message=str(result["error"]), details={"result": dict(result)}
    )
    return step_failed(activation, error, now)


def plan_step(activation: Activation) -> dict[str, Any]:
    """Return the step of the plan that a node is."""
    return cast("dict[str, Any]", activation.node.spec.metadata[PLAN_STEP])


def task_of(state: RunState, activation: Activation) -> dict[str, Any]:
    """Return the task of the delegate (page 004 §8)."""
    pipeline, step = _pipeline(state), plan_step(activation)
    contract = pipeline.contract()
    return {
        "workflow_id": state.workflow_id,
        "step_id": step["id"],
        "goal": f"{step['title']}\n\n{step['action']}".strip(),
        "context": {
            "objective": contract.get("objective") or "",
            "constraints": contract.get("constraints") or [],
            "dependencies": _dependencies(activation, step),
        },
        "toolsets": activation.node.spec.metadata["toolsets"],
        "role": "leaf",
        "idempotency_key": f"{state.workflow_id}/{activation.node.id}",
        "workspace": pipeline.workspace(state.workflow_id),
        "expected_artifacts": step.get("expected_artifacts") or [],
    }


def _dependencies(activation: Activation, step: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in step["depends_on"]:
        place = activation.path.nodes.get(f"{EXECUTE}/{name}")
        result = {} if place is None or place.output is None else cast("dict[str, Any]", place.output)
        found[name] = {"output": result.get("output", ""), "artifacts": result.get("artifacts") or []}
    return found


def probe_of(state: RunState, activation: Activation) -> Probe | None:
    """Return what is looked at before a step of the plan: the workspace with its expected files, the services
    of its toolsets, and the delegate if it is not the built-in one."""
    pipeline, spec = _pipeline(state), activation.node.spec
    workspace = pipeline.workspace(state.workflow_id)
    expected = read(Step, plan_step(activation)).expected
    names = tuple(one.uri for one in expected if one.type in ("file", "json", "markdown"))
    services = tuple(dict.fromkeys(tool.rpartition(".")[0] for tool in spec.metadata["tools"]))
    delegate = spec.metadata.get(DELEGATE)
    if workspace is None and not services and delegate is None:
        return None
    return Probe(activation.key, workspace, names, services, delegate)


def with_files(prepared: Prepared, looked: Looked | None) -> Prepared:
    """Return what a step starts with, with the state of its expected files."""
    if looked is None or not looked.files:
        return prepared
    return Prepared({**prepared.input, "before": looked.files}, prepared.subject)


def mode_of(state: RunState, looked: Looked | None) -> dict[str, Any]:
    """Return how a step is executed now: delegated if a model is bound for the built-in delegate, or the
    foreign one has answered."""
    pipeline = _pipeline(state)
    if pipeline.delegate == "built-in":
        return pipeline.mode_of(bool(state.bindings.of(EXECUTE).models))
    return pipeline.mode_of(looked is not None and looked.delegate)


def refusal(
    state: RunState, activation: Activation, looked: Looked | None, now: int, *, delegated: bool = False
) -> Decisions:
    """Return the end of a step that must not reach the delegate: toolsets first, then the delegate, then
    an approval that no person is asked for. `delegated`: a delegate works on it."""
    pipeline = _pipeline(state)
    metadata = activation.node.spec.metadata
    off = [name for name in cast("list[str]", metadata["toolsets"]) if _is_off(state, name, looked)]
    clock = state.clock
    if off:
        return skipped(activation, "toolset_unavailable", ", ".join(off), (), clock=clock)
    mode = mode_of(state, looked)
    if delegated and not mode["stage3_available"]:
        error = ErrorInfo(category="policy", code="delegate_unavailable", message=mode["partial_reason"])
        return step_failed(activation, error, now, clock=clock)
    if activation.node.asks and pipeline.option("on_approval", "wait") == "skip":
        return skipped(activation, "approval_required", None, (), clock=clock)
    return []


def _is_off(state: RunState, name: str, looked: Looked | None) -> bool:
    """Return whether a toolset is disabled, its functions are not bound in this process, or it is down."""
    found = _pipeline(state).toolsets.find(name)
    if found is None or not found.enabled:
        return True
    bound = {f"{info.service}.{info.function}" for info in state.bindings.of(EXECUTE).tools.values()}
    down = () if looked is None else looked.down
    return any(tool.name not in bound or tool.name.rpartition(".")[0] in down for tool in found.tools)


def approval_subject(state: RunState, activation: Activation) -> tuple[dict[str, Any], str, Any]:
    """Return the subject, the digest and the policy of an approval (page 004 §6)."""
    step, metadata = plan_step(activation), activation.node.spec.metadata
    data = task_of(state, activation)
    inputs = data["context"]["dependencies"]
    plain = {k: v for k, v in step.items() if k not in ("requires_approval", "approval_status")}
    hashes = {name: hash_of(value) for name, value in inputs.items()}
    digest = hash_of({"workflow_id": state.workflow_id, "step": plain, "dependencies": hashes})
    subject: dict[str, Any] = {
        "title": step["title"],
        "action": step["action"],
        "toolsets": metadata["toolsets"],
        "inputs": inputs,
        "expected_artifacts": step.get("expected_artifacts") or [],
        "input": data,
    }
    policy = {"class": metadata["class"], "rule": metadata.get("rule"), "on_denied": "skip"}
    return subject, digest, policy


STAGE_AGENT = StageAgent()
PLAN_STEP_AGENT = PlanStepAgent()
