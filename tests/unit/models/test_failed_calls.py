"""A failed model call names model, host and port, and the setting to look at; never a key (daily-use 14)."""

from __future__ import annotations

import asyncio
import re
import shutil
import socket
import ssl
import subprocess
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from agentflow import Runtime
from agentflow.models import ModelError, Models
from agentflow.models.openai import OpenAIProvider
from tests.integration.support.runs import document as of_steps
from tests.integration.support.runs import step

from .helpers import ask, ids
from .wire_server import Answer, Exchange, WireServer, plain, refusal

KEY = "sk-secret-0123456789abcdef"


def from_env(url: str, key: str | None = KEY) -> OpenAIProvider:
    return OpenAIProvider.from_env({"OPENAI_BASE_URL": url} | ({"OPENAI_API_KEY": key} if key else {}))


async def failure_of(provider: OpenAIProvider) -> ModelError:
    try:
        with pytest.raises(ModelError) as caught:
            await provider.complete(ask(model="gpt-test"), new_call_id=ids())
    finally:
        await provider.aclose()
    error = caught.value
    assert KEY not in f"{error!r}{error.info}"
    assert str(error) == f"{error.info.code}: {error.info.message}"
    return error


@asynccontextmanager
async def listening(context: ssl.SSLContext | None = None) -> AsyncGenerator[int]:
    """A server that answers no request; its port."""
    writers: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(lambda _, w: writers.append(w), "127.0.0.1", 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for writer in writers:
            writer.transport.abort()
        await server.wait_closed()


async def test_refused_connection() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # bound and not listening: the port stays free of others
        port = free.getsockname()[1]
        error = await failure_of(from_env(f"http://127.0.0.1:{port}/v1"))
    assert error.info.code == "network_error"
    assert error.info.message == (
        f"openai:gpt-test: no connection to 127.0.0.1:{port} (refused: no server listens there);"
        " check OPENAI_BASE_URL"
    )


async def test_name_that_cannot_be_resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: Any, **__: Any) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", fail)
    error = await failure_of(from_env("https://models.invalid/v1"))
    assert error.info.message == (
        "openai:gpt-test: no connection to models.invalid:443 (the name cannot be resolved);"
        " check OPENAI_BASE_URL"
    )


async def test_https_at_a_server_without_tls() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        error = await failure_of(from_env(f"https://127.0.0.1:{port}/v1"))
    assert error.info.message == (
        f"openai:gpt-test: no connection to 127.0.0.1:{port} (TLS failed: is it an http:// server?);"
        " check OPENAI_BASE_URL"
    )


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
async def test_certificate_that_is_not_trusted(tmp_path: Path) -> None:
    async with listening(self_signed(tmp_path)) as port:
        error = await failure_of(from_env(f"https://127.0.0.1:{port}/v1"))
    assert error.info.message == (
        f"openai:gpt-test: no connection to 127.0.0.1:{port} (the certificate is not trusted: self-signed"
        " certificate); check OPENAI_BASE_URL"
    )


def self_signed(tmp_path: Path) -> ssl.SSLContext:
    files = ["-keyout", str(tmp_path / "key.pem"), "-out", str(tmp_path / "cert.pem")]
    kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", "/CN=localhost"]
    subprocess.run(["openssl", "req", "-x509", *kind, *files], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    return context


REFUSALS: dict[str, tuple[Answer, str, str]] = {
    "401": (
        refusal(401, message=f"Incorrect API key provided: {KEY}", code="invalid_api_key"),
        "authentication_failed",
        "the provider refused the key or its rights (HTTP 401); check OPENAI_API_KEY",
    ),
    "404": (
        refusal(404, message="The model `gpt-test` does not exist", code="model_not_found"),
        "model_not_found",
        "The model `gpt-test` does not exist (HTTP 404); check the model's name and OPENAI_BASE_URL",
    ),
    "429": (
        refusal(429, message="Rate limit reached", type="tokens"),
        "rate_limited",
        "Rate limit reached (HTTP 429); the limits are those of OPENAI_API_KEY",
    ),
    "quota": (
        refusal(429, message="You have no credit left", code="insufficient_quota"),
        "insufficient_quota",
        "You have no credit left (HTTP 429); the quota is that of OPENAI_API_KEY",
    ),
    "503": (refusal(503), "server_error", "HTTP 503 without a message"),
    "HTML": (
        plain(200, b"<html>hello</html>", {"Content-Type": "text/html"}),
        "invalid_response",
        "; check that OPENAI_BASE_URL is an OpenAI-compatible server",
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
async def test_refusal(case: str) -> None:
    answer, code, ends = REFUSALS[case]
    async with WireServer(answer) as server:
        error = await failure_of(from_env(server.url))
    place = server.url.removeprefix("http://").removesuffix("/v1")
    assert error.info.code == code
    assert error.info.message.startswith(f"openai:gpt-test at {place}: ")
    assert error.info.message.endswith(ends)


async def test_refusal_without_a_key() -> None:
    async with WireServer(refusal(401, message="who are you?")) as server:
        error = await failure_of(from_env(server.url, key=None))
    assert error.info.message.endswith("(HTTP 401); OPENAI_API_KEY is not set")


async def test_timeout() -> None:
    async with listening() as port:
        url = f"http://127.0.0.1:{port}/v1"
        provider = OpenAIProvider(base_url=url, api_key=KEY, first_byte_timeout=0.05)
        error = await failure_of(provider)
    assert error.info.code == "response_timeout"
    assert error.info.message == (
        f"openai:gpt-test at 127.0.0.1:{port}: no answer within 0.05 s; check the argument base_url"
    )


async def test_a_stream_that_breaks_off() -> None:
    async def cut(exchange: Exchange) -> None:
        await exchange.start_stream()
        exchange.writer.close()
        raise ConnectionResetError

    async with WireServer(cut) as server:
        error = await failure_of(from_env(server.url))
    assert re.match(r"openai:gpt-test at 127\.0\.0\.1:\d+: the answer broke off", error.info.message)


async def test_the_timeout_of_an_attempt() -> None:
    """The limit of the document: the key that raises it is named."""
    retry = {"timeout": "200ms", "max_attempts": 1}
    async with listening() as port:
        provider = from_env(f"http://127.0.0.1:{port}/v1")
        document = {**of_steps(step("ask", retry=retry)), "models": {"default": "openai:gpt-test"}}
        async with Runtime(models=Models([provider])) as runtime:
            result = await runtime.run(document, {}, raise_on_failure=False)
    assert result.error is not None
    assert result.error.message == (
        "step ask failed: an attempt of ask took longer than 0.2 s, waiting for openai:gpt-test;"
        " raise `retry.timeout`"
    )
