"""The Messages API of Anthropic, and every server that speaks it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Unpack

import msgspec

from agentflow.models.anthropic_wire import (
    FORMAT,
    PARAMETERS,
    Block,
    Delta,
    Event,
    WireUsage,
    counts_of,
    encode_request,
    usage_of,
)
from agentflow.models.base import DeltaSink, ModelProfile, ModelRequest, SchemaMode
from agentflow.models.function_names import FunctionNames
from agentflow.models.output_schemas import plain_schema, schema_mode, strict_schema
from agentflow.models.streamed import ProviderOptions, StreamedProvider
from agentflow.models.wire_answer import WireAnswer, WireCallBlock

__all__ = ["API_VERSION", "OFFICIAL_URL", "AnthropicProvider"]

OFFICIAL_URL: Final = "https://api.anthropic.com/v1"
API_VERSION: Final = "2023-06-01"
_OUTPUT_LIMIT: Final = 4_096
_events: Final = msgspec.json.Decoder(Event)


class AnthropicProvider(StreamedProvider):
    """Messages below one base URL (`…/v1`); the other arguments are those of StreamedProvider.

    `api_version` goes out as `anthropic-version`, `betas` as `anthropic-beta`. `prompt_caching` marks the end
    of the system prompt and of the conversation for the provider's cache; what is written to it costs more
    than other input, what is read less.
    """

    kind = FORMAT
    official_url = OFFICIAL_URL
    parameters = PARAMETERS

    def __init__(
        self,
        *,
        base_url: str = OFFICIAL_URL,
        api_key: str | None = None,
        name: str = "anthropic",
        api_version: str = API_VERSION,
        betas: tuple[str, ...] = (),
        prompt_caching: bool = True,
        **more: Unpack[ProviderOptions],
    ) -> None:
        super().__init__(base_url=base_url, api_key=api_key, name=name, **more)
        self._api_version = api_version
        self._betas = betas
        self._caches = prompt_caching

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> AnthropicProvider:
        """Return the provider that ANTHROPIC_API_KEY, ANTHROPIC_BASE_URL and ANTHROPIC_VERSION describe.

        As in the official SDK, the base URL is the one above `/v1`.
        """
        base = (env.get("ANTHROPIC_BASE_URL") or OFFICIAL_URL).rstrip("/")
        return cls(
            base_url=base if base.endswith("/v1") else f"{base}/v1",
            api_key=(env.get("ANTHROPIC_API_KEY") or "").strip() or None,
            api_version=env.get("ANTHROPIC_VERSION") or API_VERSION,
            settings=("ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY"),
        )

    def _url(self, model: str) -> str:
        return f"{self._base_url}/messages"

    def _authorization(self) -> dict[str, str]:
        headers = {"anthropic-version": self._api_version}
        if self._key:
            headers["x-api-key"] = self._key
        if self._betas:
            headers["anthropic-beta"] = ",".join(self._betas)
        return headers

    def _schema_mode(self, request: ModelRequest, profile: ModelProfile) -> SchemaMode | None:
        """The provider itself takes closed object schemas of the keywords that it knows. A model that thinks
        cannot be made to call a function, so that it is told in the prompt."""
        mode, schema = schema_mode(request, profile), request.output_schema
        if mode == "native" and isinstance(schema, dict) and not strict_schema(plain_schema(schema)):
            mode = "tool"
        thinks = "thinking" in {**request.extra, **request.parameters}
        return "prompt" if mode == "tool" and thinks else mode

    def _encode(self, request: ModelRequest, profile: ModelProfile, names: FunctionNames) -> bytes:
        # A prompt that no later turn repeats is not worth the price of writing it to the cache.
        caches = self._caches and (len(request.tools) > 0 or len(request.messages) > 2)
        return encode_request(
            request,
            names,
            provider=self.name,
            default_output_limit=profile.max_output_tokens or _OUTPUT_LIMIT,
            caches=caches,
        )

    def _new_answer(
        self, request: ModelRequest, names: FunctionNames, on_delta: DeltaSink | None
    ) -> AnthropicAnswer:
        return self._wire_answer(AnthropicAnswer, request, names, on_delta)


class AnthropicAnswer(WireAnswer):
    """A message as the events of its stream arrive."""

    what = "a message of the Messages API"
    format = FORMAT

    _counts: dict[str, int] | None = None
    _block: Block | None = None
    _call: WireCallBlock | None = None
    _thoughts: list[str] | None = None

    def take(self, data: bytes) -> None:
        """Add the data of one event. Raises ModelError and AnswerTooLong."""
        event = self.decode(data, _events)
        if event.error is not None or event.type == "error":
            raise self.failure(event.error)
        if event.message is not None:
            self.model = event.message.model or self.model
            self.response_id = event.message.id or self.response_id
            self._count_tokens(event.message.usage)
        self._count_tokens(event.usage)
        match event.type:
            case "content_block_start" if event.content_block is not None:
                self._begin(event.content_block)
            case "content_block_delta" if event.delta is not None:
                self._go_on(event.delta)
            case "content_block_stop":
                self._end_block()
            case "message_delta" if event.delta is not None:
                self.finish_reason = event.delta.stop_reason or self.finish_reason
                self.is_over = self.finish_reason is not None
            case "message_stop":
                self._end_block()
                self.done = self.is_over = True
            case "message":
                self._take_whole(event)
            case _:
                pass  # ping, and events that later versions add

    def _count_tokens(self, usage: WireUsage | None) -> None:
        if usage is not None:
            self._counts = {**(self._counts or {}), **counts_of(usage)}
            self.counted = usage_of(self._counts)

    def _begin(self, block: Block) -> None:
        self._end_block()
        self.is_over, self.has_content = False, True
        self._block = block
        match block.type:
            case "text":
                self.add_text(block.text or "")
            case "tool_use":
                self.mark()
                self.count(block.name or "")
                self._call = WireCallBlock(block.id, block.name or "")
                self.calls.append(self._call)
            case "thinking":
                self._thoughts = [block.thinking or ""]
                self.add_thinking(block.thinking or "")
            case "redacted_thinking":
                self.count(block.data or "")
            case _:
                pass  # blocks of functions that the provider runs itself

    def _go_on(self, delta: Delta) -> None:
        if delta.text:
            self.add_text(delta.text)
        if delta.partial_json and self._call is not None:
            self.count(delta.partial_json)
            self._call.arguments.add(delta.partial_json)
        if delta.thinking:
            self.add_thinking(delta.thinking)
            if self._thoughts is not None:
                self._thoughts.append(delta.thinking)
        if delta.signature and self._block is not None:
            self.count(delta.signature)
            self._block.signature = (self._block.signature or "") + delta.signature

    def _end_block(self) -> None:
        block, self._block = self._block, None
        if block is None:
            return
        if block.type == "thinking":
            thinking = "".join(self._thoughts or ())
            kept = {"type": "thinking", "thinking": thinking, "signature": block.signature or ""}
            self.reasoning.append(kept)
        elif block.type == "redacted_thinking":
            self.reasoning.append({"type": "redacted_thinking", "data": block.data or ""})
        elif self._call is not None and not str(self._call.arguments) and block.input:
            whole = msgspec.json.encode(block.input).decode()  # a server that does not send it in pieces
            self.count(whole)
            self._call.arguments.add(whole)
        self._call = self._thoughts = None

    def _take_whole(self, event: Event) -> None:
        self.model, self.response_id = event.model, event.id
        for block in event.content or ():
            self._begin(block)
            self._end_block()
        self.finish_reason = event.stop_reason
        self.done = self.is_over = True
