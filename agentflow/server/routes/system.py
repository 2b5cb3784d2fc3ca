"""The daemon itself: where things are, how it is, and its end."""

from __future__ import annotations

import html
import platform
from typing import Any

from starlette.responses import Response

from agentflow import __version__
from agentflow.errors import AgentflowError, StoreError
from agentflow.events.envelope import SCHEMA_VERSION, iso
from agentflow.records.answers import Health, Totals, Version
from agentflow.records.upkeep import Upkeep
from agentflow.runtime.result_cache import ResultCache
from agentflow.runtime.retention import upkeep
from agentflow.server.answers import DrainAnswer, Home
from agentflow.server.bodies import GcBody
from agentflow.server.metrics import OPENMETRICS, PLAIN
from agentflow.server.operations import JSON, Call, Operation, accept, json_response
from agentflow.server.problems import Refusal

__all__ = ["OPERATIONS"]

_LINKS = {
    "workflows": "/workflows",
    "inbox": "/inbox",
    "events": "/events",
    "definitions": "/definitions",
    "tools": "/tools",
    "openapi": "/openapi.json",
    "documentation": "/documentation",
    "dashboard": "/ui/",
    "health": "/healthz",
    "metrics": "/metrics",
}
_HTML = "text/html"


async def home(call: Call) -> Response:
    """Return where the API and its documentation are."""
    found = Home(
        name="agentflow",
        version=__version__,
        api="/workflows",
        documentation="/openapi.json",
        links=_LINKS,
    )
    if accept(call.header("accept"), (JSON, _HTML)) == JSON:
        return json_response(found)
    links = "".join(f'<li><a href="{path}">{html.escape(name)}</a></li>' for name, path in _LINKS.items())
    page = (
        "<!doctype html><html lang=en><meta charset=utf-8><title>agentflow</title>"
        f"<h1>agentflow {__version__}</h1><p>This is the HTTP API of the daemon. Its description is"
        f' <a href="/openapi.json">/openapi.json</a> (OpenAPI 3.1).</p><ul>{links}</ul></html>'
    )
    headers = {"Cache-Control": "no-store", "Content-Security-Policy": "default-src 'none'"}
    return Response(page, headers=headers, media_type=_HTML)


async def openapi(call: Call) -> Response:
    """Return the description of this API."""
    return Response(call.service.describe(), media_type=JSON)


async def health(call: Call) -> Response:
    """Return whether the store still takes what it is given."""
    log = call.service.log
    status = "draining" if call.service.draining else "ok"
    failure = log.failure
    if failure is not None:
        body = Health(status="failed", durable=log.durable, store=_scheme(log.url), detail=failure.code)
        return json_response(body, 503, {"Retry-After": "5"})
    return json_response(Health(status=status, durable=log.durable, store=_scheme(log.url)))


def _scheme(url: str) -> str:
    """Return the store's scheme alone, without path and password: the caller has shown no token."""
    return url.partition(":")[0]


async def ready(call: Call) -> Response:
    """Return whether runs are accepted now."""
    service = call.service
    if service.draining:
        raise Refusal("draining", "the daemon is stopping")
    if not service.ready:
        raise Refusal("storage_unavailable", "the daemon is taking up the runs of its store")
    try:
        await service.log.probe()
    except (StoreError, AgentflowError) as error:
        raise Refusal("storage_unavailable", str(error)) from None
    return json_response(Health(status="ok", durable=service.log.durable, store=_scheme(service.log.url)))


async def version(call: Call) -> Response:
    """Return the version of what runs here."""
    return json_response(
        Version(
            name="agentflow",
            version=__version__,
            python=platform.python_version(),
            schema_version=SCHEMA_VERSION,
        )
    )


async def metrics(call: Call) -> Response:
    """Return what the daemon counts and its Runtime measures, for Prometheus."""
    media = accept(call.header("accept"), (PLAIN, OPENMETRICS))
    page, content_type = await call.service.metrics.render(await call.service.runs(), media)
    return Response(page, headers={"Cache-Control": "no-store", "Content-Type": content_type})


async def drain(call: Call) -> Response:
    """Park all runs and end."""
    stop = call.service.stop
    if stop is None:
        raise Refusal("not_found", "this daemon is a part of another server, which decides about its end")
    stop()
    return json_response(DrainAnswer(status="draining"), 202)


async def totals(call: Call) -> Response:
    """Return what the store and the daemon hold."""
    service = call.service
    counted = service.metrics
    open_requests = await service.runtime.requests()
    return json_response(
        Totals(
            runs=dict(sorted((await service.log.count_runs()).items())),
            requests=len(open_requests),
            started_at=iso(int(counted.started * 1_000_000)),
            streams_open=counted.streams_open,
            runs_accepted=counted.runs_accepted,
            runs_recovered=counted.runs_recovered,
            draining=service.draining,
            read_only=service.log.read_only,
        )
    )


async def gc(call: Call) -> Response:
    """Take the ended runs that retention takes, and give back their space."""
    service = call.service
    wanted: GcBody = call.body
    now = service.runtime.clock.now()
    done = await upkeep(service.log, service.retention, now, dry_run=wanted.dry_run)
    if not wanted.dry_run:
        await ResultCache(service.log, service.runtime.clock).sweep()
    return json_response(done)


def _get(path: str, handler: Any, summary: str, answer: Any, **more: Any) -> Operation:
    given: dict[str, Any] = {"scope": "read", "answers": {200: answer}, **more}
    return Operation(method="GET", path=path, handler=handler, summary=summary, tag="daemon", **given)


OPERATIONS = (
    _get(
        "/",
        home,
        "Where the API and its documentation are",
        Home,
        produces=(JSON, _HTML),
        negotiates=True,
    ),
    _get("/openapi.json", openapi, "This document", dict[str, Any]),
    _get(
        "/healthz",
        health,
        "Whether the daemon works",
        Health,
        scope=None,
        answers={200: Health, 503: Health},
    ),
    _get(
        "/readyz",
        ready,
        "Whether the daemon accepts runs",
        Health,
        problems=("draining", "storage_unavailable"),
    ),
    _get("/version", version, "What runs here", Version),
    _get("/totals", totals, "Runs by state, open requests, and what the daemon counts", Totals),
    _get(
        "/metrics",
        metrics,
        "Metrics, for Prometheus",
        (PLAIN, OPENMETRICS),
        produces=(PLAIN, OPENMETRICS),
        negotiates=True,
    ),
    Operation(
        method="POST",
        path="/admin/gc",
        handler=gc,
        summary="Take the ended runs that retention takes",
        tag="daemon",
        scope="admin",
        body=GcBody,
        answers={200: Upkeep},
        problems=("storage_unavailable", "unsupported"),
    ),
    Operation(
        method="POST",
        path="/admin/drain",
        handler=drain,
        summary="Park all runs and end the daemon",
        tag="daemon",
        scope="admin",
        answers={202: DrainAnswer},
        problems=("not_found",),
    ),
)
