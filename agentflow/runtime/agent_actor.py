"""AgentActor: one execution of one agent. Its mailbox is the agent's; its death cancels its calls.

It sees requests that are already resolved (its own conversation and its tools' schemas) and nothing of
the workflow. What to do next is decided by the engine; this actor does it and reports.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any

from actors import Actor, ActorStopped, Ref, on
from agentflow.definition.ir import ModelRef, Workflow
from agentflow.engine import BoundGraph, ModelTerms
from agentflow.executors.callables import Callables
from agentflow.runtime.messages import HANDLER_LIMIT_S
from agentflow.runtime.model_calls import CallModel, Complete, ModelCallFailure, ModelCallSuccess
from agentflow.runtime.supervisor_messages import CallNotMade
from agentflow.runtime.tool_actor import CallTool, ToolCallFailure, lost_call
from agentflow.tools import Service, Tool

__all__ = ["AgentActor", "Directory"]

_MAX_LOST = 3
"""Attempts in a row that may fail by a bug of the model's actor before the call has failed."""


class Directory(ABC):
    """Where the calls of a run go: the actor of a provider, the actor of a service. Asked for each call, so
    that one that is gone for good is replaced."""

    __slots__ = ("code",)

    code: Callables | None
    """The executors, predicates and selections of the run's workflow."""

    @abstractmethod
    def model(self, provider: str) -> Ref[Any]:
        """Return the actor of a provider. Raises ActorStopped when the Runtime is being closed."""

    @abstractmethod
    def tool(self, service: str) -> Ref[Any]:
        """Return the actor of a service. Raises ActorStopped when the Runtime is being closed."""

    @abstractmethod
    def service(self, name: str) -> Service | None:
        """Return a service of the run; None if there is none of the name."""

    def function(self, service: str, function: str) -> Tool | None:
        """Return a function of a service; None if there is none."""
        found = self.service(service)
        return None if found is None else found.tools.get(function)

    @abstractmethod
    async def resolve(self, model: str | None) -> tuple[ModelRef, ModelTerms]:
        """Return the model that a name means, None the default, and what bounds its calls.

        Raises ModelResolutionError.
        """

    @abstractmethod
    async def bind_graph(self, graph: Workflow | str) -> BoundGraph:
        """Bind the nodes of a graph that became known in the run, or has this name; later its calls find
        their actors."""


class AgentActor(Actor, mailbox=1_000, handler_timeout=HANDLER_LIMIT_S):
    """Model calls one after another, tool calls side by side; results go to the supervisor as messages."""

    def __init__(self, supervisor: Ref[Any], directory: Directory) -> None:
        self._supervisor = supervisor
        self._directory = directory
        self._lost_in_a_row = 0

    @on(CallModel)
    def call_model(self, call: CallModel) -> None:
        def lost(error: BaseException) -> None:
            self._lost_in_a_row += 1
            error_info = lost_call("model", error, again=self._lost_in_a_row < _MAX_LOST)
            self._report(ModelCallFailure(call_id=call.call_id, error=error_info, duration_ms=0))

        try:
            model = self._directory.model(call.ref.provider)
        except ActorStopped:
            return  # the Runtime is being closed: the call stays open, and is made again by `resume`
        # The engine's deadlines bound the call; a second one here would only race with them.
        self.ctx.pipe(model.ask_soon(Complete(call=call), timeout=math.inf), self._answered, lost)

    @on(CallTool)
    def call_tool(self, call: CallTool) -> None:
        def lost(error: BaseException) -> None:
            info = lost_call("tool", error)
            self._report(ToolCallFailure(call_id=call.call_id, error=info, duration_ms=0, unknown=True))

        try:
            service = self._directory.tool(call.service)
        except ActorStopped:  # as for a model call, but a tool call at work would be waited for
            self._report(CallNotMade(call_id=call.call_id))
            return
        self.ctx.pipe(service.ask_soon(call, timeout=math.inf), self._report, lost)

    def _answered(self, result: ModelCallSuccess | ModelCallFailure) -> None:
        self._lost_in_a_row = 0
        self._report(result)

    def _report(self, result: Any) -> None:
        self._supervisor.tell(result)
