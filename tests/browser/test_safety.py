"""Who may look and act, and what a run may contain: sessions, scopes, hostile results, pages of others."""

from __future__ import annotations

import asyncio
import gzip
from urllib.parse import quote

import httpx
import pytest
import pytest_asyncio
from playwright.async_api import expect
from starlette.applications import Starlette
from starlette.responses import HTMLResponse
from starlette.routing import Mount, Route

from agentflow import Runtime, Service, function
from agentflow.config import ServerConfig
from agentflow.server import Application, Caller
from agentflow.server.page import page_files
from agentflow.testing import ScriptedModel
from agentflow.testing.scripted import call
from tests.browser.kit import BROKEN, CLAIM, crm, model, opened
from tests.browser.test_views import address, start
from tests.unit.server.kit import ECHO, serving, tokens

pytestmark = pytest.mark.asyncio(loop_scope="module")

HOSTILE = (
    '<script>window.hacked = 1</script><img src=x onerror="window.hacked = 1">'
    '<a href="javascript:window.hacked=1">here</a> [here](javascript:window.hacked=1) \u202e'
)


@pytest_asyncio.fixture(loop_scope="module")
async def guarded(tmp_path):
    """A daemon that asks for a token, and the secrets of its tokens."""
    given, secrets = tokens(boss=("admin",), reader=("read",))
    config = ServerConfig(require_token=True)
    async with serving(tmp_path, model=model(), services=(crm(),), config=config, given=given) as found:
        yield found, secrets


async def test_a_link_works_once_and_becomes_a_cookie(browser, guarded):
    served, secrets = guarded
    async with served.http(tcp=True) as http:
        headers = {"Authorization": f"Bearer {secrets['reader']}"}
        made = (await http.post("/session/codes", headers=headers)).json()
    async with opened(browser) as (page, watch):
        await page.goto(served.tcp_url + made["path"])
        await expect(page.get_by_role("heading", name="Runs")).to_be_visible()
        assert "code" not in page.url
        [cookie] = await page.context.cookies()
        assert cookie["name"] == f"agentflow_session_{served.port}"
        assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
        assert await page.evaluate("document.cookie") == ""
        assert all(secrets["reader"] not in url for url in watch.requests)
        await page.get_by_role("button", name="Sign out").click()
        await expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
        async with served.http(tcp=True, cookies={cookie["name"]: cookie["value"]}) as http:
            assert (await http.get("/workflows")).status_code == 401  # it was ended, not only forgotten
    async with opened(browser) as (page, _):
        await page.goto(served.tcp_url + made["path"])
        await expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
        await page.get_by_label("Token").fill("x" * 40)
        await page.get_by_role("button", name="Sign in").click()
        await expect(page.locator(".problem")).to_contain_text("not valid")
        await page.get_by_label("Token").fill(secrets["boss"])
        await page.get_by_role("button", name="Sign in").click()
        await expect(page.get_by_role("heading", name="Runs")).to_be_visible()


async def test_a_reader_sees_why_a_button_may_not_be_pressed(browser, guarded):
    served, secrets = guarded
    run = await start(served)
    async with opened(browser) as (page, _):
        await page.goto(address(served))
        await page.get_by_label("Token").fill(secrets["reader"])
        await page.get_by_role("button", name="Sign in").click()
        await expect(page.locator(f'[data-id="{run}"]')).to_be_visible()
        await page.goto(address(served, "#/inbox"))
        approve = page.get_by_role("button", name="Approve")
        await expect(approve).to_have_attribute("aria-disabled", "true")
        await expect(approve).to_have_attribute("title", "Needs the scope approve")
        # The daemon decides, whatever the page shows.
        body = {"step_id": "send", "decision": "grant"}
        status = await page.evaluate(
            "([path, body]) => fetch(path, {method: 'POST', body: JSON.stringify(body),"
            " headers: {'Content-Type': 'application/json'}}).then(answer => answer.status)",
            [f"/workflows/{run}/approvals", body],
        )
        assert status == 403


