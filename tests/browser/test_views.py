"""The views of the dashboard on real runs: what they show, live, and what people do in them."""

from __future__ import annotations

import json

import pytest
from playwright.async_api import expect

from tests.browser.kit import BROKEN, CLAIM, opened
from tests.unit.server.kit import agents

pytestmark = pytest.mark.asyncio(loop_scope="module")

CLAIM_INPUT = {"text": "My parcel never came"}


async def start(served, document=CLAIM, *, wait=5, **more):
    """Submit a run and return its id, once it rests."""
    async with served.http() as http:
        body = {"definition": document, **({"input": CLAIM_INPUT} if document is CLAIM else {}), **more}
        answer = await http.post("/workflows", params={"wait": wait}, json=body)
        assert answer.status_code == 201, answer.text
        return answer.json()["workflow_id"]


async def decide(served, run, decision="grant"):
    async with served.http() as http:
        body = {"step_id": "send", "decision": decision}
        assert (await http.post(f"/workflows/{run}/approvals", json=body)).status_code == 200


def address(served, place=""):
    return f"{served.tcp_url}/ui/{place}"


async def test_runs_are_listed_filtered_and_followed(browser, served):
    first = await start(served, labels={"team": "support"})
    async with opened(browser) as (page, watch):
        await page.goto(address(served))
        row = page.locator(f'[data-id="{first}"]')
        await expect(row).to_contain_text("waiting")
        await expect(row).to_contain_text("3/4")
        # A run that starts elsewhere comes by itself, and so does its end.
        second = await start(served, labels={"team": "sales"})
        other = page.locator(f'[data-id="{second}"]')
        await expect(other).to_contain_text("waiting")
        await decide(served, second)
        await expect(other).to_contain_text("completed")
        await expect(other).to_contain_text("4/4")
        await page.get_by_role("button", name="completed").first.click()
        await expect(row).to_have_count(0)
        assert "state=completed" in page.url
        await page.reload()
        await expect(other).to_be_visible()
        await expect(row).to_have_count(0)
        await page.get_by_role("button", name="All").click()
        await row.get_by_role("button", name="team=support").click()
        await expect(other).to_have_count(0)
        assert "label=team%3Dsupport" in page.url
        assert all(url.startswith((served.tcp_url, "data:")) for url in watch.requests)


async def test_several_runs_get_one_command(browser, served):
    runs = [await start(served), await start(served)]
    async with opened(browser) as (page, _):
        await page.goto(address(served))
        for run in runs:
            await page.get_by_label(f"Select {run}").check()
        await page.locator(".bulk").get_by_role("button", name="cancel").click()
        await page.get_by_label("Reason").fill("not needed")
        await page.get_by_role("dialog").get_by_role("button", name="cancel").click()
        for run in runs:
            await expect(page.locator(f'[data-id="{run}"]')).to_contain_text("cancelled")
    async with served.http() as http:
        events = (await http.get(f"/workflows/{runs[0]}/events", params={"follow": "false"})).text
    assert "not needed" in events


async def test_graph_timeline_log_and_details_share_one_selection(browser, served):
    run = await start(served)
    async with opened(browser) as (page, _):
        await page.goto(address(served, f"#/runs/{run}"))
        node = page.locator('.node[data-step="look_up"]')
        await expect(node).to_have_attribute("data-state", "succeeded")
        await expect(page.locator('.node[data-step="send"]')).to_have_attribute("data-state", "waiting")
        await node.click()
        await expect(page.locator(".inspector h2").first).to_have_text("look_up")
        await expect(page.locator(".time-row.related").first).to_contain_text("look_up")
        assert "select=step%3Alook_up" in page.url
        await page.get_by_role("tab", name="Calls").click()
        await page.locator(".calls").get_by_role("button", name="crm__find").click()
        await expect(page.locator(".inspector")).to_contain_text("Ada Lovelace")
        await expect(page.locator(".time-row.selected")).to_contain_text("crm__find")
        await page.get_by_label("Filter the log").fill("approval.requested")
        await expect(page.locator(".log-row")).to_have_count(1)
        await page.locator(".log-row").click()
        await expect(page.locator(".inspector h2").first).to_have_text("approval.requested")
        await expect(page.locator(".node.selected")).to_have_attribute("data-step", "send")
        await page.reload()  # the address holds the selection
        await expect(page.locator(".inspector h2").first).to_have_text("approval.requested")


