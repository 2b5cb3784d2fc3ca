"""Pages of other origins against a daemon: by every way in which a browser sends requests for them, they change
nothing and read nothing."""

# ruff: noqa: E501 (the pages of the attacks)
from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager, suppress

import pytest
from playwright.async_api import Error as PlaywrightError
from playwright.async_api import expect
from starlette.applications import Starlette
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from agentflow.config import ServerConfig
from agentflow.server.app import OPERATIONS
from agentflow.server.http_server import HttpServer
from agentflow.server.sockets import Listeners
from tests.browser.kit import crm, model, opened
from tests.browser.test_views import address, start
from tests.unit.server.kit import serving, tokens

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow, pytest.mark.timeout(240)]

# `tries` are ways to send a request; each gives what the page got to know of the answer.
ATTACK = """<!doctype html><title>attack</title><body><script>
const [BASE, RUN, PATHS] = CONFIG;
const until = (make, ms = 4000) => new Promise((yes, no) => { setTimeout(() => no(new Error("nothing")), ms); make(yes, no); });
const element = (name, members) => until((yes, no) => {
  const one = Object.assign(document.createElement(name), members);
  one.onload = () => yes("loaded"); one.onerror = () => no(new Error("error"));
  document.body.append(one);
});
const body = JSON.stringify({definition: {agents: [{name: "a", system_prompt: "b"}]}, input: "x"});
const posts = [["/workflows", body], ["/admin/drain", "{}"], [`/workflows/${RUN}/cancel`, "{}"],
  [`/workflows/${RUN}/approvals`, JSON.stringify({step_id: "send", decision: "grant"})],
  ["/workflows/bulk", JSON.stringify({command: "cancel", workflow_ids: [RUN]})],
  ["/session", JSON.stringify({code: "x"})], ["/definitions", body], ["/session/codes", ""]];
const tries = {
  async reads() {
    const found = [];
    for (const path of PATHS) for (const mode of ["cors", "no-cors"]) for (const credentials of ["include", "omit"]) {
      try { const a = await fetch(BASE + path, {mode, credentials}); if (a.type !== "opaque") found.push([path, mode, await a.text()]); } catch {}
    }
    if (found.length) return found;
    throw new Error("refused");
  },
  async writes() {
    const found = [];
    for (const [path, body] of posts) for (const type of ["text/plain", "application/json", "application/x-www-form-urlencoded"])
      for (const mode of ["cors", "no-cors"]) for (const method of ["POST", "DELETE", "PUT"]) {
        try { const a = await fetch(BASE + path, {mode, method, credentials: "include", body, headers: {"Content-Type": type}}); if (a.type !== "opaque") found.push(path); } catch {}
      }
    if (found.length) return found;
    throw new Error("refused");
  },
  async beacons() {
    for (const [path, body] of posts) {
      navigator.sendBeacon(BASE + path, body);
      try { navigator.sendBeacon(BASE + path, new Blob([body], {type: "application/json"})); } catch {}
      fetch(BASE + path, {method: "POST", mode: "no-cors", keepalive: true, credentials: "include", body}).catch(() => {});
    }
    throw new Error("nothing to see");
  },
  async forms() {
    for (const enctype of ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
      for (const [path, body] of posts) {
        const name = `t${Math.random()}`;
        const frame = Object.assign(document.createElement("iframe"), {name});
        const form = Object.assign(document.createElement("form"), {action: BASE + path, method: "post", enctype, target: name});
        const input = Object.assign(document.createElement("input"), {name: body.slice(0, -1) + ',"x":"', value: '"}'});
        form.append(input); document.body.append(frame, form); form.submit();
      }
    await new Promise(yes => setTimeout(yes, 1500));
    for (const frame of document.querySelectorAll("iframe")) { const text = frame.contentDocument?.body?.textContent; if (text) return text; }
    throw new Error("refused");
  },
  image: () => element("img", {src: `${BASE}/workflows/${RUN}/graph?format=svg`}),
  icon: () => element("img", {src: `${BASE}/ui/icon.svg`}),
  script: () => element("script", {src: `${BASE}/workflows`}),
  page: () => element("script", {src: `${BASE}/ui/app.js`}),
  module: () => import(`${BASE}/ui/lib/format.js`).then(one => Object.keys(one)),
  style: () => element("link", {rel: "stylesheet", href: `${BASE}/ui/app.css`}).then(() => document.styleSheets.length),
  prefetch: () => element("link", {rel: "prefetch", href: `${BASE}/workflows`}),
  preload: () => element("link", {rel: "preload", as: "fetch", href: `${BASE}/workflows`}),
  object: () => element("object", {data: `${BASE}/workflows`, type: "image/svg+xml"}),
  video: () => until((yes, no) => { const v = document.createElement("video"); v.src = `${BASE}/events?follow=false`; v.onloadeddata = yes; v.onerror = no; document.body.append(v); }),
  stream: () => until((yes, no) => { const s = new EventSource(`${BASE}/events?format=sse`, {withCredentials: true}); s.onmessage = yes; s.onopen = yes; s.onerror = () => { s.close(); no(); }; }),
  socket: () => until((yes, no) => { const s = new WebSocket(BASE.replace("http", "ws") + "/events"); s.onopen = yes; s.onerror = no; }),
  worker: () => until((yes, no) => { const w = new Worker(`${BASE}/ui/app.js`); w.onmessage = yes; w.onerror = no; }),
  shared: () => until((yes, no) => { const w = new Worker(URL.createObjectURL(new Blob([`importScripts("${BASE}/ui/lib/format.js"); postMessage(1)`]))); w.onmessage = yes; w.onerror = no; }),
  service: async () => navigator.serviceWorker.register(`${BASE}/ui/app.js`),
  frame: async () => { await element("iframe", {src: `${BASE}/ui/#/inbox`, id: "framed"}); const text = document.getElementById("framed").contentDocument; if (text) return text.body.textContent; throw new Error("closed"); },
  async popup() {
    const w = window.open(`${BASE}/ui/#/runs/${RUN}`, "victim");
    if (!w) throw new Error("no popup");
    await new Promise(yes => setTimeout(yes, 1500));
    const said = new Promise((yes, no) => { addEventListener("message", event => yes(event.data)); setTimeout(no, 500); });
    w.postMessage({command: "approve"}, "*");
    try { w.location.hash = "#/inbox"; } catch {}
    try { return [w.document.body.textContent]; } catch {}
    try { return [String(w.frames.length) + w.location.href]; } catch {}
    return said;
  },
  sandboxed: () => until((yes, no) => {
    addEventListener("message", event => event.data === "none" ? no(new Error("refused")) : yes(event.data));
    const frame = document.createElement("iframe");
    frame.sandbox = "allow-scripts allow-forms allow-popups";
    frame.srcdoc = `<form id=f method=post action="${BASE}/admin/drain" target=_blank></form><script>
      document.getElementById("f").submit();
      Promise.allSettled([fetch("${BASE}/workflows"), fetch("${BASE}/workflows", {credentials: "include"}),
        fetch("${BASE}/admin/drain", {method: "POST", mode: "no-cors", credentials: "include"}).then(a => { if (a.type !== "opaque") return a.text(); throw 1; })])
        .then(all => parent.postMessage(all.some(one => one.status === "fulfilled") ? "read" : "none", "*"));
    <\\/script>`;
    document.body.append(frame);
  }),
};
window.attack = async () => {
  const found = {};
  for (const [name, attempt] of Object.entries(tries)) found[name] = await attempt().then(value => JSON.stringify(value) ?? "got", () => "refused");
  return found;
};
</script></body>"""

