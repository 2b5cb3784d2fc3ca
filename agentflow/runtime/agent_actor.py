"""AgentActor: one execution of one agent. Its mailbox is the agent's; its death cancels its calls.

It sees requests that are already resolved (its own conversation and its tools' schemas) and nothing of
the workflow. What to do next is decided by the engine; this actor does it and reports.
"""

from __future__ import annotations

import math
from typing import Any

from actors import Actor, Ref, on
from agentflow.definition.failure import ErrorInfo
from agentflow.runtime.messages import (
    CallModel,
    CallTool,
    Complete,
    ModelCallFailure,
    ToolCallFailure,
)

__all__ = ["AgentActor", "Directory"]


class Directory:
    """Where the calls of a run go: the actor of a provider, the actor of a service."""

    def __init__(self, models: dict[str, Ref[Any]], tools: dict[str, Ref[Any]]) -> None:
        self.models = models
        self.tools = tools


class AgentActor(Actor, mailbox=1_000):
    """Model calls one after another, tool calls side by side; results go to the supervisor as messages."""

    def __init__(self, supervisor: Ref[Any], directory: Directory) -> None:
        self._supervisor = supervisor
        self._directory = directory

    @on(CallModel)
    def call_model(self, call: CallModel) -> None:
        target = self._directory.models[call.ref.provider]

        def lost(error: BaseException) -> Any:
            info = ErrorInfo(
                category="interrupted", code="interrupted", message=f"the model call was lost: {error}"
            )
            return self._report(ModelCallFailure(call_id=call.call_id, error=info, duration_ms=0))

        # The engine's deadlines bound the call; a second one here would only race with them.
        self.ctx.pipe(target.ask(Complete(call=call), timeout=math.inf), self._report, lost)

    @on(CallTool)
    def call_tool(self, call: CallTool) -> None:
        target = self._directory.tools[call.service]

        def lost(error: BaseException) -> Any:
            info = ErrorInfo(
                category="interrupted", code="interrupted", message=f"the tool call was lost: {error}"
            )
            failure = ToolCallFailure(call_id=call.call_id, error=info, duration_ms=0, unknown=True)
            return self._report(failure)

        self.ctx.pipe(target.ask(call, timeout=math.inf), self._report, lost)

    def _report(self, result: Any) -> None:
        self._supervisor.tell(result)
