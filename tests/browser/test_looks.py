"""How the views look: screenshots of each in light and dark for people, and axe-core's rules without a
violation."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.async_api import expect

from agentflow.server.app import OPERATIONS
from tests.browser.kit import BROKEN, CLAIM, SCREENSHOTS, opened
from tests.browser.test_live import EACH
from tests.browser.test_views import QUESTION, address, decide, start

pytestmark = pytest.mark.asyncio(loop_scope="module")

AXE = Path(__file__).parents[2] / ".cache" / "node" / "node_modules" / "axe-core" / "axe.min.js"
RULES = {
    "runOnly": {
        "type": "tag",
        "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"],
    }
}


async def places(served):
    """Runs in several states, and the views of them: name, address, and what is there once it is drawn."""
    first, done, broken = await start(served), await start(served), await start(served, BROKEN)
    await start(served, QUESTION)
    each = await start(served, EACH)
    await decide(served, done)
    async with served.http() as http:
        await http.post("/definitions", json={"definition": CLAIM})
        fork = (
            await http.post(
                f"/workflows/{first}/fork", json={"offset": 0, "edits": {"input": {"text": "broken"}}}
            )
        ).json()
        history = (await http.get(f"/workflows/{first}/history")).json()
    model_call = next(one for one in history["models"] if one["step_id"] == "look_up" and one["turn"] == 2)
    return [
        ("runs", "", ".run-row + .run-row, .rows .run-row"),
        ("run", f"#/runs/{first}", ".request"),
        ("run-step", f"#/runs/{done}?select=step:look_up&tab=calls", ".calls"),
        ("run-past", f"#/runs/{done}?offset=12&tab=state", ".json"),
        ("run-failed", f"#/runs/{broken}?select=step:fetch", ".inspector h2"),
        ("run-items", f"#/runs/{each}?select=step:item", ".time-row .bar"),
        ("call", f"#/runs/{first}/calls/{model_call['model_call_id']}", ".message"),
        ("compare", f"#/runs/{fork['workflow_id']}/compare/{first}", ".diff"),
        ("inbox", "#/inbox", ".request"),
        ("definitions", "#/definitions", ".tile"),
        ("definition", "#/definitions/claim", ".graph .node"),
        ("usage", "#/usage", ".data"),
        ("system", "#/system", ".facts"),
        ("docs", "#/docs/approvals", ".prose h1"),
    ]


@pytest.mark.timeout(300)
@pytest.mark.slow
@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_every_view_is_accessible_and_drawn(browser, served, theme):
    SCREENSHOTS.mkdir(exist_ok=True)
    wrong: list[str] = []
    async with opened(browser, color_scheme=theme) as (page, watch):
        found_places = await places(served)
        for name, place, drawn in found_places:
            await page.goto(address(served, place))
            await expect(page.locator(drawn).first).to_be_visible()
            await page.wait_for_load_state("domcontentloaded")
            await page.screenshot(path=SCREENSHOTS / f"{name}-{theme}.png")
            if AXE.exists():
                await page.evaluate(AXE.read_text())
                found = await page.evaluate("rules => axe.run(document, rules)", RULES)
                wrong += [f"{name}: {one['id']}: {str(one['nodes'][0])[:500]}" for one in found["violations"]]
        await page.keyboard.press("?")
        await expect(page.get_by_role("dialog")).to_contain_text("Next and previous row")
        await page.keyboard.press("Escape")
        await page.set_viewport_size({"width": 390, "height": 844})
        for name, place, drawn in found_places[:2] + [one for one in found_places if one[0] == "inbox"]:
            await page.goto("about:blank")
            await page.goto(address(served, place))
            await expect(page.locator(drawn).first).to_be_visible()
            await page.screenshot(path=SCREENSHOTS / f"{name}-narrow-{theme}.png")
            assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth"), (
                f"{name} is too wide"
            )
        # Whatever the page shows, `curl` can fetch: all it asks for are operations of the document.
        known = re.compile("|".join(re.sub(r"{\w+}", "[^/]+", one.path) for one in OPERATIONS) + "|/ui/.*")
        paths = {urlsplit(url).path for url in watch.requests if url.startswith(served.tcp_url)}
        assert len(paths) > 20
        assert [path for path in paths if not known.fullmatch(path)] == []
    assert wrong == [], "\n".join(wrong)
