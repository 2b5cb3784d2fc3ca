"""A real headless Chromium against a daemon's API on real sockets, and runs worth looking at."""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from playwright.async_api import Browser, Page, async_playwright

from agentflow import Service, function
from agentflow.testing import ScriptedModel
from agentflow.testing.scripted import call

SCREENSHOTS = Path(__file__).parent / "screenshots"
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP evil.example 127.0.0.1",
)

CLAIM = """\
version: "1.0"
name: claim
inputs:
  text: { type: string, description: "What the customer wrote" }
  urgent: { type: boolean, default: false }
workflow:
  steps:
    - type: run
      id: classify
      agent: {systemPrompt: classify the claim, input: "${{ inputs.text }}", attachedFunctions: none,
              model: "scripted:m", resultSchema: {type: string}}
    - type: run
      id: look_up
      depends_on: [classify]
      agent: {systemPrompt: look it up, input: "${{ inputs.text }}",
              attachedFunctions: [{service: crm, function: find}],
              model: "scripted:m", resultSchema: {type: string}}
    - type: run
      id: draft
      depends_on: [classify]
      agent: {systemPrompt: draft, input: "${{ steps.classify.outputs.result }}", attachedFunctions: none,
              model: "scripted:m", resultSchema: {type: string}}
    - type: run
      id: send
      depends_on: [look_up, draft]
      approval: true
      agent: {systemPrompt: send, input: "${{ steps.draft.outputs.result }}", attachedFunctions: none,
              model: "scripted:m", resultSchema: {type: string}}
"""

BROKEN = """\
version: "1.0"
name: broken
workflow:
  steps:
    - type: run
      id: fetch
      retry: {max_attempts: 3, backoff: 10ms}
      agent: {systemPrompt: fetch, input: x, attachedFunctions: [{service: crm, function: fail}],
              model: "scripted:m", resultSchema: {type: integer}}
"""


class Gated:
    """Makes the model wait at `draft` until the test lets it go on, after it has written some text."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.open.set()


def crm() -> Service:
    @function(name="find", side_effect="read")
    async def find(customer: str) -> dict[str, Any]:
        """Finds a customer."""
        return {
            "customer": customer,
            "orders": [{"id": 7, "total": 19.5}, {"id": 9, "total": 240}],
            "vip": True,
        }

    @function(name="fail", side_effect="read")
    async def fail() -> str:
        """Fails."""
        raise RuntimeError("the customer database does not answer")

    return Service.of("crm", find, fail)


def model(gate: Gated | None = None) -> ScriptedModel:
    async def answer(request: Any) -> Any:
        system, last = request.messages[0].content, request.messages[-1]
        if system.startswith("look") and last.role == "user":
            return call("crm__find", customer="Ada Lovelace")
        if system.startswith("fetch") and last.role == "user":
            return call("crm__fail")
        if gate is not None and system.startswith("draft"):
            await gate.open.wait()
        return {"classify": "refund", "look": "Ada has two orders and is a VIP."}.get(
            system.split()[0], f"Dear customer,\n\nabout your {last.content}: we have sent the money back."
        )

    return ScriptedModel(lambda request: answer(request), max_concurrency=64)


def chromium() -> str | None:
    return next((found for name in ("chromium", "chromium-browser") if (found := shutil.which(name))), None)


@asynccontextmanager
async def launched() -> AsyncGenerator[Browser]:
    """A Chromium with a profile of its own."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium(), args=list(FLAGS))
        try:
            yield browser
        finally:
            await browser.close()


class Watch:
    """What a page asked for, and what went wrong in it."""

    def __init__(self, page: Page) -> None:
        self.requests: list[str] = []
        self.errors: list[str] = []
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", lambda message: self._console(message))

    def _console(self, message: Any) -> None:
        # Chromium writes every answer that is no success to the console; the tests check these themselves.
        if message.type == "error" and not re.match("Failed to load resource", message.text):
            self.errors.append(message.text)


@asynccontextmanager
async def opened(browser: Browser, **more: Any) -> AsyncGenerator[tuple[Page, Watch]]:
    """A page in a context of its own; without an error in its scripts at the end."""
    given = {"viewport": {"width": 1440, "height": 900}, **more}
    context = await browser.new_context(**given)
    try:
        page = await context.new_page()
        page.set_default_timeout(20_000)
        watch = Watch(page)
        yield page, watch
        assert watch.errors == []
    finally:
        await context.close()
