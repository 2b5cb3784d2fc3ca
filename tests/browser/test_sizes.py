"""Large stores and large runs stay usable; a daemon that is started again is followed on. Prints figures.

How long a frame takes says as much of the machine as of the page, so limits are of what the page does: the
elements that it makes, its heap, and its work beside reading the same text once.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import asynccontextmanager

import httpx
import pytest
from playwright.async_api import expect

from agentflow.definition.loader import load_text, load_value
from tests.browser.kit import opened
from tests.browser.test_views import address
from tests.unit.server.daemon import document
from tests.unit.server.kit import ECHO, echo, serving

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow]

FRAMES = """
window.made_ = 0; const create = document.createElement;
document.createElement = function (...given) { window.made_++; return create.apply(this, given); };
window.frames_ = []; let last = performance.now();
const tick = now => { window.frames_.push(now - last); last = now; requestAnimationFrame(tick); };
requestAnimationFrame(tick);
"""
SCROLL = """
async selector => {
  const list = document.querySelector(selector);
  window.frames_.length = 0;
  for (let at = 0; at <= 40; at++) {
    list.scrollTop = (list.scrollHeight - list.clientHeight) * at / 40;
    await new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)));
  }
  return Math.max(...window.frames_);
}
"""
READING = """
async path => {
  const text = await (await fetch(path)).text();
  const began = performance.now();
  for (const line of text.split("\\n")) if (line) JSON.parse(line);
  return (performance.now() - began) / 1000;
}
"""


@asynccontextmanager
async def main_thread(page):
    """A function that returns the seconds which the main thread has worked: scripts, layout, painting."""
    session = await page.context.new_cdp_session(page)
    await session.send("Performance.enable", {"timeDomain": "threadTicks"})

    async def worked():
        found = await session.send("Performance.getMetrics")
        return next(one["value"] for one in found["metrics"] if one["name"] == "TaskDuration")

    yield worked


def heap(page):
    return page.evaluate("performance.memory.usedJSHeapSize / 2**20")


def report(**figures):
    print("figures:", json.dumps(figures))


@pytest.mark.timeout(600)
async def test_ten_thousand_runs(browser, tmp_path):
    async with serving(tmp_path, store=f"sqlite:{tmp_path / 'r.db'}", model=echo()) as served:
        definition = load_value(ECHO)
        for begin in range(0, 10_000, 50):
            handles = [await served.runtime.submit(definition, f"{i}") for i in range(begin, begin + 50)]
            for handle in handles:
                await handle.rest()
        async with opened(browser) as (page, _):
            await page.add_init_script(FRAMES)
            began = time.perf_counter()
            await page.goto(address(served))
            await expect(page.locator(".rows .run-row").first).to_be_visible()
            first_row = time.perf_counter() - began
            await expect(page.locator(".chip").first).to_contain_text("10,000")
            list_ = page.locator(".runs-list")
            end = page.locator('[aria-rowindex="10001"]')
            while not await end.count():  # each time it comes to the end, the next page is loaded
                await list_.evaluate("one => one.scrollTop = one.scrollHeight")
                await page.evaluate("() => new Promise(done => requestAnimationFrame(done))")
            await expect(end).to_be_visible()
            elements = await page.evaluate("document.querySelectorAll('*').length")
            await page.evaluate("window.made_ = 0")
            longest = await page.evaluate(SCROLL, ".runs-list")
            async with served.http(tcp=True) as http:
                began = time.perf_counter()
                await http.get("/workflows", params={"limit": 200, "usage": True})
                probe = time.perf_counter() - began
            report(
                list_s=round(probe, 3),
                made_by_scrolling=await page.evaluate("window.made_"),
                runs=10_000,
                first_row_s=round(first_row, 2),
                longest_frame_ms=round(longest),
                elements=elements,
                heap_mib=round(await heap(page), 1),
            )
            assert elements < 2_500
            # A multiple of what the list itself takes of this machine just now.
            assert first_row < 2 + 30 * probe, (first_row, probe)


MANY = """\
version: "1.0"
name: many
inputs:
  items: { schema: { type: array } }
workflow:
  max_parallel: 20
  steps:
    - type: run
      id: each
      for_each: ${{ inputs.items }}
      agent: {systemPrompt: work, input: "${{ item }}", attachedFunctions: none, model: "scripted:m",
              resultSchema: {type: string}}
