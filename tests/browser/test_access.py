"""The page for everybody: axe's rules on what only some runs show, narrow windows and 200 %, without
motion, in colours that people chose, and every command by keyboard alone."""

from __future__ import annotations

import asyncio

import pytest
from playwright.async_api import expect

from tests.browser.kit import BROKEN, CLAIM, SCREENSHOTS, opened
from tests.browser.test_looks import AXE, RULES, places
from tests.browser.test_views import QUESTION, address, decide, focus, start
from tests.unit.server.kit import agents

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow, pytest.mark.timeout(300)]

WAITING = """\
version: "v0"
name: waits
nodes:
  - {id: start, type: start, next: wait}
  - {id: wait, type: wait_for_event, event: paid, next: end}
  - {id: end, type: end}
"""
SKIPPING = """\
version: "1.0"
name: skips
workflow:
  steps:
    - type: run
      id: never
      if: ${{ 1 == 2 }}
      agent: {systemPrompt: x, input: x, attachedFunctions: none, model: "scripted:m",
              resultSchema: {type: string}}
    - type: run
      id: after
      depends_on: [never]
      agent: {systemPrompt: x, input: x, attachedFunctions: none, model: "scripted:m",
              resultSchema: {type: string}}
"""


async def in_every_state(served, gate):
    """A run in each state that one can be in, and the views of them."""
    held = await start(served, BROKEN, options={"on_failure": "hold"})
    broke = await start(served, agents("first", "second"), input="x", budget={"max_model_calls": 1})
    paused, cancelled, question = await start(served), await start(served), await start(served, QUESTION)
    skipped = await start(served, SKIPPING)
    denied = await start(served)
    await decide(served, denied, "deny")
    async with served.http() as http:
        for run, command in ((paused, "pause"), (cancelled, "cancel")):
            answer = await http.post(f"/workflows/{run}/{command}", json={"reason": "because"})
            assert answer.status_code < 300
        await http.get(f"/workflows/{cancelled}/events", params={"timeout": 5})
    gate.open.clear()
    running = await start(served, wait=0)
    dialog = "dialog[open]"
    return [
        ("state-running", f"#/runs/{running}", '.node[data-state="running"]', None),
        ("state-held", f"#/runs/{held}", '[aria-label="Pause"]', None),
        ("state-budget", f"#/runs/{broke}", '[aria-label="Pause"]', None),
        ("state-paused", f"#/runs/{paused}", '[aria-label="Pause"]', None),
        ("state-cancelled", f"#/runs/{cancelled}", '.badge[data-state="cancelled"]', None),
        ("state-denied", f"#/runs/{denied}", '.badge[data-state="failed"]', None),
        ("state-question", f"#/runs/{question}", ".request input", None),
        ("state-skipped", f"#/runs/{skipped}", '.node[data-state="skipped"]', None),
        ("run-event", f"#/runs/{paused}?select=event:3", ".inspector .json", None),
        ("run-usage", f"#/runs/{broke}?tab=usage", ".inspector table", None),
        ("runs-none", "#/runs?q=nothing", ".empty", None),
        ("inbox-closed", "#/inbox?show=closed", "tbody tr", None),
        ("dialog-fork", f"#/runs/{held}", dialog, "Fork"),
        ("dialog-cancel", f"#/runs/{paused}", dialog, "Cancel"),
        ("dialog-resume", f"#/runs/{broke}", dialog, "Resume"),
        ("dialog-done", f"#/runs/{held}", dialog, "Mark as done"),
        ("dialog-keys", "", dialog, "Keys"),
        ("problem", "#/runs/wf_nowhere", ".problem", None),
    ]


async def show(page, served, place, drawn, pressed):
    await page.goto("about:blank")
    await page.goto(address(served, place))
    if pressed is not None:
        await page.get_by_role("button", name=pressed, exact=True).first.click()
    await expect(page.locator(drawn).first).to_be_visible()


async def axe(page, name):
    await page.evaluate(AXE.read_text())
    found = await page.evaluate("rules => axe.run(document, rules)", RULES)
    return [f"{name}: {one['id']}: {str(one['nodes'][0])[:500]}" for one in found["violations"]]


@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_runs_in_every_state_are_accessible(browser, served, gate, theme):
    if not AXE.exists():
        pytest.skip("npm is not on this machine, or `make check` has not been run")
    wrong: list[str] = []
    async with opened(browser, color_scheme=theme) as (page, _):
        for name, *view in await in_every_state(served, gate):
            await show(page, served, *view)
            await page.screenshot(path=SCREENSHOTS / f"{name}-{theme}.png")
            wrong += await axe(page, name)
        gate.open.set()
    assert wrong == [], "\n".join(wrong)


