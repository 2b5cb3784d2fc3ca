"""The request pipeline as a fold of its events, and what its stages make of it (page 004 §1, §8, §11). Pure.

The state of the pipeline is part of the state of its run. Stages read it and give events; `folds/pipeline`
alone changes it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, cast

import msgspec

from agentflow.definition.failure import ErrorInfo
from agentflow.definition.ir import canonical_json, decode_ir, ir_hash
from agentflow.definition.pipeline_nodes import workspace_of
from agentflow.definition.plan_checks import CheckedPlan, check_plan, plan_digest
from agentflow.definition.plan_compiler import compile_plan
from agentflow.definition.stage_schemas import Plan, read, to_value
from agentflow.definition.toolsets import Toolsets, policy_of
from agentflow.events import catalogue as ev
from agentflow.events.envelope import iso

if TYPE_CHECKING:
    from agentflow.engine.activation import Activation
    from agentflow.engine.agents.progress import ToolRecord
    from agentflow.engine.graph import Graph
    from agentflow.engine.path import NodeState, Path
    from agentflow.engine.state import OpenRequest

__all__ = [
    "CLEARABLE",
    "EXECUTE",
    "MAX_CLARIFICATIONS",
    "PipelineState",
    "accepted_events",
    "activated_event",
    "executor_output",
    "failure_of_request",
    "graph_of_plan",
    "hash_of",
    "proposed_event",
]

EXECUTE = "execute"
MAX_CLARIFICATIONS = 5
"""How often a blocked stage runs again."""

CLEARABLE = frozenset(
    {
        "delegate_unavailable",
        "toolset_unavailable",
        "approval_required",
        "approval_denied",
        "quota_exhausted",
        "insufficient_quota",
    }
)
"""Causes that a person or another system can clear: with these alone an execution is blocked, not partial."""

_FOLLOWS = frozenset({"dependency_failed", "dependency_skipped", "dependency_cancelled"})


_DELEGATED: dict[str, Any] = {"execution_mode": "delegated", "stage3_available": True, "partial_reason": ""}
_STANDALONE: dict[str, Any] = {
    "execution_mode": "standalone",
    "stage3_available": False,
    "partial_reason": "delegate unavailable",
}


class PipelineState:
    """What the events of a pipeline tell. `settings` are those of its graph, `request` is the run's input."""

    __slots__ = (
        "accepted",
        "activated",
        "adjustments",
        "approvals",
        "before",
        "calls",
        "checks",
        "clarifications",
        "digest",
        "executor_output",
        "final_output",
        "graph",
        "graph_of_plan",
        "ir_hash",
        "mode",
        "normalized",
        "plan",
        "proposed",
        "rejected",
        "report",
        "request",
        "rounds",
        "settings",
        "skips",
        "stale",
        "toolsets",
        "unchecked",
        "verifier_output",
    )

    def __init__(self, settings: Mapping[str, Any], request: Mapping[str, Any]) -> None:
        self.settings = settings
        self.request = request
        self.toolsets = Toolsets.of_value(settings.get("toolsets") or [])
        self.activated: ev.PlanActivated | None = None
        self.mode: dict[str, Any] | None = None
        """How the last step of the plan was executed, once one was."""
        self.normalized: dict[str, Any] | None = None
        self.plan: dict[str, Any] | None = None
        self.digest: str | None = None
        self.proposed: str | None = None
        """The digest of the plan before any edit."""
        self.adjustments: tuple[Any, ...] = ()
        self.accepted = False
        self.rejected = False
        self.ir_hash: str | None = None
        self.graph: Graph | None = None
        self.executor_output: dict[str, Any] | None = None
        self.verifier_output: dict[str, Any] | None = None
        self.final_output: dict[str, Any] | None = None
        self.report: Any = None
        self.clarifications: list[str] = []
        self.rounds: dict[str, int] = {}
        self.skips: dict[str, tuple[str, str | None, tuple[str, ...]]] = {}
        """By step of the plan: reason, detail, and the steps that caused it."""
        self.stale: dict[str, Activation] = {}
        """Steps whose open approval is void, because an edit changed what it asks about."""
        self.before: dict[str, Any] = {}
        """By step of the plan: what its expected files were before it started."""
        self.calls: list[dict[str, Any]] = []
        """Completed calls of functions that reach outside: the evidence of mail and messages."""
        self.checks: list[Any] = []
        self.unchecked: list[Any] = []
        self.approvals: list[dict[str, Any]] = []

    @property
    def execution_requested(self) -> bool:
        """Whether the plan is executed without a person's word."""
        return self.activated is not None and self.activated.execution_requested

    @property
    def user_input(self) -> str:
        """The text that stage 1 sees."""
        return cast("str", self.activated.user_input) if self.activated is not None else ""

    @property
    def execution(self) -> dict[str, Any]:
        """How steps are executed: mode, whether stage 3 is there, and why not. That of the last step of the
        plan, before the first one that of the activation; standalone once a step found no delegate."""
        results: list[dict[str, Any]] = (self.executor_output or {}).get("step_results") or []
        if any(result.get("code") == "delegate_unavailable" for result in results):
            return _STANDALONE
        if self.mode is not None:
            return self.mode
        said = self.activated
        if said is None:
            return {**_STANDALONE, "partial_reason": ""}
        reason = said.partial_reason if said.partial_reason is not msgspec.UNSET else ""
        return {
            "execution_mode": said.execution_mode,
            "stage3_available": said.stage3_available,
            "partial_reason": reason,
        }

    @property
    def is_template(self) -> bool:
        """Whether the plan is that of a template, and of no planner."""
        return self.activated is not None and self.activated.trigger == "template"

    @property
    def delegate(self) -> str:
        """Who works on steps: `built-in`, `none`, or the name of a service."""
        return cast("str", self.settings.get("delegate") or "built-in")

    def mode_of(self, is_there: bool) -> dict[str, Any]:
        """Return how a step is executed whose delegate is there, or is not."""
        return dict(_DELEGATED) if is_there else dict(_STANDALONE)

    def note_start(self, step_id: str, input: Any) -> None:
        """Keep how a step of the plan was begun, and what its expected files were before."""
        self.before[step_id] = input.get("before") or {}
        if "execution_mode" in input:
            self.mode = {key: input[key] for key in _STANDALONE}

    def workspace(self, workflow_id: str) -> str | None:
        """Return the folder that the steps of the run work in; None if the request has none."""
        return workspace_of(self.request, workflow_id)

    def option(self, name: str, default: Any = None) -> Any:
        """Return an option of the request."""
        options: Mapping[str, Any] = self.request.get("options") or {}
        value = options.get(name)
        return default if value is None else value

    def given(self, stage: str) -> dict[str, Any] | None:
        """Return the result of a stage that came with the request; None if the stage works it out."""
        if stage == "normalize" and not self.user_input and not self.request.get("given"):
            return {
                "status": "blocked",
                "objective": "",
                "constraints": [],
                "context": {},
                "success_criteria": [],
                "blockers": ["activation payload is empty"],
            }
        given: Mapping[str, Any] = self.request.get("given") or {}
        return given.get({"normalize": "normalized_request"}.get(stage, stage))

    def result_given(self, step_id: str) -> dict[str, Any] | None:
        """Return the result of a step that came with the request; after an edit of the plan none counts."""
        given: Mapping[str, Any] = self.request.get("given") or {}
        results: Mapping[str, Any] = given.get("results") or {}
        return results.get(step_id) if self.digest == self.proposed else None

    def check(self, plan: Any) -> CheckedPlan:
        """Return what the checks say of a plan."""
        settings = self.settings
        return check_plan(
            plan,
            self.toolsets,
            policy_of(settings.get("policy")),
            approval_class=settings.get("approval_class") or "external",
            template=settings.get("template"),
        )

    def contract(self) -> dict[str, Any]:
        """Return the normalized request with what was clarified since."""
        found = dict(self.normalized or {})
        if self.clarifications:
            context: dict[str, Any] = found.get("context") or {}
            found["context"] = {**context, "clarifications": list(self.clarifications)}
        return found

    def note_call(self, activation: Activation, record: ToolRecord, offset: int) -> None:
        """Keep a completed call that reaches outside: the evidence of mail and messages."""
        info = record.info
        if record is activation.tool and activation.node.kind.judges_calls:
            return  # a delegate's own word is no evidence
        if info is None or info.side_effect not in ("external", "irreversible"):
            return
        self.calls.append(
            {
                "step_id": activation.node.name,
                "tool_call_id": record.call.id,
                "offset": offset,
                "tool": f"{info.service}.{info.function}",
                "side_effect": info.side_effect,
                "parameters": record.parameters,
                "output": record.output,
            }
        )

    def note_decision(
        self, request: OpenRequest, data: ev.ApprovalGranted | ev.ApprovalDenied, ts: int, *, granted: bool
    ) -> None:
        """Keep the record of an approval: it is shown in conflicts and in the report."""
        asked = request.data
        deadline = None if asked.deadline is msgspec.UNSET else asked.deadline
        self.approvals.append(
            {
                "request_id": request.request_id,
                "step_id": data.step_id.removeprefix(f"{EXECUTE}/"),
                "decision": "granted" if granted else "denied",
                "by": data.by,
                "at": iso(ts),
                "via": data.via,
                "reason": None if data.reason is msgspec.UNSET else data.reason,
                "digest": data.digest,
                "deadline": deadline,
            }
        )

    def decision_of(self, request_id: str) -> dict[str, Any]:
        """Return who decided a request, and when; empty if it was not decided."""
        for one in self.approvals:
            if one["request_id"] == request_id:
                return {"by": one["by"], "at": one["at"]}
        return {}

    def steps(self) -> list[dict[str, Any]]:
        """Return the steps of the present plan."""
        return [] if self.plan is None else cast("list[dict[str, Any]]", self.plan["steps"])


