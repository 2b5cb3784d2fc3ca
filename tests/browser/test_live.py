"""What goes on while people look: text as a model writes it, folds, large values, two people at once."""

from __future__ import annotations

import json

import pytest
from playwright.async_api import expect

from tests.browser.kit import opened
from tests.browser.test_views import address, start
from tests.integration.pipeline.support import done, model_of, normalized, plan, step
from tests.integration.support.runs import Desk
from tests.integration.test_child_runs import does, parent, whole
from tests.integration.test_server_deltas import Pen, Typist
from tests.unit.server.kit import agents, echo, serving

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_text_is_shown_as_the_model_writes_it(browser, tmp_path):
    typist = Typist()
    async with serving(tmp_path, model=typist) as served, opened(browser) as (page, _):
        run = await start(served, agents("write"), wait=0, input="x")
        pen = Pen(await typist.calls.get())
        await page.goto(address(served, f"#/runs/{run}?select=step:agent_0&tab=calls"))
        await page.locator(".calls .link").click()
        pen.write("Dear ", "Ada")
        text = page.locator(".streaming")
        await expect(text).to_have_text("Dear Ada")
        # A connection that breaks brings what was written once, not twice.
        await page.context.set_offline(True)
        for stream in list(served.app.service.streams._open):
            stream.abort()
        await expect(page.locator(".run-title .live")).to_have_text("reconnecting…")
        pen.write(" Lovelace")
        await page.context.set_offline(False)
        await expect(text).to_have_text("Dear Ada Lovelace")
        await page.get_by_role("link", name="Open alone").click()
        await expect(page.get_by_role("heading", name="Model call")).to_be_visible()
        await expect(text).to_have_text("Dear Ada Lovelace")
        pen.write(",")
        await expect(text).to_have_text("Dear Ada Lovelace,")
        pen.end()
        await expect(page.locator(".message.role-assistant")).to_contain_text("Dear Ada Lovelace,")
        await expect(text).to_have_count(0)


EACH = """\
version: "1.0"
name: each
workflow:
  steps:
    - type: run
      id: item
      for_each: ${{ fromJSON('["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"]') }}
      agent: {systemPrompt: work, input: "${{ item }}", attachedFunctions: none, model: "scripted:m",
              resultSchema: {type: string}}
"""


async def test_the_items_of_a_for_each_fold(browser, tmp_path):
    async with serving(tmp_path, model=echo()) as served, opened(browser) as (page, _):
        run = await start(served, EACH)
        await page.goto(address(served, f"#/runs/{run}"))
        await expect(page.locator('.node[data-step="item"]')).to_contain_text("12/12")
        rows = page.locator(".time-row")
        await expect(rows).to_have_count(1)
        await page.get_by_role("button", name="Unfold item × 12").click()
        await expect(rows.nth(1)).to_contain_text("all items")
        third = rows.filter(has_text="[3]")
        await third.locator(".time-name").click()
        await expect(page.locator(".inspector select")).to_be_visible()
        await expect(page.locator(".inspector")).to_contain_text("[3]")
        await expect(third).to_have_class("time-row selected related")
        # By keyboard: left folds, right unfolds.
        await rows.first.locator(".time-name").focus()
        await page.keyboard.press("ArrowLeft")
        await expect(rows).to_have_count(1)
        await page.keyboard.press("ArrowRight")
        await expect(third).to_be_visible()


async def test_the_events_of_items_fold_in_the_log(browser, tmp_path):
    async with serving(tmp_path, model=echo()) as served, opened(browser) as (page, _):
        run = await start(served, EACH)
        await page.goto(address(served, f"#/runs/{run}"))
        fold = page.locator(".log-fold")
        await expect(fold).to_contain_text("96 events")
        await expect(fold).to_contain_text("12 items")
        rows = page.locator(".log-row")
        await expect(rows).to_have_count(5)  # started, the step, its items, completed, completed
        await fold.click()
        await expect(page.locator("#event-3")).to_contain_text("agent.initialized")
        await fold.click()
        await expect(rows).to_have_count(5)
        # By keyboard: the fold is a row among rows, right unfolds, left folds.
        await page.locator(".log").focus()
        for _ in range(3):
            await page.keyboard.press("ArrowDown")
        await expect(fold).to_have_class("log-row log-fold marked")
        assert await page.locator(".log").get_attribute("aria-activedescendant") == "fold-0"
        await page.keyboard.press("ArrowRight")
        await page.keyboard.press("ArrowDown")
        await expect(page.locator("#event-2")).to_have_attribute("aria-selected", "true")
        # What is looked for is found inside folds; a fold with the selected event is unfolded.
        await page.get_by_label("Filter the log").fill("model.call_completed")
        await expect(rows.first).to_contain_text("model.call_completed")
        await expect(fold).to_have_count(0)
        await rows.first.click()
        await page.get_by_label("Filter the log").fill("")
        await expect(page.locator('.log-row[aria-selected="true"]')).to_contain_text("model.call_completed")