async def test_any_offset_of_the_log_can_be_looked_at(browser, served):
    run = await start(served)
    await decide(served, run)
    async with served.http() as http:
        await http.get(f"/workflows/{run}/events", params={"timeout": 5})  # until it has ended
        lines = (await http.get(f"/workflows/{run}/events", params={"follow": "false"})).text.splitlines()
        started = next(
            e for e in map(json.loads, lines) if e["type"] == "workflow.step_started" and e["step"] == "draft"
        )
        async with opened(browser) as (page, _):
            await page.goto(address(served, f"#/runs/{run}?offset={started['offset']}"))
            await expect(page.locator('.node[data-step="draft"]')).to_have_attribute("data-state", "running")
            await expect(page.locator('.node[data-step="send"]')).to_have_attribute("data-state", "pending")
            # What the page folds is what the server folds, at every offset.
            for offset in range(len(lines)):
                await page.locator(".scrubber").fill(str(offset))
                state = (await http.get(f"/workflows/{run}/state", params={"offset": offset})).json()
                await expect(page.locator(".run-title .badge")).to_have_attribute(
                    "data-state", state["state"]
                )
                for step, found in state["steps"].items():
                    node = page.locator(f'.node[data-step="{step}"]')
                    await expect(node).to_have_attribute("data-state", found["state"])
            await page.locator("main .view").focus()
            await page.keyboard.press("End")
            await page.keyboard.press(",")
            assert f"offset={len(lines) - 2}" in page.url


async def test_a_model_call_shows_what_was_sent_and_what_is_new(browser, served):
    run = await start(served)
    async with opened(browser) as (page, _):
        await page.goto(address(served, f"#/runs/{run}?select=step:look_up&tab=calls"))
        await page.locator(".calls").get_by_role("button", name="scripted:m").last.click()
        messages = page.locator(".message")
        await expect(messages).to_have_count(5)  # system, user, assistant, tool, and the answer
        await expect(page.locator(".message.fresh")).to_have_count(1)
        await expect(page.locator(".message.role-tool")).to_contain_text("orders")
        await page.get_by_role("button", name="Compare with the turn before").click()
        await expect(page.locator(".diff-added").first).to_be_visible()
        await page.get_by_label("only what is new").check()
        await expect(messages).to_have_count(2)
        await page.get_by_role("link", name="Open alone").click()
        await expect(page.get_by_role("heading", name="Model call")).to_be_visible()
        await expect(messages).to_have_count(5)


async def test_a_run_is_followed_while_it_goes_on(browser, served, gate):
    gate.open.clear()
    run = await start(served, wait=0)
    async with opened(browser) as (page, _):
        await page.goto(address(served, f"#/runs/{run}"))
        draft = page.locator('.node[data-step="draft"]')
        await expect(draft).to_have_attribute("data-state", "running")
        gate.open.set()
        await expect(draft).to_have_attribute("data-state", "succeeded")
        await expect(page.locator(".run-title .badge")).to_have_text("◔waiting")
        await page.get_by_role("button", name="Approve").click()
        await expect(page.locator(".run-title .badge")).to_have_text("✓completed")
        await expect(page.locator(".run-title .live")).to_have_text("complete")


async def test_an_approval_is_given_by_keyboard_alone(browser, served):
    run = await start(served)
    async with opened(browser) as (page, _):
        await page.goto(address(served))
        await expect(page.locator(".run-row").nth(1)).to_be_visible()
        await page.keyboard.press("g")
        await page.keyboard.press("i")
        await expect(page.locator(".request")).to_be_visible()
        for _ in range(40):
            await page.keyboard.press("Tab")
            if await page.evaluate("document.activeElement.textContent") == "Approve":
                break
        await page.keyboard.press("Enter")
        await expect(page.locator(".empty")).to_contain_text("Nothing waits")
    async with served.http() as http:
        closed = (await http.get("/inbox", params={"open": "false"})).json()["items"]
    assert [(one["request"]["workflow_id"], one["outcome"]) for one in closed] == [(run, "granted")]


