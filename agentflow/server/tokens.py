"""Bearer tokens and their scopes (page 000 §8.3).

A token comes from `AGENTFLOW_TOKEN` or from a file that only the owner may read. Tokens stay here: they are
compared in constant time and never reach a log, an event or an error.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal, get_args

import msgspec

from agentflow import known_secrets
from agentflow.errors import ConfigurationError

__all__ = ["ALL_SCOPES", "SCOPES", "Scope", "Token", "Tokens", "load_tokens"]

Scope = Literal["read", "run", "approve", "admin"]
SCOPES: tuple[Scope, ...] = get_args(Scope)
ALL_SCOPES: frozenset[Scope] = frozenset(SCOPES)

_SHORTEST = 32
_NAME = re.compile(r"[A-Za-z0-9_.@:-]{1,64}")
_TOKEN = re.compile(r"[\x21-\x7e]+")


class Token(msgspec.Struct, frozen=True):
    """A name, which becomes the actor in events, and what it may do. `digest` stands for the secret."""

    name: str
    scopes: frozenset[Scope]
    digest: bytes


class Tokens:
    """All tokens of a daemon."""

    def __init__(self, tokens: Iterable[Token] = ()) -> None:
        self._tokens = tuple(tokens)

    def __bool__(self) -> bool:
        return bool(self._tokens)

    def find(self, secret: str) -> Token | None:
        """Return the token with this secret, or None. A wrong secret takes as long as a right one."""
        digest = _digest(secret)
        found = None
        for token in self._tokens:
            if hmac.compare_digest(token.digest, digest):
                found = token
        return found

    def named(self, name: str) -> Token | None:
        """Return the token of this name, or None."""
        return next((token for token in self._tokens if token.name == name), None)


def load_tokens(path: str | None, env: Mapping[str, str] | None = None) -> Tokens:
    """Load the tokens of the file, and that of `AGENTFLOW_TOKEN`, which may do everything.

    A line of the file is `NAME SCOPES TOKEN`, scopes separated by commas; `#` begins a comment. Raises
    ConfigurationError, which names the line and never the token.
    """
    found: list[Token] = []
    secret = (os.environ if env is None else env).get("AGENTFLOW_TOKEN", "")
    if secret:
        _check_secret(secret, "AGENTFLOW_TOKEN")
        found.append(Token("token", ALL_SCOPES, _digest(secret)))
    if path is not None:
        found += _read(Path(path))
    if len({token.digest for token in found}) < len(found):
        raise ConfigurationError("two tokens are the same", hint="give each name a token of its own")
    return Tokens(found)


def _read(path: Path) -> list[Token]:
    try:
        with path.open("rb") as file:
            about = os.fstat(file.fileno())
            text = file.read().decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigurationError(f"the tokens in {path} cannot be read: {reason}") from None
    if about.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ConfigurationError(f"others may read the tokens in {path}", hint=f"chmod 600 {path}")
    tokens: list[Token] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = [] if line.lstrip().startswith("#") else line.split()
        if words:
            tokens.append(_parse(words, f"{path}:{number}"))
    if not tokens:
        raise ConfigurationError(f"there is no token in {path}", hint="write NAME SCOPES TOKEN on a line")
    if len({token.name for token in tokens}) < len(tokens):
        raise ConfigurationError(f"{path}: a name stands there twice")
    return tokens


def _parse(words: list[str], place: str) -> Token:
    if len(words) != 3:
        raise ConfigurationError(
            f"{place}: write NAME SCOPES TOKEN", hint="such as: ci read,run <32 characters>"
        )
    name, scopes, secret = words
    if not _NAME.fullmatch(name):
        raise ConfigurationError(f"{place}: a name has 1 to 64 letters, digits or any of _ . @ : -")
    wanted = scopes.split(",")
    if any(scope not in SCOPES for scope in wanted):
        raise ConfigurationError(f"{place}: the scopes are {', '.join(SCOPES)}")
    _check_secret(secret, place)
    return Token(name, _widen({s for s in SCOPES if s in wanted}), _digest(secret))


def _widen(scopes: set[Scope]) -> frozenset[Scope]:
    """Add the implied scopes: a scope to change includes that to read; an admin has all."""
    if "admin" in scopes:
        return ALL_SCOPES
    scopes.add("read")
    return frozenset(scopes)


def _check_secret(secret: str, place: str) -> None:
    if len(secret) < _SHORTEST or not _TOKEN.fullmatch(secret):
        raise ConfigurationError(
            f"{place}: a token has at least {_SHORTEST} characters of printable ASCII without blanks",
            hint="make one with: python -c 'import secrets; print(secrets.token_urlsafe(32))'",
        )
    if len(set(secret)) < 8:
        raise ConfigurationError(
            f"{place}: the token is too easy to guess", hint="make it of random characters"
        )
    known_secrets.add(secret)


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()
