"""References of an event: blobs, graphs, the parent of its run. Found in its stored bytes.

Retention rests on it: a blob or a definition goes with the last run that names it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Set

import msgspec

__all__ = ["named_by", "names_in", "parent_of"]

# A quote inside a JSON string is escaped, so text that merely talks of a blob does not match.
_KEYS = (b'"$blob":', b'"ir_hash":', b'"definition_hash":')
_BASE_KEY = b'"ref":'
_NAME = re.compile(rb'"(sha256:[^"\\]{1,128})"')
_BASE_NAME = re.compile(rb'"(sha256:[0-9a-f]{64})"')
_NONE: frozenset[str] = frozenset()


class _Parent(msgspec.Struct):
    workflow_id: str


class _Data(msgspec.Struct):
    parent: _Parent | None = None


class _Started(msgspec.Struct):
    data: _Data


_started_decoder = msgspec.json.Decoder(_Started)


def names_in(body: bytes) -> frozenset[str]:
    """Return the blobs and definitions that the bytes of an event name, or of a blob that holds events."""
    at = body.find(b'"sha256:')
    if at < 0:  # nearly always: this search is done for every event that is appended
        return _NONE
    is_base = b'"kind":"fork_base"' in body  # what a forked run begins with
    found: set[str] = set()
    while at >= 0:  # one pattern for key and name would hold the interpreter for 100 ms in a base of 50 MB
        if body.endswith(_KEYS, 0, at):
            name = _NAME.match(body, at)
        else:
            name = _BASE_NAME.match(body, at) if is_base and body.endswith(_BASE_KEY, 0, at) else None
        if name is not None:
            found.add(name[1].decode(errors="replace"))
        at = body.find(b'"sha256:', at + 1)
    return frozenset(found)


def named_by(names: Iterable[str], inner: Mapping[str, Set[str]]) -> set[str]:
    """Return `names`, and all that they name in turn; `inner` is what each blob names itself."""
    found, left = set(names), list(names)
    while left:
        more = inner.get(left.pop(), set[str]()) - found
        found |= more
        left += more
    return found


def parent_of(body: bytes) -> str | None:
    """Return the run that the run of this `workflow.started` is a step of, or None."""
    if b'"parent":{' not in body:
        return None
    try:
        parent = _started_decoder.decode(body).data.parent
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return None if parent is None else parent.workflow_id
