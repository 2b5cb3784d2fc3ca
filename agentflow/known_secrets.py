"""The secrets that this process knows, and the one place that keeps them out of what is written down.

Every border where a text from outside becomes an event, a log line or an answer asks `hide`: errors of
models, of functions and of services, outputs of sensitive functions, logs. It must never be asked about a
value that recovery needs: an ordinary output is recorded as it is.

Known are, read anew each time that something is to be hidden, so that nothing is paid without an error:
each AGENTFLOW_SECRET_* variable (from 4 characters on), `*_API_KEY` (from 6 on), other variables whose names
say that they are secrets (`*_TOKEN`, `*_PASSWORD` …, from 8 on), the credentials inside `*_BASE_URL`,
`*_PROXY` and `*_ENDPOINT`, and the values of OTLP headers; and what `add` was told (from 8 on): resolved
`$secret`s, keys of providers, tokens.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from agentflow.definition.failure import ErrorInfo
from agentflow.definition.redaction import is_sensitive, masker, redact

__all__ = ["KnownSecrets", "add", "hide", "hide_error", "hider", "secret_variable", "url_secrets"]

_PREFIX = "AGENTFLOW_SECRET_"
_SHORTEST_KEY = 6
"""Characters; servers without keys want one all the same, and get `none`, `EMPTY` or `dummy`."""
_SHORTEST_BY_NAME = 8
"""Characters; a variable is named `…_TOKEN` for other reasons too, and then often is `true` or `none`."""
_MAX_ADDED = 256
_SHORTEST_ADDED = 8
"""Characters; what is added is hidden for as long as the process lives."""


class KnownSecrets:
    """The secrets of one environment. For any thread. Of more than 256 that are added, the oldest is
    forgotten."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._environ = environ
        self._added: dict[str, None] = {}
        self._masked: tuple[frozenset[str], Callable[[Any], Any]] = (frozenset(), masker(()))

    def add(self, *secrets: str | None) -> None:
        """Remember secrets that the environment does not say, or not for long; not those of less than 8
        characters."""
        for secret in secrets:
            if secret is not None and len(secret) >= _SHORTEST_ADDED:
                self._added.pop(secret, None)
                self._added[secret] = None
        while len(self._added) > _MAX_ADDED:
            self._added.pop(next(iter(self._added)), None)

    def hider(self) -> Callable[[Any], Any]:
        """Return `hide` for several values: it reads the environment now and not again."""
        known = frozenset([*list(self._added), *_of_environment(self._environ)])
        masked = self._masked
        if masked[0] != known:
            masked = self._masked = (known, masker(known))
        return masked[1]

    def hide(self, value: Any) -> Any:
        """Return a text, or a JSON value, with `***` in the place of every form of every known secret."""
        return self.hider()(value)


_process = KnownSecrets()
add = _process.add
hide = _process.hide
hider = _process.hider


def hide_error(error: ErrorInfo) -> ErrorInfo:
    """Return the error as an event may hold it: neither its texts nor its details hold a known secret, nor
    do details what stands under the key of one."""
    hidden = hider()
    details: Any = error.details
    with suppress(TypeError, ValueError, RecursionError):  # what no event can hold is refused there
        details = msgspec.to_builtins(details, str_keys=True)
    return msgspec.structs.replace(
        error,
        message=hidden(error.message),
        details=None if details is None else redact(hidden(details)),
        path=None if error.path is None else hidden(error.path),
        cause=None if error.cause is None else hide_error(error.cause),
    )


def secret_variable(name: str) -> str:
    """Return the environment variable that holds a secret: its name in capitals, and `_` for every other
    character than letters and digits."""
    return _PREFIX + re.sub(r"[^A-Z0-9]", "_", name.upper())


def url_secrets(url: str) -> list[str]:
    """Return the credentials inside a URL, as written and decoded: `user:password` and the password, or the
    user if it stands alone; and values of its query under the key of a secret."""
    try:
        parts = urlsplit(url)
        user, password = parts.username or "", parts.password or ""
        query = parse_qsl(parts.query)
    except ValueError:
        return []
    found = [value for key, value in query if is_sensitive(key)]
    if user or password:
        pair = f"{unquote(user)}:{unquote(password)}"
        found += [pair, base64.b64encode(pair.encode(errors="replace")).decode()]
        found += [f"{user}:{password}", password, unquote(password)] if password else [user, unquote(user)]
    return [secret for secret in found if secret]


def _of_environment(environ: Mapping[str, str]) -> Iterator[str]:
    for name in list(environ):
        value = environ.get(name)
        if not value:
            continue
        upper = name.upper()
        if upper.startswith(_PREFIX):
            yield value
        elif upper.startswith("OTEL_EXPORTER_OTLP") and upper.endswith("HEADERS"):
            yield from (unquote(pair.partition("=")[2].strip()) for pair in value.split(","))
        elif upper.endswith(("_BASE_URL", "_PROXY", "_ENDPOINT")):
            yield from url_secrets(value)
        elif is_sensitive(name):
            shortest = _SHORTEST_KEY if upper.endswith("_API_KEY") else _SHORTEST_BY_NAME
            if len(value) >= shortest:
                yield value
