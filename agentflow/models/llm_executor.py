"""LlmExecutor: model calls that the embedding program makes itself (page 003 §1).

The executor takes the place of every provider of a run: any model that a document names goes to it. A request
holds what was resolved for one call, never the scope of the run.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol, runtime_checkable

import msgspec

from agentflow.definition.conversation import Message, ToolCall, ToolSchema, Usage
from agentflow.definition.failure import ErrorInfo
from agentflow.definition.ir import ModelRef
from agentflow.models.base import DeltaSink, ModelError, ModelProfile, ModelProvider, ModelReply, ModelRequest
from agentflow.models.catalog import Models
from agentflow.models.tool_choice import PARAMETER, tool_choice

__all__ = ["ExecutorModels", "LlmExecutor", "LlmRequest", "LlmResponse"]

_PROVIDER = "executor"
_MAX_CONCURRENCY = 64


class LlmRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One model call. `provider` is "" if the document names none; `parameters` are those of the model, such
    as temperature and tool_choice; the answer is to be JSON by `output_schema` if there is one."""

    model: str
    provider: str = ""
    messages: tuple[Message, ...]
    tools: tuple[ToolSchema, ...] = ()
    output_schema: dict[str, Any] | bool | None = None
    parameters: dict[str, Any] = {}

    @property
    def prompt(self) -> str:
        """The last message of the user."""
        return next((m.content for m in reversed(self.messages) if m.role == "user"), "")

    @property
    def system(self) -> str | None:
        """The system prompt."""
        return next((m.content for m in self.messages if m.role == "system"), None)


class LlmResponse(msgspec.Struct, frozen=True, kw_only=True):
    """An answer: text, or calls of functions as {name, arguments}. `usage` None: unknown."""

    text: str = ""
    tool_calls: tuple[dict[str, Any], ...] = ()
    finish_reason: str | None = None
    usage: Usage | None = None
    model: str | None = None


@runtime_checkable
class LlmExecutor(Protocol):
    """Makes model calls. `execute` may be asynchronous; a plain one runs in a thread.

    It returns an LlmResponse, the text of the answer, or a value that is answered as its JSON; it raises
    ModelError for failures that a policy may repeat.
    """

    def execute(self, request: LlmRequest, /) -> Any:
        """Make one call."""
        ...


class ExecutorModels(Models):
    """Resolves every name of a model to one executor."""

    def __init__(self, executor: LlmExecutor) -> None:
        super().__init__(env={})
        self._executor = executor
        self._providers: dict[str, ModelProvider] = {}

    def resolve(
        self, name: str | ModelRef | None, *, aliases: Mapping[str, ModelRef] | None = None
    ) -> ModelRef:
        """Return the model that a name means; a name without a provider is one of the executor's own."""
        if isinstance(name, str) and name in (aliases or {}):
            return (aliases or {})[name]
        if isinstance(name, ModelRef):
            return name if name.provider else msgspec.structs.replace(name, provider=_PROVIDER)
        provider, colon, model = (name or "default").partition(":")
        if not colon:
            return ModelRef(provider=_PROVIDER, model=provider)
        return ModelRef(provider=provider, model=model)

    def import_adapter(self, ref: ModelRef) -> None:
        """Import nothing."""

    def provider(self, ref: ModelRef) -> ModelProvider:
        """Return what makes the calls for a provider's name."""
        known = self._providers.get(ref.provider)
        if known is None:
            known = self._providers[ref.provider] = _ExecutorProvider(ref.provider, self._executor)
        return known

    async def aclose(self) -> None:
        """Close nothing: the executor is the caller's."""


class _ExecutorProvider:
    max_concurrency = _MAX_CONCURRENCY

    def __init__(self, name: str, executor: LlmExecutor) -> None:
        self.name = name
        self._executor = executor
        self.limiter_key = f"executor {id(executor)} {name}"

    def profile(self, model: str) -> ModelProfile:
        return ModelProfile(first_byte_timeout=None)

    async def complete(
        self,
        request: ModelRequest,
        *,
        new_call_id: Callable[[], str],
        on_delta: DeltaSink | None = None,
    ) -> ModelReply:
        asked = LlmRequest(
            model=request.model,
            provider="" if self.name == _PROVIDER else self.name,
            messages=request.messages,
            tools=request.tools,
            output_schema=request.output_schema,
            parameters=_parameters(request),
        )
        try:
            answer = await _called(self._executor.execute, asked)
            found = _response(answer, request.model, new_call_id)
        except ModelError:
            raise
        except Exception as error:
            message = f"the executor raised {type(error).__name__}: {error}"
            info = ErrorInfo(category="agent", code="executor_failed", message=message, provider=self.name)
            raise ModelError(info) from error
        if on_delta is not None and found.message.content:
            on_delta("output", found.message.content)
        return found

    async def aclose(self) -> None:
        """Release nothing."""


def _parameters(request: ModelRequest) -> dict[str, Any]:
    found = {**request.parameters, **request.extra}
    found.pop(PARAMETER, None)
    choice = tool_choice(request)
    return found if choice is None else {**found, PARAMETER: choice}


async def _called(execute: Callable[[LlmRequest], Any], request: LlmRequest) -> Any:
    if inspect.iscoroutinefunction(execute):
        return await execute(request)
    found: Any = await asyncio.to_thread(execute, request)
    return await _awaited(found) if inspect.isawaitable(found) else found


async def _awaited(found: Awaitable[Any]) -> Any:
    return await found


def _response(answer: Any, model: str, new_call_id: Callable[[], str]) -> ModelReply:
    if isinstance(answer, ModelReply):
        return answer
    if not isinstance(answer, LlmResponse):
        text = answer if isinstance(answer, str) else msgspec.json.encode(answer).decode()
        answer = LlmResponse(text=text)
    calls = tuple(_call(one, new_call_id) for one in answer.tool_calls)
    return ModelReply(
        message=Message(role="assistant", content=answer.text, tool_calls=calls),
        finish_reason=answer.finish_reason or ("tool_calls" if calls else "stop"),
        response_model=answer.model or model,
        usage=answer.usage or Usage(model_calls=1),
    )


def _call(given: Mapping[str, Any], new_call_id: Callable[[], str]) -> ToolCall:
    arguments = given.get("arguments", {})
    text = arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()
    return ToolCall(id=new_call_id(), name=str(given["name"]), arguments=text)
