"""Services of type `mcp`: the tools of a Model Context Protocol server (page 001 §1.4).

What a server says of a tool (`readOnlyHint` and the like) is a hint: it never makes a call repeatable or free
of consent unless the document says `trust_hints: true`, and what the document says of a function wins.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

from agentflow.addresses import PrivateAddress, check_host
from agentflow.definition.diagnostics import Diagnostic
from agentflow.definition.ir import ServiceSpec, canonical_json
from agentflow.definition.redaction import redact
from agentflow.definition.urls import address_problem
from agentflow.threads import in_thread
from agentflow.tools.child import Child
from agentflow.tools.json_schemas import Unusable, modern
from agentflow.tools.output import checked_output
from agentflow.tools.problems import (
    denied,
    is_included,
    missing_secrets,
    problem,
    shortened,
    unavailable,
    unknown_functions,
)
from agentflow.tools.secrets import MissingSecret, Values
from agentflow.tools.service import Service
from agentflow.tools.tool import SideEffect, Tool, ToolContext, ToolError, settled
from agentflow.tools.web import classify

if TYPE_CHECKING:
    import mcp_types as types

    from agentflow.tools.mcp_connection import McpConnection
    from agentflow.tools.mcp_transports import Exchange, Streams

__all__ = ["McpService"]

_FRESH = 60.0
"""Seconds for which a list of tools counts as what the server offers now, unless it says that it changed."""
_MAX_TOOLS = 1_000
_PROBE_TIMEOUT = 5.0
_ABOUT_LOAD = frozenset({408, 429})
"""Statuses that are about the moment and never about a session."""
_log = logging.getLogger("agentflow.tools")
# What the SDK says in the place of an answer that has no words.
_SDK_WORDS = frozenset({"", "Connection closed", "Not Found", "Server returned an error response"})


class McpService(Service):
    """Tools of a server that is a child process, or at a URL. It is started with the first `open` or call,
    and again after it has died."""

    def __init__(self, name: str, spec: ServiceSpec, folder: Path | None, *, trusted: bool = True) -> None:
        super().__init__(name, spec, {})
        self._folder = folder
        self._trusted = trusted
        self._is_process = spec.options.get("transport") == "stdio"
        self._key = "env" if self._is_process else "headers"
        self._values = Values(spec.options.get(self._key) or {})
        self._connection: McpConnection | None = None
        self._child: Child | None = None
        self._listed = float("-inf")
        self._is_stale = False

    def _identify(self) -> tuple[Any, ...]:
        return (self.name, canonical_json(self.spec), id(self))

    # -- opening --------------------------------------------------------------------------------

    async def open(self) -> list[Diagnostic]:
        place = "/command" if self._is_process else "/url"
        problems = missing_secrets(self._values, self._key) or await self._check_address()
        if problems:
            return problems
        try:
            connection = await self._prepared()
        except ImportError:
            hint = 'install it: pip install "agentflow[mcp]"'
            return [unavailable(self.name, "MCP servers need the extra mcp", "/type", hint)]
        if connection.is_open and time.monotonic() - self._listed < _FRESH:
            return []
        was_open = connection.is_open
        listed = await self._listing(connection)
        if was_open and isinstance(listed, str):
            # A session that lay idle may have been forgotten; a list can be asked for again.
            await connection.lost()
            listed = await self._listing(connection)
        if isinstance(listed, str):
            return [unavailable(self.name, listed, place)]
        # Hundreds of schemas may be to look through.
        return await in_thread(partial(self._offer, listed), f"agentflow list {self.name}")

    async def _listing(self, connection: McpConnection) -> list[types.Tool] | str:
        """Return the tools, or why there is no list of them."""
        from agentflow.tools.mcp_transports import Exchange, exchange

        said = Exchange()
        token = exchange.set(said)
        try:
            return await self._list(connection)
        except Exception as failure:  # the SDK's own kinds, those of its libraries, and those of the system
            return self._reason(failure, said)
        finally:
            exchange.reset(token)

    async def _check_address(self) -> list[Diagnostic]:
        if self._is_process:
            return []
        url = str(self.spec.options.get("url", ""))
        wrong = address_problem(url)
        if wrong is not None:
            return [unavailable(self.name, f"url {wrong}", "/url")]
        parts = urlsplit(url)
        if not self._trusted:
            try:
                with suppress(OSError):  # whether it can be reached shows when it is
                    await check_host(parts.hostname or "", parts.port or 443)
            except PrivateAddress as private:
                what = f"has a private address, which this submission may not reach: {private}"
                return [denied(self.name, what, "/url")]
        return []

    async def _prepared(self) -> McpConnection:
        """Return the connection, not opened yet. Raises ImportError without the extra."""
        if self._connection is None:
            # The SDK takes a second to import.
            await in_thread(_import_sdk, "agentflow import mcp")
            from agentflow.tools.mcp_connection import McpConnection

            if self._connection is None:  # no other call was faster
                self._connection = McpConnection(self.name, self._streams, self._changed)
        return self._connection

    @asynccontextmanager
    async def _streams(self, ended: Callable[[], None]) -> AsyncGenerator[Streams]:
        from agentflow.tools.mcp_transports import http_streams, process_streams

        options, values = self.spec.options, self._values.resolve()
        if not self._is_process:
            url = str(options["url"])
            async with http_streams(url, values, public_only=not self._trusted, ended=ended) as streams:
                yield streams
            return

        def started(child: Child) -> None:
            self._child = child

        folder = self._folder or Path()
        if options.get("cwd"):
            folder = folder / str(options["cwd"])
        async with process_streams(
            str(options["command"]),
            list(options.get("args") or ()),
            values,
            folder,
            started=started,
            ended=ended,
        ) as streams:
            yield streams

    def _changed(self) -> None:
        self._listed = float("-inf")
        self._is_stale = True

    async def _list(self, connection: McpConnection) -> list[types.Tool]:
        tools: list[types.Tool] = []
        self._is_stale = False  # a list that changes meanwhile is stale again
        async with connection.client() as client:
            cursor: str | None = None
            while True:
                began = time.monotonic()
                page = await client.list_tools(cursor=cursor)
                tools += page.tools
                cursor = page.next_cursor
                if cursor is None:
                    self._listed = began
                    return tools
                if len(tools) > _MAX_TOOLS or not page.tools:
                    raise ValueError(f"it lists more than {_MAX_TOOLS} tools, or without end")

    def _offer(self, listed: list[types.Tool]) -> list[Diagnostic]:
        tools: dict[str, Tool] = {}
        refused: dict[str, str] = {}
        for given in listed:
            if given.name in tools or given.name in refused:
                message = f'service "{self.name}" has two functions "{shortened(given.name)}"'
                return [problem("E_TOOL_DUPLICATE", message)]
            try:
                tools[given.name] = _tool(self.name, given, self.spec)
            except Unusable as reason:
                refused[given.name] = str(reason)
        if not tools:
            why = next((f" ({name}: {reason})" for name, reason in refused.items()), "")
            return [unavailable(self.name, shortened(f"it offers no function{why}"))]
        problems = unknown_functions(self.name, list(self.spec.functions), list(tools), refused)
        included = list(self.spec.include or ())
        problems += unknown_functions(self.name, included, list(tools), refused, "include")
        if not problems:
            self.tools = {name: t for name, t in tools.items() if is_included(name, self.spec.include)}
            self.refused = refused
        return problems

    # -- calling --------------------------------------------------------------------------------

    async def call(self, tool: Tool, arguments: dict[str, Any], ctx: ToolContext) -> Any:
        connection = await self._prepared()
        if self._is_stale and connection.is_open:
            await self._check_offered(connection, tool)
        from agentflow.tools.mcp_transports import Exchange, exchange

        for attempt in (1, 2):
            said = Exchange()
            token = exchange.set(said)
            sent = False
            try:
                async with connection.client() as client:
                    sent = True
                    result = await client.call_tool(tool.function, arguments, meta=cast(Any, self._meta(ctx)))
                    break
            except MissingSecret as missing:
                message = f"{tool.name}: {missing}"
                raise ToolError.of("policy", "secret_not_set", message, executed=False) from None
            except Exception as failure:  # the SDK's own kinds, those of its libraries and of the system
                if sent and attempt == 1 and await self._is_forgotten(connection, said.status):
                    await connection.lost()
                    if said.status is not None and said.status < 500:
                        continue  # refused with its session, so that nothing of it has begun
                raise self._failed(tool, failure, said, sent) from None
            finally:
                exchange.reset(token)
        else:
            raise AssertionError
        return await checked_output(tool, self._output(tool, result))

    async def _check_offered(self, connection: McpConnection, tool: Tool) -> None:
        """Ask for the list that has changed. Raises ToolError if the function is not in it any more; a list
        that cannot be had is left to the next binding."""
        listed = await self._listing(connection)
        if isinstance(listed, str):
            return
        await in_thread(partial(self._offer, listed), f"agentflow list {self.name}")
        if all(given.name != tool.function for given in listed):
            message = f"service {self.name} has no function {tool.function} any more"
            raise ToolError.of("policy", "tool_not_found", message, executed=False)

    async def _is_forgotten(self, connection: McpConnection, status: int | None) -> bool:
        """Return whether the server refuses the session and not this call.

        404 and 410 say so by themselves. Servers use other statuses too (the reference server 400), which
        may as well be about the call: then a request for the list of tools over the same session tells. If
        it is refused in the same way, it has met no session either.
        """
        from agentflow.tools.mcp_transports import Exchange, exchange

        if status in (404, 410):
            return True
        if status is None or status < 400 or status in _ABOUT_LOAD or not connection.is_open:
            return False
        said = Exchange()
        token = exchange.set(said)
        try:
            async with asyncio.timeout(_PROBE_TIMEOUT), connection.client() as client:
                await client.list_tools()
        except Exception as failure:  # the SDK's own kinds, those of its libraries and of the system
            _log.debug("the MCP server %s refused a list: %r", self.name, failure)
        finally:
            exchange.reset(token)
        return said.status == status

    def _meta(self, ctx: ToolContext) -> dict[str, Any]:
        call: dict[str, Any] = {
            "workflow_id": ctx.workflow_id,
            "step_id": ctx.step_id,
            "iteration": ctx.iteration,
            "call_id": ctx.call_id,
            "idempotency_key": ctx.idempotency_key,
            "attempt": ctx.attempt,
        }
        meta: dict[str, Any] = {"agentflow/call": call}
        if self.spec.send_context and ctx.context is not None:
            meta["agentflow/context"] = ctx.context
        if ctx.traceparent is not None:
            meta["traceparent"] = ctx.traceparent
        if ctx.tracestate is not None:
            meta["tracestate"] = ctx.tracestate
        return meta

    def _output(self, tool: Tool, result: types.CallToolResult) -> Any:
        """Return structured content if there is any, else the texts; other content as the protocol writes
        it."""
        blocks = [b.model_dump(mode="json", by_alias=True, exclude_none=True) for b in result.content]
        texts = [block["text"] for block in blocks if block.get("type") == "text"]
        if result.is_error:
            said = shortened(self._values.mask("\n".join(texts))) or "it failed without a word"
            structured: Any = result.structured_content
            details = redact(self._values.mask(structured)) if isinstance(structured, dict) else None
            message = f"{tool.name}: {said}"
            raise ToolError.of("tool", "tool_execution_failed", message, details=details)
        if result.structured_content is not None:
            value: Any = result.structured_content
        elif len(texts) == len(blocks):
            value = "\n".join(texts) if texts else None
        else:
            value = blocks
        return self._values.mask(value)

    # -- failures -------------------------------------------------------------------------------

    def _failed(self, tool: Tool, failure: Exception, said: Exchange, sent: bool) -> ToolError:
        import mcp_types as types
        from mcp.shared.exceptions import MCPError
        from pydantic import ValidationError

        message = self._values.mask(f"{tool.name}: {self._reason(failure, said)}")
        if isinstance(said.failure, PrivateAddress):
            return ToolError.of("policy", "service_denied", message, executed=False)
        if isinstance(failure, MCPError) and failure.code == types.INVALID_PARAMS:
            return ToolError.of("invalid_input", "invalid_tool_input", message)
        if said.status is not None and said.status >= 400:
            category, code = classify(said.status)
            return ToolError.of(
                category, code, message, http_status=said.status, unknown=said.status in (502, 504)
            )
        if not sent:
            return ToolError.of("transient", "network_error", message, executed=False)
        if isinstance(failure, MCPError):
            if failure.code == types.CONNECTION_CLOSED:
                unsent = _not_sent(said.failure)
                return ToolError.of(
                    "transient", "network_error", message, executed=not unsent, unknown=not unsent
                )
            if failure.code == types.PARSE_ERROR:
                return ToolError.of("tool", "invalid_tool_output", message, unknown=True)
            return ToolError.of("tool", "tool_execution_failed", message)
        if isinstance(failure, ValidationError | RuntimeError):
            # It answered, and not as its protocol or its own schema says.
            return ToolError.of("tool", "invalid_tool_output", message)
        return ToolError.of("transient", "network_error", message, unknown=True)

    def _reason(self, failure: BaseException, said: Exchange) -> str:
        """Return what happened, in one line and without secrets."""
        child = self._child
        words = child.last_words() if child is not None else ""
        last = f": {words.splitlines()[-1]}" if words else ""
        if isinstance(failure, FileNotFoundError) and self._is_process:
            text = f'there is no command "{self.spec.options["command"]}", or no such cwd'
        elif said.status is not None and said.status >= 400:
            text = f"the server answered {said.status}"
            if str(failure) not in _SDK_WORDS:
                text += f": {failure}"
        elif said.failure is not None:
            host = urlsplit(str(self.spec.options.get("url", ""))).hostname
            is_private = isinstance(said.failure, PrivateAddress)
            told = str(said.failure) if is_private else type(said.failure).__name__
            text = f"no connection to {host} ({told})"
        elif child is not None and child.status is not None:
            text = f"its process ended with status {child.status}{last}"
        elif child is not None and str(failure) in _SDK_WORDS:
            text = f"its process ended{last}"
        elif isinstance(failure, OSError):
            text = failure.strerror or type(failure).__name__
        elif (place := _wrong_member(failure)) is not None:
            text = f"its answer has a wrong {place}"
        else:
            text = f"{failure}" or type(failure).__name__
        return shortened(self._values.mask(text))

    async def aclose(self) -> None:
        if self._connection is not None:
            await self._connection.aclose()


def _tool(service: str, given: types.Tool, spec: ServiceSpec) -> Tool:
    hints = given.annotations
    trusted = spec.options.get("trust_hints") is True
    side_effect: SideEffect | None = None
    if hints is not None and trusted and hints.read_only_hint is True:
        side_effect = "read"
    elif hints is not None and hints.destructive_hint is True and hints.read_only_hint is not True:
        side_effect = "external"  # which only adds a question
    idempotent = True if hints is not None and trusted and hints.idempotent_hint is True else None
    return Tool(
        service=service,
        function=given.name,
        input_schema=modern(given.input_schema),
        **settled(
            spec,
            given.name,
            side_effect=side_effect,
            idempotent=idempotent,
            description=given.description or given.title,
        ),
    )


def _wrong_member(failure: BaseException) -> str | None:
    """Return the place in an answer that is none of the protocol's."""
    from pydantic import ValidationError

    if not isinstance(failure, ValidationError):
        return None
    place = failure.errors(include_url=False, include_context=False, include_input=False)[0]["loc"]
    return ".".join(str(part) for part in place) or "form"


def _not_sent(failure: Exception | None) -> bool:
    import httpx2

    never = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.UnsupportedProtocol)
    return isinstance(failure, never)


def _import_sdk() -> None:
    for module in ("mcp.client", "agentflow.tools.mcp_transports", "agentflow.tools.mcp_connection"):
        importlib.import_module(module)
    # This module reports failures, without secrets; the SDK would log what the server sent.
    logging.getLogger("mcp.client").setLevel(logging.CRITICAL)
