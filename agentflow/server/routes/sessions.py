"""Routes of browser sessions: the caller, a one-time code for a link, and the cookie that it becomes."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from agentflow.records.answers import SessionCode
from agentflow.server.access import Actor
from agentflow.server.answers import SessionView
from agentflow.server.bodies import SessionBody
from agentflow.server.operations import (
    JSON,
    Call,
    Operation,
    decode_json,
    json_response,
    media_of,
    read_body,
)
from agentflow.server.problems import Refusal
from agentflow.server.sessions import CODE_S, SESSION_S, Sessions, cookie_name
from agentflow.server.tokens import SCOPES

__all__ = ["OPERATIONS", "end_of", "session_of"]


def _view(actor: Actor) -> SessionView:
    return SessionView(actor=actor.name, scopes=[scope for scope in SCOPES if scope in actor.scopes])


def _cookie(request: Request, value: str, age: int) -> str:
    scope = request.scope
    # A proxy may have ended TLS: the page says by which scheme it was loaded.
    is_https = scope["scheme"] == "https" or request.headers.get("origin", "").startswith("https://")
    secure = "; Secure" if is_https else ""
    path = scope.get("root_path", "") or "/"
    return f"{_name(request)}={value}; Path={path}; Max-Age={age}; HttpOnly; SameSite=Strict{secure}"


def _name(request: Request) -> str:
    server = request.scope.get("server")
    return cookie_name(server[1] if server else None)


def _begun(request: Request, sessions: Sessions, actor: Actor) -> Response:
    cookie = _cookie(request, sessions.make_cookie(actor), SESSION_S)
    return json_response(_view(actor), headers={"Set-Cookie": cookie})


async def session_of(request: Request, sessions: Sessions) -> Response:
    """Answer `POST /session` where there are no tokens: a code becomes a cookie."""
    media_of(request.headers.get("content-type"), (JSON,))
    body = decode_json(b"".join(await read_body(request)), SessionBody)
    return _begun(request, sessions, sessions.redeem(body.code or ""))


async def end_of(request: Request, sessions: Sessions) -> Response:
    """Answer `DELETE /session`: the cookie is worth nothing from now on."""
    value = request.cookies.get(_name(request))
    if value is not None:
        sessions.end(value)
    return Response(status_code=204, headers={"Set-Cookie": _cookie(request, "", 0)})


async def whoami(call: Call) -> Response:
    """Return the caller and its scopes."""
    return json_response(_view(call.actor))


async def make_code(call: Call) -> Response:
    """Make a one-time code for a link to the page."""
    code = call.service.sessions.issue_code(call.actor)
    return json_response(SessionCode(code=code, path=f"/ui/#code={code}", expires_in=int(CODE_S)), 201)


async def begin(call: Call) -> Response:
    """Begin a session: the answer sets its cookie."""
    body: SessionBody = call.body
    service = call.service
    if (body.code is None) == (body.token is None):
        raise Refusal("invalid_parameter", "give either a code or a token")
    if body.code is not None:
        return _begun(call.request, service.sessions, service.sessions.redeem(body.code))
    token = service.tokens.find(body.token or "")
    if token is None:
        raise Refusal("unauthorized", "the token is not valid")
    actor = Actor(token.name, token.scopes, service.config.trust_submitted_services, token.name)
    return _begun(call.request, service.sessions, actor)


async def end(call: Call) -> Response:
    """End the session of the cookie."""
    return await end_of(call.request, call.service.sessions)


OPERATIONS = (
    Operation(
        method="GET",
        path="/session",
        handler=whoami,
        summary="The caller and its scopes",
        tag="sessions",
        scope="read",
        answers={200: SessionView},
    ),
    Operation(
        method="POST",
        path="/session",
        handler=begin,
        name="begin_session",
        summary="Begin a browser session with a one-time code or a token; sets a cookie",
        tag="sessions",
        scope=None,
        body=SessionBody,
        answers={200: SessionView},
        problems=("unauthorized",),
    ),
    Operation(
        method="DELETE",
        path="/session",
        handler=end,
        name="end_session",
        summary="End the browser session of the cookie",
        tag="sessions",
        scope=None,
        answers={204: None},
    ),
    Operation(
        method="POST",
        path="/session/codes",
        handler=make_code,
        name="make_session_code",
        summary="A one-time code for a link to the dashboard",
        tag="sessions",
        scope="read",
        answers={201: SessionCode},
    ),
)
