"""Base of services over HTTP: one request, its answer as JSON or text, every failure as data.

Errors are classed by where the exchange stopped and by status, never by what a text says (page 000 §9). What
a server says of its refusal is shown to the agent, without the service's secrets.
"""

from __future__ import annotations

import base64
import re
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, cast
from urllib.parse import urljoin, urlsplit

import msgspec

from agentflow import __version__
from agentflow.addresses import PrivateAddress, check_host
from agentflow.definition.diagnostics import Diagnostic
from agentflow.definition.failure import Category
from agentflow.definition.ir import ServiceSpec, canonical_json
from agentflow.definition.redaction import redact
from agentflow.http import AnswerTooLarge, HttpClient, HttpFailure, HttpResponse, retry_after
from agentflow.json_numbers import costly_numbers
from agentflow.tools.output import checked_output
from agentflow.tools.problems import denied, missing_secrets, shortened
from agentflow.tools.secrets import MissingSecret, Values
from agentflow.tools.service import Service
from agentflow.tools.tool import Tool, ToolContext, ToolError

__all__ = ["Request", "WebService", "classify", "context_header"]

_MAX_CONTEXT: Final = 8 << 10
_MAX_REDIRECTS: Final = 5
_MAX_QUOTED: Final = 4 << 10
_JSON: Final = re.compile(r"^(application|text)/([\w.+-]+\+)?json$")
_BODILESS: Final = frozenset({"GET", "HEAD"})


class Request(NamedTuple):
    """A request of one call. `headers` are those that its arguments make."""

    method: str
    url: str
    headers: Mapping[str, str] = {}
    body: bytes | None = None


class WebService(Service):
    """Functions that are requests to one server. Not `trusted`: only to public addresses."""

    def __init__(self, name: str, spec: ServiceSpec, *, trusted: bool) -> None:
        super().__init__(name, spec, {})
        self._trusted = trusted
        self._values = Values(spec.options.get("headers") or {})
        self._client = HttpClient(first_byte_timeout=None, public_only=not trusted)

    def _identify(self) -> tuple[Any, ...]:
        return (self.name, canonical_json(self.spec), id(self))

    @abstractmethod
    def _request(self, tool: Tool, arguments: dict[str, Any]) -> Request:
        """Return the request of a call. Raises ToolError for arguments that make none, MissingSecret."""

    async def call(self, tool: Tool, arguments: dict[str, Any], ctx: ToolContext) -> Any:
        try:
            request = self._request(tool, arguments)
            headers = self._headers(request, ctx)
        except MissingSecret as missing:
            message = f"{tool.name}: {missing}"
            raise ToolError.of("policy", "secret_not_set", message, executed=False) from None
        try:
            return await checked_output(tool, self._mask(await self._exchange(tool, request, headers)))
        except HttpFailure as failure:
            raise self._failed(tool, failure) from None

    async def aclose(self) -> None:
        await self._client.aclose()

    # -- the request ----------------------------------------------------------------------------

    def _headers(self, request: Request, ctx: ToolContext) -> dict[str, str]:
        """Return the headers: what the document says wins over what arguments make; neither over what the
        call is."""
        headers = {
            "accept": "application/json, text/*;q=0.9, */*;q=0.1",
            # A limit on compressed bytes would be none.
            "accept-encoding": "identity",
            "user-agent": f"agentflow/{__version__}",
        }
        if request.body is not None:
            headers["content-type"] = "application/json"
        headers |= {name.lower(): value for name, value in request.headers.items()}
        headers |= {name.lower(): value for name, value in self._values.resolve().items()}
        headers["idempotency-key"] = ctx.idempotency_key
        if ctx.traceparent is not None:
            headers["traceparent"] = ctx.traceparent
        if ctx.tracestate is not None:
            headers["tracestate"] = ctx.tracestate
        if self.spec.send_context and ctx.context is not None:
            headers["agentflow-context"] = context_header(ctx.context)
        return headers

    async def _exchange(self, tool: Tool, request: Request, headers: dict[str, str]) -> Any:
        for _ in range(_MAX_REDIRECTS + 1):
            method, url, _, body = request
            async with self._client.request(method, url, headers=headers, body=body) as response:
                if response.status in (301, 302, 303, 307, 308):
                    request = self._redirected(tool, request, response)
                    continue
                if not 200 <= response.status < 300:
                    raise await self._refused(tool, response)
                return await _content(tool, response, method)
        raise ToolError.of("tool", "tool_execution_failed", f"{tool.name}: the server redirects for ever")

    def _redirected(self, tool: Tool, request: Request, response: HttpResponse) -> Request:
        """Return the next request: to the same origin only, since everything in it was meant for that one."""
        target = urljoin(request.url, response.headers.get("location", ""))
        parts, before = urlsplit(target), urlsplit(request.url)
        same = (parts.scheme, parts.netloc) == (before.scheme, before.netloc)
        keeps = response.status in (307, 308) or request.method in _BODILESS
        if same and keeps:
            return request._replace(url=target)
        if same and response.status == 303:
            return request._replace(url=target, method="GET", body=None)
        where = "elsewhere" if not same else "with another method"
        message = f"{tool.name}: the server answered {response.status} and redirects {where}: not followed"
        raise ToolError.of("tool", "tool_execution_failed", message, http_status=response.status)

    def _mask(self, value: Any) -> Any:
        """Return a text or a JSON value without the secrets of the service."""
        return self._values.mask(value)

    # -- failures -------------------------------------------------------------------------------

    def _failed(self, tool: Tool, failure: HttpFailure) -> ToolError:
        message = self._mask(f"{tool.name}: {failure}")
        if isinstance(failure, AnswerTooLarge):
            return ToolError.of("tool", "invalid_tool_output", message)
        if failure.kind == "denied":
            return ToolError.of("policy", "service_denied", message, executed=False)
        return ToolError.of(
            "transient", "network_error", message, executed=failure.sent, unknown=failure.sent
        )

    async def _refused(self, tool: Tool, response: HttpResponse) -> ToolError:
        category, code = classify(response.status)
        wait = retry_after(response.headers) if category in ("rate_limited", "transient") else None
        try:
            body = await response.error_body()
        except HttpFailure:
            body = b""
        said, details = _reason(body, response.headers.get("content-type", ""))
        said = shortened(self._mask(said))
        message = f"{tool.name}: HTTP {response.status}" + (f": {said}" if said else "")
        more: dict[str, Any] = {"details": redact(self._mask(details))} if details else {}
        if wait is not None:
            more["details"] = {**more.get("details", {}), "retry_after_s": wait}
        return ToolError.of(
            category,
            code,
            message,
            # A gateway that lost its upstream does not know what the upstream did.
            unknown=response.status in (502, 504),
            retry_after=wait,
            http_status=response.status,
            **more,
        )

    # -- opening --------------------------------------------------------------------------------

    async def _check_access(self, url: str, key: str) -> list[Diagnostic]:
        """Return E_SERVICE_DENIED for a secret that is not set, and for an address that this submission may
        not reach. Addresses are checked again for each connection."""
        problems = missing_secrets(self._values, "headers")
        parts = urlsplit(url)
        if not self._trusted and parts.hostname:
            try:
                await check_host(parts.hostname, parts.port or (443 if parts.scheme == "https" else 80))
            except PrivateAddress as private:
                reason = f"has a private address, which this submission may not reach: {private}"
                problems.append(denied(self.name, reason, key))
            except OSError:
                pass  # whether it can be reached shows when it is called
        return problems