async def test_the_run_that_a_step_began_folds_in_its_timeline(browser, tmp_path):
    desk = Desk(pay=True)
    inner = whole(does("look", "first", "second"), does("pay", "second"), name="inner")
    async with serving(tmp_path, services=(desk.service(),)) as served, opened(browser) as (page, watch):
        handle = await served.runtime.submit(parent(inner))
        await desk.until(lambda: desk.calls == 2)
        await page.goto(address(served, f"#/runs/{handle.workflow_id}"))
        unfold = page.get_by_role("button", name="Unfold sub")
        await expect(unfold).to_be_visible()
        child = (await served.runtime.record(handle.workflow_id)).children[0]
        assert not any(child in url for url in watch.requests)  # asked for when it is opened
        await unfold.click()
        rows = page.locator(".time-row")
        await expect(rows).to_contain_text(["sub", "first", "desk", "second", "desk"])
        second = rows.filter(has_text="second")
        await expect(second.locator(".bar.running")).to_be_visible()
        desk.gates["pay"].set()
        await expect(second.locator(".bar.succeeded")).to_be_visible()
        await second.locator(".time-name").click()
        await expect(page.locator(".run-sub")).to_contain_text(child)
        await expect(page.locator(".inspector h2").first).to_have_text("second")
        await page.get_by_role("link", name="child of step sub").click()
        await page.locator('.node[data-step="sub"]').click()
        await page.locator(".inspector").get_by_role("link", name=child).click()
        await expect(page.locator(".run-sub")).to_contain_text(child)


async def test_a_large_value_is_loaded_when_it_is_opened(browser, served):
    value = {"text": "large", "numbers": list(range(40_000))}
    name = await served.runtime.log.put_blob(json.dumps(value).encode())
    run = await start(served)
    async with served.http() as http:
        answer = await http.get(f"/workflows/{run}/events", params={"follow": "false"})
    *lines, last = answer.text.splitlines()
    event = json.loads(last)
    event["data"]["pad"] = {"$blob": name, "size": 228_000, "type": "json"}
    async with opened(browser) as (page, watch):
        # The run as it is, but for one value that is kept beside its events.
        text = "\n".join([*lines, json.dumps(event)]) + "\n"
        await page.route(f"**/workflows/{run}/events?*", lambda route: route.fulfill(body=text))
        await page.goto(address(served, f"#/runs/{run}?select=event:{event['offset']}"))
        load = page.get_by_role("button", name="Load the stored value (222.7 KiB)")
        await expect(load).to_be_visible()
        assert not any("/blobs/" in url for url in watch.requests)
        await load.click()
        await expect(page.locator(".json-blob")).to_contain_text('text: "large"')
        await page.locator(".json-blob summary", has_text="numbers:").click()
        await expect(page.get_by_role("button", name="39900 more")).to_be_visible()


async def test_of_two_people_who_decide_at_once_one_is_told_who_was_first(browser, served):
    run = await start(served)
    async with opened(browser) as (first, _), opened(browser) as (second, _):
        for page in (first, second):
            await page.route("**/events?*", lambda route: route.abort())  # neither sees the other's decision
            await page.goto(address(served, "#/inbox"))
            await expect(page.get_by_role("button", name="Approve")).to_be_visible()
        approve = first.get_by_role("button", name="Approve").evaluate("one => one.click()")
        deny = second.get_by_role("button", name="Deny").evaluate("one => one.click()")
        await approve
        await deny
        async with served.http() as http:
            await http.get(f"/workflows/{run}/events", params={"timeout": 3})
            [closed] = (await http.get("/inbox", params={"open": "false"})).json()["items"]
        winner, loser = (first, second) if closed["outcome"] == "granted" else (second, first)
        await expect(loser.locator(".request")).to_contain_text(f"It was {closed['outcome']} by")
        await expect(winner.locator(".empty")).to_contain_text("Nothing waits")
        await loser.get_by_role("button", name="Take it off the list").click()
        await expect(loser.locator(".empty")).to_contain_text("Nothing waits")


