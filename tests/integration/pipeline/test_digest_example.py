"""The example of the research digest, with a real SMTP server and real pages on loopback."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

from aiosmtpd.smtp import SMTP
from starlette.responses import HTMLResponse

from tests.unit.tools.servers import serve
from tests.unit.tools.toolsets.test_services import Mailbox

EXAMPLE = Path(__file__).parents[3] / "examples/requests/digest.py"


async def test_pages_are_read_and_a_digest_is_written_verified_and_mailed(tmp_path: Path):
    box, loop = Mailbox(), asyncio.get_running_loop()
    server = await loop.create_server(lambda: SMTP(box, loop=loop), "127.0.0.1", 0)
    smtp = f"smtp://127.0.0.1:{server.sockets[0].getsockname()[1]}"

    async def page(scope: Any, receive: Any, send: Any) -> None:
        name = scope["path"][1:]
        await HTMLResponse(f"<title>Page {name}</title><p>Text of {name}</p>")(scope, receive, send)

    async with serve(page) as pages:
        urls = [f"{pages}/{name}" for name in ("one", "two", "three")]
        env = {k: v for k, v in os.environ.items() if not k.startswith(("AGENTFLOW_", "OPENAI_"))}
        program = await asyncio.create_subprocess_exec(
            *(sys.executable, str(EXAMPLE), *urls, "--smtp", smtp, "--folder", str(tmp_path)),
            env={**env, "XDG_DATA_HOME": str(tmp_path / "data")},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await program.communicate()
    server.close()
    assert (program.returncode, err.decode()) == (0, "")
    assert out.decode().splitlines() == [
        "approve execute/send: Mail the digest in digest.md to ada@example.org",
        "search  done  pass",
        "write   done  pass",
        "send    done  pass",
        "write: evidence mtime, sha256, size",
        "send: evidence id, offset, tool_call_id",
        "ready",
    ]
    (mail,) = box.messages
    assert box.recipients == [["ada@example.org"]]
    assert (mail["From"], mail["To"], mail["Subject"]) == (
        "digest@example.org",
        "ada@example.org",
        "Digest",
    )
    body = mail.get_payload(decode=True)
    assert isinstance(body, bytes)
    written = (tmp_path / "digest.md").read_bytes()
    assert body.split() == written.split()
    assert all(
        f"- Page {name}: {url}" in written.decode()
        for name, url in zip(("one", "two", "three"), urls, strict=True)
    )