async def test_what_a_run_contains_is_shown_and_not_run(browser, tmp_path):
    hostile = ScriptedModel(lambda request: HOSTILE, max_concurrency=4)
    async with serving(tmp_path, model=hostile) as served:
        agents = [{"name": "evil", "system_prompt": HOSTILE, "model": "scripted:m"}]
        async with served.http() as http:
            body = {"definition": {"agents": agents}, "input": HOSTILE, "labels": {"x": HOSTILE[:60]}}
            answer = await http.post("/workflows", params={"wait": 5}, json=body)
        run = answer.json()["workflow_id"]
        async with opened(browser) as (page, watch):
            for place in ("", f"#/runs/{run}", f"#/runs/{run}?tab=source", f"#/runs/{run}?select=event:4"):
                await page.goto(address(served, place))
                await expect(page.locator("main")).to_contain_text("<script>")
            await page.goto(address(served, f"#/runs/{run}?select=step:evil&tab=calls"))
            await page.locator(".calls .link").first.click()
            await expect(page.locator(".message").first).to_contain_text("<script>")
            assert await page.evaluate("window.hacked") is None
            assert await page.locator("main script, main img[src=x], a[href^='javascript']").count() == 0
            policy = (await page.goto(address(served))).headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "frame-ancestors 'none'" in policy
            assert "unsafe" not in policy
            assert all(url.startswith(served.tcp_url) for url in watch.requests)


FORM = {
    "type": "object",
    "properties": {HOSTILE: {"type": "string", "title": HOSTILE, "description": HOSTILE}},
}
ASKING = {
    "version": "v0",
    "name": HOSTILE,
    "nodes": [
        {"id": "start", "type": "start", "next": "ask"},
        {
            "id": "ask",
            "type": "human_in_the_loop",
            "name": HOSTILE,
            "input_type": "form",
            "prompt": HOSTILE,
            "form_schema": FORM,
            "next": "end",
        },
        {"id": "end", "type": "end"},
    ],
}


async def test_every_place_that_a_run_may_fill_shows_text(browser, tmp_path):
    @function(name="fail", side_effect="read")
    async def fail() -> str:
        """Fails."""
        raise RuntimeError(HOSTILE)

    asked = ScriptedModel(
        lambda request: call("evil__fail") if len(request.messages) < 3 else HOSTILE, max_concurrency=4
    )
    async with serving(tmp_path, model=asked, services=(Service.of("evil", fail),)) as served:
        async with served.http() as http:

            async def submit(definition, **more):
                body = {"definition": definition, "labels": {"x": HOSTILE[:60]}, **more}
                answer = await http.post("/workflows", params={"wait": 5}, json=body)
                assert answer.status_code == 201, answer.text
                return answer.json()["workflow_id"]

            broken = await submit(BROKEN.replace("crm", "evil"))
            other = await submit(BROKEN.replace("crm", "evil"), input={HOSTILE: HOSTILE})
            waiting = await submit(ASKING)
            named = {**ASKING, "name": "evil"}
            assert (await http.post("/definitions", json={"definition": named})).status_code == 201
            history = (await http.get(f"/workflows/{broken}/history")).json()
            model_call, tool_call = (history[kind][0] for kind in ("models", "tools"))
            assert "<script>" in str(tool_call)
        name = quote(HOSTILE, safe="")
        places = [
            ("", "<img"),
            (f"#/runs?name={name}&q={name}&label={name}", "No runs match"),
            (f"#/runs/{waiting}", "<script>"),
            (f"#/runs/{waiting}?tab=source", "<script>"),
            (f"#/runs/{waiting}?log={name}&select=step:{name}", "has not begun"),
            (f"#/runs/{broken}?select=call:{tool_call['tool_call_id']}", "<script>"),
            (f"#/runs/{broken}/calls/{model_call['model_call_id']}", "evil__fail"),
            (f"#/runs/{broken}/compare/{other}", "<script>"),
            ("#/inbox", "<script>"),
            ("#/definitions/evil", "<script>"),
            (f"#/definitions/{name}", "there is no such"),
            ("#/usage", "broken"),
            (f"#/{name}", "There is no view"),
            (f"#/docs/{name}", "there is no such"),
            (f"#code={name}", "Runs"),
        ]
        async with opened(browser) as (page, watch):
            page.on("dialog", lambda dialog: watch.errors.append(dialog.message))
            for place, shown in places:
                await page.goto("about:blank")
                await page.goto(address(served, place))
                await expect(page.locator("main")).to_contain_text(shown)
                assert await page.evaluate("window.hacked") is None, place
                found = page.locator("main script, main img, main iframe, main a[href^='javascript']")
                assert await found.count() == 0, place
            # The character that turns the order is named where people decide.
            await page.goto(address(served, "#/inbox"))
            await expect(page.locator(".request .hidden-character").first).to_have_text("U+202E")
            await page.locator(".request input").last.fill("x")
            await page.get_by_role("button", name="Answer").click()
            await expect(page.locator(".empty")).to_be_visible()
            # Drawings and exports as pages of their own do nothing either.
            for path in ("graph?format=svg", "graph?format=mermaid", "graph?format=dot", "log", "definition"):
                answer = await page.request.get(f"{served.tcp_url}/workflows/{waiting}/{path}")
                assert answer.headers["x-content-type-options"] == "nosniff"
                assert "html" not in answer.headers["content-type"]
                assert answer.ok
            await page.goto(f"{served.tcp_url}/workflows/{waiting}/graph?format=svg")
            assert await page.evaluate("[window.hacked ?? null, document.scripts?.length ?? 0]") == [None, 0]
            watch.errors.clear()  # the browser says that it loads nothing for a drawing


