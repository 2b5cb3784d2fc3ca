"""One event of many types, as the runtime writes them; `golden/` holds their wire forms."""

from __future__ import annotations

from typing import Any

from agentflow.definition.conversation import Message, ToolCall, Usage
from agentflow.definition.diagnostics import Diagnostic
from agentflow.definition.failure import ErrorInfo
from agentflow.events.catalogue import (
    AgentCompleted,
    AgentInitialized,
    AgentInput,
    AgentInputMetadata,
    AgentOutput,
    AgentOutputMetadata,
    AgentRetrying,
    ApprovalRequested,
    Custom,
    DefinitionInfo,
    Delivery,
    InputReceived,
    InputRequested,
    ItemResult,
    MessageRef,
    ModelCallCompleted,
    ModelCallStarted,
    NodeLlmInputResolved,
    Output,
    Reference,
    Reserved,
    SentMessage,
    SharedWrite,
    StateWrites,
    StepCounts,
    SystemError,
    SystemStateSaved,
    ToolCallCompleted,
    ToolCallFailed,
    ToolDigest,
    VerificationStepVerdict,
    WorkflowCancelled,
    WorkflowCompleted,
    WorkflowFailed,
    WorkflowStarted,
    WorkflowStepCompleted,
    WorkflowStepFailed,
    WorkflowStepSkipped,
    WorkflowStepStarted,
    WorkflowStepWaiting,
    WorkflowWaiting,
)
from agentflow.events.envelope import Event, StoredEvent, Trace, encode, iso, type_of

STEP = {"step_id": "assess", "activation": "/assess#1"}
ITEM = {"step_id": "assess", "iteration": 2, "activation": "/assess#1"}
WORKFLOW_STEP = {**STEP, "step_index": 1, "attempt": 1, "path": "", "visit": 1, "clock": 3}
AGENT = {**STEP, "agent_name": "assessor", "context_id": "ctx_01"}
MODEL = {**STEP, "model_call_id": "mcl_01", "agent_name": "assessor"}
TOOL = {**ITEM, "tool_call_id": "call_01", "tool_name": "crm.find"}
ERROR = ErrorInfo(category="timeout", code="tool_timeout", message="no answer in 60 s", retryable=True)
USAGE = Usage(input_tokens=10, output_tokens=4, model_calls=1)

