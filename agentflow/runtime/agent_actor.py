"""AgentActor: one execution of one agent. Its mailbox is the agent's; its death cancels its calls.

It sees requests that are already resolved (its own conversation and its tools' schemas) and nothing of
the workflow. What to do next is decided by the engine; this actor does it and reports.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from actors import Actor, ActorStopped, Ref, on
from agentflow import known_secrets
from agentflow.definition.failure import ErrorInfo
from agentflow.runtime.messages import (
    CallModel,
    CallTool,
    Complete,
    ModelCallFailure,
    ToolCallFailure,
)

__all__ = ["AgentActor", "Directory", "lost_call"]


class Directory:
    """Where the calls of a run go: the actor of a provider, the actor of a service. Asked for each call, so
    that one that is gone for good is replaced."""

    def __init__(self, model: Callable[[str], Ref[Any]], tool: Callable[[str], Ref[Any]]) -> None:
        self.model = model
        self.tool = tool


class AgentActor(Actor, mailbox=1_000):
    """Model calls one after another, tool calls side by side; results go to the supervisor as messages."""

    def __init__(self, supervisor: Ref[Any], directory: Directory) -> None:
        self._supervisor = supervisor
        self._directory = directory

    @on(CallModel)
    def call_model(self, call: CallModel) -> None:
        def lost(error: BaseException) -> None:
            self._report(
                ModelCallFailure(call_id=call.call_id, error=lost_call("model", error), duration_ms=0)
            )

        # The engine's deadlines bound the call; a second one here would only race with them.
        asked = self._directory.model(call.ref.provider).ask(Complete(call=call), timeout=math.inf)
        self.ctx.pipe(asked, self._report, lost)

    @on(CallTool)
    def call_tool(self, call: CallTool) -> None:
        def lost(error: BaseException) -> None:
            info = lost_call("tool", error)
            self._report(ToolCallFailure(call_id=call.call_id, error=info, duration_ms=0, unknown=True))

        asked = self._directory.tool(call.service).ask(call, timeout=math.inf)
        self.ctx.pipe(asked, self._report, lost)

    def _report(self, result: Any) -> None:
        self._supervisor.tell(result)


def lost_call(kind: str, error: BaseException) -> ErrorInfo:
    """Return why a call has no answer: its actor ended (interrupted, so made again), or has a bug."""
    if isinstance(error, ActorStopped):
        return ErrorInfo(
            category="interrupted", code="worker_lost", message=f"the {kind} call was lost: {error}"
        )
    message = f"the {kind} call failed inside the runtime: {type(error).__name__}: {error}"
    return ErrorInfo(category="system", code="internal_error", message=known_secrets.hide(message))
