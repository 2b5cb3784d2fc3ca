"""What must not be written down: values under keys that say so (page 000 §1), and known secrets in texts.

Pure functions on JSON values. Nothing is changed in place; a value that needs no change is given back as it
is, so that a caller can tell by identity.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, cast

from agentflow.definition.secret_forms import HIDDEN, hide

__all__ = ["HIDDEN", "is_sensitive", "masker", "redact"]

# By the last word of a key: `X-Api-Key`, `accessToken` and `set-cookie` are meant, `token_count` is not.
_SENSITIVE = frozenset(
    {"authorization", "cookie", "cookies", "password", "passwords", "passwd", "apikey", "token", "secret"}
    | {"secrets"}
)
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_SHORTEST = 4
_SHORTEST_PART = 8
_DEEPEST = 200


@lru_cache(maxsize=4096)
def is_sensitive(key: str) -> bool:
    """Return whether a key (of an object, a header, a variable) says that its value is a secret."""
    words = [word.lower() for word in _WORDS.findall(key)]
    if not words:
        return False
    return words[-1] in _SENSITIVE or words[-2:] == ["api", "key"]


def redact(value: Any) -> Any:
    """Return a JSON value with `***` in the place of every value, but null, under a sensitive key."""
    return _mapped(value, lambda text: text, by_key=True, depth=0)


def masker(secrets: Iterable[str], *, encoded: bool = True) -> Callable[[Any], Any]:
    """Return a function that puts `***` wherever one of these texts stands, in any form of `secret_forms`, in
    a string, or in the strings and keys of a JSON value; not `encoded`: as it is alone, in linear time.

    What follows the scheme of a credential (`Bearer abc…`) counts as a secret of its own, and so do the
    parts of `Basic …`. A text of less than 4 characters is no secret, since it stands everywhere by chance;
    nor is a part of less than 8.
    """
    known: set[str] = set()
    for secret in secrets:
        known.update(s for s in (secret.strip(), *_basic(secret)) if len(s.strip()) >= _SHORTEST)
        known.update(part for part in secret.split() if len(part) >= _SHORTEST_PART)
    if not known:
        return lambda value: value
    ordered = sorted(known, key=len, reverse=True)  # one secret may begin with another

    def hidden(text: str) -> str:
        for secret in ordered:
            text = hide(text, secret) if encoded else text.replace(secret, HIDDEN)
        return text

    return lambda value: _mapped(value, hidden, by_key=False, depth=0)


def _basic(secret: str) -> list[str]:
    """Return the user with the password, and the password, of `Basic <base64>`; nothing for other texts."""
    scheme, _, encoded = secret.strip().partition(" ")
    if scheme.lower() != "basic":
        return []
    try:
        text = base64.b64decode(encoded.strip(), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return []
    return [text, text.partition(":")[2]]


def _mapped(value: Any, text: Callable[[str], str], *, by_key: bool, depth: int) -> Any:
    if isinstance(value, str):
        changed = text(value)
        return value if changed == value else changed
    if depth > _DEEPEST:
        return HIDDEN
    if isinstance(value, list | tuple):
        items = cast("list[Any]", value)
        new: list[Any] = [_mapped(item, text, by_key=by_key, depth=depth + 1) for item in items]
        return items if all(a is b for a, b in zip(new, items, strict=True)) else new
    if isinstance(value, dict):
        members = cast("dict[Any, Any]", value)
        made: dict[Any, Any] = {
            text(key) if isinstance(key, str) else key: HIDDEN
            if by_key and member is not None and isinstance(key, str) and is_sensitive(key)
            else _mapped(member, text, by_key=by_key, depth=depth + 1)
            for key, member in members.items()
        }
        same = len(made) == len(members) and all(
            a == b and made[a] is members[b] for a, b in zip(made, members, strict=True)
        )
        return members if same else made
    return value
