"""What a run, an address or a daemon may do to the page: numbers, names, forms, silence, and what is gone."""

from __future__ import annotations

import json
import re

import pytest
from playwright.async_api import expect

from agentflow.server.app import OPERATIONS
from agentflow.testing import ScriptedModel
from tests.browser.kit import CLAIM, crm, model, opened
from tests.browser.test_lib import FORM
from tests.browser.test_views import QUESTION, address, decide, start
from tests.unit.server.kit import agents, serving

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow]

LONG = 12345678901234567891
NUMBERED = """\
version: "1.0"
name: pay
inputs:
  account: { type: integer }
  note: { type: string }
workflow:
  steps:
    - type: run
      id: pay
      approval: true
      agent: {systemPrompt: pay, input: "${{ inputs.account }}", attachedFunctions: none, model: "scripted:m",
              resultSchema: {type: string}}
"""
HIDDEN = "a\u202eb\u200bc\u2066d"


async def test_integers_beyond_a_double_are_shown_and_sent_as_they_are(browser, served):
    run = await start(served, NUMBERED, input={"account": LONG, "note": "x"})
    async with opened(browser) as (page, _):
        await page.goto(address(served, "#/inbox"))
        await expect(page.locator(".subject")).to_contain_text(str(LONG))
        await page.goto(address(served, f"#/runs/{run}?tab=input"))
        await expect(page.locator(".inspector .json").last).to_contain_text(f"account: {LONG}")
        await page.locator(".log-row").first.click()
        await expect(page.locator(".inspector .json")).to_contain_text(str(LONG))
        await page.get_by_role("button", name="Fork").click()
        dialog = page.get_by_role("dialog")
        await dialog.get_by_label("From").select_option("begin")
        await dialog.get_by_text("Edit the input").click()
        await dialog.get_by_label("note").fill("y")
        await dialog.get_by_role("button", name="Fork").click()
        await expect(page.get_by_role("link", name="forked from")).to_be_visible()
        fork = page.url.rpartition("/")[2].partition("?")[0]
        await page.get_by_role("link", name="Compare").click()
        await expect(page.locator(".diff").last).to_contain_text(str(LONG))
        # A number that is written in a form, and one written as JSON.
        schema = {"type": "object", "properties": {"n": {"type": "integer"}, "any": {}}}
        await page.evaluate(FORM, [schema, None])
        await page.get_by_label("n", exact=True).fill(str(LONG))
        await page.get_by_label("any").fill(f"[{LONG}, 1.5]")
        sent = await page.evaluate("JSON.stringify(window.field.value())")
        assert sent == f'{{"n":{LONG},"any":[{LONG},1.5]}}'
    async with served.http() as http:
        record = (await http.get(f"/workflows/{fork}")).json()
    assert record["input"] == {"account": LONG, "note": "y"}


WIDE = {"type": "object", "properties": {f"p{i}": {"$ref": "#"} for i in range(40)}}
NESTED: dict = {"type": "string"}
for _ in range(6):
    NESTED = {"type": "array", "minItems": 20, "items": NESTED}


@pytest.mark.parametrize(
    "schema",
    [
        {**WIDE, "required": [f"p{i}" for i in range(40)]},
        {"type": "object", "properties": {"x": NESTED}, "required": ["x"]},
        {"$ref": "#/%zz"},
        {"type": "object", "properties": {"a": {"$ref": "#/$defs/%E0%A4%A"}}},
        {"$ref": "#/constructor/prototype"},
        {"allOf": [{"$ref": "#"}, {"$ref": "#"}]},
        {"type": "string", "format": "constructor", "pattern": "(a+)+$", "title": "x" * 100_000},
        {"type": "string", "format": "__proto__", "default": {"a": 1}},
        {"type": "integer", "default": "seven"},
        {"title": ["no", "text"], "type": "string"},
        {"enum": [HIDDEN, "x" * 10_000, {"a": [1]}, None]},
        {"oneOf": []},
    ],
    ids=range(12),
)
async def test_no_schema_hangs_the_page_or_hides_the_field(browser, served, schema):
    async with opened(browser) as (page, _):
        await page.goto(address(served))
        await expect(page.locator("h1")).to_be_visible()
        await page.evaluate(FORM, [schema, None])
        controls = await page.locator("main :is(input, select, textarea)").count()
        assert 0 < controls < 10_000


