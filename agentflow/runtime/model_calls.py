"""Messages of a model call, and the failure that becomes of what an adapter raised or returned.

An adapter may be third-party code: a value that no event can hold must not pass this module.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Literal, TypeVar

import msgspec

from agentflow.definition.conversation import Usage
from agentflow.definition.failure import Category, ErrorInfo
from agentflow.definition.ir import ModelRef
from agentflow.engine.agents.conversation import answer_values
from agentflow.events.catalogue import SystemError
from agentflow.judge import judge_aside
from agentflow.models import ModelError, ModelReply, ModelRequest
from agentflow.runtime.messages import Message

__all__ = [
    "CallModel",
    "Complete",
    "ForgetRefusal",
    "ModelCallFailure",
    "ModelCallSuccess",
    "expected_tokens",
    "failure_of",
    "incomplete",
    "judge_reply",
    "model_warnings",
]


class CallModel(Message, frozen=True, kw_only=True):
    """Make this model call, once. `offset` is that of its model.call_started."""

    call_id: str
    workflow_id: str
    step_id: str
    offset: int
    ref: ModelRef
    request: ModelRequest
    id_seed: str
    timeout: float | None
    shown: Literal["text", "lines", "nothing"] = "text"
    """How deltas show the answer: as it is written, as lines `key: value` at its end, or not at all."""


class Complete(Message, frozen=True, kw_only=True):
    """A request to the actor of one provider; answered by ModelCallSuccess or ModelCallFailure."""

    call: CallModel

    @property
    def call_id(self) -> str:
        return self.call.call_id


class ForgetRefusal(Message, frozen=True, kw_only=True):
    """Make the next call to this provider even if it has refused others for a time."""


class ModelCallSuccess(Message, frozen=True, kw_only=True):
    """The model's answer."""

    call_id: str
    reply: ModelReply
    duration_ms: int


class ModelCallFailure(Message, frozen=True, kw_only=True):
    """The call came to nothing. `retry_after` in seconds; `uncharged`: it cannot have cost anything."""

    call_id: str
    error: ErrorInfo
    duration_ms: int
    retry_after: float | None = None
    partial: str | None = None
    usage: Usage | None = None
    uncharged: bool = False


T = TypeVar("T")


def failure_of(call: CallModel, error: ModelError, duration_ms: int) -> ModelCallFailure:
    """Return the failure of a call; `agent_error` if no event can hold the adapter's error, as one with an
    unknown category. Of the values beside it only the valid ones are kept."""
    info = _sound(error.info, ErrorInfo)
    if info is None:
        info = ErrorInfo(
            category="agent",
            code="agent_error",
            message=f"the adapter of {call.ref.provider} raised a ModelError that is malformed",
            provider=call.ref.provider,
        )
    usage = _sound(error.usage, Usage)
    wait: Any = error.retry_after
    numeric = isinstance(wait, int | float) and math.isfinite(wait) and wait >= 0
    return ModelCallFailure(
        call_id=call.call_id,
        error=info,
        duration_ms=duration_ms,
        retry_after=wait if numeric else None,
        partial=_sound(error.partial, str),
        usage=usage if usage is not None and _counts(usage) else None,
        uncharged=error.uncharged is True,
    )


def incomplete(call: CallModel, reply: ModelReply, duration_ms: int) -> ModelCallFailure:
    """Return the failure that an answer is whose end is not `complete`: nothing of it is used.

    Its text stays in the log as `partial`, its tokens are charged, and the provider's own finish reason
    stands in the error's details.
    """
    reason = reply.provider_finish_reason or reply.finish_reason
    name = call.ref.name
    category: Category
    if reply.end == "cut":
        category, code = "invalid_output", "output_truncated"
        written = f" after {reply.usage.output_tokens:,} tokens" if reply.usage.output_tokens else ""
        message = f"the answer of {name} was cut off{written} (finish reason {reason}); raise max_tokens"
    elif reply.end == "withheld":
        category, code = "agent", "content_filtered"
        message = f"the answer of {name} was withheld (finish reason {reason})"
    else:
        category, code = "transient", "server_error"
        message = f"the answer of {name} failed at the provider (finish reason {reason})"
    info = ErrorInfo(
        category=category,
        code=code,
        message=message,
        retryable=category == "transient",
        provider=call.ref.provider,
        details={"finish_reason": reason},
    )
    return ModelCallFailure(
        call_id=call.call_id,
        error=info,
        duration_ms=duration_ms,
        partial=reply.message.content or None,
        usage=reply.usage if _counts(reply.usage) else None,
    )


def expected_tokens(request: ModelRequest) -> int:
    """Return about how many tokens a call uses, for limits of rate: a quarter of the bytes that are read, and
    all that may be written if that is bounded. A budget goes by an upper bound instead."""
    texts = [message.content for message in request.messages]
    texts += [call.arguments for message in request.messages for call in message.tool_calls]
    read = sum(len(text.encode("utf-8", "replace")) for text in texts)
    read += sum(len(msgspec.json.encode(tool)) for tool in request.tools)
    written = (request.parameters.get(name) for name in ("max_tokens", "max_completion_tokens"))
    return read // 4 + max((w for w in written if isinstance(w, int)), default=0)


async def judge_reply(request: ModelRequest, reply: ModelReply) -> None:
    """Judge what a model answered: the arguments of its calls, or its final answer."""
    message = reply.message
    if message.tool_calls:
        schemas = {tool.name: tool.input_schema for tool in request.tools}
        for call in message.tool_calls:
            if call.name in schemas:
                for value in answer_values(call.arguments):
                    await judge_aside(schemas[call.name], value)
    elif request.output_schema is not None:
        for value in answer_values(message.content):
            await judge_aside(request.output_schema, value)


def model_warnings(texts: Iterable[str]) -> list[SystemError]:
    """Return the events that record what an adapter warns of."""
    return [
        SystemError(
            error=ErrorInfo(category="invalid_input", code="parameter_dropped", message=text),
            severity="warning",
            component="model",
            fatal=False,
        )
        for text in texts
    ]


def _sound(value: object, kind: type[T]) -> T | None:
    """Return the value as a log would return it, or None if no log can hold it."""
    if value is None:
        return None
    try:
        return msgspec.json.decode(msgspec.json.encode(value), type=kind)
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError):
        return None


def _counts(usage: Usage) -> bool:
    """Return whether all figures are ≥ 0, so that no budget can grow by them."""
    figures: list[float | None] = [
        getattr(usage, field) for field in usage.__struct_fields__ if field != "estimated"
    ]
    return all(figure is None or figure >= 0 for figure in figures)
