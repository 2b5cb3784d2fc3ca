"""Check objects of a plan (page 004 §9): pure functions of a content. All keys that are set must hold."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, Final, cast

import msgspec

from agentflow.definition.schemas import check_schema, validate
from agentflow.definition.stage_schemas import Check
from agentflow.pipeline.verification.findings import Content, Finding, failed, passed
from agentflow.pipeline.verification.json_text import InvalidJson, parse_json

__all__ = ["STRUCTURE_LIMIT_BYTES", "VALUE_LIMIT_BYTES", "apply_check", "headings_of", "set_keys", "urls_of"]

VALUE_LIMIT_BYTES: Final = 8 << 20
"""The largest content that `equals` and `json_schema` read as a value."""

STRUCTURE_LIMIT_BYTES: Final = 4 << 20
"""The largest text that is searched for headings and URLs, which takes 1 s and holds the interpreter."""

_URL: Final = re.compile(r"""https?://[^\s<>"'`(){}\[\]|\\^\u3000-\u303f\uff00-\uffef]+""", re.IGNORECASE)
_FENCE: Final = re.compile(r" {0,3}(`{3,}|~{3,})")
_ATX: Final = re.compile(r" {0,3}#{1,6}(?:[ \t]+(.*))?$")
_ATX_END: Final = re.compile(r"(?:^|[ \t]+)#+[ \t]*$")
_UNDERLINE: Final = re.compile(r" {0,3}(=+|-+)[ \t]*$")
_MARKUP: Final = re.compile(r"[*_`]+")


def set_keys(check: Check) -> list[str]:
    """Return the keys of a check that are set, but for `target`, in the order of the page."""
    return [key for key in _RULES if getattr(check, key) is not msgspec.UNSET]


def apply_check(check: Check, content: Content) -> list[Finding]:
    """Return what each key of a check says of a content, `check_failed:<key>` if it does not hold."""
    found: list[Finding] = []
    for key in set_keys(check):
        wanted = getattr(check, key)
        if key != "exists" and not content.exists:
            problem: str | None = content.why or "there is nothing to check"
        else:
            problem = _RULES[key](wanted, content)
        found.append(passed(key) if problem is None else failed(key, f"check_failed:{key}", problem))
    return found


class _Unreadable(Exception):
    """The content is not there as what a rule needs."""


def _text(content: Content) -> str:
    if content.body is None:
        raise _Unreadable(content.why or "it is too large to be read as text")
    try:
        return content.body.decode("utf-8")
    except UnicodeDecodeError:
        raise _Unreadable("it is not text in UTF-8") from None


def _of_text(
    rule: Callable[[Any, str], str | None], limit: int | None = None
) -> Callable[[Any, Content], str | None]:
    def judge(wanted: Any, content: Content) -> str | None:
        if limit is not None and content.size > limit:
            return f"it has more than {limit:,} bytes"
        try:
            return rule(wanted, _text(content))
        except _Unreadable as unreadable:
            return str(unreadable)

    return judge


def _exists(wanted: bool, content: Content) -> str | None:
    if wanted == content.exists:
        return None
    return "it does not exist" if wanted else "it exists"


def _min_bytes(wanted: int, content: Content) -> str | None:
    return None if content.size >= wanted else f"{content.size:,} bytes are less than {wanted:,}"


def _max_bytes(wanted: int, content: Content) -> str | None:
    return None if content.size <= wanted else f"{content.size:,} bytes are more than {wanted:,}"


def _contains(wanted: tuple[str, ...], text: str) -> str | None:
    missing = [one for one in wanted if one not in text]
    return (
        f"{len(missing)} of {len(wanted)} texts are absent, first {_shown(missing[0])}" if missing else None
    )


def _not_contains(wanted: tuple[str, ...], text: str) -> str | None:
    there = [one for one in wanted if one in text]
    return f"{_shown(there[0])} stands in it" if there else None


def _min_urls(wanted: int, text: str) -> str | None:
    count = len(urls_of(text))
    return None if count >= wanted else f"{count} distinct URLs are less than {wanted}"