async def test_members_that_objects_inherit_are_members_like_others(browser, served):
    names = ["__proto__", "constructor", "toString", "hasOwnProperty"]
    schema = {
        "type": "object",
        "properties": {name: {"type": "string"} for name in names},
        "required": names,
    }
    async with opened(browser) as (page, _):
        await page.goto(address(served))
        await expect(page.locator("h1")).to_be_visible()
        # As the API brings it: in JSON, where `__proto__` is a member.
        form = f"([text]) => ({FORM.strip()})([JSON.parse(text), null])"
        await page.evaluate(form, [json.dumps(schema)])
        for name in names:
            field = page.get_by_label(name)
            assert await field.input_value() == ""
            await field.fill(f"v {name}")
        sent = json.loads(await page.evaluate("JSON.stringify(window.field.value())"))
        assert sent == {name: f"v {name}" for name in names}
        # What is not in the schema is kept.
        given = {"__proto__": {"x": 1}, "more": 2}
        await page.evaluate(
            "async ([schema, given]) => { const { formOf } = await import('./lib/form.js');"
            " window.field = formOf(JSON.parse(schema), JSON.parse(given)); }",
            [
                json.dumps({"type": "object", "properties": {"a": {"type": "string"}}}),
                json.dumps(given),
            ],
        )
        assert json.loads(await page.evaluate("JSON.stringify(window.field.value())")) == given


async def test_one_question_that_cannot_be_shown_hides_no_other(browser, served):
    run = await start(served, QUESTION)
    async with served.http() as http:
        [asked] = (await http.get("/inbox")).json()["items"]
    broken = [
        {**asked, "request_id": "req_1", "response_schema": {"$ref": "#/%zz"}},
        {**asked, "request_id": "req_2", "subject": None, "iteration": None},
        {**asked, "request_id": "req_3", "asked_at": None, "workflow_id": None},
    ]
    async with opened(browser) as (page, _):
        items = [*broken, asked]
        await page.route(f"{served.tcp_url}/inbox*", lambda route: route.fulfill(json={"items": items}))
        await page.goto(address(served, "#/inbox"))
        await expect(page.locator(".request")).to_have_count(4)
        card = page.locator(f'[data-request="{asked["request_id"]}"]')
        await card.locator("input").fill("XL")
        await card.get_by_role("button", name="Answer").click()
        await page.goto(address(served, f"#/runs/{run}"))
        await expect(page.locator(".run-title .badge")).to_have_attribute("data-state", "completed")


async def test_no_address_breaks_the_page(browser, served):
    run = await start(served)
    places = [
        "#/runs/%zz",
        "#/%",
        "#/%E0%A4%A/x",
        "#/runs/..%2f..%2fsession",
        f"#/runs/{run}?offset=abc",
        f"#/runs/{run}?offset=-1&select=event:-5",
        f"#/runs/{run}?offset=1e9&select=event:abc",
        f"#/runs/{run}?select=step:constructor&tab=__proto__",
        f"#/runs/{run}?select=call:__proto__",
        f"#/runs/{run}?log=(((&select=|||",
        f"#/runs/{run}/calls/constructor",
        f"#/runs/{run}/compare/wf_nowhere",
        "#/constructor",
        "#/__proto__",
        "#/definitions/%00",
        "#/docs/..%2f..%2fsecret",
        "#/usage?since=abc",
        "#/inbox?kind=nothing",
        "#/runs?since=abc&state=nothing&label=x",
        "#//////",
        "#?",
    ]
    async with opened(browser) as (page, watch):
        for place in places:
            await page.goto("about:blank")
            await page.goto(address(served, place))
            await expect(page.locator("main :is(h1, .problem)").first).to_be_visible()
            await expect(page.locator("main")).not_to_be_empty()
            assert watch.errors == [], place
            # The way on is not blocked.
            await page.get_by_role("link", name="Docs").click()
            await expect(page.locator(".prose h1")).to_be_visible()


async def test_an_offset_that_will_never_be_is_the_end(browser, served):
    run = await start(served)
    await decide(served, run)
    async with served.http() as http:
        await http.get(f"/workflows/{run}/events", params={"timeout": 5})
    async with opened(browser) as (page, _):
        await page.goto(address(served, f"#/runs/{run}?offset=99999"))
        await expect(page.locator('.node[data-step="send"]')).to_have_attribute("data-state", "succeeded")
        await expect(page.locator(".view.past")).to_have_count(0)
        assert "offset" not in page.url


