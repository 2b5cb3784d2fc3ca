"""What all adapters over HTTP share: one streamed request, its limits of time and size, its failures.

One attempt per call, always streamed. It must never retry (the caller owns retries) and never let the key
into an error, a log or `repr`. What a wire format says is the subclass's: how a request is written, and how
the events of its answer are read.
"""

from __future__ import annotations

import asyncio
import hashlib
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any, Final, Protocol, TypedDict, TypeVar
from urllib.parse import urlsplit, urlunsplit

import msgspec
from msgspec import UNSET, UnsetType

from agentflow import known_secrets
from agentflow.definition.conversation import Usage
from agentflow.errors import ConfigurationError
from agentflow.events.tracing import outgoing_headers
from agentflow.logs import get_logger
from agentflow.models import faults
from agentflow.models.accumulator import MAX_ANSWER_BYTES, AnswerTooLong
from agentflow.models.base import (
    DeltaSink,
    ModelError,
    ModelProfile,
    ModelReply,
    ModelRequest,
    SchemaMode,
)
from agentflow.models.endpoint import Endpoint
from agentflow.models.function_names import FunctionNames
from agentflow.models.http import AnswerTooLarge, HttpClient, HttpFailure
from agentflow.models.output_schemas import schema_mode, shape_request
from agentflow.models.rate_limits import RateLimits, ReportedLimit
from agentflow.models.refused_parts import RefusedParts
from agentflow.models.sse import EventDecoder, StreamTooLong, is_event_stream
from agentflow.models.table import known_profile
from agentflow.models.tool_choice import answer_function
from agentflow.models.traffic import ModelResponse, send
from agentflow.models.waits import reported_limits

__all__ = ["ProviderOptions", "StreamedAnswer", "StreamedProvider"]

_WIND_UP: Final = 1.0
_BYTE_TIMEOUT: Final = 60.0
_STREAM_OVERHEAD: Final = 4
"""A stream may have this many times the bytes of the answer in it: each token comes in a chunk of its own."""
_SNIFFED_BYTES: Final = 1024
_NO_LIMITS: Final = RateLimits()
_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
A = TypeVar("A")

_log = get_logger("agentflow.models")


class ProviderOptions(TypedDict, total=False):
    """The arguments that all providers over HTTP take; StreamedProvider says what they mean."""

    max_concurrency: int
    rate_limits: RateLimits
    first_byte_timeout: float | UnsetType | None
    byte_timeout: float | None
    max_answer_bytes: int
    loopback: bool
    settings: tuple[str, str]
    profiles: Callable[[str], ModelProfile] | None
    key_header: str | None


class StreamedAnswer(Protocol):
    """An answer as the events of its stream arrive."""

    @property
    def text(self) -> str:
        """The text that has arrived."""
        ...

    @property
    def done(self) -> bool:
        """Whether no event can follow that changes the answer."""
        ...

    @property
    def is_over(self) -> bool:
        """Whether the server said that no more of the answer comes, and then sent no more of it."""
        ...

    @property
    def counted(self) -> Usage | None:
        """The tokens that the server counted, without a cost; None if it counted nothing."""
        ...

    def take(self, data: bytes) -> None:
        """Add the data of one event. Raises ModelError for an event that says an error or is none of the
        wire format, and AnswerTooLong."""
        ...

    def reply(self, new_call_id: Callable[[], str]) -> ModelReply:
        """Return the answer with its end. Raises ModelError for one that is withheld or failed."""
        ...


