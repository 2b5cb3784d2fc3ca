"""OpenAI-compatible chat completions: the official service and every server that speaks its protocol.

One attempt per call, always streamed. It must never retry (the caller owns retries) and never let the key
into an error, a log or `repr`.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import Final
from urllib.parse import urlsplit, urlunsplit

import msgspec
from msgspec import UNSET, UnsetType

from agentflow import known_secrets
from agentflow.definition.conversation import Message, ToolCall, Usage
from agentflow.definition.type_errors import undecodable
from agentflow.errors import ConfigurationError
from agentflow.events.tracing import outgoing_headers
from agentflow.logs import get_logger
from agentflow.models import faults
from agentflow.models.base import DeltaSink, ModelError, ModelProfile, ModelReply, ModelRequest
from agentflow.models.endpoint import Endpoint
from agentflow.models.http import AnswerTooLarge, HttpClient, HttpFailure, HttpResponse
from agentflow.models.openai_answer import MAX_ANSWER_BYTES, Answer, AnswerTooLong, end_of
from agentflow.models.openai_parameters import COMPATIBLE, OFFICIAL
from agentflow.models.openai_wire import Chunk, FunctionNames, decode_chunk, encode_request, usage_of
from agentflow.models.sse import EventDecoder, StreamTooLong, is_event_stream
from agentflow.models.table import known_profile

__all__ = ["OFFICIAL_URL", "OpenAIProvider"]

OFFICIAL_URL: Final = "https://api.openai.com/v1"
_WIND_UP: Final = 1.0
_log = get_logger("agentflow.models")
_BYTE_TIMEOUT: Final = 60.0
_STREAM_OVERHEAD: Final = 4
"""A stream may have this many times the bytes of the answer in it: each token comes in a chunk of its own."""
_SNIFFED_BYTES: Final = 1024
_LIMITS: Final = frozenset({"max_tokens", "max_completion_tokens"})
_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})


class OpenAIProvider:
    """A provider over one base URL (`…/v1`) and an optional key.

    Credentials inside the base URL are sent (as Basic) if there is no key; with one they are left out, since
    a request has one Authorization, and a warning says so.

    `first_byte_timeout` is seconds, None is no limit; without it that of the model's profile holds, and none
    for a server on this machine. `byte_timeout` is that between two bytes. `max_answer_bytes` bounds one
    event, and the text and arguments of an answer, after decompression. `loopback` is for a server that this
    process started itself. `settings` are the names of base URL and key that errors tell the user to look at.
    Raises ConfigurationError for a base URL that is none.
    """

    def __init__(
        self,
        *,
        base_url: str = OFFICIAL_URL,
        api_key: str | None = None,
        name: str = "openai",
        max_concurrency: int = 8,
        first_byte_timeout: float | UnsetType | None = UNSET,
        byte_timeout: float | None = _BYTE_TIMEOUT,
        max_answer_bytes: int = MAX_ANSWER_BYTES,
        loopback: bool = False,
        settings: tuple[str, str] = ("the argument base_url", "the argument api_key"),
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
        url_setting, key_setting = ("", "") if loopback else settings
        self._endpoint = Endpoint(name, base_url, url_setting, key_setting, bool(api_key))
        self._url = f"{base_url}/chat/completions"
        self._key = api_key
        self._is_official = base_url == OFFICIAL_URL
        self._output_limit_key = "max_completion_tokens" if self._is_official else "max_tokens"
        self._is_local = loopback or urlsplit(base_url).hostname in _LOOPBACK
        self._first_byte_timeout = first_byte_timeout
        self._max_answer_bytes = max_answer_bytes
        self._refused_parameters: dict[str, set[str]] = {}  # by model
        self._http = HttpClient(byte_timeout=byte_timeout, loopback=loopback, resend_stale=True)

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> OpenAIProvider:
        """Return the provider that OPENAI_API_KEY and OPENAI_BASE_URL describe."""
        return cls(
            base_url=env.get("OPENAI_BASE_URL") or OFFICIAL_URL,
            api_key=(env.get("OPENAI_API_KEY") or "").strip() or None,
            settings=("OPENAI_BASE_URL", "OPENAI_API_KEY"),
        )

    @property
    def address(self) -> str:
        """Host and port of the server."""
        return self._endpoint.address

    def profile(self, model: str) -> ModelProfile:
        """Return the table's entry; any other model is taken to call functions and answer by schema,
        unpriced. The parameters are those of the official service, or of the servers that speak like it."""
        profile = known_profile(self.name, model)
        if profile.parameters is not None:
            return profile
        return msgspec.structs.replace(profile, parameters=OFFICIAL if self._is_official else COMPATIBLE)

    async def complete(
        self,
        request: ModelRequest,
        *,
        new_call_id: Callable[[], str],
        on_delta: DeltaSink | None = None,
    ) -> ModelReply:
        """Make one attempt. Raises ModelError; cancelling closes the connection and ends the generation."""
        names = FunctionNames(request.tools)
        answer = Answer(on_delta, self._max_answer_bytes)
        try:
            dropped = await self._receive_without_refused(request, names, answer)
            reply = self._reply(request, answer, names, new_call_id)
            warnings = tuple(
                f"{self.name}:{request.model} does not take {name}: left out" for name in dropped
            )
            return msgspec.structs.replace(reply, warnings=warnings)
        except ModelError as error:
            error.restate(self._endpoint.describe(request.model, error.info))
            if answer.usage is not None:  # withheld or cut off, and paid for all the same
                error.usage = self._usage(request, answer)
            raise

    async def _receive_without_refused(
        self, request: ModelRequest, names: FunctionNames, answer: Answer
    ) -> list[str]:
        """Receive the answer; return the parameters that the provider refused and that were left out.

        Each is left out once: later calls of the model go without it. A limit of the answer never is, since
        a budget counts on it, and `extra` is sent as it stands.
        """
        refused = self._refused_parameters.setdefault(request.model, set())
        while True:
            kept = {name: value for name, value in request.parameters.items() if name not in refused}
            try:
                await self._receive(msgspec.structs.replace(request, parameters=kept), names, answer)
            except ModelError as error:
                name = error.refused_parameter
                if name is None or name not in kept or name in _LIMITS:
                    raise
                refused.add(name)
            else:
                return [name for name in request.parameters if name in refused]

    async def _receive(self, request: ModelRequest, names: FunctionNames, answer: Answer) -> None:
        body = encode_request(request, names, output_limit_key=self._output_limit_key)
        wait = self._wait(request.model)
        try:
            async with self._http.post(
                self._url, headers=self._headers(), body=body, first_byte_timeout=wait
            ) as response:
                if not 200 <= response.status < 300:
                    raise await self._refused(response)
                async with aclosing(_events(response, self._max_answer_bytes)) as events:
                    async for data in events:
                        self._take(answer, data)
                        if answer.done:
                            response.wind_up(_WIND_UP)
        except AnswerTooLarge as failure:
            raise faults.broken_answer(self.name, str(failure), partial=answer.text) from failure
        except HttpFailure as failure:
            if not answer.is_over:
                raise faults.from_http_failure(self.name, failure, partial=answer.text) from failure
        except (StreamTooLong, AnswerTooLong) as failure:
            raise faults.broken_answer(self.name, str(failure), partial=answer.text) from failure

    async def aclose(self) -> None:
        """Close the connections; idempotent."""
        await self._http.aclose()

    def _wait(self, model: str) -> float | None:
        """Seconds to the first byte."""
        if self._first_byte_timeout is not UNSET:
            return self._first_byte_timeout
        return None if self._is_local else self.profile(model).first_byte_timeout

    def _headers(self) -> dict[str, str]:
        headers = {"Content-Type": "application/json", "Accept": "text/event-stream, application/json"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        return headers | outgoing_headers()

    async def _refused(self, response: HttpResponse) -> ModelError:
        try:
            refusal = await response.error_body()
        except HttpFailure:
            refusal = b""  # the status says enough
        return faults.from_response(self.name, response.status, response.headers, refusal, secret=self._key)

    def _take(self, answer: Answer, data: bytes) -> None:
        if data.strip() == b"[DONE]":
            answer.done = True
            return
        try:
            chunk = decode_chunk(data)
        except (msgspec.DecodeError, ValueError) as failure:
            is_json = isinstance(failure, msgspec.DecodeError)
            found = undecodable(failure, Chunk) if is_json else str(failure)
            problem = faults.redact(f"the answer is not a chat completion: {found}", self._key)
            raise faults.broken_answer(self.name, problem, partial=answer.text) from None
        errors = (chunk.error, *(choice.error for choice in chunk.choices or ()))
        for error in errors:
            if error is not None:
                raise faults.from_stream(self.name, error, secret=self._key, partial=answer.text)
        answer.take(chunk)

    def _reply(
        self, request: ModelRequest, answer: Answer, names: FunctionNames, new_call_id: Callable[[], str]
    ) -> ModelReply:
        """Return the answer with its end. Raises ModelError for one that is withheld or failed."""
        if not answer.is_over:
            cut = HttpFailure("broken", "the stream ended before the answer did")
            raise faults.from_http_failure(self.name, cut, partial=answer.text)
        reason = answer.finish_reason
        end = end_of(reason)
        if end == "withheld":
            what = "the provider withheld the answer"
            raise faults.content_filtered(self.name, what, partial=answer.text, finish_reason=reason)
        if answer.refusal:
            what = "the model refused to answer"
            raise faults.content_filtered(self.name, what, partial=answer.refusal, finish_reason=reason)
        if end == "failed":
            raise faults.failed_answer(self.name, reason, answer.has_choice, partial=answer.text)
        whole = end == "complete"
        calls = tuple(
            ToolCall(
                id=new_call_id(),
                name=names.read(call.name),
                arguments=call.arguments or ("{}" if whole else ""),
                provider_id=call.id,
            )
            for call in answer.calls
        )
        return ModelReply(
            message=Message(role="assistant", content=answer.text, tool_calls=calls),
            finish_reason=("tool_calls" if calls else reason or "stop") if whole else "length",
            response_model=answer.model or request.model,
            end=end,
            provider_finish_reason=reason,
            response_id=answer.response_id,
            usage=self._usage(request, answer),
            first_token_ms=answer.first_token_ms,
        )

    def _usage(self, request: ModelRequest, answer: Answer) -> Usage:
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


async def _events(response: HttpResponse, max_bytes: int) -> AsyncGenerator[bytes]:
    """Yield the data of each event; a body that is no stream of events is one event.

    The first bytes tell the two apart, since not every server names the type of what it sends. Raises
    StreamTooLong and AnswerTooLarge.
    """
    declared = "text/event-stream" in response.headers.get("content-type", "").lower()
    decoder = EventDecoder(max_bytes)
    is_stream: bool | None = None
    body = bytearray()
    async with aclosing(response.chunks(max_bytes * _STREAM_OVERHEAD)) as chunks:
        async for chunk in chunks:
            if is_stream is None:
                body += chunk
                is_stream = is_event_stream(bytes(body[:_SNIFFED_BYTES]), declared)
                chunk = bytes(body) if is_stream else b""
            if is_stream:
                for data in decoder.feed(chunk):
                    yield data
            else:
                body += chunk
                if len(body) > max_bytes:
                    raise AnswerTooLarge(max_bytes)
    if is_stream is False or (is_stream is None and not declared):
        yield bytes(body).removeprefix(b"\xef\xbb\xbf")