CLIPPED = """() => {
  const inside = one => { for (let up = one.parentElement; up; up = up.parentElement) {
    if (["auto", "scroll"].includes(getComputedStyle(up).overflowX)) return true; } return false; };
  return [...document.querySelectorAll("a, button, input, select, textarea, h1, h2")].filter(one => {
    const box = one.getBoundingClientRect();
    return box.width > 1 && box.height > 1 && (box.right > innerWidth + 1 || box.left < -1) && !inside(one)
      && !one.closest("svg, .graph-pane, .visually-hidden") && !one.matches(".skip");
  }).map(one => one.outerHTML.slice(0, 200));
}"""


@pytest.mark.parametrize(
    "window",
    [
        {"viewport": {"width": 360, "height": 740}, "has_touch": True},
        {"viewport": {"width": 720, "height": 450}, "device_scale_factor": 2},  # 1440 × 900 at 200 %
        {"viewport": {"width": 320, "height": 256}, "device_scale_factor": 4},  # 1280 × 1024 at 400 %
    ],
    ids=["phone", "200 %", "400 %"],
)
async def test_no_view_is_wider_than_its_window(browser, served, gate, window):
    found = [*((*one, None) for one in await places(served)), *await in_every_state(served, gate)]
    wide: list[str] = []
    async with opened(browser, **window) as (page, _):
        for name, *view in found:
            await show(page, served, *view)
            size = await page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
            if size[0] > size[1]:
                wide.append(f"{name}: {size}")
            wide += [f"{name}: {one}" for one in await page.evaluate(CLIPPED)]
            await expect(page.get_by_role("button", name="Sign out", include_hidden=True)).to_be_visible()
            width = window["viewport"]["width"]
            await page.screenshot(path=SCREENSHOTS / f"{name}-{width}.png")
        gate.open.set()
    assert wide == [], "\n".join(wide)


async def test_nothing_moves_for_people_who_asked_for_that(browser, served, gate):
    gate.open.clear()
    run = await start(served, wait=0)
    moving = "document.getAnimations().filter(one => one.playState === 'running').length"
    async with opened(browser) as (page, _):
        await page.goto(address(served, f"#/runs/{run}"))
        await expect(page.locator('.badge[data-state="running"]').first).to_be_visible()
        assert await page.evaluate(moving) > 0
    async with opened(browser, reduced_motion="reduce") as (page, _):
        for place in (f"#/runs/{run}", "", f"#/runs/{run}?select=step:draft"):
            await page.goto(address(served, place))
            await expect(page.locator('.badge[data-state="running"]').first).to_be_visible()
            assert await page.evaluate(moving) == 0
    gate.open.set()


async def test_in_colours_that_people_chose_a_line_says_what_is_chosen(browser, served):
    run = await start(served)
    lined = "one => getComputedStyle(one).outlineStyle + ' ' + getComputedStyle(one).outlineWidth"
    async with opened(browser, forced_colors="active") as (page, _):
        await page.goto(address(served, "#/runs?state=waiting"))
        chip = page.locator('.chip[data-state="waiting"]')
        await expect(page.locator(f'[data-id="{run}"]')).to_be_visible()
        await expect(chip).to_have_css("outline-style", "solid")
        await expect(page.locator('.chip[data-state="failed"]')).to_have_css("outline-style", "none")
        await page.goto(address(served, f"#/runs/{run}?select=event:3"))
        await expect(page.locator('.log-row[aria-selected="true"]')).to_be_visible()
        for chosen in ('.log-row[aria-selected="true"]', '.top nav a[aria-current="page"]'):
            assert await page.locator(chosen).evaluate(lined) == "solid 2px"
        await page.goto(address(served, f"#/runs/{run}"))
        assert await page.locator('.tab[aria-selected="true"]').evaluate(lined) == "solid 2px"
        await page.screenshot(path=SCREENSHOTS / "run-forced-colours.png")


async def press(page, name):
    await focus(page, name)
    await page.keyboard.press("Enter")


