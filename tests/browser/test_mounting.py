"""The API and the page inside an application of users: under a prefix, closed unless it says who may."""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager

import httpx
import pytest
import uvicorn
from fastapi import FastAPI
from playwright.async_api import expect
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Mount

from agentflow import Runtime
from agentflow.server import Application, Caller
from tests.browser.kit import CLAIM, crm, model, opened

pytestmark = pytest.mark.asyncio(loop_scope="module")

SCOPES = {"ada": {"read", "run", "approve"}, "bob": {"read"}}


async def authorize(request):
    user = request.cookies.get("user")
    return Caller(user, frozenset(SCOPES[user])) if user in SCOPES else None


def starlette(flows):
    return Starlette(routes=[Mount("/tools", routes=[Mount("/flows", flows)])]), "/tools/flows"


def fastapi(flows):
    app = FastAPI()
    app.mount("/flows", flows)
    return app, "/flows"


def told_of_its_proxy(flows):
    """The proxy takes `/api` away; the application, and not the server, says so."""
    app, prefix = fastapi(flows)

    async def told(scope, receive, send):
        await app({**scope, "root_path": "/api"}, receive, send)

    return told, prefix


@asynccontextmanager
async def listening(app, root_path=""):
    """Serve it as users do; yields its URL."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(app, log_config=None, lifespan="off", ws="none", root_path=root_path)
        server = uvicorn.Server(config)
        serving = asyncio.ensure_future(server.serve(sockets=[listener]))
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            await serving


@pytest.mark.parametrize(
    ("mounted", "root_path"), [(starlette, ""), (fastapi, ""), (fastapi, "/outer"), (told_of_its_proxy, "")]
)
async def test_the_page_works_under_a_prefix(browser, mounted, root_path):
    async with Runtime("memory:", models=[model()], services=[crm()]) as runtime:
        flows = Application(runtime, authorize=authorize)
        app, prefix = mounted(flows)
        async with listening(app, root_path) as base:
            async with httpx.AsyncClient(base_url=base) as http:
                assert (await http.get(f"{prefix}/workflows")).status_code == 401
                answer = await http.post(
                    f"{prefix}/workflows",
                    params={"wait": 5},
                    json={"definition": CLAIM, "input": {"text": "x"}},
                    headers={"Cookie": "user=ada"},
                )
            assert answer.status_code == 201
            # What a client outside asks for: the proxy takes its own part away again.
            outside = "/api" if mounted is told_of_its_proxy else root_path
            assert answer.json()["links"]["self"].startswith(f"{outside}{prefix}/workflows/")
            assert answer.headers["location"] == answer.json()["links"]["self"]
            run = answer.json()["workflow_id"]
            async with opened(browser) as (page, watch):
                await page.context.add_cookies([{"name": "user", "value": "bob", "url": base}])
                await page.goto(f"{base}{prefix}/ui/")
                await page.locator(f'[data-id="{run}"] a').click()
                await expect(page.get_by_role("button", name="Approve")).to_have_attribute(
                    "title", "Needs the scope approve"
                )
                await page.context.add_cookies([{"name": "user", "value": "ada", "url": base}])
                await page.reload()
                await page.get_by_role("button", name="Approve").click()
                await expect(page.locator(".run-title .badge")).to_have_attribute("data-state", "completed")
                assert all(url.startswith(f"{base}{prefix}/") for url in watch.requests)
            flows.service.streams.close()
            runtime.hub.close()


async def test_a_mounted_api_that_says_nothing_is_closed(browser):
    async with Runtime("memory:") as runtime:
        app, prefix = fastapi(Application(runtime))
        async with listening(app) as base, opened(browser) as (page, _):
            async with httpx.AsyncClient(base_url=base) as http:
                for path in (
                    "/workflows",
                    "/events",
                    "/openapi.json",
                    "/metrics",
                    "/session",
                    "/documentation",
                ):
                    assert (await http.get(prefix + path)).status_code == 401, path
            await page.goto(f"{base}{prefix}/ui/")
            await expect(page.get_by_role("heading", name="Sign in")).to_be_visible()


def stripping(flows):
    """A proxy takes `/tools` away and tells nobody: neither the server nor the application knows of it."""
    app, prefix = fastapi(flows)

    async def stripped(scope, receive, send):
        if not scope["path"].startswith("/tools/"):
            await Response(status_code=404)(scope, receive, send)
            return
        path = scope["path"].removeprefix("/tools")
        await app({**scope, "path": path, "raw_path": path.encode()}, receive, send)

    return stripped, f"/tools{prefix}"


async def test_the_page_works_behind_a_proxy_that_takes_a_prefix_away_in_silence(browser):
    async with Runtime("memory:", models=[model()], services=[crm()]) as runtime:
        flows = Application(runtime, authorize=authorize)
        app, prefix = stripping(flows)
        async with listening(app) as base:
            async with opened(browser) as (page, watch):
                await page.context.add_cookies([{"name": "user", "value": "ada", "url": base}])
                await page.goto(f"{base}{prefix}/ui")  # without the slash: to where the page is outside
                await expect(page.get_by_role("heading", name="Runs")).to_be_visible()
                assert page.url.startswith(f"{base}{prefix}/ui/")
                await page.get_by_role("link", name="Definitions").click()
                await page.get_by_label("Source of a workflow").fill(CLAIM)
                await page.get_by_role("button", name="Register").click()
                await page.get_by_label("text").fill("x")
                await page.get_by_role("button", name="Start").click()
                await page.get_by_role("button", name="Approve").click()
                await expect(page.locator(".run-title .badge")).to_have_attribute("data-state", "completed")
                assert all(url.startswith(f"{base}{prefix}/") for url in watch.requests)
            flows.service.streams.close()
            runtime.hub.close()


async def test_a_mounted_api_refuses_websockets_without_an_error():
    async with Runtime("memory:") as runtime:
        app, prefix = fastapi(Application(runtime, authorize=authorize))
        sent = []

        async def receive():
            return {"type": "websocket.connect"}

        async def send(message):
            sent.append(message)

        scope = {
            "type": "websocket",
            "path": f"{prefix}/events",
            "raw_path": f"{prefix}/events".encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [],
            "subprotocols": [],
        }
        await app(scope, receive, send)
        assert [message["type"] for message in sent] == ["websocket.close"]


@pytest.mark.parametrize(
    "fields",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"},
    ],
)
async def test_the_cookie_of_an_application_is_of_no_use_to_pages_of_others(fields):
    """The application says who somebody is by a cookie that browsers send along from anywhere."""
    async with Runtime("memory:", models=[model()], services=[crm()]) as runtime:
        app, prefix = fastapi(Application(runtime, authorize=authorize))
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as http:
            body = {"definition": CLAIM, "input": {"text": "x"}}
            headers = {"Cookie": "user=ada", **fields}
            refused = await http.post(f"{prefix}/workflows", json=body, headers=headers)
            assert refused.status_code == 403
            assert (
                await http.post(f"{prefix}/workflows", json=body, headers={"Cookie": "user=ada"})
            ).is_success