async def test_the_second_of_two_people_sees_who_decided(browser, served):
    run = await start(served)
    async with opened(browser) as (page, _):
        # Without its stream the page does not know yet what happened meanwhile.
        await page.route("**/events?*", lambda route: route.abort())
        await page.goto(address(served, "#/inbox"))
        await page.get_by_label("Reason").fill("too early")
        await decide(served, run)
        await page.get_by_role("button", name="Deny").click()
        await expect(page.locator(".request .problem")).to_be_visible()
        await expect(page.locator(".request")).to_contain_text("It was granted by")


QUESTION = """\
version: "v0"
name: ask
nodes:
  - {id: start, type: start, next: ask}
  - {id: ask, type: human_in_the_loop, input_type: text, prompt: Which size?, next: end}
  - {id: end, type: end}
"""


async def test_a_question_is_answered_by_a_form(browser, served):
    run = await start(served, QUESTION)
    async with opened(browser) as (page, _):
        await page.goto(address(served, "#/inbox"))
        await expect(page.locator(".request")).to_contain_text("Which size?")
        await page.locator(".request input").fill("XL")
        await page.get_by_role("button", name="Answer").click()
        await expect(page.locator(".empty")).to_be_visible()
    async with served.http() as http:
        [closed] = (await http.get(f"/workflows/{run}/requests", params={"open": "false"})).json()["items"]
    assert (closed["outcome"], closed["response"]) == ("answered", "XL")


async def test_an_error_says_what_mends_it(browser, served):
    run = await start(served, BROKEN)
    async with opened(browser) as (page, _):
        await page.goto(address(served, f"#/runs/{run}"))
        await expect(page.locator(".command").first).to_contain_text(f"agentflow fork {run} --from-failure")
        await page.locator('.node[data-step="fetch"]').click()
        await expect(page.locator(".error-box")).to_contain_text("agentflow help")
        await page.get_by_role("tab", name="Calls").click()
        await page.locator(".calls").get_by_role("button", name="crm__fail").first.click()
        await expect(page.locator(".error-box").first).to_contain_text("tool")


async def test_a_held_run_says_why_and_is_decided_in_place(browser, served):
    runs = [await start(served, BROKEN, options={"on_failure": "hold"}) for _ in range(3)]
    async with opened(browser) as (page, _):
        await page.goto(address(served))
        await expect(page.locator(f'[data-id="{runs[0]}"] .because')).to_have_text("failure")
        await page.goto(address(served, f"#/runs/{runs[0]}"))
        pause = page.get_by_role("region", name="Pause")
        await expect(pause).to_contain_text("waits for your decision")
        await expect(pause.locator(".error-message")).to_be_visible()
        await expect(pause.locator(".command")).to_contain_text(f"agentflow retry {runs[0]} fetch")
        for run, button, state in zip(
            runs, ("Mark as done", "Skip", "Let it fail"), ("completed", "completed", "failed"), strict=True
        ):
            await page.goto(address(served, f"#/runs/{run}"))
            await pause.get_by_role("button", name=button).click()
            dialog = page.get_by_role("dialog")
            if button == "Mark as done":
                await dialog.get_by_role("button", name=button).click()
                await expect(dialog.locator(".problem")).to_contain_text("write a JSON value")
                await dialog.get_by_label("Output of the step").fill("42")
            await dialog.get_by_role("button", name=button).click()
            await expect(page.locator(".run-title .badge")).to_have_attribute("data-state", state)
    async with served.http() as http:
        assert (await http.get(f"/workflows/{runs[0]}")).json()["output"] == {"fetch": 42}


async def test_a_run_without_budget_goes_on_with_a_larger_one(browser, served):
    definition = agents("first", "second")
    run = await start(served, definition, input="x", budget={"max_model_calls": 1})
    async with opened(browser) as (page, _):
        await page.goto(address(served, f"#/runs/{run}"))
        pause = page.get_by_role("region", name="Pause")
        await expect(pause).to_contain_text("max_model_calls of the run is 1: 1 used, 1 more wanted")
        await expect(page.locator(".number-box", has_text="Budget: model calls")).to_contain_text("1 of 1")
        await page.get_by_role("tab", name="Usage").click()
        limit = page.locator(".inspector tr", has=page.get_by_role("rowheader", name="Model calls"))
        await expect(limit.locator("td")).to_have_text(["1", "1", "0", "0"])  # limit, used, reserved, left
        # What stands still is drawn as waiting, although its step has begun.
        await expect(page.locator(".time-row", has_text="agent_1").locator(".bar.wait")).to_be_visible()
        await page.get_by_role("button", name="Resume").click()
        dialog = page.get_by_role("dialog")
        await dialog.get_by_role("button", name="Resume").click()
        await expect(dialog.locator(".problem")).to_contain_text("Raise a limit")
        await dialog.get_by_label("Model calls, used 1").fill("5")
        await dialog.get_by_role("button", name="Resume").click()
        await expect(page.locator(".run-title .badge")).to_have_attribute("data-state", "completed")


