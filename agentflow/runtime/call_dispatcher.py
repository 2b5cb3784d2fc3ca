"""Executes a run's open calls once their start event is durable, and cancels them.

An agent's calls go through its AgentActor, which is killed when its step ends; those of tool nodes are told
to the actor of the service, which is watched: a call that it loses by a failure or its end is reported as
interrupted, as if it had been asked. It decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from functools import cached_property, partial
from typing import Any

from actors import ActorStopped, ChildSpec, Context, MailboxFull, Pipe, Ref, tracing
from agentflow.engine import Activation, Effect, OpenCall, Release, RunState, StartCall, StartHandler
from agentflow.engine.agents.progress import model_of
from agentflow.engine.decisions import idempotency_key
from agentflow.events.tracing import RunTracer, SpanContext
from agentflow.models import ModelRequest
from agentflow.runtime.agent_actor import AgentActor, Directory
from agentflow.runtime.handler_dispatcher import HandlerDispatcher
from agentflow.runtime.model_calls import CallModel, ForgetRefusal
from agentflow.runtime.tool_actor import CallTool, CancelCall, CheckCalls, ToolCallFailure, lost_call

__all__ = ["CallDispatcher", "model_call", "tool_call"]

_MAX_LOST = 3
"""Times that the actor of a service may lose one call by a bug before the call has failed."""


def model_call(state: RunState, call: OpenCall) -> CallModel:
    """Return the request of a model turn: the agent's conversation and the schemas of its functions."""
    activation = call.activation
    progress, spec = activation.agent, activation.node.agent
    assert progress is not None
    assert spec is not None
    ref = model_of(progress)
    tools = state.bindings.of_node(activation.node).schemas(progress.found)
    request = ModelRequest(
        model=ref.model,
        messages=tuple(progress.messages),
        tools=tools,
        output_schema=spec.output_schema if spec.send_schema else None,
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
        shown=activation.node.kind.shown_as(activation),
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
    alone, so it needs no mailbox of its own.

    `parked` gives the activations whose handlers only wait for a larger budget.
    """

    def __init__(
        self,
        ctx: Context,
        state: RunState,
        directory: Directory,
        tracer: RunTracer,
        now: Callable[[], int],
        parked: Callable[[], Collection[str]],
    ) -> None:
        self._ctx = ctx
        self._state = state
        self._directory = directory
        self._tracer = tracer
        self._workers: dict[str, Ref[Any]] = {}
        self._activations: dict[Ref[Any], str] = {}
        self._direct: dict[str, tuple[Ref[Any], str]] = {}  # told calls: the service, and the activation
        self._unsent: dict[str, Pipe] = {}  # those that wait for a slot of the mailbox of the service
        self._targets: dict[str, Ref[Any]] = {}  # by service, as they were last looked up
        self._services: dict[Ref[Any], None] = {}  # watched
        self._losses: dict[str, int] = {}  # by call, where there were any
        self._launched: dict[str, list[str]] = {}  # calls by activation, until it is released
        self._now = now
        self._parked = parked

    @cached_property
    def handlers(self) -> HandlerDispatcher:
        """Those of executors; made when the first one begins."""
        return HandlerDispatcher(
            self._ctx, self._state, self._directory, self._tracer, self._now, self._parked
        )

    @property
    def used_handlers(self) -> HandlerDispatcher | None:
        """`handlers`, if there was one."""
        return self.__dict__.get("handlers")

    @property
    def is_busy(self) -> bool:
        """True if a call that was launched here is still open, or a handler is at work."""
        handlers = self.used_handlers
        if handlers is not None and handlers.is_busy:
            return True
        return any(i in self._state.calls for call_ids in self._launched.values() for i in call_ids)

    def is_making(self, call: OpenCall) -> bool:
        """Return whether this dispatcher launched an open call; one only in the log is not running."""
        return call.call_id in self._launched.get(call.activation.key, ())

    def execute(self, effect: Effect) -> None:
        """Execute the effect of a durable event. A call that was closed meanwhile is not made."""
        if isinstance(effect, StartCall):
            call = self._state.calls.get(effect.call_id)
            if call is not None:
                self.launch(call)
        elif isinstance(effect, StartHandler):
            self.handlers.begin(effect)
        elif isinstance(effect, Release):
            self.cancel_work(effect.activation_key)
        else:
            busy = {call.activation.key for call in self._state.calls.values()}
            if (handlers := self.used_handlers) is not None:
                handlers.release_all(but=busy)
            for key in [key for key in self._workers if key not in busy]:
                self.cancel_work(key)

    def launch(self, call: OpenCall) -> None:
        """Make an open call."""
        self._launched.setdefault(call.activation.key, []).append(call.call_id)
        if call.activation.node.kind.sends:
            return  # a recorded call, which its handler makes itself
        if call.kind == "model":
            trace = self._tracer.call(call.call_id, f"model {call.call_id}")
            self._worker(call.activation).tell_now(model_call(self._state, call), trace)
            return
        message = tool_call(self._state, call)
        trace = self._tracer.call(call.call_id, f"tool {call.call_id} {message.attempt}")
        if call.activation.agent is not None:
            self._worker(call.activation).tell_now(message, trace)
            return
        target = self._targets.get(message.service)
        if target is None or not target.is_alive:
            try:
                target = self._targets[message.service] = self._directory.tool(message.service)
            except ActorStopped:  # the Runtime is being closed: the call stays open, and `resume` closes it
                self.not_made(call.call_id)
                return
        self._tell(target, message, trace, call.activation.key)

    def forget_refusals(self) -> None:
        """Let the next call to each provider of the run be made, whatever refused earlier ones: a person who
        resumes a run may have raised a limit."""
        bound = (self._state.bindings.of(step) for step in self._state.bindings.steps)
        for provider in {ref.provider for binding in bound for ref in binding.models}:
            with suppress(ActorStopped, MailboxFull):
                self._directory.model(provider).tell(ForgetRefusal())

    def _tell(self, target: Ref[Any], message: CallTool, trace: SpanContext, key: str) -> None:
        if target not in self._services:
            self._services[target] = None
            self._ctx.watch(target)
        self._direct[message.call_id] = target, key
        try:
            target.tell_now(message, trace)
        except MailboxFull:  # sent once there is a slot; that the service ends first is seen by watching it
            sent = partial(self._sent, message.call_id)
            with tracing(trace):
                self._unsent[message.call_id] = self._ctx.pipe(target.send(message), sent, sent)

    def _sent(self, call_id: str, _: object) -> None:
        self._unsent.pop(call_id, None)

    def check_calls(self, service: Ref[Any]) -> None:
        """Ask the actor of a service, which a failure has restarted, which calls it has lost."""
        direct = self._direct.items()
        told = tuple(i for i, (target, _) in direct if target is service and i not in self._unsent)
        if told:
            service.tell(CheckCalls(workflow_id=self._state.workflow_id, call_ids=told))

    def lost(self, call_ids: Iterable[str]) -> list[ToolCallFailure]:
        """Return the failures of told calls that a service which failed has lost; none if it has answered.

        They are made again if that is safe, but a call that is lost three times has failed.
        """
        found: list[ToolCallFailure] = []
        for call_id in call_ids:
            if call_id in self._direct:
                self._losses[call_id] = self._losses.get(call_id, 0) + 1
                kind = ActorStopped if self._losses[call_id] < _MAX_LOST else RuntimeError
                found.append(_failure(call_id, kind("the actor of its service failed")))
        return found

    def service_ended(self, service: Ref[Any]) -> list[ToolCallFailure]:
        """Forget the actor of a service; return the failures of the calls that it was told."""
        if service not in self._services:
            return []
        del self._services[service]
        error = ActorStopped(f"{service.path} has ended")
        return [_failure(call_id, error) for call_id, (t, _) in self._direct.items() if t is service]

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
        for call_id in self._launched.pop(key, ()):
            if call_id in self._direct:
                self._cancel_direct(call_id)
        if (handlers := self.used_handlers) is not None:
            handlers.release(key)
        ref = self._workers.pop(key, None) if self._workers else None
        if ref is not None:
            self._activations.pop(ref, None)
            self._ctx.unwatch(ref)
            ref.kill()

    def cancel_all(self, but: Collection[str] = ()) -> None:
        """Cancel all calls, except those of the activations in `but`."""
        for key in dict.fromkeys((*self._workers, *self._launched)):
            if key not in but:
                self.cancel_work(key)
        if (handlers := self.used_handlers) is not None:
            handlers.release_all(but)

    def _cancel_direct(self, call_id: str) -> None:
        target, _ = self._direct.pop(call_id)
        unsent = self._unsent.pop(call_id, None)
        if unsent is not None:
            unsent.cancel()
        else:
            target.tell(CancelCall(workflow_id=self._state.workflow_id, call_id=call_id))

    def call_ended(self, call_id: str) -> None:
        """Forget a call of a tool node that has its result."""
        told = self._direct.pop(call_id, None)
        if told is not None:  # a tool node has one call at a time: nothing of it is left to be cancelled
            self._launched.pop(told[1], None)

    def not_made(self, call_id: str) -> None:
        """Note that an open call was not made after all, since there is no actor for it."""
        call = self._state.calls.get(call_id)
        launched = [] if call is None else self._launched.get(call.activation.key, [])
        if call_id in launched:
            launched.remove(call_id)

    def remove_worker(self, ref: Ref[Any]) -> str | None:
        """Forget an AgentActor that died; return the key of its activation, None if it had none."""
        key = self._activations.pop(ref, None)
        if key is not None:
            self._workers.pop(key, None)
        return key


def _failure(call_id: str, error: BaseException) -> ToolCallFailure:
    return ToolCallFailure(call_id=call_id, error=lost_call("tool", error), duration_ms=0, unknown=True)
