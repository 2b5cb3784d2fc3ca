"""OpenAI-compatible chat completions: the official service and every server that speaks its protocol.

One attempt per call, always streamed. It must never retry (the caller owns retries) and never let the key
into an error, a log or `repr`.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import Final
from urllib.parse import urlsplit, urlunsplit

import msgspec

from agentflow import known_secrets
from agentflow.definition.conversation import Message, ToolCall, Usage
from agentflow.errors import ConfigurationError
from agentflow.events.tracing import outgoing_headers
from agentflow.logs import get_logger
from agentflow.models import faults
from agentflow.models.base import DeltaSink, ModelError, ModelProfile, ModelReply, ModelRequest
from agentflow.models.http import HttpClient, HttpFailure, HttpResponse
from agentflow.models.openai_wire import (
    Chunk,
    FunctionNames,
    WireCall,
    WireText,
    WireUsage,
    encode_request,
    usage_of,
)
from agentflow.models.sse import EventDecoder, StreamTooLong
from agentflow.models.table import known_profile

__all__ = ["OFFICIAL_URL", "OpenAIProvider"]

OFFICIAL_URL: Final = "https://api.openai.com/v1"
_WIND_UP: Final = 1.0
_log = get_logger("agentflow.models")
_chunks = msgspec.json.Decoder(Chunk)


class OpenAIProvider:
    """A provider over one base URL (`…/v1`) and an optional key.

    Credentials inside the base URL are sent (as Basic) if there is no key; with one they are left out, since
    a request has one Authorization, and a warning says so. `first_byte_timeout` is seconds; `loopback` is
    for a server that this process started itself. Raises ConfigurationError for a base URL that is none.
    """

    def __init__(
        self,
        *,
        base_url: str = OFFICIAL_URL,
        api_key: str | None = None,
        name: str = "openai",
        max_concurrency: int = 8,
        first_byte_timeout: float = 30.0,
        loopback: bool = False,
    ) -> None:
        base_url = base_url.rstrip("/")
        if urlsplit(base_url).scheme not in ("http", "https") or not urlsplit(base_url).hostname:
            raise ConfigurationError("OPENAI_BASE_URL must be an http:// or https:// URL")
        if api_key is not None and (not api_key.isascii() or not api_key.isprintable()):
            raise ConfigurationError("the key of an OpenAI-compatible provider must be printable ASCII")
        known_secrets.add(api_key, *known_secrets.url_secrets(base_url))
        base_url = _without_rival(base_url, api_key)
        self.name = name
        self.max_concurrency = max_concurrency
        digest = hashlib.sha256(f"{base_url}\n{api_key or ''}".encode()).hexdigest()[:16]
        self.limiter_key = f"{name}:{digest}"
        self._url = f"{base_url}/chat/completions"
        self._key = api_key
        self._output_limit_key = "max_completion_tokens" if base_url == OFFICIAL_URL else "max_tokens"
        self._http = HttpClient(first_byte_timeout=first_byte_timeout, loopback=loopback)

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> OpenAIProvider:
        """The provider that OPENAI_API_KEY and OPENAI_BASE_URL describe."""
        return cls(
            base_url=env.get("OPENAI_BASE_URL") or OFFICIAL_URL,
            api_key=(env.get("OPENAI_API_KEY") or "").strip() or None,
        )

    def profile(self, model: str) -> ModelProfile:
        """The table's entry; any other model is taken to call functions and answer by schema, unpriced."""
        return known_profile(self.name, model)

    async def complete(
        self,
        request: ModelRequest,
        *,
        new_call_id: Callable[[], str],
        on_delta: DeltaSink | None = None,
    ) -> ModelReply:
        """One attempt. Raises ModelError; cancelling closes the connection, which ends the generation."""
        names = FunctionNames(request.tools)
        body = encode_request(request, names, output_limit_key=self._output_limit_key)
        answer = _Answer(self.name, on_delta)
        try:
            await self._receive(body, answer)
            return self._reply(request, answer, names, new_call_id)
        except ModelError as error:
            if answer.usage is not None:  # withheld or cut off, and paid for all the same
                error.usage = self._usage(request, answer)
            raise

    async def _receive(self, body: bytes, answer: _Answer) -> None:
        try:
            async with self._http.post(self._url, headers=self._headers(), body=body) as response:
                if not 200 <= response.status < 300:
                    refusal = await response.error_body()
                    raise faults.from_response(
                        self.name, response.status, response.headers, refusal, secret=self._key
                    )
                async with aclosing(_events(response)) as events:
                    async for data in events:
                        self._take(answer, data)
                        if answer.done:
                            response.wind_up(_WIND_UP)
        except HttpFailure as failure:
            if not (answer.finish_reason or answer.done):
                raise faults.from_http_failure(self.name, failure, partial=answer.text) from failure
        except StreamTooLong as failure:
            raise faults.broken_answer(self.name, str(failure), partial=answer.text) from failure

    async def aclose(self) -> None:
        """Close the connections; idempotent."""
        await self._http.aclose()

    def _headers(self) -> dict[str, str]:
        headers = {"Content-Type": "application/json", "Accept": "text/event-stream, application/json"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        return headers | outgoing_headers()

    def _take(self, answer: _Answer, data: bytes) -> None:
        if data.strip() == b"[DONE]":
            answer.done = True
            return
        try:
            chunk = _chunks.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as failure:
            problem = f"the answer is not a chat completion: {failure}"
            raise faults.broken_answer(
                self.name, faults.redact(problem, self._key), partial=answer.text
            ) from None
        if chunk.error is not None:
            raise faults.from_stream(self.name, chunk.error, secret=self._key, partial=answer.text)
        answer.take(chunk)

    def _reply(
        self, request: ModelRequest, answer: _Answer, names: FunctionNames, new_call_id: Callable[[], str]
    ) -> ModelReply:
        if not answer.finish_reason and not answer.done:
            cut = HttpFailure("broken", "the stream ended before the answer did")
            raise faults.from_http_failure(self.name, cut, partial=answer.text)
        if answer.finish_reason == "content_filter":
            raise faults.content_filtered(self.name, "the provider withheld the answer", partial=answer.text)
        if answer.refusal:
            raise faults.content_filtered(self.name, "the model refused to answer", partial=answer.refusal)
        calls = tuple(
            ToolCall(
                id=new_call_id(),
                name=names.read(call.name),
                arguments=call.arguments or "{}",
                provider_id=call.id,
            )
            for call in answer.calls
        )
        return ModelReply(
            message=Message(role="assistant", content=answer.text, tool_calls=calls),
            finish_reason="tool_calls" if calls else answer.finish_reason or "stop",
            response_model=answer.model or request.model,
            response_id=answer.response_id,
            usage=self._usage(request, answer),
            first_token_ms=answer.first_token_ms,
        )

    def _usage(self, request: ModelRequest, answer: _Answer) -> Usage:
        usage = usage_of(answer.usage)
        cost = self.profile(request.model).cost(usage) if answer.usage is not None else None
        return msgspec.structs.replace(usage, cost_usd=cost)


def _without_rival(base_url: str, api_key: str | None) -> str:
    """Return the base URL, without its credentials if there is a key."""
    parts = urlsplit(base_url)
    if api_key is None or "@" not in parts.netloc:
        return base_url
    _log.warning(
        "base_url_credentials_ignored",
        host=parts.hostname,
        hint="OPENAI_API_KEY is sent; take the credentials out of OPENAI_BASE_URL, or unset the key",
    )
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


async def _events(response: HttpResponse) -> AsyncGenerator[bytes]:
    """The data of each event; a body that is not an event stream is one event."""
    if "text/event-stream" not in response.headers.get("content-type", ""):
        yield b"".join([chunk async for chunk in response.chunks()])
        return
    decoder = EventDecoder()
    async with aclosing(response.chunks()) as chunks:
        async for chunk in chunks:
            for data in decoder.feed(chunk):
                yield data


class _Call(msgspec.Struct):
    """A tool call as its pieces arrive."""

    index: int | None
    id: str | None
    name: str
    arguments: str


class _Answer:
    """What has arrived so far."""

    def __init__(self, provider: str, on_delta: DeltaSink | None) -> None:
        self._provider = provider
        self._on_delta = on_delta
        self._started = time.perf_counter()
        self._pieces: list[str] = []
        self.refusal = ""
        self.calls: list[_Call] = []
        self.usage: WireUsage | None = None
        self.model: str | None = None
        self.response_id: str | None = None
        self.finish_reason: str | None = None
        self.first_token_ms: float | None = None
        self.done = False

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    def take(self, chunk: Chunk) -> None:
        self.model = chunk.model or self.model
        self.response_id = chunk.id or self.response_id
        self.usage = chunk.usage or self.usage
        if not chunk.choices:
            return
        choice = chunk.choices[0]
        if (part := choice.delta or choice.message) is not None:
            self._take_text(part)
        if choice.finish_reason:
            self.finish_reason = choice.finish_reason

    def _take_text(self, part: WireText) -> None:
        if thinking := part.reasoning_content or part.reasoning:
            self._emit("thinking", thinking)
        if part.content:
            self._pieces.append(part.content)
            self._emit("output", part.content)
        if part.refusal:
            self.refusal += part.refusal
        for piece in part.tool_calls or ():
            self._mark()
            self._take_call(piece)

    def _take_call(self, piece: WireCall) -> None:
        function = piece.function
        name = (function.name if function else None) or ""
        arguments = (function.arguments if function else None) or ""
        if not isinstance(arguments, str):
            arguments = msgspec.json.encode(arguments).decode()
        call = self._open_call(piece, name)
        if call is None:
            self.calls.append(_Call(piece.index, piece.id, name, arguments))
            return
        call.id = call.id or piece.id
        call.name = call.name or name
        call.arguments += arguments

    def _open_call(self, piece: WireCall, name: str) -> _Call | None:
        """The call that a piece continues. Servers that leave `index` out begin a call with id or name."""
        if piece.index is not None:
            return next((c for c in self.calls if c.index == piece.index), None)
        last = self.calls[-1] if self.calls else None
        begins = (piece.id is not None and last is not None and piece.id != last.id) or bool(name)
        return None if begins else last

    def _emit(self, kind: str, text: str) -> None:
        self._mark()
        if self._on_delta is not None:
            self._on_delta(kind, text)

    def _mark(self) -> None:
        if self.first_token_ms is None:
            self.first_token_ms = (time.perf_counter() - self._started) * 1000
