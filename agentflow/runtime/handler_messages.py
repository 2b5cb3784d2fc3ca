"""What handlers tell and ask the RunSupervisor, as events of the engine. Sends and decides nothing."""

from __future__ import annotations

from typing import Any, cast

from actors import Ref
from agentflow import engine, known_secrets
from agentflow.definition.failure import ErrorInfo
from agentflow.definition.ir import ExecutorNode
from agentflow.engine.activation import Activation
from agentflow.engine.decisions import Decisions
from agentflow.engine.graph import Node
from agentflow.engine.state import RunState
from agentflow.events import catalogue as ev
from agentflow.runtime.clock import Clock
from agentflow.runtime.edge_judge import EdgeJudge
from agentflow.runtime.handler_calls import (
    AddEvent,
    BeginCall,
    EndCall,
    HandlerDone,
    HandlerFailed,
    YieldOutput,
)
from agentflow.runtime.handler_dispatcher import HandlerDispatcher
from agentflow.runtime.handler_models import BeginModelCall, EndModelCall
from agentflow.runtime.model_calls import ModelCallFailure

__all__ = ["HandlerMessages"]


class HandlerMessages:
    """Turns the messages of the ExecutorActors of one run into events."""

    def __init__(self, state: RunState, handlers: HandlerDispatcher, edges: EdgeJudge, clock: Clock) -> None:
        self._state = state
        self._handlers = handlers
        self._edges = edges
        self._clock = clock

    def outdated(self, message: HandlerDone) -> Node | None:
        """Return the node of a handler whose predicates read a shared state that has been written since."""
        if not message.messages or message.judged_at == self._state.shared.version:
            return None
        activation = self._open(message)
        if activation is None or activation.node.ways is not None:
            return None
        return activation.node if self._edges.is_stale(activation.node, message.judged_at) else None

    def _open(self, message: HandlerDone) -> Activation | None:
        activation = self._state.mail.open.get(message.activation)
        return None if activation is None or activation.attempt != message.attempt else activation

    def done(self, message: HandlerDone, now: int) -> Decisions:
        """Return the completion of a handler, with the routes of its messages."""
        key, attempt = message.activation, message.attempt
        return engine.handler_completed(
            self._state,
            key,
            attempt,
            now=now,
            messages=message.messages,
            private=message.private,
            shared=message.shared,
            requests=message.requests,
        )

    def failed(self, message: HandlerFailed, now: int) -> Decisions:
        """Return what follows when a handler has raised."""
        self._handlers.ended(message.activation, message.attempt)
        return self._failed(message.activation, message.attempt, message.error, now)

    def lost(
        self, ref: Ref[Any], error: BaseException | None, now: int, *, is_closing: bool = False
    ) -> Decisions:
        """Return what follows when the actor of an executor has died: mostly it is replaced.

        `is_closing`: it ended with the system."""
        key = self._handlers.gone(ref, is_closing=is_closing)
        activation = None if key is None else self._state.mail.open.get(key)
        if key is None or activation is None:
            return []
        message = known_secrets.hide(f"the actor of {activation.node.id} died: {error!r}")
        info = ErrorInfo(category="interrupted", code="worker_lost", message=message)
        return self._failed(key, activation.attempt, info, now)

    def _failed(self, key: str, attempt: int, error: ErrorInfo, now: int) -> Decisions:
        return engine.handler_failed(self._state, key, attempt, error, now=now, draw=self._clock.draw())

    def output(self, message: YieldOutput) -> Decisions:
        """Return the output that a handler gives out."""
        activation = self._state.mail.open.get(message.activation)
        if activation is None:
            return []
        spec = cast("ExecutorNode", activation.node.spec)
        return engine.handler_output(
            self._state,
            message.activation,
            message.attempt,
            type=message.payload.tag,
            value=message.payload.value,
            kind="intermediate" if spec.intermediate else "output",
            index=message.index,
        )

    def event(self, message: AddEvent) -> Decisions:
        """Return the event of the user's own."""
        activation = self._state.mail.open.get(message.activation)
        if activation is None or activation.attempt != message.attempt:
            return []
        found: Any = message.data
        data = cast("dict[str, Any]", found if type(found) is dict else {"value": found})
        step_id = activation.node.id
        return [ev.Custom(name=message.name, data=data, step_id=step_id, attempt=message.attempt)]

    def begin_call(self, message: BeginCall, now: int) -> engine.Begun:
        """Return whether a recorded call is made, and the event of its start."""
        return engine.call_begun(
            self._state,
            message.activation,
            message.attempt,
            name=message.name,
            parameters=message.parameters,
            side_effect=message.side_effect,
            idempotent=message.idempotent,
            service=message.service,
            key=message.key,
            now=now,
        )

    def begin_model_call(self, message: BeginModelCall, now: int) -> engine.Begun:
        """Return whether a model call is made, and the event of its start."""
        return engine.model_call_begun(
            self._state,
            message.activation,
            message.attempt,
            ref=message.ref,
            messages=message.messages,
            schema=message.output_schema,
            terms=message.terms,
            key=message.key,
            now=now,
        )

    def end_model_call(self, message: EndModelCall) -> Decisions:
        """Return the end of a model call."""
        result = message.result
        common: dict[str, Any] = {"terms": message.terms, "duration_ms": result.duration_ms}
        where = (self._state, message.activation, message.attempt, result.call_id)
        if isinstance(result, ModelCallFailure):
            return engine.model_call_ended(
                *where,
                **common,
                error=result.error,
                usage=result.usage,
                partial=result.partial,
                uncharged=result.uncharged,
            )
        reply = result.reply
        return engine.model_call_ended(
            *where,
            **common,
            message=reply.message,
            finish_reason=reply.provider_finish_reason or reply.finish_reason,
            response_model=reply.response_model,
            response_id=reply.response_id,
            first_token_ms=reply.first_token_ms,
            usage=reply.usage,
        )

    def end_call(self, message: EndCall) -> Decisions:
        """Return the end of a recorded call."""
        return engine.call_ended(
            self._state,
            message.activation,
            message.attempt,
            message.call_id,
            duration_ms=message.duration_ms,
            output=message.output,
            error=message.error,
            executed=message.executed,
            unknown=message.unknown,
        )