def context_header(context: Any) -> str:
    """Return the value of `Agentflow-Context`: base64url (RFC 4648 §5, no padding) of compact JSON.

    Raises ToolError when it has more than 8 KiB.
    """
    value = base64.urlsafe_b64encode(msgspec.json.encode(context)).rstrip(b"=")
    if len(value) > _MAX_CONTEXT:
        message = (
            f"the agent's context makes a header of {len(value):,} bytes, the limit is {_MAX_CONTEXT:,}; "
            "shorten it, or set send_context: false for the service"
        )
        raise ToolError.of("invalid_input", "context_too_large", message, executed=False)
    return value.decode()


def classify(status: int) -> tuple[Category, str]:
    """Return category and code of a refusal by its HTTP status (page 000 §9)."""
    if status == 429:
        return "rate_limited", "rate_limited"
    if status == 408 or status >= 500:
        return "transient", "server_error"
    if status in (401, 403):
        return "auth", "authentication_failed"
    if status == 402:
        return "quota", "insufficient_quota"
    if 400 <= status < 500:
        return "invalid_input", "not_found" if status in (404, 410) else "invalid_request"
    return "tool", "tool_execution_failed"


async def _content(tool: Tool, response: HttpResponse, method: str) -> Any:
    """Return the body of an answer: JSON if it says so, else text; None if there is none."""
    body = await response.read(tool.max_output_bytes) if method != "HEAD" else b""
    if not body.strip():
        return None
    kind, _, parameters = response.headers.get("content-type", "").partition(";")
    if _JSON.match(kind.strip().lower()):
        costly = costly_numbers(body)
        if costly is not None:
            message = f"{tool.name}: the answer holds {costly}, which take too long to read"
            raise ToolError.of("tool", "invalid_tool_output", message)
        try:
            return msgspec.json.decode(body.removeprefix(b"\xef\xbb\xbf"))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            message = f"{tool.name}: the answer says that it is JSON, and is not: {error}"
            raise ToolError.of("tool", "invalid_tool_output", message) from None
    charset = re.search(r'charset\s*=\s*"?([\w.:-]+)', parameters, re.IGNORECASE)
    try:
        return body.decode(charset[1] if charset else "utf-8-sig")
    except (UnicodeDecodeError, LookupError):
        message = f"{tool.name}: the answer is {kind.strip() or 'binary'}, neither JSON nor text"
        raise ToolError.of("tool", "invalid_tool_output", message) from None


def _reason(body: bytes, content_type: str) -> tuple[str, dict[str, Any]]:
    """Return what the server says of its refusal, and the whole body if it is a short JSON object."""
    if not _JSON.match(content_type.partition(";")[0].strip().lower()):
        text = body.decode("utf-8", "replace") if content_type.startswith("text/plain") else ""
        return text, {}
    try:
        said = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return "", {}
    if not isinstance(said, dict):
        return said if isinstance(said, str) else "", {}
    members = cast("dict[str, Any]", said)
    inner = members.get("error")
    places = (members, cast("dict[str, Any]", inner)) if isinstance(inner, dict) else (members,)
    texts = (place.get(key) for place in places for key in ("detail", "message", "title", "error"))
    text = next((t for t in texts if isinstance(t, str) and t), "")
    return text, {"body": members} if len(body) <= _MAX_QUOTED else {}