PATHS = sorted(
    {
        o.path.replace("{id}", "RUN")
        for o in OPERATIONS
        if o.method == "GET" and "{" not in o.path.replace("{id}", "")
    }
    | {"/ui/", "/ui/app.js"}
)


@asynccontextmanager
async def page_of_others(config):
    """A site of somebody else on another port of this machine."""
    text = ATTACK.replace("CONFIG", json.dumps(config))
    routes = [Route("/", lambda r: HTMLResponse(text)), Route("/favicon.ico", lambda r: Response())]
    listeners = Listeners()
    listeners.add_tcp("127.0.0.1:0")
    server = HttpServer(Starlette(routes=routes), listeners)
    serving_others = asyncio.ensure_future(server.serve())
    await server.started_event.wait()
    try:
        yield listeners.listeners[0].sock.getsockname()[1]
    finally:
        server.stop()
        await serving_others
        listeners.close()


def watched(served):
    """Record each request that reaches the daemon, with the status of its answer."""
    seen: list[tuple[str, str, int, dict[bytes, bytes]]] = []
    inner = served.server.app

    async def outer(scope, receive, send):
        async def sent(message):
            if message["type"] == "http.response.start":
                seen.append((scope["method"], scope["path"], message["status"], dict(scope["headers"])))
            await send(message)

        await inner(scope, receive, sent)

    served.server.app = outer
    return seen


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "evil.example"])
@pytest.mark.parametrize("is_open", [True, False], ids=["open", "cookie"])
async def test_no_way_of_a_browser_lets_another_origin_in(browser, tmp_path, host, is_open):
    """`open`: the loopback port asks for no token, so that whoever gets through is the owner."""
    given, secrets = tokens(boss=("admin",))
    access = {} if is_open else {"config": ServerConfig(require_token=True), "given": given}
    async with serving(tmp_path, model=model(), services=(crm(),), **access) as served:
        run = await start(served)
        paths = [path.replace("RUN", run) for path in PATHS]
        async with page_of_others([served.tcp_url, run, paths]) as port, opened(browser) as (page, watch):
            await page.goto(address(served))
            if not is_open:
                await page.get_by_label("Token").fill(secrets["boss"])
                await page.get_by_role("button", name="Sign in").click()
            await expect(page.locator(f'[data-id="{run}"]')).to_be_visible()
            await page.goto(f"http://{host}:{port}/")
            seen = watched(served)
            page.set_default_timeout(120_000)
            found = await page.evaluate("window.attack()")
            assert set(found.values()) == {"refused"}, found
            got = [(method, path, status) for method, path, status, fields in seen
                   if status < 400 and not (method == "GET" and fields.get(b"sec-fetch-dest") == b"document")
                   and fields.get(b"sec-fetch-site") != b"same-origin"]  # fmt: skip
            assert got == [], got
            # The page that was opened shows itself, without the session of the person where one is needed.
            assert len(seen) > 200
            cookies = [
                path
                for _, path, _, fields in seen
                if b"cookie" in fields and fields.get(b"sec-fetch-site") == b"cross-site"
            ]
            assert cookies == []  # SameSite=Strict
            watch.errors.clear()
        async with served.http() as http:
            [record] = (await http.get("/workflows")).json()["items"]
            assert (record["workflow_id"], record["state"]) == (run, "waiting")
            assert (await http.get("/definitions")).json()["items"] == []
            assert (await http.get("/readyz")).status_code == 200


