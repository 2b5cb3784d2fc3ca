"""RequestInfoExecutor: a node that asks people and sends their answers on (page 002 §10)."""

from __future__ import annotations

from typing import Any

from agentflow.executors import Executor, WorkflowContext
from agentflow.executors.annotations import members_of
from agentflow.executors.handlers import HandlerSpec

__all__ = ["RequestInfoExecutor"]


class RequestInfoExecutor(Executor):
    """Each message becomes a request, each answer a message on its edges."""

    def __init__(self, id: str, response_type: Any, **options: Any) -> None:
        """Name the node and the type of its answers. `options` are those of Executor."""
        super().__init__(id, **options)
        self.response_type = response_type

    @property
    def handlers(self) -> tuple[HandlerSpec, ...]:
        """A handler of any message, and one of any answer of the type."""
        kind = type(self)
        return (
            HandlerSpec(name="ask", kind="message", function=kind.ask, takes=Any),
            HandlerSpec(
                name="pass_on",
                kind="response",
                function=kind.pass_on,
                takes=Any,
                answer=self.response_type,
                sends=members_of(self.response_type),
            ),
        )

    async def ask(self, message: Any, ctx: WorkflowContext) -> None:
        """Ask what the message says."""
        await ctx.request_info(message, self.response_type)

    async def pass_on(self, request: Any, answer: Any, ctx: WorkflowContext[Any]) -> None:
        """Send the answer on."""
        await ctx.send_message(answer)
