"""Artifacts that are URLs (page 004 §9): requests that cannot reach into the network of this machine.

Each connection, that of every redirect too, is made to an address that was checked in the moment before,
unless its host is allowed by the operator. A name is resolved once for each connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Final, NamedTuple
from urllib.parse import urljoin, urlsplit

from agentflow import __version__
from agentflow.http import AnswerTooLarge, HttpClient, HttpFailure, HttpResponse
from agentflow.pipeline.verification.findings import Content, Finding, failed, passed

__all__ = ["Probed", "UrlProber", "normal_url", "scheme_problem"]

TIMEOUT_S: Final = 10.0
TOTAL_S: Final = 240.0
"""Seconds for all URLs of one verification."""
BODY_LIMIT_BYTES: Final = 4 << 20
_MAX_REDIRECTS: Final = 5
_MAX_URL: Final = 8_192
_AT_ONCE: Final = 8
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_NO_HEAD: Final = frozenset({403, 405, 501})
_HEADERS: Final = {
    "accept": "*/*",
    "accept-encoding": "identity",
    "user-agent": f"agentflow/{__version__} verifier",
}


class Probed(NamedTuple):
    """What a URL answered. `content` is there if it was asked for and the URL passed."""

    checks: list[Finding]
    evidence: dict[str, Any] | None
    content: Content


class _Denied(Exception):
    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code


def scheme_problem(url: str) -> str | None:
    """Return why a URL is not requested at all: neither http nor https, credentials, or no host."""
    if len(url) > _MAX_URL or any(c.isspace() or ord(c) < 32 for c in url):
        return "it is no URL"
    try:
        parts = urlsplit(url)
        host, user, password = parts.hostname, parts.username, parts.password
        _ = parts.port
    except ValueError:
        return "it is no URL"
    if parts.scheme.lower() not in ("http", "https"):
        return "its scheme is neither http nor https"
    if user is not None or password is not None or "@" in parts.netloc:
        return "it holds credentials"
    return None if host else "it has no host"


def normal_url(url: str) -> str:
    """Return the form by which artifacts are matched: scheme and host in lower case, no default port, no
    fragment, `/` for an empty path."""
    if scheme_problem(url) is not None:
        return url.strip()
    parts = urlsplit(url)
    host = (parts.hostname or "").lower()
    host = f"[{host}]" if ":" in host else host
    default = {"http": 80, "https": 443}[parts.scheme.lower()]
    port = "" if parts.port in (None, default) else f":{parts.port}"
    query = f"?{parts.query}" if parts.query else ""
    return f"{parts.scheme.lower()}://{host}{port}{parts.path or '/'}{query}"


class UrlProber:
    """Asks URLs, each once, 8 at a time. `allowed`: hosts that may have a private address."""

    def __init__(self, allowed: Iterable[str] = ()) -> None:
        self._client = HttpClient(first_byte_timeout=TIMEOUT_S, public_only=True, allowed=allowed)
        self._turn = asyncio.Semaphore(_AT_ONCE)
        self._end: float | None = None

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def probe(self, url: str, *, body: bool = False) -> Probed:
        """Return what a URL answers to HEAD, or to GET after 403, 405, 501 or if its `body` is wanted."""
        if self._end is None:
            self._end = asyncio.get_running_loop().time() + TOTAL_S
        try:
            async with asyncio.timeout_at(self._end), self._turn:
                return await self._probe(url, body)
        except _Denied as denied:
            code, why = denied.code, str(denied)
        except TimeoutError:
            code, why = "url_unreachable", f"not asked within {TOTAL_S:g} s for all URLs"
        return Probed([failed("url", code, why)], None, Content(exists=False, why=why))

    async def _probe(self, url: str, body: bool) -> Probed:
        method = "GET" if body else "HEAD"
        while True:
            final, status, address, content = await self._follow(method, url, body)
            if method == "HEAD" and status in _NO_HEAD:
                method = "GET"
                continue
            break
        evidence = {"final_url": final, "status": status, "address": address}
        if not 200 <= status < 300:
            return Probed([failed("status", "url_status", f"HTTP {status}")], evidence, content)
        return Probed([passed("status")], evidence, content)

    async def _follow(self, method: str, url: str, body: bool) -> tuple[str, int, str | None, Content]:
        for _ in range(_MAX_REDIRECTS + 1):
            problem = scheme_problem(url)
            if problem is not None:
                raise _Denied("url_scheme", problem)
            try:
                async with asyncio.timeout(TIMEOUT_S):
                    async with self._client.request(method, url, headers=_HEADERS) as response:
                        target = response.headers.get("location")
                        if response.status in _REDIRECTS and target:
                            url = urljoin(url, target)
                            continue
                        content = await _content(response, body)
                        return url, response.status, response.address, content
            except HttpFailure as failure:
                code = "url_host_denied" if failure.kind == "denied" else "url_unreachable"
                raise _Denied(code, _told(failure)) from None
            except (TimeoutError, ValueError, UnicodeError):
                raise _Denied("url_unreachable", f"no answer within {TIMEOUT_S:g} s") from None
        raise _Denied("url_unreachable", f"more than {_MAX_REDIRECTS} redirects")


async def _content(response: HttpResponse, body: bool) -> Content:
    exists = 200 <= response.status < 300
    if not body or not exists:
        return Content(exists=exists, why="its body was not read")
    try:
        data = await response.read(BODY_LIMIT_BYTES)
    except AnswerTooLarge:
        return Content(exists=True, why=f"it has more than {BODY_LIMIT_BYTES:,} bytes")
    import hashlib

    return Content(exists=True, size=len(data), sha256=hashlib.sha256(data).hexdigest(), body=data)


def _told(failure: HttpFailure) -> str:
    """Return why no answer came. An address inside the network is not named: the report may leave it."""
    return "its address is not public" if failure.kind == "denied" else str(failure)