"""


@pytest.mark.timeout(600)
async def test_a_run_of_fifty_thousand_events(browser, tmp_path):
    async with serving(tmp_path, store=f"sqlite:{tmp_path / 'r.db'}", model=echo()) as served:
        items = [f"item {i}" for i in range(6_250)]
        handle = await served.runtime.submit(load_text(MANY), {"items": items})
        run = handle.workflow_id
        async for _ in served.runtime.events(run, 40_000):
            break
        async with opened(browser) as (page, _), main_thread(page) as worked:
            await page.add_init_script(FRAMES)
            began = time.perf_counter()
            await page.goto(address(served, f"#/runs/{run}"))
            await expect(page.locator(".log-row").first).to_be_visible(timeout=30_000)
            first_paint = time.perf_counter() - began
            record = await handle.rest()
            last = (await served.runtime.record(run)).last_offset
            assert (record.state, last > 50_000) == ("completed", True), last
            await expect(page.locator(".scrubber")).to_have_attribute("max", str(last), timeout=60_000)
            whole = time.perf_counter() - began
            live = await page.evaluate("Math.max(...window.frames_)")
            used = await heap(page)
            work = await worked()
            made = {"loading": await page.evaluate("window.made_")}
            fold = page.locator(".log-fold").first
            await expect(fold).to_contain_text("6,250 items")
            await fold.click()
            await page.evaluate("window.made_ = 0")
            scrolling = await page.evaluate(SCROLL, ".log")
            made["scrolling"] = await page.evaluate("window.made_")
            await page.evaluate("window.frames_.length = 0")
            await page.locator(".scrubber").fill("25000")
            await expect(page.locator(".place")).to_contain_text("25000")
            await page.evaluate(
                "new Promise(done => { (function look() {"
                " window.frames_.length > 5 ? done() : requestAnimationFrame(look) })() })"
            )
            scrub = await page.evaluate("Math.max(...window.frames_)")
            await page.get_by_label("Filter the log").fill("step_failed item 6249")
            await expect(page.locator(".log-row")).to_have_count(0)
            await page.get_by_label("Filter the log").fill("item 6249")
            await expect(page.locator(".log-row").first).to_be_visible()
            reading = await page.evaluate(READING, f"/workflows/{run}/events?follow=false")
            elements = await page.evaluate("document.querySelectorAll('*').length")
            longest = {"live": round(live), "scrolling": round(scrolling), "scrubbing": round(scrub)}
            report(
                events=last + 1,
                first_paint_s=round(first_paint, 2),
                whole_s=round(whole, 2),
                longest_frame_ms=longest,
                heap_mib=[round(used, 1), round(await heap(page), 1)],
                elements=elements,
                elements_made=made,
                main_thread_s=round(work, 2),
                reading_s=round(reading, 2),
            )
            assert elements < 2_500
            assert used < 150
            # 41 places of a list of some 20 rows with 6 elements each.
            assert made["scrolling"] < 41 * 60 * 7
            # To show the log, live, costs a small multiple of reading it.
            assert work < 25 * reading + 2, (work, reading)


async def test_a_run_is_followed_across_a_kill_of_the_daemon(browser, tmp_path):
    def launch(port):
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.unit.server.daemon", str(tmp_path), f"127.0.0.1:{port}"],
            stdout=subprocess.PIPE,
            text=True,
        )
        with process.stdout:
            names = process.stdout.readline()
        assert names, "the daemon did not start"
        return process, int(names.rpartition(":")[2])

    process, port = launch(0)
    try:
        base = f"http://127.0.0.1:{port}"
        async with httpx.AsyncClient(base_url=base, timeout=20) as http:
            definition = document(*["slow"] * 40)
            run = (
                await http.post(
                    "/workflows",
                    json={"definition": definition, "input": "x"},
                )
            ).json()
            run = run["workflow_id"]
            async with opened(browser) as (page, _):
                await page.goto(f"{base}/ui/#/runs/{run}")
                await expect(page.locator('.node[data-state="running"]')).to_be_visible()
                os.kill(process.pid, signal.SIGKILL)
                process.wait()
                await expect(page.locator(".run-title .live")).to_have_text("reconnecting…")
                process, _ = launch(port)
                await expect(page.locator(".run-title .live")).not_to_have_text(
                    "reconnecting…", timeout=20_000
                )
                record = (await http.get(f"/workflows/{run}")).json()
                if record["state"] == "paused":
                    await page.get_by_role("button", name="Resume").click()
                await expect(page.locator(".run-title .badge")).to_have_attribute(
                    "data-state", "completed", timeout=30_000
                )
                events = (
                    await page.locator(".number-box", has_text="Events")
                    .locator(".number-value")
                    .text_content()
                )
                record = (await http.get(f"/workflows/{run}")).json()
                assert int(events.replace(",", "")) == record["last_offset"] + 1  # each event once
    finally:
        process.kill()
        process.wait()