async def test_a_log_whose_beginning_was_removed_is_looked_at_by_its_offsets(browser, served):
    run = await start(served)
    await decide(served, run)
    async with served.http() as http:
        await http.get(f"/workflows/{run}/events", params={"timeout": 5})
    await served.runtime.log.trim(run, 20)
    async with served.http() as http:  # what each route answers now is in the document too
        for one in OPERATIONS:
            if one.method == "GET" and re.findall(r"{(\w+)}", one.path) == ["id"]:
                given = {"follow": "false"} if one.path.endswith("/events") else {}
                path = one.path.replace("{id}", run)
                answer = await http.get(path, params={"with": run} if "compare" in path else given)
                assert answer.status_code < 500, path
    async with opened(browser) as (page, _):
        await page.goto(address(served, f"#/runs/{run}"))
        await expect(page.locator(".run-head")).to_contain_text("The events before offset 20 were removed")
        await expect(page.locator(".run-title .badge")).to_have_attribute("data-state", "completed")
        slider = page.get_by_label("Offset of the log")
        assert await slider.get_attribute("min") == "20"
        await slider.fill("22")
        await expect(page.locator(".place")).to_contain_text("22 · ")
        await page.get_by_role("button", name="One event back").click()
        await expect(page.locator(".place")).to_contain_text("21 · ")
        for _ in range(3):
            await page.get_by_role("button", name="One event back").click()
        await expect(page.locator(".place")).to_contain_text("20 · ")
        await page.locator("main .view").focus()
        await page.keyboard.press("End")
        await expect(page.get_by_role("button", name="Latest")).to_be_disabled()
        await page.goto(address(served, f"#/runs/{run}?offset=3"))
        await expect(page.locator(".place")).to_be_visible()


async def test_what_was_deleted_leaves_the_list(browser, served):
    old = await start(served, agents("x"), input="x")
    new = await start(served, agents("x"), input="x")
    async with opened(browser) as (page, _):
        await page.goto(address(served))
        await expect(page.locator(f'[data-id="{new}"]')).to_contain_text("completed")
        await page.get_by_label(f"Select {old}").check()
        await page.locator(".bulk").get_by_role("button", name="delete").click()
        await page.get_by_role("dialog").get_by_role("button", name="delete").click()
        await expect(page.locator(f'[data-id="{old}"]')).to_have_count(0)
        # Nor does a run stay that has left the state that is filtered for.
        waiting = [await start(served), await start(served)]
        await page.goto(address(served, "#/runs?state=waiting"))
        await expect(page.locator(f'[data-id="{waiting[0]}"]')).to_be_visible()
        await decide(served, waiting[0])
        await expect(page.locator(f'[data-id="{waiting[0]}"]')).to_have_count(0)
        await expect(page.locator(f'[data-id="{waiting[1]}"]')).to_be_visible()


async def test_a_problem_goes_when_the_daemon_is_back(browser, served):
    run = await start(served)
    async with opened(browser) as (page, watch):
        await page.goto(address(served, "#/inbox"))
        card = page.locator(".request")
        await card.get_by_label("Reason").fill("half written")
        away = "**/inbox*"
        await page.route(away, lambda route: route.abort())
        await page.get_by_label("Kind").select_option("step")
        await expect(page.locator(".problem")).to_contain_text("cannot be reached")
        await expect(card.get_by_label("Reason")).to_have_value("half written")
        await page.unroute(away)
        await page.get_by_label("Kind").select_option("")
        await expect(page.locator(".problem")).to_have_count(0)
        await expect(card.get_by_label("Reason")).to_have_value("half written")
        await page.goto(address(served, f"#/runs/{run}"))
        await expect(page.locator(".request")).to_be_visible()
        away = f"**/workflows/{run}"
        await page.route(away, lambda route: route.abort())
        await page.get_by_role("button", name="Pause").click()
        await page.get_by_role("dialog").get_by_role("button", name="pause").click()
        await expect(page.locator(".run-head .problem")).to_contain_text("cannot be reached")
        await page.unroute(away)
        async with served.http() as http:
            await http.post(f"/workflows/{run}/resume", json={})
        await expect(page.locator(".run-head .problem")).to_have_count(0)
        watch.errors.clear()


async def test_a_stream_that_says_nothing_is_made_again(browser, served):
    """As after sleep, when the connection is gone and nobody has said so."""
    await start(served)
    silent = """
    const real = window.fetch;
    window.streams = 0;
    window.fetch = (url, options) => {
      if (!String(url).includes("/events?")) return real(url, options);
      window.streams += 1;
      if (window.streams > 1) return real(url, options);
      const body = new ReadableStream({ start(controller) {
        options.signal.addEventListener("abort", () => controller.error(new DOMException("x", "AbortError")));
      } });
      return Promise.resolve(new Response(body));
    };
    """
    async with opened(browser) as (page, _):
        await page.clock.install()
        await page.add_init_script(silent)
        await page.goto(address(served))
        await expect(page.locator(".run-row").nth(1)).to_be_visible()
        other = await start(served)
        await page.clock.run_for(35_000)
        assert await page.evaluate("window.streams") == 1
        await page.clock.run_for(20_000)
        assert await page.evaluate("window.streams") == 2
        await page.clock.run_for(2_000)
        await expect(page.locator(f'[data-id="{other}"]')).to_be_visible()


