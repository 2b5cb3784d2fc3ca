"""Traffic of providers, recorded once and played back: tests of real answers without a network.

A cassette is a YAML file that a person can read. It holds no headers of requests, no cookies, nothing that
looks like a key and no secret that this process knows.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import AsyncGenerator, Collection, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final, Literal, cast

import msgspec
import yaml

from agentflow import known_secrets
from agentflow.definition.failure import ErrorInfo
from agentflow.models.base import ModelError
from agentflow.models.faults import KEY_LIKE
from agentflow.models.http import AnswerTooLarge, HttpClient, HttpFailure
from agentflow.models.traffic import ModelResponse, intercept

__all__ = ["Cassette", "cassette"]

_KEPT_HEADERS: Final = frozenset({"content-type", "retry-after", "retry-after-ms"})
_KEPT_PREFIXES: Final = ("x-ratelimit-", "anthropic-ratelimit-")
_SENSITIVE: Final = re.compile(r"api_?key|token$|password|secret|authorization|cookie", re.IGNORECASE)
_REMOVED: Final = "[removed]"
_OTHER_BREAKS: Final = re.compile("[\x85\u2028\u2029]")
_DIFF_LINES: Final = 40


class Cassette:
    """Recorded exchanges. Each answers one equal request; the first that is left does."""

    def __init__(self, path: Path, fields: Collection[str], records: bool) -> None:
        self.path = path
        self.misses: list[str] = []
        self._fields = frozenset(fields)
        self._records = records
        self._exchanges: list[dict[str, Any]] = [] if records else _read(path)
        self._left = list(self._exchanges)

    @property
    def played(self) -> int:
        """How many exchanges were played back."""
        return len(self._exchanges) - len(self._left)

    @asynccontextmanager
    async def exchange(
        self, http: HttpClient, url: str, headers: Mapping[str, str], body: bytes, wait: float | None
    ) -> AsyncGenerator[ModelResponse]:
        """Answer a request from the cassette, or send it and record the answer."""
        request = {"url": self._clean_url(url), "body": self._clean(msgspec.json.decode(body))}
        if not self._records:
            yield self._play(request)
            return
        recording: _Recording | None = None
        try:
            async with http.post(url, headers=headers, body=body, first_byte_timeout=wait) as response:
                recording = _Recording(response)
                yield recording
        except ModelError:  # a refusal, which is an answer too
            self._keep(request, recording)
            raise
        except HttpFailure as failure:  # what a retry follows
            self._keep(request, recording, failure)
            raise
        self._keep(request, recording)

    def _keep(
        self, request: dict[str, Any], recording: _Recording | None, failure: HttpFailure | None = None
    ) -> None:
        answer: dict[str, Any] = {}
        if recording is not None:
            headers = {name.lower(): value for name, value in recording.headers.items()}
            kept = {name: self._clean_text(value) for name, value in headers.items() if _is_kept(name)}
            text = self._clean_text(recording.body.decode("utf-8", "replace"))
            answer = {"status": recording.status, "headers": kept, "body": text}
        if failure is not None:
            said = self._clean_text(str(failure))
            answer["failure"] = {"kind": failure.kind, "message": said, "sent": failure.sent}
        self._exchanges.append({"request": request, "response": answer})

    def save(self) -> None:
        """Write what was recorded."""
        if self._records:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_text(_write(self._exchanges), encoding="utf-8")

    def _play(self, request: dict[str, Any]) -> ModelResponse:
        for exchange in self._left:
            if exchange["request"] == request:
                self._left.remove(exchange)
                answer = exchange["response"]
                if "status" not in answer:
                    raise _failure(answer)
                return _Played(answer)
        problem = self._nearest(request)
        self.misses.append(problem)
        raise ModelError(ErrorInfo(category="invalid_input", code="cassette_miss", message=problem))

    def _nearest(self, request: dict[str, Any]) -> str:
        wanted = _write(request).splitlines()
        known = [_write(exchange["request"]).splitlines() for exchange in self._left]
        if not known:
            return f"{self.path.name} has no exchange left for a request to {request['url']}"
        nearest = max(known, key=lambda lines: difflib.SequenceMatcher(None, lines, wanted).ratio())
        names = "nearest request of the cassette", "this request"
        lines = list(difflib.unified_diff(nearest, wanted, *names, lineterm="", n=1))
        return f"{self.path.name} knows no such request:\n" + "\n".join(lines[:_DIFF_LINES])

    def _clean_url(self, url: str) -> str:
        """Return the URL without credentials and without the values of its query, which may be keys."""
        bare = re.sub(r"//[^/@]*@", "//", url)
        return re.sub(r"([?&](?:key|api_key|token)=)[^&]*", rf"\1{_REMOVED}", bare)

    def _clean(self, value: Any, name: str = "") -> Any:
        if name and (name in self._fields or (_SENSITIVE.search(name) and isinstance(value, str))):
            return _REMOVED
        if isinstance(value, dict):
            return {key: self._clean(one, key) for key, one in cast("dict[str, Any]", value).items()}
        if isinstance(value, list):
            return [self._clean(one) for one in cast("list[Any]", value)]
        return self._clean_text(value) if isinstance(value, str) else value

    def _clean_text(self, text: str) -> str:
        for name in self._fields:
            pattern = rf'("{re.escape(name)}"\s*:\s*)("(?:[^"\\]|\\.)*"|[^,}}\]\s]+)'
            text = re.sub(pattern, rf'\1"{_REMOVED}"', text)
        return KEY_LIKE.sub(_REMOVED, known_secrets.hide(text))


class _Recording:
    """An answer whose bytes are kept as they are read."""

    def __init__(self, response: ModelResponse) -> None:
        self._response = response
        self.status = response.status
        self.headers = response.headers
        self.body = bytearray()

    async def chunks(self, limit: int | None = None) -> AsyncGenerator[bytes]:
        async for chunk in self._response.chunks(limit):
            self.body += chunk
            yield chunk

    def wind_up(self, grace: float) -> None:
        self._response.wind_up(grace)

    async def error_body(self) -> bytes:
        self.body += (body := await self._response.error_body())
        return body


class _Played:
    """A recorded answer."""

    def __init__(self, recorded: dict[str, Any]) -> None:
        self.status: int = recorded["status"]
        self.headers: Mapping[str, str] = recorded["headers"]
        self._body = str(recorded["body"]).encode()
        self._failure = _failure(recorded) if "failure" in recorded else None

    async def chunks(self, limit: int | None = None) -> AsyncGenerator[bytes]:
        if limit is not None and len(self._body) > limit:
            raise AnswerTooLarge(limit)
        yield self._body
        if self._failure is not None:
            raise self._failure

    def wind_up(self, grace: float) -> None:
        pass

    async def error_body(self) -> bytes:
        return self._body


def _failure(recorded: dict[str, Any]) -> HttpFailure:
    said = recorded["failure"]
    return HttpFailure(said["kind"], said["message"], sent=said["sent"])


@contextmanager
def cassette(
    path: str | Path, *, mode: Literal["once", "play", "record"] = "once", fields: Collection[str] = ()
) -> Generator[Cassette]:
    """Play the traffic of all model adapters of this process from a file, or record it there.

    `once` records if there is no file yet and plays otherwise. `fields` are names of members whose values are
    removed, from requests and from answers, beside secrets, keys and tokens. A request that the cassette does
    not know fails its call with `cassette_miss` and, at the end of the block, raises AssertionError with the
    nearest recorded request.
    """
    path = Path(path)
    tape = Cassette(path, fields, mode == "record" or (mode == "once" and not path.exists()))
    intercept(tape)
    try:
        yield tape
    finally:
        intercept(None)
    tape.save()
    if tape.misses:
        raise AssertionError("\n".join(tape.misses))


def _is_kept(name: str) -> bool:
    return name in _KEPT_HEADERS or name.startswith(_KEPT_PREFIXES)


def _read(path: Path) -> list[dict[str, Any]]:
    with path.open(encoding="utf-8") as stream:
        return yaml.safe_load(stream) or []


class _Dumper(yaml.SafeDumper):
    """Texts of several lines as blocks."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    # YAML reads the other breaks of a line as a line feed, unless they are escaped.
    style = '"' if _OTHER_BREAKS.search(text) else "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)  # pyright: ignore[reportUnknownMemberType]


_Dumper.add_representer(str, _text)


def _write(value: Any) -> str:
    return yaml.dump(value, Dumper=_Dumper, allow_unicode=True, sort_keys=False, width=100)