def hash_of(value: Any) -> str:
    """Return `sha256:` + hex of the canonical JSON of a value."""
    return "sha256:" + hashlib.sha256(canonical_json(value)).hexdigest()


def activated_event(request: Mapping[str, Any]) -> ev.PlanActivated:
    """Return `plan.activated` of a run's input; it stands directly behind `workflow.started`."""
    activation: Mapping[str, Any] = request["activation"]
    execution: Mapping[str, Any] = request["execution"]
    return ev.PlanActivated(
        mode=activation["mode"],
        trigger=activation["trigger"],
        matched=activation["matched"],
        execution_requested=activation["execution_requested"],
        message=request["message"],
        user_input=activation["user_input"],
        execution_mode=execution["execution_mode"],
        stage3_available=execution["stage3_available"],
        partial_reason=execution.get("partial_reason") or msgspec.UNSET,
    )


def proposed_event(pipeline: PipelineState, plan: Any) -> ev.PlanProposed:
    """Return `plan.proposed` of an answer of stage 2, or of a template."""
    checked = pipeline.check(plan)
    adjusted = checked.plan or read(Plan, plan)
    return ev.PlanProposed(
        plan=to_value(adjusted),
        plan_digest=plan_digest(adjusted),
        source="template" if pipeline.is_template else "planner",
        adjustments=checked.adjustments,
        diagnostics=tuple(msgspec.to_builtins(d) for d in checked.diagnostics),
    )


