"""What an agent and a model say to each other: messages, tool calls, tool schemas, usage.

Shared by events (which store them), models (which send them) and the engine (which folds them).
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

__all__ = [
    "NO_USAGE",
    "MediaPart",
    "Message",
    "ReasoningPart",
    "ToolCall",
    "ToolSchema",
    "Usage",
    "add_tool_call",
    "add_usage",
    "dollars_for",
]


class ToolCall(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A call that the model asks for. `id` is the runtime's own (`call_` + ULID), stable over attempts;
    `provider_id` is the provider's, echoed back to it. `arguments` is the text the model wrote."""

    id: str
    name: str
    arguments: str
    provider_id: str | None = None


class ReasoningPart(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Reasoning that a provider wants back unchanged in the next turn: signed thinking, encrypted items,
    thought signatures. `data` is opaque to all but the adapters of the wire format `format`, and goes back
    only to the provider `provider` that wrote it."""

    provider: str
    format: str
    data: Any


class MediaPart(msgspec.Struct, frozen=True, kw_only=True):
    """An image that a function returned. `data` is base64."""

    media_type: str
    data: str


class Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One turn of a conversation. A `tool` message answers the call `tool_call_id`.

    `reasoning` is of an assistant's turn; no other agent and no step sees it. `media` goes to models whose
    profile takes its type; `content` has a line about each, which is all that other models get.
    """

    role: Literal["system", "user", "assistant", "tool"]
    content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None
    reasoning: tuple[ReasoningPart, ...] = ()
    media: tuple[MediaPart, ...] = ()

    def reasoning_for(self, provider: str, format: str) -> list[Any]:
        """Return the data of the parts that this provider wrote, in their order."""
        return [part.data for part in self.reasoning if (part.provider, part.format) == (provider, format)]


class ToolSchema(msgspec.Struct, frozen=True, kw_only=True):
    """A function as the model sees it."""

    name: str
    description: str
    input_schema: dict[str, Any]


class Usage(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Tokens and calls that were paid for. `cost_usd` is null when a price is unknown.

    `estimated` is true if any part is the upper bound of what a call may have used, because the provider
    reported nothing; it is left out otherwise.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_input_tokens: int = 0
    cache_creation_input_tokens: int = 0
    reasoning_output_tokens: int = 0
    model_calls: int = 0
    tool_calls: int = 0
    cost_usd: float | None = None
    estimated: bool | UnsetType = UNSET


def add_usage(a: Usage, b: Usage) -> Usage:
    """Return the sum. A cost is known only if both are, and an empty usage costs nothing."""
    if a is NO_USAGE or a == NO_USAGE:
        return b
    if b == NO_USAGE:
        return a
    cost = None if a.cost_usd is None or b.cost_usd is None else a.cost_usd + b.cost_usd
    return Usage(
        input_tokens=a.input_tokens + b.input_tokens,
        output_tokens=a.output_tokens + b.output_tokens,
        cache_read_input_tokens=a.cache_read_input_tokens + b.cache_read_input_tokens,
        cache_creation_input_tokens=a.cache_creation_input_tokens + b.cache_creation_input_tokens,
        reasoning_output_tokens=a.reasoning_output_tokens + b.reasoning_output_tokens,
        model_calls=a.model_calls + b.model_calls,
        tool_calls=a.tool_calls + b.tool_calls,
        cost_usd=cost,
        estimated=True if a.estimated is True or b.estimated is True else UNSET,
    )


def dollars_for(
    usage: Usage,
    input_price: float,
    output_price: float,
    cached_input_price: float | None,
    cache_write_price: float | None,
) -> float:
    """Return what the tokens cost, by prices in US dollars per million."""
    cached = min(usage.cache_read_input_tokens, usage.input_tokens)
    written = min(usage.cache_creation_input_tokens, usage.input_tokens - cached)
    dollars = (
        (usage.input_tokens - cached - written) * input_price
        + cached * (input_price if cached_input_price is None else cached_input_price)
        + written * (input_price if cache_write_price is None else cache_write_price)
        + usage.output_tokens * output_price
    )
    return dollars / 1e6


def add_tool_call(usage: Usage) -> Usage:
    """Return the usage with one more call of a function, which itself costs nothing."""
    if usage is NO_USAGE or (not usage.tool_calls and usage == NO_USAGE):
        return _ONE_TOOL_CALL
    return msgspec.structs.replace(usage, tool_calls=usage.tool_calls + 1)


_ONE_TOOL_CALL = Usage(tool_calls=1, cost_usd=0.0)

NO_USAGE = Usage()
"""What nothing costs: shared, and recognised at a glance."""
