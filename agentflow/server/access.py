"""Access control: Host, Origin, peer credentials, tokens, scopes (page 000 §8.3).

The outermost layer: nothing behind it sees a request whose host, origin or token was refused. A web page
must not be able to drive the daemon, whatever name it gives to this machine.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Awaitable, Callable, Iterable
from inspect import isawaitable

import msgspec
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from agentflow.config import ServerConfig
from agentflow.errors import ConfigurationError
from agentflow.server.connection import Link, link_of
from agentflow.server.problems import Refusal, problem_response
from agentflow.server.sessions import Sessions, cookie_name
from agentflow.server.sockets import Kind
from agentflow.server.tokens import ALL_SCOPES, Tokens
from agentflow.server.tokens import Scope as TokenScope

__all__ = ["Access", "Actor", "Authorize", "check_safe", "path_of"]

_LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
_OPEN = frozenset({("GET", "/healthz"), ("HEAD", "/healthz"), ("POST", "/session"), ("DELETE", "/session")})
"""Requests that ask for no token: the health of the daemon, and those that begin and end a session."""
_PAGE = "/ui/"
"""Below it are the files of the dashboard, which hold nothing of any run."""
_SAFE_METHODS = ("GET", "HEAD")
_MAX_COOKIES = 8
"""Cookies of one name that are looked at: each costs the check of a signature."""


class Actor(msgspec.Struct, frozen=True):
    """Caller of the API. `name` stands in events; `trusted`: may name code of this machine in a document.

    `token` is the name of the bearer token by which it was known, if any.
    """

    name: str
    scopes: frozenset[TokenScope] = ALL_SCOPES
    trusted: bool = False
    token: str | None = None
    pid: int | None = None
    """Process of a Unix peer, if known."""

    def require(self, scope: TokenScope) -> None:
        """Raises Refusal unless the scope was given."""
        if scope not in self.scopes:
            raise Refusal("forbidden", f"this needs a token with the scope {scope}")


Authorize = Callable[[HTTPConnection], Actor | Awaitable[Actor | None] | None]
"""What an application that mounts the API says of a request: its caller, or None if it has to be refused."""


def path_of(scope: Scope) -> str:
    """Return the path below the place where the application is mounted.

    A proxy may have taken the application's own prefix away (`root_path` of FastAPI), or have left it.
    """
    path, root = scope["path"], scope.get("root_path", "")
    for prefix in (root, root.removeprefix(scope.get("app_root_path", ""))):
        if prefix and f"{path}/".startswith(f"{prefix}/"):
            return path[len(prefix) :]
    return path


def check_safe(config: ServerConfig, kinds: Iterable[Kind], tokens: Tokens) -> None:
    """Raise ConfigurationError if a socket is reachable without a token where one is needed."""
    found = set(kinds)
    if "remote" in found:
        if not tokens:
            raise ConfigurationError(
                "an address that other machines can reach needs a token, and none is configured",
                hint="set AGENTFLOW_TOKEN, or `tokens` in [server] of agentflow.toml; or listen on 127.0.0.1",
            )
        if not (config.tls_cert or config.insecure):
            raise ConfigurationError(
                "an address that other machines can reach needs TLS",
                hint="set tls_cert and tls_key in [server], or insecure = true behind a proxy that has TLS",
            )
    if config.require_token and not tokens:
        raise ConfigurationError("require_token is set, and no token is configured")


class Access:
    """ASGI: lets a request through with its Actor in `scope["state"]["actor"]`, or answers a problem."""

    def __init__(
        self,
        app: ASGIApp,
        config: ServerConfig,
        tokens: Tokens,
        sessions: Sessions,
        authorize: Authorize | None = None,
    ) -> None:
        self._app = app
        self._tokens = tokens
        self._sessions = sessions
        self._authorize = authorize
        self._hosts = _LOOPBACK_NAMES | {name.lower() for name in config.hosts}
        self._listed = bool(config.hosts)
        self._require_token = config.require_token
        self._trust_all = config.trust_submitted_services
        self._owner = os.geteuid()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, if its caller may make it. WebSockets are refused: no route speaks them."""
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            actor = await self._admit(scope)
            # Paths are matched as they were sent: "%2F" belongs to a name, "/" divides names.
            raw: bytes = scope.get("raw_path") or scope["path"].encode()
            scope["path"] = raw.decode("ascii")
        except Refusal as refusal:
            await problem_response(refusal, scope["path"])(scope, receive, send)
            return
        except UnicodeDecodeError:
            refusal = Refusal("malformed_request", "the path is not ASCII")
            await problem_response(refusal)(scope, receive, send)
            return
        scope.setdefault("state", {})["actor"] = actor
        await self._app(scope, receive, send)

    async def _admit(self, scope: Scope) -> Actor | None:
        headers = _Headers(scope["headers"])
        link = link_of(scope)
        kind: Kind = "remote" if link is None else link.kind
        host = headers.one(b"host")
        if host is None and scope.get("http_version") != "1.0":
            raise Refusal("malformed_request", "the header Host is missing")
        if kind != "unix":
            self._check_host(host or "", kind)
        origin = headers.one(b"origin")
        if origin is not None and not _same_host(origin, host or ""):
            raise _foreign_page()
        if _is_foreign_fetch(headers, scope["method"]):
            raise _foreign_page()
        path, method = path_of(scope), scope["method"]
        if (method, path) in _OPEN or (method in _SAFE_METHODS and f"{path}/".startswith(_PAGE)):
            return None
        if self._authorize is not None:
            return await self._authorized(scope)
        authorization = headers.one(b"authorization")
        if authorization is None and kind != "unix":
            actor = self._of_cookie(headers, scope)
            if actor is not None:
                if method not in _SAFE_METHODS and origin is None:
                    raise Refusal("forbidden", "a request with a cookie says from which page it comes")
                return actor
        return self._actor(authorization, kind, link)

    async def _authorized(self, scope: Scope) -> Actor:
        assert self._authorize is not None
        found = self._authorize(HTTPConnection(scope))
        actor = await found if isawaitable(found) else found
        if actor is None:
            raise Refusal("unauthorized", "the application does not let this request in")
        return actor

    def _of_cookie(self, headers: _Headers, scope: Scope) -> Actor | None:
        name = cookie_name(scope["server"][1] if scope.get("server") else None)
        # A page on another port of this host can set cookies of this name for longer paths, which browsers
        # send first: it must neither sign people out nor in as somebody else.
        found = (self._sessions.read_cookie(value) for value in reversed(headers.cookies(name)))
        return next((actor for actor in found if actor is not None), None)

    def _check_host(self, host: str, kind: Kind) -> None:
        if kind == "remote" and not self._listed:
            return
        if _name_of(host) not in self._hosts:
            raise Refusal(
                "host_not_allowed",
                "the daemon does not go by the name that the request calls it",
                hint="add the name to `hosts` in [server] of agentflow.toml",
            )

    def _actor(self, authorization: str | None, kind: Kind, link: Link | None) -> Actor:
        if authorization is not None and (self._tokens or kind == "remote"):
            scheme, _, secret = authorization.partition(" ")
            token = self._tokens.find(secret.strip()) if scheme.lower() == "bearer" else None
            if token is None:
                raise _unauthorized("the token is not valid")
            return Actor(token.name, token.scopes, self._trust_all, token.name)
        if kind == "remote" or (kind == "loopback" and self._require_token):
            raise _unauthorized("a token is needed")
        uid = None if link is None else link.uid
        if kind == "unix":
            name = "local" if uid is None else f"uid:{uid}"
            pid = None if link is None else link.pid
            return Actor(name, ALL_SCOPES, self._trust_all or uid in (None, self._owner), pid=pid)
        return Actor("local", ALL_SCOPES, self._trust_all)


