"""Protocol of language-model adapters: requests, replies, errors, profiles.

This module must never do I/O and never import an HTTP client: the engine's tests, the test kit and the
command line import it. Durations are seconds, prices are US dollars per million tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, Protocol, runtime_checkable

import msgspec

from agentflow.definition.conversation import Message, ToolSchema, Usage, dollars_for
from agentflow.definition.failure import ErrorInfo
from agentflow.errors import AgentflowError, ConfigurationError
from agentflow.models.rate_limits import RateLimits, ReportedLimit

__all__ = [
    "AnswerEnd",
    "DeltaSink",
    "ModelError",
    "ModelProfile",
    "ModelProvider",
    "ModelReply",
    "ModelRequest",
    "ModelResolutionError",
    "RateLimits",
    "ReportedLimit",
    "SchemaMode",
    "TokenKind",
]

TokenKind = Literal["output", "thinking"]
SchemaMode = Literal["native", "tool", "prompt"]
AnswerEnd = Literal["complete", "cut", "withheld", "failed"]
"""How an answer ended: whole; cut off by a limit of length; withheld by a filter or refused by the model;
failed at the provider, so that the same call may be made again."""
DeltaSink = Callable[[str, str], None]
"""Called with (token kind, text) for each piece of the answer, in order; must not block nor raise."""


class ModelProfile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a model can do and what it costs. `tools` says how many functions one request may offer.

    A limit or price of None is unknown; limits are in tokens. Cached input is priced as input when its own
    price is unknown. The overheads are upper bounds of the tokens that a provider counts beside the text of
    a request, of each message and of each function. `first_byte_timeout` is seconds, None is no limit.
    `parameters` are the names that a model object may set; None means that any name is sent.
    `count_tokens` gives the tokens of a text, if the provider has a tokenizer at hand; without it each
    UTF-8 byte counts as one, which no tokenizer exceeds.
    """

    tools: Literal["none", "single", "many"] = "many"
    json_schema: bool = True
    context_tokens: int | None = None
    max_output_tokens: int | None = None
    input_price: float | None = None
    output_price: float | None = None
    cached_input_price: float | None = None
    request_overhead_tokens: int = 16
    message_overhead_tokens: int = 8
    tool_overhead_tokens: int = 32
    first_byte_timeout: float | None = 120.0
    parameters: tuple[str, ...] | None = None
    count_tokens: Callable[[str], int] | None = None
    schema_mode: SchemaMode = "native"
    """How a model is asked to answer by a schema: by the provider's own means, by the call of a function that
    it must make, or in the prompt. An answer is validated, and repaired, in each of them."""
    schema_mode_with_functions: SchemaMode | None = None
    """The mode of requests that offer functions too; None is `schema_mode`. A server that writes every answer
    by the grammar of its schema never calls a function beside one."""
    stream_options: bool = True
    """Whether a chat completion asks for its usage by `stream_options`."""
    output_limit_name: Literal["max_tokens", "max_completion_tokens"] | None = None
    """How a chat completion names the limit of its answer; None is the name that the official service, or the
    servers that speak like it, take."""
    reasoning_fields: tuple[str, ...] = ("reasoning_details",)
    """Fields of a chat completion with reasoning that the server wants back in the next turn."""
    cache_write_price: float | None = None
    """US dollars per million tokens written to the provider's cache; as input when unknown."""
    media: tuple[str, ...] = ()
    """Media types of images that the model takes as results of functions; others are described in a line."""
    max_functions: int | None = None
    """How many functions one request may offer; None is no known limit."""
    image_tokens: int = 8_192
    """Upper bound of the input tokens that one image counts."""

    def without_refused_media(self, request: ModelRequest) -> ModelRequest:
        """Return the request without the media that the model does not take."""
        if not any(message.media for message in request.messages):
            return request
        messages = (
            msgspec.structs.replace(m, media=tuple(p for p in m.media if p.media_type in self.media))
            for m in request.messages
        )
        return msgspec.structs.replace(request, messages=tuple(messages))

    def lacks(self, *, functions: int = 0, json_schema: bool = False) -> str | None:
        """Return what an agent needs and the model lacks, as the middle of a sentence; None if nothing."""
        if functions and self.tools == "none":
            return "cannot call functions"
        if functions > 1 and self.tools == "single":
            return "takes one function"
        if self.max_functions is not None and functions > self.max_functions:
            return f"takes {self.max_functions:,} functions"
        if json_schema and not self.json_schema:
            return "cannot answer by a schema"
        return None

    def cost(self, usage: Usage) -> float | None:
        """Return the US dollars for the tokens of `usage`; None if a price that it needs is unknown."""
        if self.input_price is None or self.output_price is None:
            return None
        return dollars_for(
            usage, self.input_price, self.output_price, self.cached_input_price, self.cache_write_price
        )


class ModelRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One call of a model. `model` is the name without its provider.

    `parameters` are those that the profile names (temperature, max_tokens, seed …); `extra` is sent as it
    stands, under the names that it has. With `output_schema` the answer is JSON by that schema; the caller
    validates it.
    """

    model: str
    messages: tuple[Message, ...]
    tools: tuple[ToolSchema, ...] = ()
    output_schema: dict[str, Any] | bool | None = None
    parameters: dict[str, Any] = {}
    extra: dict[str, Any] = {}
    parallel_tool_calls: bool = True


class ModelReply(msgspec.Struct, frozen=True, kw_only=True):
    """An answer. `message` has role assistant; its calls have the runtime's ids.

    `end` is said by the adapter; no call of an answer that is not complete is executed. `finish_reason` is
    stop, length, tool_calls, content_filter or the provider's own word, `provider_finish_reason` always the
    provider's own word, None if it gave none. A reply with `finish_reason` length or content_filter is never
    complete, so that an adapter that leaves `end` out is safe. `first_token_ms` is milliseconds from the
    start of the request to the first piece of the answer. `warnings` are recorded in the log. `limits` are
    what the provider says is left of its rate limits.
    """

    message: Message
    finish_reason: str
    response_model: str
    end: AnswerEnd = "complete"
    provider_finish_reason: str | None = None
    response_id: str | None = None
    usage: Usage = Usage(model_calls=1)
    first_token_ms: float | None = None
    warnings: tuple[str, ...] = ()
    limits: tuple[ReportedLimit, ...] = ()

    def __post_init__(self) -> None:
        implied = _IMPLIED_END.get(self.finish_reason)
        if self.end == "complete" and implied is not None:
            msgspec.structs.force_setattr(self, "end", implied)


_IMPLIED_END: Final[Mapping[str, AnswerEnd]] = {"length": "cut", "content_filter": "withheld"}


class ModelError(AgentflowError):
    """The model call failed; `.info` says how."""

    code = "model_error"

    def __init__(
        self,
        info: ErrorInfo,
        *,
        retry_after: float | None = None,
        partial: str | None = None,
        usage: Usage | None = None,
        uncharged: bool = False,
    ) -> None:
        """Set `retry_after`: seconds that the provider asked to wait; `partial`: answer text that had
        arrived; `usage`: what the call cost all the same, if the provider said so; `uncharged`: it cannot
        have cost anything, since no request reached the provider or it was refused instead of answered."""
        super().__init__(f"{info.code}: {info.message}")
        self.info = info
        self.retry_after = retry_after
        self.partial = partial
        self.usage = usage
        self.refused_parameter: str | None = None  # the one that the provider does not take
        self.uncharged = uncharged

    def restate(self, info: ErrorInfo) -> None:
        """Replace `.info`, and the exception's text with it."""
        self.info = info
        self.args = (f"{info.code}: {info.message}",)


class ModelResolutionError(ConfigurationError):
    """No model: name one, set a provider key, or run `agentflow model install smollm2-135m`."""

    code = "E_UNKNOWN_MODEL"


@runtime_checkable
class ModelProvider(Protocol):
    """One service that answers model requests; an instance is shared by all runs of a process.

    A provider may have an attribute `rate_limits`, a RateLimits, that the caller's limiter keeps to, and an
    attribute `address`, the host and port of its server, that errors name.
    """

    @property
    def name(self) -> str:
        """The part of `provider:model` before the colon."""
        ...

    @property
    def max_concurrency(self) -> int:
        """How many calls may be open at once; the caller's limiter keeps to it."""
        ...

    @property
    def limiter_key(self) -> str:
        """Equal for providers that share a rate limit; never holds the secret itself."""
        ...

    def profile(self, model: str) -> ModelProfile:
        """Return what this model can do. An unknown model has a profile too: the provider's own default."""
        ...

    async def complete(
        self,
        request: ModelRequest,
        *,
        new_call_id: Callable[[], str],
        on_delta: DeltaSink | None = None,
    ) -> ModelReply:
        """Make one attempt. Raises ModelError; cancelling it aborts the request at the provider."""
        ...

    async def aclose(self) -> None:
        """Release connections and processes; idempotent. Calls that are open fail or are cancelled."""
        ...