def _headings(wanted: tuple[str, ...], text: str) -> str | None:
    there = {_plain(one) for one in headings_of(text)}
    missing = [one for one in wanted if _plain(one) not in there]
    return f"there is no heading {_shown(missing[0])}" if missing else None


def _json_schema(wanted: Any, text: str) -> str | None:
    if check_schema(wanted):
        return "the schema of the check is not valid"
    try:
        value = _value(text)
    except InvalidJson as invalid:
        return f"it is no JSON: {invalid}"
    issues = validate(wanted, value)
    return f"{issues[0].path or '/'}: {issues[0].message}" if issues else None


def _equals(wanted: Any, text: str) -> str | None:
    if isinstance(wanted, str) and wanted == text:
        return None
    try:
        value = _value(text)
    except InvalidJson:
        value = text
    return None if _same(value, wanted) else "it is another value"


def _sha256(wanted: str, content: Content) -> str | None:
    if content.sha256 is None:
        return content.why or "it is too large to be hashed"
    return None if content.sha256 == wanted.lower() else f"its hash is {content.sha256}"


_RULES: Final[dict[str, Callable[[Any, Content], str | None]]] = {
    "exists": _exists,
    "min_bytes": _min_bytes,
    "max_bytes": _max_bytes,
    "contains": _of_text(_contains),
    "not_contains": _of_text(_not_contains),
    "min_urls": _of_text(_min_urls, STRUCTURE_LIMIT_BYTES),
    "headings": _of_text(_headings, STRUCTURE_LIMIT_BYTES),
    "json_schema": _of_text(_json_schema),
    "equals": _of_text(_equals),
    "sha256": _sha256,
}


def _value(text: str) -> Any:
    body = text.encode()
    if len(body) > VALUE_LIMIT_BYTES:
        raise InvalidJson(f"it has more than {VALUE_LIMIT_BYTES:,} bytes")
    return parse_json(body)


def _same(one: Any, other: Any) -> bool:
    """Return whether two JSON values are equal: 1 and 1.0 are, 1 and true are not."""
    todo = [(one, other)]
    while todo:
        a, b = todo.pop()
        if isinstance(a, dict) and isinstance(b, dict):
            left, right = cast("dict[str, Any]", a), cast("dict[str, Any]", b)
            if left.keys() != right.keys():
                return False
            todo.extend((left[key], right[key]) for key in left)
        elif isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
            first, second = cast("list[Any]", a), cast("list[Any]", b)
            if len(first) != len(second):
                return False
            todo.extend(zip(first, second, strict=True))
        elif isinstance(a, bool) is not isinstance(b, bool) or a != b:
            return False
    return True


def urls_of(text: str) -> set[str]:
    """Return the distinct http(s) URLs of a text, without the punctuation that ends a sentence."""
    found = (match[0].rstrip(".,;:!?*_~") for match in _URL.finditer(text))
    return {url for url in found if url.partition("://")[2].strip("/")}


def headings_of(text: str) -> Iterator[str]:
    """Yield the headings of a Markdown text, those with `#` and those that are underlined, but not what
    stands in a fenced block of code."""
    fence, before = "", ""
    for line in text.splitlines():
        mark = _FENCE.match(line)
        if fence:
            if mark and mark[1].startswith(fence) and not line[mark.end() :].strip():
                fence = ""
            continue
        if mark:
            fence, before = mark[1], ""
            continue
        if atx := _ATX.match(line):
            yield _ATX_END.sub("", atx[1] or "").strip()
            before = ""
        elif before.strip() and _UNDERLINE.match(line):
            yield before.strip()
            before = ""
        else:
            before = "" if line.startswith(("    ", "\t", ">")) else line


def _plain(heading: str) -> str:
    return " ".join(_MARKUP.sub("", heading).split())


def _shown(text: str) -> str:
    return f'"{text[:60]}{"…" if len(text) > 60 else ""}"'
