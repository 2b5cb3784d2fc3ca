"""HandlerReplies: answers what the handlers of a run ask for once it is in the log.

Used by one RunSupervisor alone; `handler_messages` says which events a request of a handler is.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from agentflow.runtime.handler_calls import BeginCall, CallVerdict
from agentflow.runtime.handler_models import BeginModelCall, ModelVerdict

if TYPE_CHECKING:
    from actors import Reply
    from agentflow.engine.decisions import Decisions
    from agentflow.runtime.handler_messages import HandlerMessages
    from agentflow.runtime.run_stepper import RunStepper

__all__ = ["HandlerReplies"]


class HandlerReplies:
    """Replies that wait for the log, and model calls that wait for room in a budget."""

    __slots__ = ("_handlers", "_model_calls", "_run")

    def __init__(self, run: RunStepper, handlers: HandlerMessages) -> None:
        self._run = run
        self._handlers = handlers
        self._model_calls: list[tuple[BeginModelCall, Reply[Any]]] = []

    def when_durable(self, decisions: Decisions, value: Callable[[], Any] = lambda: None) -> None:
        """Reply when what the handler asked for is in the log; at once if there is nothing to write."""
        reply = self._run.ctx.defer()
        if decisions:
            self._run.reply_when_durable(lambda _: reply.set(value()))
            self._run.advance(decisions)
        else:
            reply.set(value())

    def begin_call(self, message: BeginCall) -> None:
        """Reply with a CallVerdict."""
        begun = self._handlers.begin_call(message)

        def verdict() -> CallVerdict:
            trace = self._run.tracer.call(begun.call_id)
            return CallVerdict(begun.verdict, begun.call_id, begun.idempotency_key, begun.output, trace)

        self.when_durable(begun.decisions, verdict)

    def begin_model_call(self, message: BeginModelCall) -> None:
        """Reply with a ModelVerdict; a call that has to wait for open ones is asked about again when one
        ends."""
        self._model_calls.append((message, self._run.ctx.defer()))
        self._admit_model_calls()

    def _admit_model_calls(self) -> None:
        run = self._run
        waiting, self._model_calls = self._model_calls, []
        run.after_advance = None
        for message, reply in waiting:
            begun = self._handlers.begin_model_call(message)
            if begun.verdict == "wait":
                self._model_calls.append((message, reply))
                run.after_advance = self._admit_model_calls
                continue
            verdict = ModelVerdict(
                begun.verdict, begun.call_id, begun.output, begun.error, run.state.next_offset
            )
            if not begun.decisions:
                reply.set(verdict)
                continue
            run.reply_when_durable(partial(_answer, reply, verdict))
            run.advance(begun.decisions)


def _answer(reply: Reply[Any], value: Any, _: object) -> None:
    reply.set(value)
