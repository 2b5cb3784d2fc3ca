"""Makes the output object and the run result of a node graph from the log of a run (page 003 §1, §12).

The events are folded once, by the engine and by the counters here; both answer from what is durable.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Protocol, cast

import msgspec
from msgspec import UNSET

from agentflow.definition.conversation import Usage
from agentflow.definition.failure import ErrorInfo
from agentflow.definition.ir import Workflow
from agentflow.definition.kinds import kind_of
from agentflow.errors import LogCorrupt
from agentflow.events import catalogue as ev
from agentflow.events.envelope import Event, micros
from agentflow.events.fork_base import expand_base
from agentflow.records.node_output import (
    HumanRequest,
    LlmNodeMetrics,
    NodeExecution,
    NodeRunResult,
    RetryEvent,
    StepTiming,
    WorkflowOutput,
)
from agentflow.records.requests import RequestRecord
from agentflow.records.runs import DefinitionView
from agentflow.records.trace import TraceFold
from agentflow.records.trace_check import ReplayError, ReplayReport, replay_trace

if TYPE_CHECKING:
    from agentflow.engine import RunState

__all__ = ["RunSource", "node_run_result", "workflow_output"]

_PERSONS = ("approval", "choice", "text", "form")


class RunSource(Protocol):
    """Where a run can be read: a Runtime, or a Client of a daemon."""

    async def definition(self, workflow_id: str) -> DefinitionView:
        """Return the definition that the run is pinned to."""
        ...

    def events(
        self, workflow_id: str, after: int | None = None, *, follow: bool = True
    ) -> AsyncIterator[Event[Any]]:
        """Yield the events of the run."""
        ...

    async def blob(self, name: str) -> bytes | None:
        """Return a stored value."""
        ...

    async def requests(self, workflow_id: str) -> list[RequestRecord]:
        """Return the open questions of the run."""
        ...


async def workflow_output(source: RunSource, workflow_id: str) -> WorkflowOutput:
    """Return the output object of a run as it stands. Raises RunNotFound, RunGone or OffsetTrimmed."""
    view = await source.definition(workflow_id)
    fold = await _read(source, view)
    asked = await source.requests(workflow_id) if fold.state.requests else []
    return fold.output(view, asked)


async def node_run_result(source: RunSource, workflow_id: str) -> NodeRunResult:
    """Return the run result of a run as it stands. Raises as `workflow_output`."""
    view = await source.definition(workflow_id)
    return (await _read(source, view)).result(view)


async def _read(source: RunSource, view: DefinitionView) -> _Fold:
    from agentflow.engine import IllegalEvent
    from agentflow.runtime.log_replay import decode_base

    fold = _Fold(view.workflow_id, view.ir)
    stream = cast("AsyncGenerator[Event[Any]]", source.events(view.workflow_id, follow=False))
    async with aclosing(stream) as events:
        async for event in events:
            data = event.data
            if isinstance(data, ev.SystemStateSaved) and data.kind == "fork_base":
                body = await source.blob(data.ref)
                whole = None if body is None else await expand_base(body, source.blob)
                if whole is None:
                    raise LogCorrupt(f"the base of a fork, {data.ref}, is not in the store")
                fold.state.base = decode_base(whole)
            try:
                fold.take(event)
            except IllegalEvent as illegal:
                message = f"{view.workflow_id} at offset {event.offset}: {illegal}"
                raise LogCorrupt(message) from None
    return fold


class _Calls:
    """The model calls of a node, or of one activation of it."""

    def __init__(self) -> None:
        self.count = 0
        self.elapsed_ms = 0
        self.input = self.output = self.reasoning = 0
        self.is_known = True
        self.first_ms: int | None = None
        self.model: str | None = None

    def add(self, usage: Usage, elapsed_ms: int, first_ms: int | None) -> None:
        self.count += 1
        self.elapsed_ms += elapsed_ms
        reported = usage.estimated is not True and (usage.input_tokens or usage.output_tokens)
        self.is_known = self.is_known and bool(reported)
        self.input += usage.input_tokens
        self.output += usage.output_tokens
        self.reasoning += usage.reasoning_output_tokens
        if self.first_ms is None:
            self.first_ms = first_ms

    def tokens(self) -> tuple[int | None, int | None, int | None, int | None, float | None]:
        """Return input, output, both and reasoning tokens, and output tokens a second."""
        if not self.count or not self.is_known:
            return None, None, None, None, None
        speed = round(self.output * 1000 / self.elapsed_ms, 2) if self.elapsed_ms else None
        return self.input, self.output, self.input + self.output, self.reasoning, speed


class _Fold:
    def __init__(self, workflow_id: str, workflow: Workflow) -> None:
        from agentflow.engine import Bindings, Graph, RunState

        self.state: RunState = RunState(workflow_id, Graph(workflow), Bindings())
        self._workflow = workflow
        self._kinds = {node.id: kind_of(node).name for node in workflow.nodes}
        self._begin: ev.WorkflowStarted | None = None
        self._trace_id: str | None = None
        self._first_ts = self._last_ts = 0
        self._trace = TraceFold("logical")
        self._started: dict[tuple[str, int | None], ev.WorkflowStepStarted] = {}
        self._ids: list[str] = []
        self._timings: list[StepTiming] = []
        self._executions: list[NodeExecution] = []
        self._retries: list[RetryEvent] = []
        self._calls: dict[str, _Calls] = {}
        self._of_node: dict[str, _Calls] = {}
        self._of_run = _Calls()
        self._first_token_ts: int | None = None
        self._call_ts: dict[str, int] = {}
        self._terminal: str | None = None
        self._human: dict[str, dict[str, Any]] = {}
        self._asked: dict[str, tuple[str, dict[str, Any]]] = {}

    def take(self, event: Event[Any]) -> None:
        """Take the next event."""
        from agentflow.engine import evolve

        data, ts = event.data, micros(event.timestamp)
        evolve(self.state, data, event.offset, ts)
        self._trace.take(event)
        if self._begin is None and isinstance(data, ev.WorkflowStarted):
            self._begin, self._first_ts = data, ts
            self._trace_id = None if event.trace is None else event.trace.trace_id
        self._last_ts = ts
        match data:
            case ev.WorkflowStepStarted():
                self._step_started(data)
            case ev.WorkflowStepCompleted() | ev.WorkflowStepFailed():
                self._step_ended(data)
            case ev.WorkflowStepRetrying() | ev.AgentRetrying():
                self._retried(data)
            case ev.ModelCallStarted():
                self._call_ts[data.model_call_id] = ts
                name = f"{data.provider}:{data.model}"
                for calls in self._counters(data):
                    calls.model = calls.model or name
            case ev.ModelCallCompleted():
                self._model_ended(data)
            case ev.ApprovalRequested() | ev.InputRequested():
                self._person_asked(data)
            case ev.ApprovalGranted() | ev.ApprovalDenied() | ev.InputReceived():
                self._person_answered(data, event.timestamp)
            case _:
                pass

    def _counters(self, data: Any) -> tuple[_Calls, ...]:
        key = data.activation if data.iteration is None else f"{data.activation}[{data.iteration}]"
        return (
            self._calls.setdefault(key, _Calls()),
            self._of_node.setdefault(data.step_id, _Calls()),
            self._of_run,
        )

    def _step_started(self, data: ev.WorkflowStepStarted) -> None:
        place = (data.activation, data.iteration)
        if place not in self._started and data.iteration is None:
            self._ids.append(data.step_id)
        self._started[place] = data

    def _step_ended(self, data: ev.WorkflowStepCompleted | ev.WorkflowStepFailed) -> None:
        begun = self._started.get((data.activation, data.iteration))
        done = isinstance(data, ev.WorkflowStepCompleted)
        if data.iteration is None:
            self._executions.append(
                NodeExecution(
                    clock=data.clock,
                    path=data.path,
                    step_id=data.step_id,
                    visit=data.visit + 1,
                    attempts=data.attempt,
                    status="completed" if done else "failed",
                    input=None if begun is None else begun.input,
                    output=data.output if done else None,
                    next=data.next if done and data.next is not UNSET else None,
                    error=None if done else data.error,
                )
            )
            if not data.path:
                self._terminal = data.step_id
        calls = self._calls.get(
            data.activation if data.iteration is None else f"{data.activation}[{data.iteration}]", _Calls()
        )
        given, written, total, reasoning, speed = calls.tokens()
        self._timings.append(
            StepTiming(
                node_id=data.step_id,
                node_kind=begun.kind if begun is not None else self._kinds.get(data.step_id, ""),
                model_name=calls.model,
                elapsed_ms=data.duration_ms,
                prompt_tokens=given,
                completion_tokens=written,
                total_tokens=total,
                reasoning_tokens=reasoning,
                tokens_per_second=speed,
            )
        )

    def _retried(self, data: ev.WorkflowStepRetrying | ev.AgentRetrying) -> None:
        self._retries.append(
            RetryEvent(
                step_id=data.step_id,
                operation=data.kind,
                next_attempt=data.next_attempt,
                delay_ms=data.delay_ms,
                reason=data.error.code,
                message=data.error.message,
            )
        )

    def _model_ended(self, data: ev.ModelCallCompleted) -> None:
        first = None if data.first_token_ms is UNSET else data.first_token_ms
        for calls in self._counters(data):
            calls.add(data.usage, data.duration_ms, first)
        begun = self._call_ts.pop(data.model_call_id, None)
        if self._first_token_ts is None and first is not None and begun is not None:
            self._first_token_ts = begun + first * 1000

    def _person_asked(self, data: ev.ApprovalRequested | ev.InputRequested) -> None:
        is_approval = isinstance(data, ev.ApprovalRequested)
        if is_approval and data.kind != "human":
            return
        asked: Any = data.subject if is_approval else data.request
        step_id = data.step_id
        if not isinstance(asked, dict) or not isinstance(step_id, str):
            return
        shown = cast("dict[str, Any]", asked)
        if shown.get("input_type") in _PERSONS or is_approval:
            self._asked[data.request_id] = (step_id, shown)

    def _person_answered(
        self, data: ev.ApprovalGranted | ev.ApprovalDenied | ev.InputReceived, at: str
    ) -> None:
        asked = self._asked.pop(data.request_id, None)
        if asked is None:
            return
        step_id, shown = asked
        said: dict[str, Any] = {"request_id": data.request_id, "by": data.by, "at": at, "via": data.via}
        if not isinstance(data, ev.InputReceived):
            said["approved"] = isinstance(data, ev.ApprovalGranted)
            said["response"] = data.response or None
        else:
            said["response"] = data.value
        names = ("input_type", "prompt", "options", "form_data")
        self._human[step_id] = {**{name: shown[name] for name in names if name in shown}, **said}

    # -- results -----------------------------------------------------------------------------------

    def output(self, view: DefinitionView, asked: list[RequestRecord]) -> WorkflowOutput:
        """Return the output object."""
        state = self.state
        request = next((found for one in asked if (found := _human_request(one)) is not None), None)
        given, written, total, reasoning, speed = self._of_run.tokens()
        first = self._first_token_ts
        return WorkflowOutput(
            workflow_id=state.workflow_id,
            definition={"id": view.definition.id, "ir_hash": view.ir_hash},
            entry_node=_entry(self._workflow),
            status="awaiting_human_input" if request is not None and self._waits() else self._status(),
            error=self._error(),
            terminal_node=self._terminal_node(),
            terminal_output=state.output if state.terminal else None,
            trace=self._ids,
            outputs=self._outputs(),
            globals=state.root.frame.all("globals"),
            human_request=request,
            step_timings=self._timings,
            llm_node_metrics={node: _metrics(calls) for node, calls in self._of_node.items() if calls.count},
            llm_node_models={
                node: calls.model for node, calls in self._of_node.items() if calls.model is not None
            },
            total_elapsed_ms=max(0, self._last_ts - self._first_ts) // 1000,
            ttft_ms=None if first is None else max(0, first - self._first_ts) // 1000,
            total_input_tokens=given,
            total_output_tokens=written,
            total_tokens=total,
            total_reasoning_tokens=reasoning,
            tokens_per_second=speed,
            trace_id=self._trace_id,
            metadata=self._workflow.metadata,
        )

    def result(self, view: DefinitionView) -> NodeRunResult:
        """Return the run result; with `replay_mode` the fresh trace is checked."""
        state, error = self.state, self._error()
        trace, report = self._trace.trace(), None
        if state.terminal and self._begin is not None and self._begin.options.get("replay_mode"):
            report, problem = _checked(trace, self._workflow)
            error = problem or error
        return NodeRunResult(
            workflow_id=state.workflow_id,
            workflow_name=view.definition.name or view.definition.id,
            status="failed" if error is not None and error.code == "trace_invalid" else self._status(),
            terminal_node_id=self._terminal_node(),
            output=state.output if state.terminal else None,
            node_outputs={node: seen.get("output") for node, seen in state.nodes_view.items()},
            node_executions=self._executions,
            retry_events=self._retries,
            error=error,
            usage=state.usage,
            trace=trace,
            replay_report=report,
        )

    def _status(self) -> str:
        return self.state.status

    def _waits(self) -> bool:
        return self.state.status == "waiting"

    def _terminal_node(self) -> str | None:
        return self._terminal if self.state.terminal else None

    def _error(self) -> ErrorInfo | None:
        return self.state.error

    def _outputs(self) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        for node, seen in self.state.nodes_view.items():
            entry: dict[str, Any] = {"output": seen.get("output")}
            if "tool_calls" in seen:
                entry["tool_calls"] = seen["tool_calls"]
            if node in self._human:
                entry["human_input_metadata"] = self._human[node]
            found[node] = entry
        return found


def _checked(trace: Any, workflow: Workflow) -> tuple[ReplayReport | None, ErrorInfo | None]:
    """Return what a trace holds, or why it is not valid."""
    try:
        return replay_trace(trace, workflow), None
    except ReplayError as wrong:
        details = {"violations": msgspec.to_builtins(wrong.violations)}
        message = f"the trace of the run is not valid: {wrong}"
        return None, ErrorInfo(category="system", code="trace_invalid", message=message, details=details)


def _entry(workflow: Workflow) -> str | None:
    """Return the node that comes first."""
    start = next((node for node in workflow.nodes if kind_of(node).is_start), None)
    return None if start is None else getattr(start, "next", None)


def _metrics(calls: _Calls) -> LlmNodeMetrics:
    given, written, total, reasoning, speed = calls.tokens()
    return LlmNodeMetrics(
        elapsed_ms=calls.elapsed_ms,
        model_calls=calls.count,
        prompt_tokens=given,
        completion_tokens=written,
        total_tokens=total,
        reasoning_tokens=reasoning,
        tokens_per_second=speed,
        ttft_ms=calls.first_ms,
    )


def _human_request(request: RequestRecord) -> HumanRequest | None:
    """Return the question of a node that asks a person; None for other questions."""
    subject: Any = request.subject
    shown = cast("dict[str, Any]", subject) if isinstance(subject, dict) else {}
    if request.kind not in ("human", "input", "step", "tool"):
        return None
    kind = shown.get("input_type") or ("approval" if request.kind != "input" else "input")
    return HumanRequest(
        request_id=request.request_id,
        node_id=request.step_id,
        input_type=kind,
        prompt=shown.get("prompt") or shown.get("message"),
        options=shown.get("options"),
        form_schema=shown.get("form_schema"),
        form_data=shown.get("form_data"),
    )