SAMPLES = {
    "workflow.started": WorkflowStarted(
        definition=DefinitionInfo(id="claims", name="claims", version=None, format="linear", hash="ab12"),
        ir_hash="cd34",
        source={"agents": [{"name": "assessor"}]},
        input={"amount": 12000, "text": "naïve “quotes”"},
        options={"on_failure": "halt"},
        labels={"team": "a"},
        schema_version=1,
        runtime_version="0.1.0",
        by="local",
        deadline="2026-02-01T00:00:00.000000Z",
        diagnostics=(
            Diagnostic(code="W_VERSION_MISSING", severity="warning", message="version is missing", line=1),
        ),
    ),
    "workflow.step_started": WorkflowStepStarted(
        **WORKFLOW_STEP,
        superstep=2,
        kind="agent",
        input=None,
        agent_name="assessor",
        depends_on=("fetch",),
        sources=(MessageRef(activation="/fetch#1", edge="fetch->assess", index=0),),
    ),
    "workflow.step_completed": WorkflowStepCompleted(
        **WORKFLOW_STEP,
        duration_ms=12,
        output={"ok": True},
        output_size=11,
        items=(ItemResult(index=0, status="succeeded"), ItemResult(index=1, status="failed", error=ERROR)),
        next="end",
        messages=(
            SentMessage(
                index=0,
                type="Claim",
                payload={"id": "c-7"},
                deliveries=(Delivery(edge="e1", target="end", status="delivered"),),
            ),
        ),
        state=StateWrites(shared=(SharedWrite(key="history", value=[1]),)),
        cached=Reference(workflow_id="wf_0", offset=7),
    ),
    "workflow.step_failed": WorkflowStepFailed(
        **WORKFLOW_STEP, duration_ms=12, error=ERROR, attempts=2, outcome="unknown"
    ),
    "workflow.step_skipped": WorkflowStepSkipped(
        **WORKFLOW_STEP, reason="dependency_failed", detail=None, caused_by=("fetch",)
    ),
    "workflow.step_waiting": WorkflowStepWaiting(**WORKFLOW_STEP, for_="approval", ref="req_01"),
    "workflow.waiting": WorkflowWaiting(requests=("req_01",), timers=(), signals=()),
    "workflow.cancelled": WorkflowCancelled(
        mode="soft",
        forced=False,
        reason=None,
        by="local",
        cancelled_steps=("assess",),
        unknown_calls=("call_01",),
        duration_ms=99,
        usage=USAGE,
    ),
    "workflow.completed": WorkflowCompleted(
        output="done", output_size=6, duration_ms=99, steps=StepCounts(succeeded=2), skipped=(), usage=USAGE
    ),
    "workflow.failed": WorkflowFailed(
        error=ERROR, failed_steps=("assess",), duration_ms=99, steps=StepCounts(failed=1), usage=USAGE
    ),
    "agent.initialized": AgentInitialized(
        **AGENT,
        system_prompt="You assess.",
        model="openai:some-model",
        input=AgentInput(data="hello", metadata=AgentInputMetadata(step_index=0, previous_agent=None)),
        tools=(ToolDigest(name="crm.find", schema_hash="ef56"),),
    ),
    "agent.retrying": AgentRetrying(
        **AGENT,
        kind="model",
        next_attempt=2,
        delay_ms=1000,
        due_at="2026-01-31T23:59:59.000001Z",
        category="timeout",
        error=ERROR,
    ),
    "agent.completed": AgentCompleted(
        **AGENT,
        duration_ms=12,
        output_size=4,
        output=AgentOutput(
            data="ok",
            metadata=AgentOutputMetadata(agent_name="assessor", execution_time_ms=12, tool_calls_count=0),
        ),
        turns=1,
        usage=USAGE,
    ),
    "model.call_started": ModelCallStarted(
        **MODEL,
        provider="openai",
        model="some-model",
        turn=1,
        parameters={"temperature": 0.0},
        messages_from=0,
        messages=(Message(role="system", content="You assess."), Message(role="user", content="hello")),
        request_hash="0a1b",
        reserved=Reserved(tokens=100, cost_usd=None),
    ),
    "model.call_completed": ModelCallCompleted(
        **MODEL,
        replayed=Reference(workflow_id="wf_0", offset=7),
        duration_ms=12,
        message=Message(
            role="assistant",
            tool_calls=(ToolCall(id="call_01", name="crm.find", arguments="{}", provider_id="p1"),),
        ),
        finish_reason="tool_calls",
        response_model="some-model-1",
        usage=USAGE,
    ),
    "tool.call_completed": ToolCallCompleted(
        **TOOL, duration_ms=3, status="success_no_data", output=None, output_size=4
    ),
    "tool.call_failed": ToolCallFailed(
        **TOOL, duration_ms=60000, error=ERROR, executed=True, outcome="unknown", will_retry=False
    ),
    "approval.requested": ApprovalRequested(
        **STEP, request_id="req_01", kind="tool", subject={"to": "x"}, digest="aa", side_effect="write"
    ),
    "input.requested": InputRequested(
        **STEP, request_id="req_02", request={"ask": "?"}, response_schema={"type": "string"}
    ),
    "input.received": InputReceived(request_id="req_02", value=None, by="uid:1000", via="api"),
    "output": Output(**STEP, kind="output", index=0, type="Verdict", value=[1, 2.5]),
    "node.llm_input_resolved": NodeLlmInputResolved(
        **STEP,
        prompt="hello",
        template=None,
        system=None,
        messages_count=1,
        model="local:m",
        schema_=None,
        stream=False,
        heal=True,
        bindings=(),
    ),
    "verification.step_verdict": VerificationStepVerdict(
        step_id="execute/a", activation="/execute/a#1", verdict="pass", reason="all checks pass", codes=()
    ),
    "system.state_saved": SystemStateSaved(
        kind="snapshot", covers=41, ref="snap/41", schema_version=1, size=120, sha256="ff"
    ),
    "system.error": SystemError(error=ERROR, severity="warning", component="log", fatal=False),
    "custom.progress": Custom(name="progress", data={"percent": 40, "name": "inner"}),
}


def event_of(event_type: str, *, offset: int = 0, ts: int = 0, id: str = "evt_01") -> Event[Any]:
    """The sample of a type in its envelope; that of a step with an attempt and a span."""
    data = SAMPLES[event_type]
    step = getattr(data, "step_id", None) or None
    trace = Trace(trace_id="0af7" * 8, span_id="b7ad" * 4, parent_span_id="00f0" * 4)
    return Event(
        id=id,
        offset=offset,
        timestamp=iso(ts),
        type=type_of(data),
        workflow_id="wf_1",
        data=data,
        trace=trace if step else None,
        step=step,
        attempt=1 if step else None,
    )


def stored_form(event: Event[Any], ts: int) -> StoredEvent:
    """The event as a log keeps it."""
    return StoredEvent(event.offset, ts, event.type, encode(event))
