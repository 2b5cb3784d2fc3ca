"""HandlerReplies: answers what the handlers of a run ask for once it is in the log.

Used by one RunSupervisor alone; `handler_messages` says which events a request of a handler is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from agentflow.runtime.handler_calls import BeginCall, CallVerdict
from agentflow.runtime.handler_models import BeginModelCall, ModelVerdict

if TYPE_CHECKING:
    from actors import Reply
    from agentflow.engine import Begun
    from agentflow.engine.decisions import Decisions
    from agentflow.runtime.handler_messages import HandlerMessages
    from agentflow.runtime.run_stepper import RunStepper

__all__ = ["HandlerReplies"]


class HandlerReplies:
    """Replies that wait for the log, and calls that wait for room in a budget."""

    __slots__ = ("_handlers", "_run", "_waiting")

    def __init__(self, run: RunStepper, handlers: HandlerMessages) -> None:
        self._run = run
        self._handlers = handlers
        self._waiting: list[tuple[BeginCall | BeginModelCall, Reply[Any]]] = []

    def when_durable(self, decisions: Decisions, value: Callable[[], Any] = lambda: None) -> None:
        """Reply when what the handler asked for is in the log; at once if there is nothing to write. The
        caller looks for the receipt."""
        reply = self._run.ctx.defer()
        if decisions:
            self._run.reply_when_durable(lambda _: reply.set(value()))
            self._run.advance(decisions, in_turn=True)
        else:
            reply.set(value())

    def begin(self, message: BeginCall | BeginModelCall) -> None:
        """Reply with a CallVerdict or a ModelVerdict; a call that has to wait for open ones, or for a larger
        budget, is asked about again when the state has changed."""
        self._waiting.append((message, self._run.ctx.defer()))
        self._admit()

    @property
    def parked(self) -> set[str]:
        """The activations whose handlers have nothing under way but calls that wait for a larger budget."""
        state = self._run.state
        busy = {call.activation.key for call in state.calls.values()}
        return {message.activation for message, _ in self._waiting} - busy

    def _admit(self) -> None:
        run = self._run
        waiting, self._waiting = self._waiting, []
        run.after_advance = None
        for message, reply in waiting:
            if isinstance(message, BeginCall):
                begun = self._handlers.begin_call(message, run.now())
            else:
                begun = self._handlers.begin_model_call(message, run.now())
            if begun.verdict == "wait":
                self._waiting.append((message, reply))
                if begun.decisions:
                    run.advance(begun.decisions)
                run.after_advance = self._admit
                continue
            if not begun.decisions:
                reply.set(self._verdict(message, begun, 0))
                continue
            at = run.state.next_offset
            run.reply_when_durable(
                lambda _, m=message, b=begun, r=reply, at=at: r.set(self._verdict(m, b, at))
            )
            run.advance(begun.decisions)

    def _verdict(
        self, message: BeginCall | BeginModelCall, begun: Begun, offset: int
    ) -> CallVerdict | ModelVerdict:
        if isinstance(message, BeginModelCall):
            return ModelVerdict(begun.verdict, begun.call_id, begun.output, begun.error, offset)
        trace = self._run.tracer.call(begun.call_id)
        return CallVerdict(
            begun.verdict, begun.call_id, begun.idempotency_key, begun.output, trace, begun.error
        )
