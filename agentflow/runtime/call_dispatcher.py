"""Executes a run's open calls once their start event is durable, and cancels them.

An agent's calls go through its AgentActor, which is killed when its step ends; those of tool nodes go to the
actor of the service directly. It decides nothing.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from functools import partial
from typing import Any

from actors import ActorStopped, ChildSpec, Context, Ref, tracing
from agentflow.engine import Activation, Effect, OpenCall, Release, RunState, StartCall
from agentflow.engine.agents.progress import model_of
from agentflow.engine.decisions import idempotency_key
from agentflow.events.tracing import RunTracer
from agentflow.models import ModelRequest
from agentflow.runtime.agent_actor import AgentActor, Directory, lost_call
from agentflow.runtime.model_calls import CallModel
from agentflow.runtime.tool_actor import CallTool, CancelCall, ToolCallFailure, ToolCallSuccess

__all__ = ["CallDispatcher", "model_call", "tool_call"]


def model_call(state: RunState, call: OpenCall) -> CallModel:
    """Return the request of a model turn: the agent's conversation and the schemas of its functions."""
    activation = call.activation
    progress, spec = activation.agent, activation.node.agent
    assert progress is not None
    assert spec is not None
    ref = model_of(progress)
    tools = state.bindings.of(activation.node.id).schemas
    request = ModelRequest(
        model=ref.model,
        messages=tuple(progress.messages),
        tools=tools,
        output_schema=spec.output_schema,
        parameters=call.parameters,
        parallel_tool_calls=spec.parallel_tool_calls,
    )
    return CallModel(
        call_id=call.call_id,
        workflow_id=state.workflow_id,
        step_id=activation.node.id,
        offset=call.offset,
        ref=ref,
        request=request,
        id_seed=call.call_id,
        timeout=activation.node.retry.timeout,
    )


def tool_call(state: RunState, call: OpenCall) -> CallTool:
    """Return the call of a function, with the agent's context, which no model sees and no event holds."""
    activation = call.activation
    record = activation.tool if activation.tool is not None else activation.agent.tools[call.call_id]  # type: ignore[union-attr]
    info = record.info
    assert info is not None
    return CallTool(
        call_id=call.call_id,
        service=info.service,
        function=info.function,
        parameters=record.parameters,
        context=activation.node.kind.context(state, activation),
        workflow_id=state.workflow_id,
        step_id=activation.node.id,
        iteration=activation.iteration,
        attempt=record.tries,
        idempotency_key=idempotency_key(state, activation, call.call_id),
        timeout=info.timeout,
    )


class CallDispatcher:
    """The children of one RunSupervisor, by the key of the activation that they work for. Used by that actor
    alone, so it needs no mailbox of its own."""

    def __init__(self, ctx: Context, state: RunState, directory: Directory, tracer: RunTracer) -> None:
        self._ctx = ctx
        self._state = state
        self._directory = directory
        self._tracer = tracer
        self._workers: dict[str, Ref[Any]] = {}
        self._activations: dict[Ref[Any], str] = {}
        self._direct: dict[str, tuple[str, Ref[Any]]] = {}
        self._launched: set[str] = set()

    @property
    def is_busy(self) -> bool:
        """True if a call that was launched here is still open."""
        self._launched.intersection_update(self._state.calls)
        return bool(self._launched)

    def execute(self, effect: Effect) -> None:
        """Execute the effect of a durable event. A call that was closed meanwhile is not made."""
        if isinstance(effect, StartCall):
            call = self._state.calls.get(effect.call_id)
            if call is not None:
                self._launch(call)
        elif isinstance(effect, Release):
            self.cancel_work(effect.activation_key)
        else:
            busy = {call.activation.key for call in self._state.calls.values()}
            for key in [key for key in self._workers if key not in busy]:
                self.cancel_work(key)

    def _launch(self, call: OpenCall) -> None:
        self._launched.add(call.call_id)
        with tracing(self._tracer.call(call.call_id)):
            if call.kind == "model":
                self._worker(call.activation).tell(model_call(self._state, call))
                return
            message = tool_call(self._state, call)
            if call.activation.agent is not None:
                self._worker(call.activation).tell(message)
                return
            try:
                target = self._directory.tool(message.service)
            except ActorStopped:
                return  # the Runtime is being closed: the call stays open, and `resume` closes it
            self._direct[call.call_id] = (call.activation.key, target)

            def lost(error: BaseException) -> ToolCallFailure:
                info = lost_call("tool", error)
                return ToolCallFailure(call_id=message.call_id, error=info, duration_ms=0, unknown=True)

            # Asked, not told: a service's actor that fails with the call in hand must not leave it open.
            self._ctx.pipe(target.ask_soon(message, timeout=math.inf), _identity, lost)

    def _worker(self, activation: Activation) -> Ref[Any]:
        key = activation.key
        ref = self._workers.get(key)
        if ref is None:
            factory = partial(AgentActor, self._ctx.self, self._directory)
            ref = self._ctx.spawn_soon(
                ChildSpec(f"{key[1:].replace('/', ':')}@{activation.attempt}", factory, restart="temporary")
            )
            self._workers[key] = ref
            self._activations[ref] = key
            self._ctx.watch(ref)
        return ref

    def cancel_work(self, key: str) -> None:
        """Cancel all calls of an activation and kill its AgentActor."""
        if self._launched:
            self._launched -= {c.call_id for c in self._state.calls.values() if c.activation.key == key}
        self._cancel_direct(key)
        ref = self._workers.pop(key, None)
        if ref is not None:
            self._activations.pop(ref, None)
            self._ctx.unwatch(ref)
            ref.kill()

    def cancel_all(self, but: Collection[str] = ()) -> None:
        """Cancel all calls, except those of the activations in `but`."""
        for key in {*self._workers, *(key for key, _ in self._direct.values())}:
            if key not in but:
                self.cancel_work(key)

    def _cancel_direct(self, key: str) -> None:
        for call_id, (activation_key, target) in list(self._direct.items()):
            if key == activation_key:
                del self._direct[call_id]
                target.tell(CancelCall(workflow_id=self._state.workflow_id, call_id=call_id))

    def call_ended(self, call_id: str) -> None:
        """Forget a call of a tool node that has its result."""
        self._direct.pop(call_id, None)

    def remove_worker(self, ref: Ref[Any]) -> str | None:
        """Forget an AgentActor that died; return the key of its activation, None if it had none."""
        key = self._activations.pop(ref, None)
        if key is not None:
            self._workers.pop(key, None)
        return key


def _identity(answer: ToolCallSuccess | ToolCallFailure) -> ToolCallSuccess | ToolCallFailure:
    return answer