async def test_every_command_is_given_by_keyboard_alone(browser, served):
    """From the list of runs: pause, resume, cancel, deny, decide about a failed step, register and start."""
    run, denied = await start(served), await start(served)
    held = [await start(served, BROKEN, options={"on_failure": "hold"}) for _ in range(2)]
    question = await start(served, QUESTION)

    async def visit(run):
        await page.goto("about:blank")
        await page.goto(address(served, f"#/runs/{run}"))
        await expect(page.locator(".run-title .live")).to_have_text("live")
        await expect(page.locator(".run-title .actions button").first).to_be_visible()

    badge = None
    async with opened(browser) as (page, _):
        badge = page.locator(".run-title .badge")
        await visit(run)
        await press(page, "Pause")
        await page.keyboard.type("for lunch")
        await page.keyboard.press("Enter")
        await expect(badge).to_have_attribute("data-state", "paused")
        await press(page, "Resume")
        await expect(badge).to_have_attribute("data-state", "waiting")
        await press(page, "Cancel")
        await focus(page, "Cancel the run")
        await page.keyboard.press("Enter")
        await expect(badge).to_have_attribute("data-state", "cancelled")
        await visit(denied)
        await expect(page.locator(".request")).to_be_visible()
        await focus(page, "Reason")
        await page.keyboard.type("too dear")
        await press(page, "Deny")
        await expect(badge).to_have_attribute("data-state", "failed")
        for one, name, state in ((held[0], "Skip", "completed"), (held[1], "Let it fail", "failed")):
            await visit(one)
            await expect(page.get_by_role("region", name="Pause")).to_be_visible()
            await press(page, name)
            await expect(page.get_by_role("dialog")).to_be_visible()
            await press(page, name)
            await expect(badge).to_have_attribute("data-state", state)
        await visit(question)
        await expect(page.locator(".request")).to_be_visible()
        await focus(page, "Answer (required)")
        await page.keyboard.type("XL")
        await page.keyboard.press("Enter")
        await expect(badge).to_have_attribute("data-state", "completed")
        # The scrubber, the graph, the timeline and the log have keys of their own.
        await page.get_by_label("Offset of the log").focus()
        await page.keyboard.press("Home")
        await expect(page.locator(".place")).to_contain_text("0 · workflow.started")
        await page.keyboard.press("End")
        await page.locator('.node[data-step="ask"]').focus()
        await page.keyboard.press("Enter")
        await expect(page.locator(".inspector h2").first).to_have_text("ask")
        await page.keyboard.press("Escape")
        await expect(page.get_by_role("tab", name="About")).to_be_visible()
        # Several runs: select two by keys, and send one command.
        first, second = await start(served), await start(served)
        await page.goto("about:blank")
        await page.goto(address(served))
        await expect(page.locator(f'[data-id="{second}"]')).to_contain_text("waiting")
        for key in "jxjx":
            await page.keyboard.press(key)
        await expect(page.locator(".bulk")).to_contain_text("2 selected")
        await press(page, "cancel")
        await press(page, "cancel")
        for one in (first, second):
            await expect(page.locator(f'[data-id="{one}"]')).to_contain_text("cancelled")
        # A definition.
        await page.keyboard.press("g")
        await page.keyboard.press("d")
        await expect(page.get_by_label("Source of a workflow")).to_be_visible()
        await page.get_by_label("Source of a workflow").focus()
        await page.keyboard.insert_text(CLAIM)
        await press(page, "Register")
        await expect(page.get_by_role("heading", name="Start a run")).to_be_visible()
        await focus(page, "text (required)")
        await page.keyboard.type("Where is it?")
        await page.keyboard.press("Enter")
        await expect(page.locator('.node[data-step="send"]')).to_have_attribute("data-state", "waiting")


async def test_keys_of_one_character_can_be_turned_off(browser, served):
    await start(served)
    async with opened(browser) as (page, _):
        await page.goto(address(served))
        await expect(page.locator(".run-row").nth(1)).to_be_visible()
        await page.keyboard.press("Control+g")
        await page.keyboard.press("Control+i")
        assert page.url.endswith("#/runs")
        await page.keyboard.press("?")
        await page.get_by_label("Use keys of one character").uncheck()
        await page.keyboard.press("Escape")
        for key in ("g", "i", "?", "/", "j"):
            await page.keyboard.press(key)
        await expect(page.get_by_role("dialog")).to_have_count(0)
        assert page.url.endswith("#/runs")
        assert await page.evaluate("document.activeElement.tagName") == "BODY"
        await page.reload()
        await expect(page.locator(".run-row").nth(1)).to_be_visible()
        await page.keyboard.press("?")
        await page.keyboard.press("ArrowDown")  # a key with a name is no character
        await expect(page.locator(".run-row a").first).to_be_focused()
        await expect(page.get_by_role("dialog")).to_have_count(0)