async def test_a_row_keeps_the_focus_while_runs_move(browser, served):
    run = await start(served)
    async with opened(browser) as (page, _):
        await page.goto(address(served))
        row = page.locator(f'[data-id="{run}"]')
        await row.locator("a").focus()
        other = await start(served)
        await expect(page.locator(f'[data-id="{other}"]')).to_contain_text("3/4")
        await expect(row.locator("a")).to_be_focused()
        await page.get_by_label(f"Select {run}").focus()
        await decide(served, run)
        await expect(row).to_contain_text("completed")
        await expect(page.get_by_label(f"Select {run}")).to_be_focused()


async def test_a_fork_with_another_input_is_compared_with_its_origin(browser, served):
    run = await start(served)
    async with opened(browser) as (page, _):
        await page.goto(address(served, f"#/runs/{run}"))
        await expect(page.locator('.node[data-step="send"]')).to_have_attribute("data-state", "waiting")
        await page.get_by_role("button", name="Fork").click()
        dialog = page.get_by_role("dialog")
        await dialog.get_by_label("From").select_option("begin")
        await dialog.get_by_text("Edit the input").click()
        await dialog.get_by_label("text").fill("It came broken")
        await dialog.get_by_role("button", name="Fork").click()
        await expect(page.get_by_role("link", name="forked from")).to_be_visible()
        fork = page.url.rpartition("/")[2].partition("?")[0]
        assert fork != run
        await expect(page.locator('.node[data-step="send"]')).to_have_attribute("data-state", "waiting")
        await page.get_by_role("link", name="Compare").click()
        await expect(page.locator(".first-difference")).to_contain_text("classify")
        await expect(page.locator(".diff-added").first).to_contain_text("It came broken")


async def focus(page, name):
    """Press Tab until the control with this text or label has the focus."""
    told = "one => one.textContent.trim() || one.labels?.[0]?.textContent || one.ariaLabel"
    for _ in range(60):
        await page.keyboard.press("Tab")
        if await page.evaluate(f"({told})(document.activeElement)") == name:
            return
    raise AssertionError(f"the focus does not come to {name}")


async def test_a_fork_is_made_by_keyboard_alone(browser, served):
    run = await start(served)
    async with opened(browser) as (page, _):
        await page.goto(address(served))
        await expect(page.locator(f'[data-id="{run}"]')).to_be_visible()
        await page.keyboard.press("j")
        await page.keyboard.press("Enter")
        await expect(page.locator('.node[data-step="send"]')).to_have_attribute("data-state", "waiting")
        await focus(page, "Fork")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("dialog")).to_be_visible()
        await focus(page, "Edit the input")
        await page.keyboard.press("Enter")
        await focus(page, "text (required)")
        await page.keyboard.press("Control+a")
        await page.keyboard.type("It came broken")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("link", name="forked from")).to_be_visible()
        fork = page.url.rpartition("/")[2].partition("?")[0]
    async with served.http() as http:
        record = (await http.get(f"/workflows/{fork}")).json()
    assert (record["forked_from"]["workflow_id"], record["input"]["text"]) == (run, "It came broken")


async def test_a_fork_that_is_refused_says_why_and_starts_nothing(browser, served):
    run = await start(served)
    async with opened(browser) as (page, _):
        await page.goto(address(served, f"#/runs/{run}"))
        await page.get_by_role("button", name="Fork").click()
        dialog = page.get_by_role("dialog")
        await dialog.get_by_text("Edit results").click()
        await dialog.get_by_label("Outputs of steps").fill('{"nowhere": 1}')
        await dialog.get_by_role("button", name="Fork").click()
        await expect(dialog.locator(".problem")).to_contain_text("nowhere")
    async with served.http() as http:
        assert len((await http.get("/workflows")).json()["items"]) == 1


