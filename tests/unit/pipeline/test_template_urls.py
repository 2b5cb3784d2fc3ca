"""Templates that are installed from an https server: they have the hash that was named (page 004 §12)."""

from __future__ import annotations

import asyncio
import hashlib
import shutil
import ssl
import subprocess
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from agentflow import http
from agentflow.pipeline.template_store import TemplateError, TemplateExists, TemplateStore

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")

TEMPLATE = b"""
name: notes
summary: "s"
steps:
  - {id: note, title: Note, action: "Write", owner: agent, depends_on: []}
"""
SHA = hashlib.sha256(TEMPLATE).hexdigest()


def page(body: bytes, status: str = "200 OK", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@pytest.fixture
def contexts(tmp_path: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """That of a server, and that of a client which trusts it."""
    key, cert = str(tmp_path / "key.pem"), str(tmp_path / "cert.pem")
    kind = ["-newkey", "rsa:2048", "-nodes", "-subj", "/CN=test", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(
        ["openssl", "req", "-x509", *kind, "-keyout", key, "-out", cert], check=True, capture_output=True
    )
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(cert, key)
    return server, httpx.create_ssl_context(verify=ssl.create_default_context(cafile=cert))


@asynccontextmanager
async def serving(context: ssl.SSLContext, answer: Callable[[str], bytes]) -> AsyncGenerator[str]:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        writer.write(answer(head.split()[1].decode()))
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0, ssl=context)
    yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    server.close()


async def test_what_has_the_hash_is_installed(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(http, "_certificates", lambda trust_env: contexts[1])
    store, seen = TemplateStore(tmp_path / "templates"), list[str]()

    def answer(path: str) -> bytes:
        seen.append(path)
        return {
            "/t.yaml": page(TEMPLATE),
            "/moved": page(b"", "302 Found", "Location: /t.yaml"),
            "/inside": page(b"", "302 Found", "Location: https://10.0.0.1/t.yaml"),
            "/plain": page(b"", "302 Found", "Location: http://example.org/t.yaml"),
            "/circle": page(b"", "302 Found", "Location: /circle"),
            "/giant.yaml": page(b"#" * (1 << 21)),
            "/gone": page(b"", "404 Not Found"),
        }[path]

    async with serving(contexts[0], answer) as host:
        allowed = (host,)
        made = await store.install_url(f"https://{host}/moved", sha256=SHA, allowed_hosts=allowed)
        assert (made.template.name, made.origin, seen) == ("notes", "user", ["/moved", "/t.yaml"])
        assert store.get("notes").template.hash == made.template.hash
        with pytest.raises(TemplateExists):
            await store.install_url(f"https://{host}/t.yaml", sha256=SHA, allowed_hosts=allowed)
        await store.install_url(f"https://{host}/t.yaml", sha256=SHA, overwrite=True, allowed_hosts=allowed)
        for path, sha, said in (
            ("t.yaml", "0" * 64, "not the one that was given"),
            ("inside", SHA, "not public"),
            ("plain", SHA, "https URL"),
            ("circle", SHA, "redirects"),
            ("giant.yaml", SHA, "more than"),
            ("gone", SHA, "HTTP 404"),
        ):
            with pytest.raises(TemplateError, match=said):
                await store.install_url(
                    f"https://{host}/{path}", sha256=sha, overwrite=True, allowed_hosts=allowed
                )
        with pytest.raises(TemplateError, match="not public"):
            await store.install_url(f"https://{host}/t.yaml", sha256=SHA, overwrite=True)
    monkeypatch.undo()
    async with serving(contexts[0], answer) as host:
        with pytest.raises(TemplateError, match="certificate is not trusted"):
            await store.install_url(f"https://{host}/t.yaml", sha256=SHA, allowed_hosts=(host,))