# ruff: noqa: E501 (the page of the attack)
ATTACK = """<!doctype html><title>attack</title>
<form id=form action="BASE/workflows" method=post enctype="text/plain"><input name='{"definition":' value='1}'></form>
<iframe src="BASE/ui/" id=frame></iframe>
<script>
const base = "BASE";
const tries = {
  read: () => fetch(base + "/workflows", {credentials: "include"}).then(a => a.text()),
  submit: () => fetch(base + "/workflows", {method: "POST", credentials: "include", body: "{}"}).then(a => a.text()),
  typed: () => fetch(base + "/workflows", {method: "POST", credentials: "include", body: "{}",
    headers: {"Content-Type": "application/json"}}).then(a => a.text()),
  blind: () => fetch(base + "/admin/drain", {method: "POST", mode: "no-cors", credentials: "include"}).then(a => a.type),
  stream: () => new Promise((yes, no) => { const s = new EventSource(base + "/events?format=sse", {withCredentials: true});
    s.onmessage = yes; s.onopen = yes; s.onerror = no; }),
  script: () => new Promise((yes, no) => { const s = document.createElement("script"); s.src = base + "/workflows";
    s.onload = yes; s.onerror = no; document.head.append(s); }),
};
window.attack = async () => {
  const found = {};
  for (const [name, attempt] of Object.entries(tries)) found[name] = await attempt().then(String, () => "refused");
  return found;
};
</script>"""


async def test_a_page_of_another_origin_reads_and_changes_nothing(browser, guarded, tmp_path):
    """Another port of the same host is the same site: cookies are sent, and must be of no use."""
    served, secrets = guarded
    run = await start(served)
    page_of_others = Starlette(
        routes=[Route("/", lambda r: HTMLResponse(ATTACK.replace("BASE", served.tcp_url)))]
    )
    from agentflow.server.http_server import HttpServer
    from agentflow.server.sockets import Listeners

    listeners = Listeners()
    listeners.add_tcp("127.0.0.1:0")
    server = HttpServer(page_of_others, listeners)
    serving_others = asyncio.ensure_future(server.serve())
    await server.started_event.wait()
    port = listeners.listeners[0].sock.getsockname()[1]
    try:
        async with opened(browser) as (page, watch):
            await page.goto(address(served))
            await page.get_by_label("Token").fill(secrets["boss"])
            await page.get_by_role("button", name="Sign in").click()
            await expect(page.locator(f'[data-id="{run}"]')).to_be_visible()
            for host in ("127.0.0.1", "localhost", "evil.example"):
                await page.goto(f"http://{host}:{port}/")
                found = await page.evaluate("window.attack()")
                assert found.pop("blind") in ("opaque", "refused")  # nothing is to be seen of the answer
                assert set(found.values()) == {"refused"}
                assert page.frame(url=f"{served.tcp_url}/ui/") is None or not await page.frames[
                    1
                ].query_selector("main")
                await page.evaluate("document.getElementById('form').submit()")
                await page.wait_for_url("**/workflows")
                await expect(page.locator("body")).to_contain_text("another origin")
            # A name of others that leads to this machine makes their page one of our port.
            for path in ("/workflows", "/ui/", "/events?follow=false", "/healthz"):
                answer = await page.goto(f"http://evil.example:{served.port}{path}")
                assert answer.status == 403
                await expect(page.locator("body")).to_contain_text("host_not_allowed")
            read = "fetch('/workflows').then(answer => answer.status)"
            assert await page.evaluate(read) == 403
            watch.errors.clear()  # what the browser refused to the attacks
        async with served.http() as http:
            assert len((await http.get("/workflows")).json()["items"]) == 1
            assert (await http.get("/readyz")).status_code == 200
    finally:
        server.stop()
        await serving_others
        listeners.close()