async def test_addresses_are_kept_by_reload_and_by_back_and_forth(browser, served):
    run = await start(served)
    await decide(served, run)
    async with opened(browser) as (page, _):
        await page.goto(address(served, "#/runs?state=completed"))
        await page.locator(f'[data-id="{run}"] a').click()
        await page.locator('.node[data-step="look_up"]').click()
        await page.get_by_role("tab", name="Calls").click()
        await page.get_by_label("Offset of the log").fill("12")
        await page.reload()
        await expect(page.locator(".place")).to_contain_text("12 · ")
        await expect(page.locator(".inspector h2").first).to_have_text("look_up")
        await expect(page.get_by_role("tab", name="Calls")).to_have_attribute("aria-selected", "true")
        kept = page.url
        await page.go_back()
        await expect(page.locator('.chip[data-state="completed"]')).to_have_attribute("aria-pressed", "true")
        await page.go_forward()
        await expect(page.locator(".place")).to_contain_text("12 · ")
        assert page.url == kept
        # A link to an event shows that event, wherever in the log it is.
        link = page.url.partition("?")[0] + "?select=event:2"
        await page.goto("about:blank")
        await page.goto(link)
        await expect(page.locator("#event-2")).to_be_in_viewport()
        await expect(page.locator("#event-2")).to_have_attribute("aria-selected", "true")
        # A second window shows the same.
        other = await page.context.new_page()
        await other.goto(kept)
        await expect(other.locator(".place")).to_contain_text("12 · ")


@pytest.mark.parametrize(
    ("zone", "told"), [("Asia/Kolkata", "UTC+05:30"), ("America/St_Johns", "UTC−"), ("UTC", "UTC+00:00")]
)
async def test_times_are_those_of_the_zone_and_name_it(browser, served, zone, told):
    run = await start(served)
    async with opened(browser, timezone_id=zone) as (page, _):
        await page.goto(address(served))
        started = page.locator(f'[data-id="{run}"] [role=cell][title]').first
        assert told in await started.get_attribute("title")
        await page.goto(address(served, f"#/runs/{run}"))
        time = page.locator(".log-time").first
        assert told in await time.get_attribute("title")
        shown = await time.inner_text()
        async with served.http() as http:
            record = (await http.get(f"/workflows/{run}")).json()
        local = await page.evaluate(
            "at => new Date(at).toLocaleTimeString('en-GB', {hour12: false})", record["created_at"]
        )
        assert shown.startswith(local[:5])


async def test_ids_can_be_copied(browser, served):
    run = await start(served)
    async with opened(browser, permissions=["clipboard-read", "clipboard-write"]) as (page, _):
        await page.goto(address(served, f"#/runs/{run}"))
        await page.get_by_role("button", name="Copy the id").click()
        assert await page.evaluate("navigator.clipboard.readText()") == run
        await page.get_by_role("tab", name="About").click()
        await page.get_by_role("button", name="Copy the command").last.click()
        assert (await page.evaluate("navigator.clipboard.readText()")).startswith(f"agentflow log {run}")


async def test_the_page_comes_back_with_its_daemon(browser, tmp_path):
    """Every view, when the daemon goes away and returns on the same port, without a reload."""
    from tests.unit.server.process import Process

    first = Process(tmp_path, "127.0.0.1:0")
    first.start()
    base = first.url
    try:
        async with opened(browser) as (page, watch):
            await page.goto(f"{base}/ui/")
            await expect(page.locator(".empty")).to_contain_text("No runs yet")
            await expect(page.locator(".view .live")).to_have_text("live")
            views = {"Usage": "Usage", "Definitions": "Definitions"}
            await page.get_by_role("link", name="Usage").click()
            await expect(page.get_by_role("heading", name="Usage")).to_be_visible()
            await page.get_by_role("link", name="Runs").click()
            await expect(page.locator(".view .live")).to_have_text("live")
            for name, heading in views.items():  # one that was loaded, and one that was not
                await asyncio.to_thread(first.kill)
                await expect(page.locator(".view .live")).to_have_text("reconnecting…")
                await page.get_by_role("link", name=name).click()
                await expect(page.locator(".problem")).to_contain_text("cannot be reached")
                first = Process(tmp_path, base.removeprefix("http://"))
                await asyncio.to_thread(first.start)
                await expect(page.get_by_role("heading", name=heading, exact=True)).to_be_visible(
                    timeout=20_000
                )
                await expect(page.locator(".problem")).to_have_count(0)
                await page.get_by_role("link", name="Runs").click()
                await expect(page.locator(".view .live")).to_have_text("live", timeout=20_000)
            watch.errors.clear()
    finally:
        first.kill()


async def test_who_is_at_a_button_stays_there_while_the_run_goes_on(browser, served, gate):
    gate.open.clear()
    run = await start(served, wait=0)
    async with opened(browser) as (page, _):
        await page.goto(address(served, f"#/runs/{run}"))
        await expect(page.locator('.node[data-step="draft"]')).to_have_attribute("data-state", "running")
        fork = page.get_by_role("button", name="Fork")
        await fork.focus()
        gate.open.set()
        await expect(page.locator(".run-title .badge")).to_have_attribute("data-state", "waiting")
        await expect(page.locator(".request")).to_be_visible()
        await expect(fork).to_be_focused()
        await decide(served, run)
        await expect(page.locator(".run-title .badge")).to_have_attribute("data-state", "completed")
        await expect(fork).to_be_focused()