async def test_a_link_that_was_used_says_so(browser, tmp_path):
    from agentflow.config import ServerConfig
    from tests.unit.server.kit import tokens

    given, _ = tokens(boss=("admin",))
    config = ServerConfig(require_token=True)
    async with serving(tmp_path, given=given, config=config) as served, opened(browser) as (page, _):
        await page.goto(address(served, "#code=abcdefghijklmnop"))
        await expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
        await expect(page.locator(".problem")).to_contain_text("used already or is too old")
        await expect(page.locator(".problem")).to_contain_text("agentflow ui")


async def test_characters_that_cannot_be_seen_are_named_wherever_names_stand(browser, tmp_path):
    steps = """\
version: "1.0"
name: NAME
workflow:
  steps:
    - type: run
      id: one
      approval: true
      agent: {systemPrompt: x, input: x, attachedFunctions: none, model: "scripted:m",
              resultSchema: {type: string}}
""".replace("NAME", json.dumps(HIDDEN))
    async with serving(tmp_path, model=ScriptedModel(lambda r: "\x1b[2J\x1b]0;x\x07" + HIDDEN)) as served:
        run = await start(served, steps, labels={"team": HIDDEN})
        done = await start(served, agents("x"), input=HIDDEN)
        async with served.http() as http:
            body = {"step_id": "one", "decision": "grant"}
            assert (await http.post(f"/workflows/{run}/approvals", json=body)).status_code == 200
            await http.get(f"/workflows/{run}/events", params={"timeout": 5})
        marks = ("U+202E", "U+200B", "U+2066")
        async with opened(browser) as (page, _):
            for place, where in (
                ("", f'[data-id="{run}"] .run-name a'),
                ("", f'[data-id="{run}"] .tag'),
                (f"#/runs/{run}", ".run-title h1"),
                (f"#/runs/{run}", ".run-sub .tag"),
                (f"#/runs/{done}?tab=input", ".inspector .text"),
                (f"#/runs/{done}?tab=output", ".inspector .json"),
                ("#/usage", "tbody th a"),
            ):
                await page.goto("about:blank")
                await page.goto(address(served, place))
                found = page.locator(where).filter(has=page.locator(".hidden-character")).first
                for mark in marks:
                    await expect(found).to_contain_text(mark)
            await page.goto(address(served, f"#/runs/{done}?tab=output"))
            await expect(page.locator(".inspector .json")).to_contain_text("U+001B")
            # A command that is copied is one word for the shell, and carries nothing out when it is pasted.
            words = await page.evaluate(
                "async () => { const { shell } = await import('./lib/format.js');"
                " return ['a b', \"it's\", 'x\\u001b[2J\\n', '$(id)', ''].map(shell); }"
            )
            assert words == ["'a b'", "'it'\\''s'", "$'x\\u001b[2J\\u000a'", "'$(id)'", "''"]


async def test_deep_wide_and_long_values_are_shown(browser, tmp_path):
    deep: object = "bottom"
    for level in range(60):
        deep = {f"level{level}": deep} if level % 2 else [deep]
    value = {
        "deep": deep,
        "wide": {f"k{i}": i for i in range(5_000)},
        "line": "x" * 300_000,
        "__proto__": {"polluted": True},
        "constructor": "c",
        "quote\"'`": "q",
        "link": "javascript:alert(1)",
        "svg": "<svg onload=alert(1)>",
    }
    async with serving(tmp_path, model=model(), services=(crm(),)) as served:
        run = await start(served, agents("x"), input=json.dumps(value))
        other = await start(served, CLAIM, input={"text": json.dumps(value)})
        async with opened(browser) as (page, _):
            page.on("dialog", lambda dialog: pytest.fail(dialog.message))
            await page.goto(address(served, f"#/runs/{run}?tab=input"))
            await expect(page.locator(".inspector")).to_contain_text("level59")
            await page.get_by_role("button", name="Show all").click()
            await expect(page.locator(".inspector")).to_contain_text("javascript:alert(1)")
            # As a value of many parts: those out of sight are not made.
            tree = (
                "async text => { const { jsonView } = await import('./lib/json.js');"
                " document.querySelector('.inspector').replaceChildren(jsonView(JSON.parse(text)));"
                " return [document.querySelectorAll('.inspector *').length, ({}).polluted ?? null]; }"
            )
            made, polluted = await page.evaluate(tree, json.dumps(value))
            assert made < 2_000
            assert polluted is None
            await expect(page.locator(".inspector")).to_contain_text("__proto__")
            await page.goto(address(served, f"#/runs/{run}/compare/{other}"))
            await expect(page.locator(".view-head")).to_contain_text("different")