async def test_what_was_opened_stays_open_while_the_run_goes_on(browser, served, gate):
    gate.open.clear()
    run = await start(served, wait=0)
    async with opened(browser) as (page, _):
        await page.goto(address(served, f"#/runs/{run}?select=event:0"))
        await expect(page.locator('.node[data-step="draft"]')).to_have_attribute("data-state", "running")
        await page.locator(".inspector summary").first.click()
        await expect(page.locator(".inspector .json-leaf").first).to_be_hidden()
        gate.open.set()
        await expect(page.locator(".run-title .badge")).to_have_attribute("data-state", "waiting")
        await expect(page.locator(".place")).to_contain_text("workflow.waiting")
        await expect(page.locator(".inspector .json-leaf").first).to_be_hidden()


async def test_the_plan_of_a_request_is_reviewed_edited_and_executed(browser, tmp_path, monkeypatch):
    monkeypatch.setenv("AGENTFLOW_MODEL", "scripted:m")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    proposed = plan(step("fetch", title="<b>Fetch</b>"), step("sum", "fetch"), risks=["It may be slow."])
    writer = model_of(
        [proposed] * 2, lambda step_id, request: done(step_id), normal=[normalized(), normalized()]
    )
    async with (
        serving(tmp_path, model=writer) as served,
        served.client() as client,
        served.http() as http,
        opened(browser) as (page, _),
    ):
        runs = [(await client.request("workflow: x", review=True)).run.workflow_id for _ in range(2)]
        for run in runs:
            await client.rest(run)
        await page.goto(address(served, f"#/runs/{runs[0]}"))
        card = page.locator(".request")
        await expect(card).to_contain_text("Review a plan")
        await expect(card.locator("tbody tr")).to_contain_text(["<b>Fetch</b>", "do sum"])
        await expect(card).to_contain_text("It may be slow.")
        # An edit is checked before anything is stored.
        await card.get_by_role("button", name="Edit").click()
        editor = page.get_by_role("dialog").get_by_label("Plan")
        await editor.fill(json.dumps(plan(step("fetch", "fetch"))))
        await page.get_by_role("button", name="Store the plan").click()
        await expect(page.get_by_role("dialog").locator(".problem")).to_contain_text("E_PLAN_CYCLE")
        await editor.fill(json.dumps(plan(step("sum"))))
        await page.get_by_role("button", name="Store the plan").click()
        await expect(card.locator("tbody tr")).to_have_count(1)
        await card.get_by_text("What you changed").click()
        await expect(card.locator(".diff-removed").first).to_be_visible()
        # Somebody else changes it meanwhile: what was seen is not what would be executed.
        other = {"plan": plan(step("other"))}
        assert (await http.put(f"/workflows/{runs[0]}/plan", json=other)).status_code == 200
        await card.get_by_role("button", name="Execute").click()
        await expect(card.locator(".problem")).to_contain_text("digest_mismatch")
        await card.get_by_role("button", name="Load it again").click()
        await expect(card.locator("tbody tr")).to_contain_text(["do other"])
        await card.get_by_role("button", name="Execute").click()
        await expect(page.locator(".run-title .badge")).to_have_attribute("data-state", "completed")
        assert [one["step_id"] for one in (await client.final(runs[0]))["steps"]] == ["other"]
        await page.goto(address(served, "#/inbox"))
        await expect(card).to_contain_text("Review a plan")
        await card.get_by_label("Reason").fill("too dear")
        await card.get_by_role("button", name="Reject").click()
        await expect(page.locator(".empty")).to_contain_text("Nothing waits")
        assert (await client.record(runs[1])).state == "cancelled"