def accepted_events(
    pipeline: PipelineState,
    *,
    by: str | None,
    plan: dict[str, Any] | None = None,
    digest: str | None = None,
) -> list[Any]:
    """Return `plan.accepted` and `plan.compiled` of a plan, by default the present one."""
    plan, digest = plan or pipeline.plan, digest or pipeline.digest
    assert plan is not None
    assert digest is not None
    settings: dict[str, Any] = {**pipeline.settings, "options": pipeline.request.get("options") or {}}
    graph = compile_plan(read(Plan, plan), settings)
    return [
        ev.PlanAccepted(
            plan_digest=digest,
            automatic=by is None,
            by=msgspec.UNSET if by is None else by,
        ),
        ev.PlanCompiled(
            plan_digest=digest,
            ir_hash=ir_hash(graph),
            ir=msgspec.json.decode(canonical_json(graph)),
            diagnostics=(),
        ),
    ]


def graph_of_plan(ir: Any) -> Graph:
    """Return the graph of `plan.compiled`, whose nodes run in the stage that executes."""
    from agentflow.engine.graph import Graph

    workflow = decode_ir(canonical_json(ir))
    return Graph(workflow, f"{EXECUTE}/", workflow.options)


def executor_output(pipeline: PipelineState, path: Path) -> dict[str, Any]:
    """Return the result of stage 3: what each step of the plan came to, in its order (page 004 §8)."""
    results = [_result(pipeline, step, path) for step in pipeline.steps()]
    undone = [result for result in results if result["status"] != "done"]
    if not undone:
        return {"status": "ready", "step_results": results, "blockers": []}
    blockers = dict.fromkeys(f"{result['step_id']}: {result['error']}" for result in undone)
    causes = {str(result.get("code") or "") for result in undone} - _FOLLOWS
    is_blocked = len(undone) == len(results) and causes <= CLEARABLE
    status = "blocked" if is_blocked else "partial"
    return {"status": status, "step_results": results, "blockers": list(blockers)}


def _result(pipeline: PipelineState, step: Mapping[str, Any], path: Path) -> dict[str, Any]:
    step_id: str = step["id"]
    place: NodeState | None = path.nodes.get(f"{EXECUTE}/{step_id}")
    if place is not None and place.status == "succeeded":
        return dict(cast("dict[str, Any]", place.output))
    if place is not None and place.error is not None:
        error: Mapping[str, Any] = place.error
        details: Mapping[str, Any] = error.get("details") or {}
        if "result" in details:
            return dict(details["result"])
        return _undone(step_id, "failed", error["message"], error["code"])
    reason, detail, caused_by = pipeline.skips.get(step_id, ("dependency_skipped", None, ()))
    return _undone(step_id, "skipped", _why(reason, detail, caused_by), reason)


def _undone(step_id: str, status: str, error: str, code: str) -> dict[str, Any]:
    said = error if error.strip() else code
    return {"step_id": step_id, "status": status, "output": "", "error": said, "artifacts": [], "code": code}


def _why(reason: str, detail: str | None, caused_by: Iterable[str]) -> str:
    names = ", ".join(name.removeprefix(f"{EXECUTE}/") for name in caused_by)
    more = detail or names
    return f"{reason}: {more}" if more else reason


def failure_of_request(pipeline: PipelineState) -> ErrorInfo | None:
    """Return why the run fails: a stage failed. None if the final output is no error."""
    final = pipeline.final_output
    if final is None or final["status"] != "error":
        return None
    message = str(final["errors"][0]) if final["errors"] else "a stage failed"
    return ErrorInfo(category="agent", code="stage_failed", message=message)
