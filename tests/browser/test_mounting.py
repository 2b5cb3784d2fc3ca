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
