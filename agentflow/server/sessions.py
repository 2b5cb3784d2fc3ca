"""Browser sessions: one-time codes that become cookies (page 000 §8.3).

A browser can send no bearer token with EventSource, and a token must not stand in a URL that stays. So a
caller that has shown who it is gets a code for a link, once; the page sends the code back and gets a cookie
that holds the caller's name and scopes, signed. A cookie of a token is signed with the digest of that token:
it outlives a restart of the daemon, and ends when the token is taken away. Any other is signed with a key of
this process.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import time
from typing import TYPE_CHECKING

import msgspec

from agentflow.server.problems import Refusal
from agentflow.server.tokens import Scope, Tokens

if TYPE_CHECKING:
    from agentflow.server.access import Actor

__all__ = ["CODE_S", "SESSION_S", "Sessions", "cookie_name"]

CODE_S = 300.0
"""Seconds for which a code can be used."""
SESSION_S = 7 * 86_400
"""Seconds after which a session ends."""
_MAX_CODES = 256
_MAX_ENDED = 65_536


class _Claims(msgspec.Struct, frozen=True, array_like=True):
    id: str
    name: str
    scopes: tuple[Scope, ...]
    trusted: bool
    ends: int
    token: str | None


class Sessions:
    """The codes and cookies of one application. For one event loop."""

    def __init__(self, tokens: Tokens, *, trust_all: bool = False) -> None:
        self._tokens = tokens
        self._trust_all = trust_all
        self._key = secrets.token_bytes(32)
        self._codes: dict[bytes, tuple[float, Actor]] = {}
        self._ended: dict[str, int] = {}

    def issue_code(self, actor: Actor) -> str:
        """Return a code that stands for the caller, once, within CODE_S. The oldest of 256 is dropped."""
        code = secrets.token_urlsafe(24)
        self._codes[_digest(code)] = time.monotonic() + CODE_S, actor
        while len(self._codes) > _MAX_CODES:
            del self._codes[next(iter(self._codes))]
        return code

    def redeem(self, code: str) -> Actor:
        """Return the caller that a code stands for. Raises Refusal `unauthorized` if it was used, is too old
        or was never given."""
        until, actor = self._codes.pop(_digest(code), (0.0, None))
        if actor is None or time.monotonic() > until:
            raise Refusal(
                "unauthorized",
                "the link was used already or is too old",
                hint="make another one with `agentflow ui`",
            )
        return actor

    def make_cookie(self, actor: Actor) -> str:
        """Return the value of a cookie for the caller."""
        claims = _Claims(
            secrets.token_urlsafe(9),
            actor.name,
            tuple(sorted(actor.scopes)),
            actor.trusted,
            int(time.time()) + SESSION_S,
            actor.token,
        )
        body = base64.urlsafe_b64encode(msgspec.json.encode(claims)).rstrip(b"=")
        return f"{body.decode()}.{self._sign(body, claims.token)}"

    def read_cookie(self, value: str) -> Actor | None:
        """Return the caller of a cookie; None if it was not made here, has ended, or its token is gone."""
        claims = self._claims(value)
        if claims is None or claims.id in self._ended or claims.ends < time.time():
            return None
        from agentflow.server.access import Actor

        scopes, trusted = frozenset(claims.scopes), claims.trusted
        if claims.token is not None:
            token = self._tokens.named(claims.token)
            if token is None:
                return None
            scopes &= token.scopes  # they may have become fewer
            trusted = trusted and self._trust_all  # as may the trust, since the daemon was started again
        return Actor(claims.name, scopes, trusted, claims.token)

    def end(self, value: str) -> None:
        """Let a cookie be worth nothing from now on, in this process."""
        claims = self._claims(value)
        if claims is not None:
            self._ended[claims.id] = claims.ends
            if len(self._ended) > _MAX_ENDED:
                now = time.time()
                self._ended = {id: ends for id, ends in self._ended.items() if ends >= now}
            while len(self._ended) > _MAX_ENDED:
                del self._ended[next(iter(self._ended))]

    def _claims(self, value: str) -> _Claims | None:
        body, _, signature = value.rpartition(".")
        try:
            raw = body.encode("ascii")
            claims = msgspec.json.decode(base64.urlsafe_b64decode(raw + b"=" * (-len(raw) % 4)), type=_Claims)
        except (ValueError, msgspec.DecodeError):
            return None
        expected = self._sign(raw, claims.token)
        return (
            claims if hmac.compare_digest(expected.encode(), signature.encode("utf-8", "replace")) else None
        )

    def _sign(self, body: bytes, token: str | None) -> str:
        known = None if token is None else self._tokens.named(token)
        # A token that is gone leaves the key of this process, with which no cookie of it was signed.
        key = self._key if known is None else hashlib.sha256(b"agentflow session" + known.digest).digest()
        return hmac.new(key, body, hashlib.sha256).hexdigest()


def cookie_name(port: int | None) -> str:
    """Return the name of the session's cookie: cookies do not tell ports apart, so the name does."""
    return "agentflow_session" if port is None else f"agentflow_session_{port}"


def _digest(code: str) -> bytes:
    return hashlib.sha256(code.encode("utf-8", "replace")).digest()