async def test_nothing_that_the_api_answers_runs_in_its_origin(browser, served):
    """A run may hold a script, a page or a worker: none of the ways to its bytes lets a browser run them."""
    text = "<script>window.hacked = 1</script>;self.hacked = 1;/*" + "x" * 300_000 + "*/"
    run = await start(
        served, {"agents": [{"name": "a", "system_prompt": "s", "model": "scripted:m"}]}, input=text
    )
    blob = await served.runtime.log.put_blob(json.dumps(text).encode())
    paths = [f"/blobs/{blob}", f"/workflows/{run}/log", f"/workflows/{run}/definition", f"/workflows/{run}/events?follow=false",
             f"/workflows/{run}/events?follow=false&format=sse", "/metrics", f"/workflows/{run}/graph?format=svg"]  # fmt: skip
    async with opened(browser) as (page, watch):
        await page.goto(address(served))
        await expect(page.locator("h1")).to_be_visible()
        for path in paths:
            answer = await page.request.get(served.tcp_url + path)
            assert answer.ok, path
            assert answer.headers["x-content-type-options"] == "nosniff", path
            assert not any(kind in answer.headers["content-type"] for kind in ("html", "javascript")), path
            ways = """async path => {
              const refused = async one => { try { await one(); return false; } catch { return true; } };
              return [
                await refused(() => new Promise((yes, no) => { const s = document.createElement("script"); s.src = path; s.onload = yes; s.onerror = no; document.head.append(s); })),
                await refused(() => import(path)),
                await refused(() => navigator.serviceWorker.register(path)),
                await refused(() => new Promise((yes, no) => { const w = new Worker(path); w.onmessage = yes; w.onerror = no; })),
              ];
            }"""
            assert await page.evaluate(ways, path) == [True] * 4, path
        for path in paths:
            with suppress(PlaywrightError):  # what is for programs is downloaded
                await page.goto(served.tcp_url + path)
            assert await page.evaluate("window.hacked ?? null") is None
        # Text cannot be made into markup or code by a mistake of the page itself.
        await page.goto(address(served))
        ways = """() => [
          () => (document.createElement("p").innerHTML = "<b>x</b>"),
          () => document.write("x"),
          () => document.createRange().createContextualFragment("<b>x</b>"),
          () => new DOMParser().parseFromString("<b>x</b>", "text/html"),
          () => (document.createElement("iframe").srcdoc = "x"),
          () => (document.createElement("script").src = "/x.js"),
        ].map(way => { try { way(); return "ran"; } catch { return "refused"; } })"""
        assert await page.evaluate(ways) == ["refused"] * 6
        watch.errors.clear()