class _Headers:
    """The headers that decide about access must stand there once: two readers might choose differently."""

    __slots__ = ("_headers",)

    def __init__(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        self._headers = headers

    def one(self, name: bytes) -> str | None:
        found = [value for key, value in self._headers if key == name]
        if len(found) > 1:
            raise Refusal("malformed_request", f"the header {name.decode()} stands there twice")
        return found[0].decode("latin-1").strip() if found else None

    def cookies(self, name: str) -> list[str]:
        """Return the values of a cookie; browsers send that of the longest path first."""
        fields = [value.decode("latin-1") for key, value in self._headers if key == b"cookie"]
        pairs = [pair.strip().partition("=") for field in fields for pair in field.split(";")]
        return [value for given, _, value in pairs if given == name][-_MAX_COOKIES:]


def _foreign_page() -> Refusal:
    return Refusal(
        "forbidden",
        "the request comes from a web page of another origin",
        hint="a proxy in front has to hand on the Host that the browser sent",
    )


def _is_foreign_fetch(headers: _Headers, method: str) -> bool:
    """Return whether a browser says that a page of another origin made the request (Fetch Metadata).

    No Origin is sent with images, scripts and forms by GET. `same-site` is another port of this host, so
    another origin. A link that was followed is let through: the page it stands on sees no answer.
    """
    site = headers.one(b"sec-fetch-site")
    if site is None or site.lower() in ("same-origin", "none"):
        return False
    followed = headers.one(b"sec-fetch-mode") == "navigate" and headers.one(b"sec-fetch-dest") == "document"
    return not (followed and method in ("GET", "HEAD"))


def _unauthorized(detail: str) -> Refusal:
    return Refusal("unauthorized", detail, headers={"WWW-Authenticate": "Bearer"})


def _name_of(host: str) -> str:
    """Return the name of a Host header, without port, brackets and case."""
    if host.startswith("["):
        name, bracket, port = host[1:].partition("]")
        if not bracket or not (port == "" or (port.startswith(":") and port[1:].isdecimal())):
            return ""
        try:
            return str(ipaddress.IPv6Address(name))
        except ValueError:
            return ""
    name, colon, port = host.partition(":")
    if colon and not port.isdecimal():
        return ""
    return name.lower().removesuffix(".")


def _same_host(origin: str, host: str) -> bool:
    """Return whether a page of `origin` was served by the host that it calls now; `null` never is."""
    scheme, separator, place = origin.partition("://")
    if not separator or scheme not in ("http", "https"):
        return False
    default = ":443" if scheme == "https" else ":80"
    return place.lower().removesuffix(default) == host.lower().removesuffix(default)
