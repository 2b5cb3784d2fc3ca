"""Who may do what: of each command, by mouse and by keyboard, a page sends what the scopes of its person
allow, and nothing else; what is only looked at takes no command by any route."""

from __future__ import annotations

import re

import httpx
import pytest
from playwright.async_api import expect

from agentflow.config import ServerConfig
from agentflow.events.open import open_log
from agentflow.server.app import OPERATIONS
from agentflow.server.looking import listening, read_only_application
from tests.browser.kit import BROKEN, CLAIM, crm, model, opened
from tests.browser.test_views import QUESTION, address, start
from tests.unit.server.kit import serving, tokens

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow, pytest.mark.timeout(240)]

RUN = {"Pause", "Cancel", "Fork", "Resume", "Retry", "Mark as done", "Skip", "Let it fail", "Start", "Check"}
NEEDS = {
    **dict.fromkeys(RUN | {"Register", "pause", "resume", "cancel"}, "run"),
    **dict.fromkeys(("Approve", "Deny", "Answer"), "approve"),
    "delete": "admin",
}
"""The scope of each command, by the text of its button."""

PEOPLE = {
    "reader": {"read"},
    "runner": {"read", "run"},
    "approver": {"read", "approve"},
    "boss": {"read", "run", "approve", "admin"},
}


async def sign_in(page, served, secret):
    await page.goto(address(served))
    await page.get_by_label("Token").fill(secret)
    await page.get_by_role("button", name="Sign in").click()
    await expect(page.locator(".run-row").nth(1)).to_be_visible()


@pytest.mark.parametrize("person", sorted(PEOPLE))
async def test_each_command_needs_its_scope(browser, tmp_path, person):
    given, secrets = tokens(**{name: tuple(scopes) for name, scopes in PEOPLE.items()})
    config = ServerConfig(require_token=True)
    access = {"config": config, "given": given}
    async with serving(tmp_path, model=model(), services=(crm(),), **access) as served:
        run = await start(served)
        paused = await start(served)
        held = await start(served, BROKEN, options={"on_failure": "hold"})
        asked = await start(served, QUESTION)
        async with served.http() as http:
            assert (await http.post(f"/workflows/{paused}/pause", json={})).status_code < 300
            assert (await http.post("/definitions", json={"definition": CLAIM})).status_code == 201
        places = [
            ("", {"pause", "resume", "cancel", "delete"}),
            (f"#/runs/{run}", {"Pause", "Cancel", "Fork", "Approve", "Deny"}),
            (f"#/runs/{paused}", {"Resume", "Cancel", "Fork"}),
            (f"#/runs/{held}", {"Resume", "Retry", "Mark as done", "Skip", "Let it fail"}),
            (f"#/runs/{asked}", {"Answer"}),
            ("#/inbox", {"Approve", "Deny", "Answer"}),
            ("#/definitions", {"Check", "Register"}),
            ("#/definitions/claim", {"Start"}),
        ]
        async with opened(browser) as (page, _):
            await sign_in(page, served, secrets[person])
            sent: list[str] = []
            page.on("request", lambda one: one.method != "GET" and sent.append(one.url))
            for place, names in places:
                await page.goto("about:blank")
                await page.goto(address(served, place))
                if place == "":
                    await page.get_by_label(f"Select {run}").check()
                for name in sorted(names):
                    button = page.get_by_role("button", name=name, exact=True).first
                    await expect(button).to_be_visible()
                    if NEEDS[name] in PEOPLE[person]:
                        await expect(button).not_to_have_attribute("aria-disabled", "true")
                        continue
                    await expect(button).to_have_attribute("title", f"Needs the scope {NEEDS[name]}")
                    await button.click(force=True)
                    await button.press("Enter")
                    await button.press(" ")
                    await expect(page.get_by_role("dialog")).to_have_count(0)
                # No command stands there beside these.
                shown = await page.locator("main button").all_text_contents()
                assert not ({one.strip() for one in shown} & set(NEEDS)) - names - {"Cancel", "Fork", "Pause"}
                # Enter in a field sends a form too.
                for field in await page.locator("main form input[type=text]").all():
                    if not PEOPLE[person] & {"run", "approve"}:
                        await field.press("Enter")
            assert sent == []


async def test_what_is_looked_at_takes_no_command_by_any_route(tmp_path):
    """`ui --store` and `open FILE --ui`: of every operation of the API, what changes something is refused."""
    url = f"sqlite:{tmp_path / 'runs.db'}"
    (tmp_path / "d").mkdir()
    async with serving(tmp_path / "d", store=url, model=model(), services=(crm(),)) as served:
        run = await start(served)
    before = (tmp_path / "runs.db").read_bytes()
    log = open_log(url, read_only=True)
    values = {"id": run, "step": "send", "request_id": "req_1", "name": "claim", "sha256": "0" * 64}
    values |= {"call": "mcl_1", "template": "t"}
    harmless = {("POST", "/session"), ("DELETE", "/session"), ("POST", "/session/codes")}
    harmless |= {("POST", "/requests/classify")}
    try:
        async with (
            read_only_application(log) as (app, code),
            listening(app, 0) as base,
            httpx.AsyncClient(base_url=base, headers={"Origin": base}) as http,
        ):
            for one in OPERATIONS:
                path = re.sub(r"{(\w+)}", lambda found: values[found[1]], one.path)
                unknown = await http.request(one.method, path, json={})
                assert unknown.status_code == 401 or one.scope is None, one.path
            assert (await http.post("/session", json={"code": code})).status_code == 200
            assert (await http.get("/session")).json()["scopes"] == ["read"]
            for one in OPERATIONS:
                if one.method == "GET" or (one.method, one.path) in harmless:
                    continue
                path = re.sub(r"{(\w+)}", lambda found: values[found[1]], one.path)
                refused = await http.request(one.method, path, json={})
                assert (refused.status_code, refused.json()["code"]) == (403, "forbidden"), path
            for one in OPERATIONS:
                # A store that takes nothing is not ready for commands, and says so.
                if one.method == "GET" and "events" not in one.path and one.path != "/readyz":
                    path = re.sub(r"{(\w+)}", lambda found: values[found[1]], one.path)
                    assert (await http.get(path)).status_code < 500, path
            assert (await http.get("/workflows")).json()["items"][0]["state"] == "waiting"
    finally:
        await log.close()
    assert (tmp_path / "runs.db").read_bytes() == before
