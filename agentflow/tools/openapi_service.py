"""Services of type `openapi`: the operations of a document (page 001 §1.4), by operationId or a made name."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

from agentflow.definition.diagnostics import Diagnostic, did_you_mean
from agentflow.definition.ir import ServiceSpec
from agentflow.definition.urls import address_problem
from agentflow.http import HttpFailure
from agentflow.threads import in_thread
from agentflow.tools.http_service import EFFECTS
from agentflow.tools.openapi_body import quoted
from agentflow.tools.openapi_operations import Operation, Operations, read_operations
from agentflow.tools.openapi_security import Scheme, credentials
from agentflow.tools.openapi_text import MAX_BYTES, BrokenDocument, parse_openapi
from agentflow.tools.path_template import BadArgument
from agentflow.tools.problems import (
    denied,
    is_included,
    missing_secrets,
    shortened,
    unavailable,
    unknown_functions,
)
from agentflow.tools.secrets import Values
from agentflow.tools.tool import Tool, ToolError, settled
from agentflow.tools.web import Request, WebService

__all__ = ["OpenApiService"]

_log = logging.getLogger("agentflow.tools")

_TAG = "tag:"
"""What stands before a tag in `include`."""

_FRESH = 60.0
"""Seconds for which a document that was fetched counts as what the server says now."""


class OpenApiService(WebService):
    """The document is read when the service is first opened, and again when its file has changed or, if it
    comes from a server, a minute has passed."""

    def __init__(self, name: str, spec: ServiceSpec, folder: Path | None, *, trusted: bool = True) -> None:
        super().__init__(name, spec, trusted=trusted)
        self._source = str(spec.options.get("document", ""))
        self._folder = folder
        self._credentials = Values(spec.options.get("security") or {})
        self._schemes: Mapping[str, Scheme | str] = {}
        self._operations: dict[str, Operation] = {}
        self._base = ""
        self._seen: object = None  # what the text was when it was read

    @property
    def _remote(self) -> bool:
        return self._source.startswith(("http://", "https://"))

    async def open(self) -> list[Diagnostic]:
        state = self._state()
        if state is None or state != self._seen:
            problems = await self._read()
            if problems:
                return problems
            self._seen = state
        problems = missing_secrets(self._credentials, "security")
        return problems + await self._check_access(
            self._base, "/base_url" if "base_url" in self.spec.options else ""
        )

    def _state(self) -> object:
        if self._remote:
            return int(time.monotonic() / _FRESH)
        try:
            status = self._file().stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size

    def _file(self) -> Path:
        return (self._folder or Path()) / self._source

    async def _read(self) -> list[Diagnostic]:
        try:
            text = await (self._fetched() if self._remote else self._from_file())
            headers: dict[str, Any] = self.spec.options.get("headers") or {}
            own = frozenset(name.lower() for name in headers)
            found, tools = await in_thread(partial(self._understood, text, own), f"read {self.name}")
            base = self._server(found)
        except BrokenDocument as broken:
            return [unavailable(self.name, shortened(f"{_shown(self._source)}: {broken}"), "/document")]
        except _Denied as refusal:
            return [denied(self.name, str(refusal), "/document")]
        if isinstance(base, Diagnostic):
            return [base]
        problems = self._unknown(found) + self._wrong_credentials(found)
        if not problems:
            self._schemes = found.schemes
            self._base = base.rstrip("/")
            self._operations, self.refused, self.tools = found.offered, found.refused, tools
            for operation, reason in found.refused.items():
                _log.info('service "%s" leaves out "%s": %s', self.name, operation, reason)
        return problems

    def _understood(self, text: bytes, own_headers: frozenset[str]) -> tuple[Operations, dict[str, Tool]]:
        """Return what the document describes, and what of it is wanted as tools; in a thread."""
        credentials = frozenset(self.spec.options.get("security") or ())
        found = read_operations(parse_openapi(text), own_headers, credentials)
        return found, {
            name: _tool(self.name, operation, self.spec)
            for name, operation in found.offered.items()
            if self._includes(operation)
        }

    def _includes(self, operation: Operation) -> bool:
        include = self.spec.include
        tagged = include is not None and any(_TAG + tag in include for tag in operation.tags)
        return tagged or is_included(operation.id, include)

    def _unknown(self, found: Operations) -> list[Diagnostic]:
        if not found.offered:
            reason = next((f"{name}: {why}" for name, why in found.refused.items()), None)
            text = "it offers no function" + (f" ({reason})" if reason else "")
            return [unavailable(self.name, text, "/document")]
        known = list(found.offered)
        problems = unknown_functions(self.name, list(self.spec.functions), known, found.refused)
        tags = {_TAG + tag for operation in found.offered.values() for tag in operation.tags}
        included = list(self.spec.include or ())
        return problems + unknown_functions(self.name, included, [*known, *tags], found.refused, "include")

    def _wrong_credentials(self, found: Operations) -> list[Diagnostic]:
        """E_SERVICE_UNAVAILABLE for a credential of no scheme, or of one that cannot be used."""
        problems: list[Diagnostic] = []
        for name in self.spec.options.get("security") or ():
            scheme = found.schemes.get(name)
            if scheme is None:
                text = f'its document has no security scheme "{name}"'
                hint = did_you_mean(name, found.schemes)
                problems.append(unavailable(self.name, text, f"/security/{_escaped(name)}", hint))
            elif isinstance(scheme, str):
                text = f'its security scheme "{name}": {scheme}'
                problems.append(unavailable(self.name, text, f"/security/{_escaped(name)}"))
        return problems

    def _server(self, found: Operations) -> str | Diagnostic:
        """Return where calls go. A document from elsewhere does not redirect this service's headers."""
        given: str | None = self.spec.options.get("base_url")
        if given is not None:
            return given
        if found.server is None and not self._remote:
            return unavailable(self.name, "its document names no server", "/document", "set base_url")
        url = urljoin(self._source, found.server or "/") if self._remote else str(found.server)
        wrong = address_problem(url)
        if wrong is not None:
            reason = f"the server of its document {wrong}"
            return unavailable(self.name, reason, "/document", "set base_url")
        has_secrets = self.spec.options.get("headers") or self.spec.options.get("security")
        if self._remote and has_secrets and _origin(url) != _origin(self._source):
            kept = "headers" if self.spec.options.get("headers") else "credentials"
            what = f"would send its {kept} to {urlsplit(url).hostname}, which only its document names"
            return denied(self.name, what, "/document", "set base_url if they may go there")
        return url

    async def _from_file(self) -> bytes:
        if not self._trusted:
            raise _Denied("reads a file, this submission may not")
        file = self._file()

        def read() -> bytes:
            with file.open("rb") as opened:
                return opened.read(MAX_BYTES + 1)

        try:
            text = await in_thread(read, f"read {self.name}")
        except OSError as error:
            raise BrokenDocument(f"it cannot be read ({error.strerror or type(error).__name__})") from None
        if len(text) > MAX_BYTES:
            raise BrokenDocument(f"it has more than {MAX_BYTES:,} bytes")
        return text

    async def _fetched(self) -> bytes:
        headers = {"accept": "application/json, application/yaml, */*;q=0.5", "accept-encoding": "identity"}
        try:
            async with self._client.request("GET", self._source, headers=headers) as response:
                if response.status != 200:
                    raise BrokenDocument(f"the server answered {response.status}")
                return await response.read(MAX_BYTES)
        except HttpFailure as failure:
            if failure.kind == "denied":
                raise _Denied(
                    f"has a private address, which this submission may not reach: {failure}"
                ) from None
            raise BrokenDocument(str(failure)) from None

    def _request(self, tool: Tool, arguments: dict[str, Any]) -> Request:
        operation = self._operations[tool.function]
        try:
            target, headers, body = operation.request(arguments)
        except BadArgument as bad:
            message = f"{tool.name}: {bad}"
            raise ToolError.of("invalid_input", "invalid_tool_input", message, executed=False) from None
        for scheme, sent in credentials(operation.security, self._schemes, self._credentials.resolve()):
            if scheme.where == "header":
                headers[scheme.name] = sent
            elif scheme.where == "cookie":
                cookie = f"{scheme.name}={quoted(sent)}"
                headers["cookie"] = f"{headers['cookie']}; {cookie}" if "cookie" in headers else cookie
            else:
                target += f"{'&' if '?' in target else '?'}{quoted(scheme.name)}={quoted(sent)}"
        return Request(operation.method, self._base + target, headers, body)

    def _mask(self, value: Any) -> Any:
        return self._credentials.mask(super()._mask(value))


class _Denied(Exception):
    """This submission may not have what it asks for."""


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


def _tool(service: str, operation: Operation, spec: ServiceSpec) -> Tool:
    side_effect, idempotent = EFFECTS.get(operation.method, (None, None))
    return Tool(
        service=service,
        function=operation.id,
        input_schema=operation.input_schema,
        **settled(
            spec,
            operation.id,
            side_effect=side_effect,
            idempotent=idempotent,
            description=operation.description,
        ),
    )


def _origin(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return parts.scheme, parts.netloc


def _shown(source: str) -> str:
    """Return the document's name, without a query, which may hold a key."""
    return source.partition("?")[0].rpartition("/")[2] or source.partition("?")[0]