async def test_an_application_that_mounts_the_api_says_who_may(browser, tmp_path):
    async with Runtime("memory:", models=[model()], services=[crm()]) as runtime:
        closed = httpx.AsyncClient(
            transport=httpx.ASGITransport(Starlette(routes=[Mount("/flows", Application(runtime))])),
            base_url="http://app.example",
        )
        async with closed as http:
            assert (await http.get("/flows/workflows")).status_code == 401
            assert (await http.get("/flows/ui/")).status_code == 200  # the page holds nothing

        async def authorize(request):
            user = request.headers.get("x-user")
            scopes = frozenset({"read", "run"}) if user == "ada" else frozenset({"read"})
            return None if user is None else Caller(user, scopes)

        app = Starlette(routes=[Mount("/flows", Application(runtime, authorize=authorize))])
        open_ = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://app.example")
        async with open_ as http:
            assert (await http.get("/flows/workflows")).status_code == 401
            bob, ada = {"X-User": "bob"}, {"X-User": "ada"}
            assert (await http.get("/flows/session", headers=bob)).json() == {
                "actor": "bob",
                "scopes": ["read"],
            }
            assert (
                await http.post("/flows/workflows", json={"definition": ECHO}, headers=bob)
            ).status_code == 403
            made = await http.post(
                "/flows/workflows", json={"definition": CLAIM, "input": {"text": "x"}}, headers=ada
            )
            assert made.status_code == 201
            assert made.json()["links"]["self"].startswith("/flows/workflows/")
            python = {"services": {"x": {"type": "python", "module": "os"}}, **ECHO}
            refused = await http.post("/flows/workflows", json={"definition": python}, headers=ada)
            assert refused.status_code == 422  # callers of an application are not trusted unless it says so
            moved = await http.get("/flows/ui", headers=bob)
            assert moved.headers["location"] == "ui/"


async def test_the_page_is_small_and_asks_for_little(browser, served):
    packed = sum(len(file.packed) for file in page_files().values())
    assert packed < 150 * 1024, f"{packed} bytes"
    await start(served)
    async with opened(browser) as (page, watch):
        await page.goto(address(served))
        await expect(page.locator(".run-row").nth(1)).to_contain_text("waiting")
        files = [url for url in watch.requests if "/ui/" in url]
        assert len(files) <= 15
        assert len(watch.requests) - len(files) <= 10, watch.requests
    async with served.http(tcp=True) as http:
        answer = await http.get("/ui/app.js", headers={"Accept-Encoding": "gzip"})
        assert answer.headers["content-encoding"] == "gzip"
        again = {"If-None-Match": answer.headers["etag"], "Accept-Encoding": "gzip"}
        assert (await http.get("/ui/app.js", headers=again)).status_code == 304
        assert (await http.get("/ui/../app.py")).status_code == 404
        assert (await http.get("/ui/%2e%2e/app.py")).status_code == 404
        assert gzip.decompress(page_files()["app.js"].packed) == page_files()["app.js"].data


async def test_a_read_only_look_allows_no_command(browser, tmp_path):
    """`agentflow ui --store` and `open FILE --ui` serve such a page."""
    from agentflow.events.open import open_log
    from agentflow.server.looking import listening, read_only_application

    url = f"sqlite:{tmp_path / 'runs.db'}"
    (tmp_path / "d").mkdir()
    async with serving(tmp_path / "d", store=url, model=model(), services=(crm(),)) as served:
        run = await start(served)
    log = open_log(url, read_only=True)
    try:
        async with (
            read_only_application(log) as (app, code),
            listening(app, 0) as base,
            opened(browser) as (page, _),
        ):
            await page.goto(f"{base}/ui/#code={code}&place=/runs/{run}")
            await expect(page.locator('.node[data-step="send"]')).to_have_attribute("data-state", "waiting")
            await expect(page.get_by_role("button", name="Cancel")).to_have_attribute("aria-disabled", "true")
            async with httpx.AsyncClient(base_url=base) as http:
                assert (await http.get("/workflows")).status_code == 401
    finally:
        await log.close()