async def test_a_fork_begins_with_the_state_that_people_wrote(browser, served):
    run = await start(served)
    async with opened(browser) as (page, _):
        await page.goto(address(served, f"#/runs/{run}"))
        await page.get_by_role("button", name="Fork").click()
        dialog = page.get_by_role("dialog")
        await dialog.get_by_text("Edit the state").click()
        await dialog.get_by_label("Shared state").fill('{"seen": "c-9"}')
        await dialog.get_by_label("State of steps").fill("{")
        await dialog.get_by_role("button", name="Fork").click()
        await expect(dialog.locator(".problem")).to_contain_text("State of steps")
        await dialog.get_by_label("State of steps").fill('{"draft": {"n": 1}}')
        async with page.expect_request("**/fork") as asked:
            await dialog.get_by_role("button", name="Fork").click()
        edits = (await asked.value).post_data_json["edits"]
        assert edits == {"shared": {"seen": "c-9"}, "state": {"draft": {"n": 1}}}


async def test_a_definition_is_checked_registered_and_started_by_its_form(browser, served):
    async with opened(browser) as (page, _):
        await page.goto(address(served, "#/definitions"))
        source = page.get_by_label("Source of a workflow")
        await source.fill(CLAIM.replace("depends_on: [classify]", "depends_on: [clasify]"))
        await page.get_by_role("button", name="Check", exact=True).click()
        await expect(page.locator(".diagnostics li").first).to_contain_text("clasify")
        await expect(page.locator(".mark-error").first).to_be_visible()
        await source.fill(CLAIM)
        await page.get_by_role("button", name="Check", exact=True).click()
        await expect(page.locator(".valid")).to_be_visible()
        await page.get_by_role("button", name="Register").click()
        await expect(page.locator(".graph .node")).to_have_count(6)
        # Versions of one name: the newest is shown, the older ones are a link away.
        async with served.http() as http:
            newer = CLAIM.replace("systemPrompt: draft,", "systemPrompt: draft anew,")
            body = {"definition": newer, "version": "2"}
            assert (await http.post("/definitions", json=body)).status_code == 201
        await page.reload()
        listed = page.locator(".choices a")
        await expect(listed).to_have_count(2)
        newest, oldest = await listed.all_inner_texts()
        await page.get_by_role("link", name=oldest, exact=True).click()
        await expect(page.locator('.choices a[aria-current="true"]')).to_have_text(oldest)
        await expect(page.locator(".source-view")).not_to_contain_text("draft anew")
        await page.get_by_role("link", name=newest, exact=True).click()
        await expect(page.locator(".source-view")).to_contain_text("draft anew")
        await page.get_by_role("link", name=oldest, exact=True).click()
        await expect(page.locator(".source-view")).not_to_contain_text("draft anew")
        await page.get_by_label("text").fill("Where is my money?")
        await page.get_by_role("button", name="Start").click()
        await expect(page.locator('.node[data-step="send"]')).to_have_attribute("data-state", "waiting")
        await page.get_by_role("tab", name="Input").click()
        await expect(page.locator(".inspector")).to_contain_text("Where is my money?")


async def test_usage_system_and_documentation_are_shown(browser, served):
    run = await start(served)
    await decide(served, run)
    async with opened(browser) as (page, _):
        await page.goto(address(served, f"#/runs/{run}?tab=usage"))
        await expect(page.locator(".inspector table").first).to_contain_text("look_up")
        by_model = page.locator(".inspector table").last.locator("tbody tr")
        await expect(by_model.locator("th")).to_have_text(["scripted:m"])
        await expect(by_model.locator("td").first).to_have_text("5")
        await page.goto(address(served, "#/usage"))
        await expect(page.get_by_role("rowheader", name="claim").first).to_be_visible()
        await page.goto(address(served, "#/system"))
        await expect(page.locator(".system")).to_contain_text("Commit")
        await page.goto(address(served, "#/docs/approvals"))
        await expect(page.locator(".prose h1")).to_be_visible()
        await page.locator('.docs nav a[href="#/docs/ordering"]').click()
        await expect(page.locator('.docs nav a[href="#/docs/ordering"]')).to_have_attribute(
            "aria-current", "page"
        )