class StreamedProvider(ABC):
    """A provider over one base URL and an optional key.

    Credentials inside the base URL are sent (as Basic) if there is no key; with one they are left out, since
    a request has one Authorization, and a warning says so.

    At most `max_concurrency` calls are open at once, and what is sent stays within `rate_limits`; all
    providers with the same key share both. `first_byte_timeout` is seconds, None is no limit; without it
    that of the model's profile holds, and none for a server on this machine. `byte_timeout` is that between
    two bytes. `max_answer_bytes` bounds one event, and the text and arguments of an answer, after
    decompression. `loopback` is for a server that this process started itself. `settings` are the names of
    base URL and key that errors tell the user to look at. `profiles` replaces the table of models.
    `key_header` shows the key instead of the wire format's header. Raises ConfigurationError for a base URL
    or a key that is none.
    """

    kind: str
    """The wire format, as configuration and the table of models name it."""
    official_url: str
    """The base URL of the service that the wire format is of."""
    parameters: tuple[str, ...] = ()
    """Those that the API has, for models whose entry names none."""

    def __init__(
        self,
        *,
        base_url: str,
        api_key: str | None = None,
        name: str,
        max_concurrency: int = 8,
        rate_limits: RateLimits = _NO_LIMITS,
        first_byte_timeout: float | UnsetType | None = UNSET,
        byte_timeout: float | None = _BYTE_TIMEOUT,
        max_answer_bytes: int = MAX_ANSWER_BYTES,
        loopback: bool = False,
        settings: tuple[str, str] = ("the argument base_url", "the argument api_key"),
        profiles: Callable[[str], ModelProfile] | None = None,
        key_header: str | None = None,
    ) -> None:
        base_url = base_url.rstrip("/")
        url_setting, key_setting = ("", "") if loopback else settings
        if urlsplit(base_url).scheme not in ("http", "https") or not urlsplit(base_url).hostname:
            raise ConfigurationError(f"{settings[0]} must be an http:// or https:// URL")
        if api_key is not None and (not api_key.isascii() or not api_key.isprintable()):
            raise ConfigurationError(f"the key of the provider {name} must be printable ASCII")
        known_secrets.add(api_key, *known_secrets.url_secrets(base_url))
        base_url = _without_rival(base_url, api_key, settings)
        self.name = name
        self.max_concurrency = max_concurrency
        self.rate_limits = rate_limits
        digest = hashlib.sha256(f"{base_url}\n{api_key or ''}".encode()).hexdigest()[:16]
        self.limiter_key = f"{name}:{digest}"
        self._endpoint = Endpoint(name, base_url, url_setting, key_setting, bool(api_key), self.kind)
        self._base_url = base_url
        self._key = api_key
        self._is_local = loopback or urlsplit(base_url).hostname in _LOOPBACK
        self._is_own = loopback
        self._first_byte_timeout = first_byte_timeout
        self._max_answer_bytes = max_answer_bytes
        self._refused_parts: dict[str, RefusedParts] = {}  # by model
        self._profiles = profiles
        self._key_header = key_header
        self._http = HttpClient(byte_timeout=byte_timeout, loopback=loopback, resend_stale=True)

    @property
    def address(self) -> str:
        """Host and port of the server."""
        return self._endpoint.address

    def profile(self, model: str) -> ModelProfile:
        """Return the entry of the table of models, of this provider or of its wire format; any other model is
        taken to call functions and answer by schema, and is unpriced, as is one at another address than the
        service's own."""
        if self._profiles is not None:
            found = self._profiles(model)
        else:
            is_official = self._base_url == self.official_url
            found = known_profile(self.name, model, self.kind, official=is_official)
        if found.parameters or not self.parameters:
            return found
        return msgspec.structs.replace(found, parameters=self.parameters)

    async def complete(
        self,
        request: ModelRequest,
        *,
        new_call_id: Callable[[], str],
        on_delta: DeltaSink | None = None,
    ) -> ModelReply:
        """Make one attempt. Raises ModelError; cancelling closes the connection and ends the generation."""
        known = self._refused_parts.setdefault(request.model, RefusedParts())
        refused = known.copy()
        while True:
            profile, kept = refused.adapt_profile(self.profile(request.model)), refused.leave_out(request)
            mode = self._schema_mode(kept, profile)
            shaped = shape_request(kept, mode)
            names = FunctionNames(shaped.tools)
            answer = self._new_answer(shaped, names, on_delta)
            try:
                limits = await self._receive(shaped, profile, names, answer)
                reply = answer.reply(new_call_id)
                known.adopt(refused)
                break
            except ModelError as error:
                if refused.learn(kept, profile, mode, error):
                    continue
                error.restate(self._endpoint.describe(request.model, error.info))
                if answer.counted is not None:  # withheld or cut off, and paid for all the same
                    error.usage = self._priced(request.model, answer.counted)
                raise
        model = f"{self.name}:{request.model}"
        warnings = tuple(f"{model} does not take {what}" for what in refused.warnings(request, mode))
        usage = answer.counted
        return msgspec.structs.replace(
            reply,
            usage=reply.usage if usage is None else self._priced(request.model, usage),
            warnings=(*reply.warnings, *warnings),
            limits=limits,
        )

    async def aclose(self) -> None:
        """Close the connections; idempotent."""
        await self._http.aclose()

    @abstractmethod
    def _url(self, model: str) -> str:
        """Return where a request for the model goes."""

    @abstractmethod
    def _authorization(self) -> dict[str, str]:
        """Return the headers that show the key, and those that the wire format always has."""

    def _schema_mode(self, request: ModelRequest, profile: ModelProfile) -> SchemaMode | None:
        """Return how the model is asked to answer by the schema of the request; None without one."""
        return schema_mode(request, profile)

    @abstractmethod
    def _encode(self, request: ModelRequest, profile: ModelProfile, names: FunctionNames) -> bytes:
        """Return the JSON body. A schema that the request has is asked for by the provider's own means."""

    @abstractmethod
    def _new_answer(
        self, request: ModelRequest, names: FunctionNames, on_delta: DeltaSink | None
    ) -> StreamedAnswer:
        """Return an answer of which nothing has arrived."""

    def _wire_answer(
        self,
        kind: Callable[..., A],
        request: ModelRequest,
        names: FunctionNames,
        on_delta: DeltaSink | None,
        **more: Any,
    ) -> A:
        """Return a WireAnswer of which nothing has arrived."""
        answer = answer_function(request)
        return kind(
            self.name,
            request.model,
            names,
            on_delta,
            self._max_answer_bytes,
            key=self._key,
            answer_function=answer and names.write(answer),
            **more,
        )

    async def _receive(
        self, request: ModelRequest, profile: ModelProfile, names: FunctionNames, answer: StreamedAnswer
    ) -> tuple[ReportedLimit, ...]:
        body = self._encode(profile.without_refused_media(request), profile, names)
        limits: tuple[ReportedLimit, ...] = ()
        now = asyncio.get_running_loop().time
        reported_at = now()
        wait = self._wait(request.model)
        try:
            async with send(
                self._http,
                self._url(request.model),
                provider=self.name,
                headers=self._headers(),
                body=body,
                wait=wait,
                loopback=self._is_own,
            ) as response:
                if not 200 <= response.status < 300:
                    raise await self._refused(response)
                limits, reported_at = reported_limits(response.headers), now()
                async with aclosing(_events(response, self._max_answer_bytes)) as events:
                    async for data in events:
                        # Some servers keep a connection by events without data, and what is sent behind
                        # the end is no part of the answer.
                        if not answer.done and data.strip():
                            answer.take(data)
                        if answer.done:
                            response.wind_up(_WIND_UP)
        except AnswerTooLarge as failure:
            raise faults.broken_answer(self.name, str(failure), partial=answer.text) from failure
        except HttpFailure as failure:
            if not answer.is_over:
                raise faults.from_http_failure(self.name, failure, partial=answer.text) from failure
        except (StreamTooLong, AnswerTooLong) as failure:
            raise faults.broken_answer(self.name, str(failure), partial=answer.text) from failure
        since = now() - reported_at  # the headers come before the stream
        return tuple(
            msgspec.structs.replace(limit, resets_after=limit.resets_after - since) for limit in limits
        )

    def _wait(self, model: str) -> float | None:
        """Return for how many seconds the first byte is waited for; None is without limit."""
        if self._first_byte_timeout is not UNSET:
            return self._first_byte_timeout
        return None if self._is_local else self.profile(model).first_byte_timeout

    def _headers(self) -> dict[str, str]:
        headers = {"Content-Type": "application/json", "Accept": "text/event-stream, application/json"}
        shown = self._authorization()
        if self._key_header is not None and self._key:
            shown = {name: value for name, value in shown.items() if self._key not in value}
            shown[self._key_header] = self._key
        return headers | shown | outgoing_headers()

    async def _refused(self, response: ModelResponse) -> ModelError:
        try:
            refusal = await response.error_body()
        except HttpFailure:
            refusal = b""  # the status says enough
        return faults.from_response(self.name, response.status, response.headers, refusal, secret=self._key)

    def _priced(self, model: str, usage: Usage) -> Usage:
        return msgspec.structs.replace(usage, cost_usd=self.profile(model).cost(usage))


def _without_rival(base_url: str, api_key: str | None, settings: tuple[str, str]) -> str:
    """Return the base URL, without its credentials if there is a key."""
    parts = urlsplit(base_url)
    if api_key is None or "@" not in parts.netloc:
        return base_url
    url_setting, key_setting = settings
    _log.warning(
        "base_url_credentials_ignored",
        host=parts.hostname,
        hint=f"{key_setting} is sent; take the credentials out of {url_setting}, or unset the key",
    )
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


async def _events(response: ModelResponse, max_bytes: int) -> AsyncGenerator[bytes]:
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
