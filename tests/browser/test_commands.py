"""`agentflow ui`, `ui --store` and `open --ui` as processes of their own, and a browser at their links."""

from __future__ import annotations

import asyncio
import re
import signal
from contextlib import asynccontextmanager, contextmanager

import httpx
import pytest
import pytest_asyncio
from playwright.async_api import expect

from tests.browser.kit import opened
from tests.integration.test_cli_control import ASKED
from tests.unit.cli.support import ModelServer, Sandbox

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow, pytest.mark.timeout(180)]

SUBMIT = """
async source => {
  const answer = await fetch("../workflows?wait=20", {method: "POST",
    headers: {"Content-Type": "application/json"},
    body: JSON.stringify({definition: source, input: {name: "Ada"}})});
  return [answer.status, (await answer.json()).workflow_id];
}
"""


@pytest_asyncio.fixture(loop_scope="module")
async def sandbox(tmp_path):
    # A socket's path is short: the folder of the test may be too deep.
    made = Sandbox(tmp_path)
    made.write("asked.yaml", ASKED)
    made.write("browser", f'#!/bin/sh\necho "$1" > {tmp_path}/opened\n')
    (tmp_path / "browser").chmod(0o700)
    with ModelServer() as server:
        made.env |= {
            "OPENAI_BASE_URL": server.url,
            "AGENTFLOW_MODEL": "openai:test",
            "BROWSER": f"{tmp_path / 'browser'} %s",
        }
        yield made
    made.close()


@asynccontextmanager
async def running(sandbox, *words):
    """A command that goes on, and the link that it printed; ended by Ctrl-C."""
    process = sandbox.start(*words)
    link = (await asyncio.to_thread(process.stdout.readline)).strip()
    if not link.startswith("http://127.0.0.1:"):
        process.kill()
        raise AssertionError((link, process.stderr.read()))
    try:
        yield link
    finally:
        process.send_signal(signal.SIGINT)
        code = await asyncio.to_thread(process.wait, 60)
        assert code in (0, 130), process.stderr.read()


@contextmanager
def daemon(sandbox, *words):
    process = sandbox.start("serve", *words)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


async def test_ui_starts_a_daemon_and_forwards_to_its_socket(browser, sandbox):
    async with running(sandbox, "ui", "--no-browser") as link:
        base = link.partition("/ui/")[0]
        async with httpx.AsyncClient(base_url=base) as http:
            assert (await http.get("/workflows")).status_code == 401  # the port is of no use to others
            assert (await http.get("/workflows", headers={"Host": "evil.example"})).status_code == 403
        async with opened(browser) as (page, watch):
            await page.goto(link)
            await expect(page.get_by_role("heading", name="Runs")).to_be_visible()
            assert (await page.context.cookies())[0]["name"] == f"agentflow_session_{base.rpartition(':')[2]}"
            status, run = await page.evaluate(SUBMIT, ASKED)
            assert status == 201
            await expect(page.locator(f'[data-id="{run}"]')).to_contain_text(
                "waiting"
            )  # it came by the stream
            await page.goto(f"{base}/ui/#/runs/{run}")
            await page.get_by_role("button", name="Approve").click()
            await expect(page.locator(".run-title .badge")).to_have_attribute("data-state", "completed")
            await page.get_by_role("tab", name="Output").click()
            await expect(page.locator(".inspector")).to_contain_text("hello Ada")
            assert all(url.startswith(base) for url in watch.requests)
        async with opened(browser) as (page, _):
            await page.goto(link)  # it works once
            await expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
        assert not (sandbox.folder / "opened").exists()
    assert not (sandbox.folder / "data/agentflow/agentflow.sock").exists()  # the daemon has ended too


async def test_ui_of_a_daemon_with_a_port_prints_a_link_to_it(browser, sandbox):
    with daemon(sandbox, "--listen", "127.0.0.1:0") as process:
        found = None
        while found is None:
            assert process.poll() is None
            found = re.search(r"http://127\.0\.0\.1:\d+", await asyncio.to_thread(process.stderr.readline))
        base = found[0]
        made = await asyncio.to_thread(sandbox.call, "ui", "--url", base)
        assert made.returncode == 0, made.stderr
        assert (sandbox.folder / "opened").read_text() == made.stdout  # the browser got the link
        async with opened(browser) as (page, _):
            await page.goto(made.stdout.strip())
            await expect(page.get_by_role("heading", name="Runs")).to_be_visible()
            assert "code" not in page.url
            # Is the machine well? What a daemon measures, in words.
            assert (await page.evaluate(SUBMIT, ASKED))[0] == 201
            await page.goto(f"{base}/ui/#/system")
            for name, value in (("Commit, mean", r"\d ms"), ("Dead letters", r"\d"), ("Streams", r"\d")):
                await expect(page.locator(".number-box", has_text=name)).to_contain_text(re.compile(value))
            await expect(page.get_by_role("heading", name="Mailboxes")).to_be_visible()


async def test_a_store_and_a_file_are_looked_at_without_a_daemon(browser, sandbox):
    run = "wf_looked_at"
    made = await asyncio.to_thread(sandbox.call, "run", "asked.yaml", "-i", "name=Ada", "--id", run)
    assert made.returncode == 9, made.stderr  # it waits for a person
    before = sandbox.database.read_bytes()
    looking = running(sandbox, "ui", "--no-browser", "--store", f"sqlite:{sandbox.database}")
    async with looking as link, opened(browser) as (page, _):
        await page.goto(link)
        await page.locator(f'[data-id="{run}"] a').click()
        await expect(page.locator('.node[data-step="greet"]')).to_have_attribute("data-state", "waiting")
        await expect(page.get_by_role("button", name="Approve")).to_have_attribute("aria-disabled", "true")
        status, _ = await page.evaluate(SUBMIT, ASKED)
        assert status == 403
    assert sandbox.database.read_bytes() == before
    exported = await asyncio.to_thread(sandbox.call, "log", run)
    sandbox.write("run.ndjson", exported.stdout)
    async with running(sandbox, "open", "run.ndjson", "--ui") as link:
        async with opened(browser) as (page, _):
            await page.goto(link)
            await expect(page.locator(".run-sub")).to_contain_text(run)
            await expect(page.locator('.node[data-step="greet"]')).to_have_attribute("data-state", "waiting")
            await expect(page.get_by_role("button", name="Cancel")).to_have_attribute("aria-disabled", "true")
        assert (sandbox.folder / "opened").read_text().strip() == link
