"""One model call of a run as a whole: what was sent, what came back, what it cost (page 000 §8).

Events hold only the messages that are new since the context's previous call; this fold puts them together.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET

from agentflow.definition.conversation import Message, Usage
from agentflow.definition.failure import ErrorInfo
from agentflow.errors import AgentflowError
from agentflow.events import catalogue as ev
from agentflow.events.envelope import Event

__all__ = ["CallNotFound", "ModelCallFold", "ModelCallView"]


class CallNotFound(AgentflowError):
    """The run has no such model call."""

    code = "call_not_found"


class ModelCallView(msgspec.Struct, kw_only=True):
    """A model call. `messages` are all that were sent; those from index `new_from` on are new since
    `previous`, the call before it in the same conversation. `answer` is null until the call has ended;
    `partial` is the text that had arrived when it failed. Times are RFC 3339."""

    model_call_id: str
    step_id: str
    iteration: int | None
    activation: str
    agent_name: str | None
    provider: str
    model: str
    turn: int
    state: str
    started_at: str
    offset: int
    parameters: dict[str, Any]
    messages: list[Message]
    new_from: int
    previous: str | None
    request_hash: str
    tools: list[ev.ToolDigest] = []
    answer: Message | None = None
    finish_reason: str | None = None
    response_model: str | None = None
    usage: Usage | None = None
    duration_ms: int | None = None
    first_token_ms: int | None = None
    error: ErrorInfo | None = None
    partial: Any = None


class ModelCallFold:
    """Makes the view of one call from the events of its run, in order."""

    def __init__(self, model_call_id: str) -> None:
        self._wanted = model_call_id
        self.view: ModelCallView | None = None
        self._messages: dict[tuple[str, int | None], list[Message]] = {}
        self._previous: dict[tuple[str, int | None], str] = {}
        self._tools: dict[tuple[str, int | None], list[ev.ToolDigest]] = {}

    def take(self, event: Event[Any]) -> None:
        """Take the next event."""
        data: ev.RunEvent = event.data
        match data:
            case ev.AgentInitialized():
                key = data.activation, data.iteration
                self._tools[key] = list(data.tools)
                self._messages.pop(key, None)
                self._previous.pop(key, None)
            case ev.ModelCallStarted():
                self._start(data, event)
            case ev.ModelCallCompleted():
                self._messages.setdefault((data.activation, data.iteration), []).append(data.message)
                if self.view is not None and data.model_call_id == self._wanted:
                    self.view.state = "succeeded"
                    self.view.answer, self.view.finish_reason = data.message, data.finish_reason
                    self.view.response_model, self.view.usage = data.response_model, data.usage
                    self.view.duration_ms = data.duration_ms
                    self.view.first_token_ms = None if data.first_token_ms is UNSET else data.first_token_ms
            case ev.ModelCallFailed() if self.view is not None and data.model_call_id == self._wanted:
                self.view.state, self.view.error = "failed", data.error
                self.view.duration_ms = data.duration_ms
                self.view.partial = None if data.partial is UNSET else data.partial
                self.view.usage = None if data.usage is UNSET else data.usage
            case _:
                pass

    def _start(self, data: ev.ModelCallStarted, event: Event[Any]) -> None:
        key = data.activation, data.iteration
        messages = self._messages.setdefault(key, [])
        messages[data.messages_from :] = data.messages
        if data.model_call_id == self._wanted:
            self.view = ModelCallView(
                model_call_id=data.model_call_id,
                step_id=data.step_id,
                iteration=data.iteration,
                activation=data.activation,
                agent_name=data.agent_name,
                provider=data.provider,
                model=data.model,
                turn=data.turn,
                state="running",
                started_at=event.timestamp,
                offset=event.offset,
                parameters=data.parameters,
                messages=list(messages),
                new_from=data.messages_from,
                previous=self._previous.get(key),
                request_hash=data.request_hash,
                tools=self._tools.get(key, []),
            )
        self._previous[key] = data.model_call_id
