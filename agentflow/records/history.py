"""What the steps, agents, models and tools of a run did, read off its events (page 000 §3, §5, §8).

Pure: events in, records out. It knows nothing of plans and takes any prefix of a log, so that what a run did
stays readable whatever has become of the code that ran it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from msgspec import UNSET

from agentflow.definition.conversation import Message
from agentflow.events import catalogue as ev
from agentflow.events.envelope import SCHEMA_VERSION, Event
from agentflow.records.executions import (
    AgentContext,
    AgentExecution,
    Execution,
    ModelExecution,
    Offsets,
    StepExecution,
    StepMetadata,
    StepRecord,
    ToolExecution,
)

__all__ = ["Executions"]


class _Conversation:
    __slots__ = ("execution", "messages", "prompt", "tools")

    def __init__(self, execution: AgentExecution, data: ev.AgentInitialized) -> None:
        self.execution = execution
        self.prompt = data.system_prompt
        self.tools = data.tools
        self.messages: list[Message] = []


class Executions:
    """Fed the events of a run in order. The lists are in the order in which things began."""

    def __init__(self) -> None:
        self.steps: list[StepExecution] = []
        self.agents: list[AgentExecution] = []
        self.models: list[ModelExecution] = []
        self.tools: list[ToolExecution] = []
        self._steps: dict[tuple[str, int | None], StepExecution] = {}
        self._models: dict[str, ModelExecution] = {}
        self._tools: dict[str, ToolExecution] = {}
        self._conversations: list[_Conversation] = []
        self._talking: dict[tuple[str, int | None], _Conversation] = {}

    def take(self, event: Event[Any]) -> None:
        """Fold the next event; an event of another type changes nothing."""
        take = self._TAKES.get(event.data.__class__)
        if take is not None:
            take(self, event.data, event)

    def record(
        self, workflow_id: str, step_id: str, iteration: int | None = None, attempt: int | None = None
    ) -> StepRecord | None:
        """Return the state record of the last execution of a step that fits; None if none has begun."""
        found = [s for s in self.steps if s.step_id == step_id and s.iteration == iteration]
        if attempt is not None:
            found = [s for s in found if s.attempt == attempt]
        if not found:
            return None
        step = found[-1]
        return StepRecord(
            schema_version=SCHEMA_VERSION,
            workflow_id=workflow_id,
            step_id=step_id,
            step_index=step.step_index,
            iteration=step.iteration,
            attempt=step.attempt,
            state=step.state,
            input=step.input,
            data=step.output,
            metadata=StepMetadata(
                agent_name=step.agent_name,
                timestamp=step.ended_at or step.started_at,
                duration_ms=step.duration_ms,
            ),
            event_offsets=step.event_offsets,
            error=step.error,
        )

    def context(
        self, step_id: str, iteration: int | None = None, attempt: int | None = None
    ) -> AgentContext | None:
        """Return the last context of a step's agent that fits; of any iteration if none is named."""
        for talk in reversed(self._conversations):
            done = talk.execution
            if done.step_id != step_id or (iteration is not None and done.iteration != iteration):
                continue
            if attempt is None or done.attempt == attempt:
                return AgentContext(
                    context_id=done.context_id,
                    step_id=step_id,
                    iteration=done.iteration,
                    attempt=done.attempt,
                    agent_name=done.agent_name,
                    system_prompt=talk.prompt,
                    messages=tuple(talk.messages),
                    tools=talk.tools,
                )
        return None

    # -- steps

    def _step(self, data: ev.WorkflowStepEvent, event: Event[Any], state: str) -> StepExecution:
        step = StepExecution(
            step_id=data.step_id,
            iteration=data.iteration,
            activation=data.activation,
            attempt=data.attempt,
            state=state,
            started_at=event.timestamp,
            event_offsets=Offsets(first=event.offset, last=event.offset),
            step_index=data.step_index,
        )
        self.steps.append(step)
        self._steps[data.activation, data.iteration] = step
        return step

    def _started(self, data: ev.WorkflowStepStarted, event: Event[Any]) -> None:
        known = self._steps.get((data.activation, data.iteration))
        waited = known is not None and known.state == "waiting" and known.kind is None
        step = known if known is not None and waited else self._step(data, event, "running")
        step.state, step.attempt, step.kind, step.input = "running", data.attempt, data.kind, data.input
        step.agent_name = data.agent_name if isinstance(data.agent_name, str) else None
        step.event_offsets.last = event.offset

    def _end(self, data: ev.WorkflowStepEvent, event: Event[Any], state: str) -> StepExecution:
        step = self._steps.pop((data.activation, data.iteration), None) or self._step(data, event, state)
        self._steps.pop((data.activation, data.iteration), None)
        step.attempt = data.attempt
        _close(step, event, state, getattr(data, "duration_ms", None))
        return step

    def _completed(self, data: ev.WorkflowStepCompleted, event: Event[Any]) -> None:
        self._end(data, event, "succeeded").output = data.output

    def _failed(self, data: ev.WorkflowStepFailed, event: Event[Any]) -> None:
        state = "cancelled" if data.error.category == "cancelled" else "failed"
        self._end(data, event, state).error = data.error

    def _skipped(self, data: ev.WorkflowStepSkipped, event: Event[Any]) -> None:
        self._end(data, event, "skipped").reason = data.reason

    def _waiting(self, data: ev.WorkflowStepWaiting, event: Event[Any]) -> None:
        step = self._steps.get((data.activation, data.iteration)) or self._step(data, event, "waiting")
        step.state = "waiting"
        step.event_offsets.last = event.offset

    def _retrying(self, data: ev.WorkflowStepRetrying, event: Event[Any]) -> None:
        step = self._steps.get((data.activation, data.iteration))
        if step is not None:
            step.state, step.attempt, step.event_offsets.last = "running", data.next_attempt, event.offset

    def _step_of(self, data: ev.StepEvent, event: Event[Any]) -> int:
        """Return the attempt of the step that an event belongs to."""
        step = self._steps.get((data.activation, data.iteration))
        if step is None:
            return 1
        step.event_offsets.last = event.offset
        if step.state == "waiting":
            step.state = "running"
        return step.attempt

    def _common(self, data: ev.StepEvent, event: Event[Any]) -> dict[str, Any]:
        return {
            "step_id": data.step_id,
            "iteration": data.iteration,
            "activation": data.activation,
            "attempt": self._step_of(data, event),
            "state": "running",
            "started_at": event.timestamp,
            "event_offsets": Offsets(first=event.offset, last=event.offset),
        }

    # -- agents

    def _initialized(self, data: ev.AgentInitialized, event: Event[Any]) -> None:
        agent = AgentExecution(
            **self._common(data, event),
            context_id=data.context_id,
            agent_name=data.agent_name,
            model=data.model,
            input=data.input.data,
        )
        self.agents.append(agent)
        talk = self._talking[data.activation, data.iteration] = _Conversation(agent, data)
        self._conversations.append(talk)

    def _processing(self, data: ev.AgentProcessing, event: Event[Any]) -> None:
        agent = self._agent(data, event)
        if agent is not None:
            agent.turns = data.turn

    def _agent(self, data: ev.AgentEvent, event: Event[Any]) -> AgentExecution | None:
        self._step_of(data, event)
        talk = self._talking.get((data.activation, data.iteration))
        if talk is None:
            return None
        talk.execution.event_offsets.last = event.offset
        return talk.execution

    def _agent_completed(self, data: ev.AgentCompleted, event: Event[Any]) -> None:
        agent = self._agent(data, event)
        if agent is not None:
            _close(agent, event, "succeeded", data.duration_ms)
            agent.output, agent.turns, agent.usage = data.output.data, data.turns, data.usage

    def _agent_failed(self, data: ev.AgentFailed, event: Event[Any]) -> None:
        agent = self._agent(data, event)
        if agent is not None:
            _close(agent, event, "failed", data.duration_ms)
            agent.error, agent.turns, agent.usage = data.error, data.turns, data.usage

    def _agent_retrying(self, data: ev.AgentRetrying, event: Event[Any]) -> None:
        agent = self._agent(data, event)
        if data.kind != "restart":
            return
        if agent is not None:  # the next attempt has a context of its own
            _close(agent, event, "failed", None)
            agent.error = data.error
        step = self._steps.get((data.activation, data.iteration))
        if step is not None:
            step.attempt = data.next_attempt

    # -- calls

    def _model_started(self, data: ev.ModelCallStarted, event: Event[Any]) -> None:
        call = ModelExecution(
            **self._common(data, event),
            model_call_id=data.model_call_id,
            agent_name=data.agent_name,
            provider=data.provider,
            model=data.model,
            turn=data.turn,
        )
        self.models.append(call)
        self._models[data.model_call_id] = call
        talk = self._talking.get((data.activation, data.iteration))
        if talk is not None:
            talk.messages[data.messages_from :] = data.messages

    def _model_completed(self, data: ev.ModelCallCompleted, event: Event[Any]) -> None:
        self._step_of(data, event)
        call = self._models.pop(data.model_call_id, None)
        if call is not None:
            _close(call, event, "succeeded", data.duration_ms)
            call.finish_reason, call.usage = data.finish_reason, data.usage
            call.first_token_ms = data.first_token_ms if isinstance(data.first_token_ms, int) else None
        talk = self._talking.get((data.activation, data.iteration))
        if talk is not None:
            talk.messages.append(data.message)

    def _model_failed(self, data: ev.ModelCallFailed, event: Event[Any]) -> None:
        self._step_of(data, event)
        call = self._models.pop(data.model_call_id, None)
        if call is not None:
            _close(call, event, "failed", data.duration_ms)
            call.error = data.error
            call.usage = None if data.usage is UNSET else data.usage

    def _tool_started(self, data: ev.ToolCallStarted, event: Event[Any]) -> None:
        known = self._tools.get(data.tool_call_id)
        if known is not None:
            known.attempt += 1
            known.state, known.ended_at, known.error, known.outcome = "running", None, None, None
            known.event_offsets.last = event.offset
            return
        call = ToolExecution(
            **self._common(data, event),
            tool_call_id=data.tool_call_id,
            tool_name=data.tool_name,
            agent_name=data.agent_name,
            side_effect=data.side_effect,
            idempotency_key=data.idempotency_key,
            parameters=data.parameters,
        )
        call.attempt = 1
        self.tools.append(call)
        self._tools[data.tool_call_id] = call

    def _tool_completed(self, data: ev.ToolCallCompleted, event: Event[Any]) -> None:
        self._step_of(data, event)
        call = self._tools.get(data.tool_call_id)
        if call is not None:
            _close(call, event, "succeeded", data.duration_ms)
            call.output, call.outcome, call.error = data.output, "succeeded", None

    def _tool_failed(self, data: ev.ToolCallFailed, event: Event[Any]) -> None:
        self._step_of(data, event)
        call = self._tools.get(data.tool_call_id)
        if call is not None:
            _close(call, event, "failed", data.duration_ms)
            call.error, call.outcome = data.error, data.outcome

    _TAKES: ClassVar[dict[type, Callable[[Executions, Any, Event[Any]], None]]] = {
        ev.WorkflowStepStarted: _started,
        ev.WorkflowStepCompleted: _completed,
        ev.WorkflowStepFailed: _failed,
        ev.WorkflowStepSkipped: _skipped,
        ev.WorkflowStepWaiting: _waiting,
        ev.WorkflowStepRetrying: _retrying,
        ev.AgentInitialized: _initialized,
        ev.AgentProcessing: _processing,
        ev.AgentCompleted: _agent_completed,
        ev.AgentFailed: _agent_failed,
        ev.AgentRetrying: _agent_retrying,
        ev.ModelCallStarted: _model_started,
        ev.ModelCallCompleted: _model_completed,
        ev.ModelCallFailed: _model_failed,
        ev.ToolCallStarted: _tool_started,
        ev.ToolCallCompleted: _tool_completed,
        ev.ToolCallFailed: _tool_failed,
    }


def _close(done: Execution, event: Event[Any], state: str, duration_ms: int | None) -> None:
    done.state, done.ended_at, done.duration_ms = state, event.timestamp, duration_ms
    done.event_offsets.last = event.offset
