"""Bodies of OpenAPI operations: which media type of a document is sent, and how an argument becomes bytes.

JSON, forms (`application/x-www-form-urlencoded`, with deepObject), `multipart/form-data`, text, and bytes
that are given as base64. An operation whose body fits none of these is refused, never offered without it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Iterator
from typing import Any, Final, Literal, NamedTuple, cast
from urllib.parse import quote

import msgspec

from agentflow.tools.json_schemas import SchemaBook, Unusable
from agentflow.tools.path_template import BadArgument, as_text

__all__ = ["Body", "Part", "choose_body", "deep_pairs", "quoted", "text_of"]

Kind = Literal["json", "form", "multipart", "text", "bytes"]

_FORM: Final = "application/x-www-form-urlencoded"
_MULTIPART: Final = "multipart/form-data"
_TEXTUAL: Final = re.compile(r"(^text/|[/+.-](xml|yaml|x-yaml|graphql|javascript|ndjson|csv|sql|toml)$)")
_CONCRETE: Final = re.compile(r"[\w.+-]+/[\w.+-]+", re.ASCII)
_SEPARATORS: Final = {"form": ",", "spaceDelimited": " ", "pipeDelimited": "|"}
_MAX_REFS: Final = 10
_MAX_ALL_OF: Final = 50
_SCALARS: Final = frozenset({"string", "number", "integer", "boolean"})


class Part(NamedTuple):
    """How a member of a form is written. `style` None: by the type of its value (objects as JSON).
    `content_type` None: that of its value. `is_bytes`: the argument is base64."""

    style: str | None = None
    explode: bool = True
    content_type: str | None = None
    is_bytes: bool = False


class Body(NamedTuple):
    """The body that an operation takes. `note` tells the agent what the schema does not."""

    kind: Kind
    media_type: str
    schema: Any
    parts: dict[str, Part]
    note: str | None = None

    def encode(self, value: Any) -> tuple[str, bytes]:
        """Return the content type and the bytes of a value. Raises BadArgument."""
        if self.kind == "json":
            return self.media_type, msgspec.json.encode(value)
        if self.kind == "text":
            return f"{self.media_type}; charset=utf-8", _utf8(text_of(value))
        if self.kind == "bytes":
            return self.media_type, _decoded("body", value)
        if not isinstance(value, dict):
            raise BadArgument("the body of a form is an object")
        members = {k: v for k, v in cast("dict[str, Any]", value).items() if v is not None}
        if self.kind == "form":
            return self.media_type, self._form(members)
        return self._multipart(members)

    def _form(self, members: dict[str, Any]) -> bytes:
        pairs = [pair for name, value in members.items() for pair in self._pairs(name, value)]
        return "&".join(f"{quoted(name)}={quoted(text)}" for name, text in pairs).encode()

    def _pairs(self, name: str, value: Any) -> Iterator[tuple[str, str]]:
        part = self.parts.get(name, Part())
        if part.style == "deepObject":
            yield from deep_pairs(name, value)
        elif isinstance(value, list):
            texts = [text_of(item) for item in cast("list[Any]", value)]
            if part.explode:
                yield from ((name, text) for text in texts)
            else:
                yield name, _SEPARATORS.get(part.style or "form", ",").join(texts)
        elif isinstance(value, dict) and part.style is not None:
            items = [(k, text_of(v)) for k, v in cast("dict[str, Any]", value).items() if v is not None]
            if part.explode:
                yield from items
            else:
                yield name, ",".join(f"{key},{text}" for key, text in items)
        else:
            yield name, text_of(value)

    def _multipart(self, members: dict[str, Any]) -> tuple[str, bytes]:
        written: list[bytes] = []
        for name, value in members.items():
            part = self.parts.get(name, Part())
            if part.style is not None and not part.is_bytes:
                written += [_part(key, Part(), text) for key, text in self._pairs(name, value)]
                continue
            values = cast("list[Any]", value) if isinstance(value, list) else [value]
            written += [_part(name, part, one) for one in values]
        # Every attempt of a call sends the same bytes, since servers compare them by the idempotency key.
        boundary = "agentflow-" + hashlib.sha256(b"\0".join(written)).hexdigest()[:32]
        lines = b"".join(b"--%s\r\n%s\r\n" % (boundary.encode(), one) for one in written)
        return f"{self.media_type}; boundary={boundary}", lines + b"--%s--\r\n" % boundary.encode()


def choose_body(book: SchemaBook, content: dict[str, Any], *, needed: bool, bodiless: bool) -> Body | None:
    """Return the body for the media types of a `content`, None if nothing can be in it.

    `bodiless`: the method (GET, HEAD) has no body by itself, so that an empty form means none. Raises
    Unusable for media types that cannot be written, and for a form whose members are not described.
    """
    if not content and not needed:
        return None
    ranked = sorted((rank, kind) for kind in content if (rank := _rank(kind)) is not None)
    for _, kind in ranked:
        media = cast("dict[str, Any]", content[kind])
        found = _body(book, kind, media, needed=needed, bodiless=bodiless)
        if not isinstance(found, str):
            return found
    kinds = ", ".join(content) or "of no kind"
    forms = {_plain(kind) for kind in content} <= {_FORM, _MULTIPART}
    if forms:  # without described members it would be a guess
        raise Unusable(f"its body is {kinds}, and its document does not describe the members")
    raise Unusable(f"its body is {kinds}, which cannot be written from arguments")


def _body(
    book: SchemaBook, kind: str, media: dict[str, Any], *, needed: bool, bodiless: bool
) -> Body | Literal["unfit"] | None:
    plain = _plain(kind)
    schema = media.get("schema", {})
    if _is_json(plain):
        return Body("json", "application/json" if "*" in plain else plain, schema, {})
    described = _followed(book, schema)
    if plain in (_FORM, _MULTIPART):
        members = _members(book, described, [_MAX_ALL_OF])
        if not members:
            is_empty = described.get("properties") == {} and described.get("additionalProperties") is not True
            return None if is_empty and not needed and bodiless else _open_form(plain, schema, described)
        parts = _parts(book, members, media.get("encoding"))
        files = [name for name, part in parts.items() if part.is_bytes]
        note = f"Files ({', '.join(files)}) are given as base64." if files else None
        return Body("form" if plain == _FORM else "multipart", plain, schema, parts, note)
    of_type = described.get("type", "string")
    kinds = set(cast("list[str]", of_type)) if isinstance(of_type, list) else {of_type}
    is_binary = described.get("format") == "binary"
    if plain == "text/*":
        plain = "text/plain"
    if not kinds <= _SCALARS | {"null"} or not _CONCRETE.fullmatch(plain):
        return "unfit"
    if _TEXTUAL.search(plain) and not is_binary:
        return Body("text", plain, schema or {"type": "string"}, {})
    if not kinds <= {"string", "null"}:
        return "unfit"
    text = {k: v for k, v in described.items() if k in ("description", "title")}
    note = f"The bytes ({plain}), as base64."
    return Body("bytes", plain, {**text, "type": "string", "contentEncoding": "base64"}, {}, note)


def _open_form(plain: str, schema: Any, described: dict[str, Any]) -> Body | Literal["unfit"]:
    """Return a form with members of any name, if the document says so."""
    if plain != _FORM or described.get("type") != "object":
        return "unfit"
    return Body("form", plain, schema, {})


def _rank(kind: str) -> int | None:
    """Return the rank of a media type among those that can be sent: JSON, forms, text, bytes."""
    plain = _plain(kind)
    if plain == "application/json":
        return 0
    if _is_json(plain):
        return 1 if "*" in plain else 2 if plain == "application/merge-patch+json" else 3
    if plain in (_FORM, _MULTIPART):
        return 4 if plain == _FORM else 5
    return 6 if plain == "text/plain" else 7 if _TEXTUAL.search(plain) else 8


def _plain(kind: str) -> str:
    return kind.partition(";")[0].strip().lower()


def _is_json(plain: str) -> bool:
    return plain in ("application/json", "*/*", "application/*") or plain.endswith("+json")


def _followed(book: SchemaBook, schema: Any) -> dict[str, Any]:
    """Return the schema behind its references; {} for what is none. Raises Unusable."""
    for _ in range(_MAX_REFS):
        if not isinstance(schema, dict):
            return {}
        members = cast("dict[str, Any]", schema)
        if "$ref" not in members:
            return members
        schema = book.resolve(members["$ref"])
    raise Unusable("a $ref refers to itself")


def _members(book: SchemaBook, described: dict[str, Any], left: list[int]) -> dict[str, Any]:
    """Return the properties of a schema and of what it is composed of; `left` bounds how many schemas are
    read."""
    left[0] -= 1
    if left[0] < 0:
        return {}
    found: dict[str, Any] = {}
    for key in ("allOf", "anyOf", "oneOf"):
        for part in cast("list[Any]", described.get(key) or []):
            found |= _members(book, _followed(book, part), left)
    properties = described.get("properties")
    return found | (cast("dict[str, Any]", properties) if isinstance(properties, dict) else {})


def _parts(book: SchemaBook, members: dict[str, Any], encoding: Any) -> dict[str, Part]:
    given = cast("dict[str, Any]", encoding) if isinstance(encoding, dict) else {}
    parts: dict[str, Part] = {}
    for name, schema in members.items():
        said = given.get(name)
        options = cast("dict[str, Any]", said) if isinstance(said, dict) else {}
        style, explode = options.get("style"), options.get("explode")
        if style is None and explode is not None:
            style = "form"
        if style not in (None, "form", "spaceDelimited", "pipeDelimited", "deepObject"):
            raise Unusable(f'style "{str(style)[:40]}" of member "{name[:80]}" of its body is not supported')
        content_type = options.get("contentType")
        parts[name] = Part(
            style=style,
            explode=(style is None or style == "form") if explode is None else bool(explode),
            content_type=_header_value(content_type),
            is_bytes=_is_file(book, schema, content_type),
        )
    return parts


def _header_value(value: Any) -> str | None:
    """Return the first of the media types that a part may have, if it names one."""
    if not isinstance(value, str) or not value.isascii() or not value.isprintable():
        return None
    first = value.partition(",")[0].strip()
    return first if first and "*" not in first else None


def _is_file(book: SchemaBook, schema: Any, content_type: Any) -> bool:
    described = _followed(book, schema)
    if described.get("type") == "array":
        described = _followed(book, described.get("items"))
    if described.get("format") == "binary" or content_type == "application/octet-stream":
        return True
    media_type = described.get("contentMediaType")
    return isinstance(media_type, str) and not _TEXTUAL.search(media_type) and not _is_json(media_type)


def _part(name: str, part: Part, value: Any) -> bytes:
    """Return one part: its head, an empty line, its bytes."""
    shown = _utf8(name.replace('"', "%22").replace("\r", "%0D").replace("\n", "%0A"))
    head = b'Content-Disposition: form-data; name="%s"' % shown
    if part.is_bytes:
        kind = part.content_type or "application/octet-stream"
        head += b'; filename="%s"' % shown
        content = _decoded(name, value)
    else:
        plain = "application/json" if isinstance(value, dict | list) else None
        kind = part.content_type or plain
        content = _utf8(text_of(value))
    if kind is not None:
        head += b"\r\nContent-Type: " + kind.encode()
    return head + b"\r\n\r\n" + content


def deep_pairs(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yield `name[key]=text` for an object and `name[0]=text` for an array, at any depth."""
    if isinstance(value, dict):
        for key, inner in cast("dict[str, Any]", value).items():
            if inner is not None:
                yield from deep_pairs(f"{name}[{key}]", inner)
    elif isinstance(value, list):
        for i, inner in enumerate(cast("list[Any]", value)):
            if inner is not None:
                yield from deep_pairs(f"{name}[{i}]", inner)
    else:
        yield name, text_of(value)


def text_of(value: Any) -> str:
    """Return a scalar as it is written in a URL or a form, another value as JSON."""
    text = as_text(value)
    return msgspec.json.encode(value).decode() if text is None else text


def quoted(text: str) -> str:
    """Return the text percent-encoded. Raises BadArgument for half a surrogate pair."""
    try:
        return quote(text, safe="")
    except UnicodeEncodeError:
        raise BadArgument("an argument has half of a surrogate pair in it") from None


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise BadArgument("an argument has half of a surrogate pair in it") from None


def _decoded(name: str, value: Any) -> bytes:
    try:
        return base64.b64decode(value if isinstance(value, str) else "?", validate=True)
    except (binascii.Error, ValueError):
        raise BadArgument(f"{name} is not base64, which stands for its bytes") from None
