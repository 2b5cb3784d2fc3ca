"""An operation of the API: its path, what it takes, what it answers, and the one way in which all are run.

The table of operations is the routing table and the OpenAPI document at once, so the two cannot disagree.
Everything that can be wrong with a request before its meaning is known is refused here: media types, size,
JSON, unknown and ill-typed parameters, ids.
"""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import cache
from types import NoneType
from typing import TYPE_CHECKING, Any, Union, get_args, get_type_hints
from urllib.parse import parse_qsl, unquote

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from agentflow.aside import compute_aside
from agentflow.definition.type_errors import explain
from agentflow.server.access import Actor
from agentflow.server.large_bodies import LARGE_BODY, check_numbers, check_values
from agentflow.server.problems import Refusal, problem_response, refusal_of
from agentflow.server.tokens import Scope

if TYPE_CHECKING:
    from agentflow.server.service import Service

__all__ = ["JSON", "MAX_BODY", "YAML", "Call", "Either", "Handler", "Operation", "json_response"]

MAX_BODY = 8 << 20
JSON = "application/json"
YAML = "application/yaml"

_ID = re.compile(r"wf_[A-Za-z0-9_-]{1,64}")
_STEP = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,127}(?:/[A-Za-z_][A-Za-z0-9_-]{0,127})*")
_REQUEST = re.compile(r"[A-Za-z0-9_:-]{1,128}")
_SHA256 = re.compile(r"(?:sha256:)?[0-9a-f]{64}")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")

# What a name in a path may look like, and what a name that does not is answered: there can be no such thing.
_PATH: dict[str, tuple[re.Pattern[str], str, str]] = {
    "id": (_ID, "workflow_not_found", "run"),
    "step": (_STEP, "step_not_found", "step"),
    "request_id": (_REQUEST, "unknown_request", "request"),
    "sha256": (_SHA256, "blob_not_found", "blob"),
    "name": (_NAME, "not_found", "document"),
    "call": (_REQUEST, "call_not_found", "call"),
    "template": (_NAME, "template_not_found", "template"),
}


class Call:
    """One request to one operation, as its handler sees it."""

    __slots__ = ("_raw", "actor", "body", "media", "query", "request", "service")

    def __init__(self, request: Request, service: Service, actor: Actor | None) -> None:
        self.request = request
        self.service = service
        self._raw: Actor | None = actor
        self.actor: Actor = actor  # type: ignore[assignment]  # None only where no token is asked for
        self.query: Any = None
        self.body: Any = None
        self.media: str | None = None

    def path(self, name: str) -> str:
        """Return a name from the path. Raises Refusal if nothing can have this name."""
        raw = self.request.path_params[name]
        pattern, code, what = _PATH[name]
        try:
            value = unquote(raw, errors="strict")
        except UnicodeDecodeError:
            value = ""
        if not pattern.fullmatch(value):
            raise Refusal(code, f"there is no such {what}")
        return value

    @property
    def id(self) -> str:
        """The run that the path names."""
        return self.path("id")

    def header(self, name: str) -> str | None:
        """Return a header that may occur once."""
        found = self.request.headers.getlist(name)
        if len(found) > 1:
            raise Refusal("invalid_parameter", f"the header {name} stands there twice")
        return found[0] if found else None


Handler = Callable[[Call], Awaitable[Response]]


class Either:
    """An answer that is of one type or another."""

    def __init__(self, *types: Any) -> None:
        self.types = types


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """A method on a path. `scope` None: no token is asked for. `query` and `body` are Structs.

    `media` are the types of bodies it takes, `answers` what it gives by status: a type, a media type as text,
    or None for no body. `produces` are the media types of its success. `problems` are the codes that are
    its own; those that every operation has are added by the document.
    """

    method: str
    path: str
    handler: Handler
    name: str = ""  # its operationId; by default the name of the handler
    summary: str
    tag: str
    scope: Scope | None
    query: type[msgspec.Struct] | None = None
    body: Any = None
    body_required: bool = True
    media: tuple[str, ...] = (JSON,)
    answers: Mapping[int, Any] = {}
    produces: tuple[str, ...] = (JSON,)
    problems: tuple[str, ...] = ()
    negotiates: bool = False  # the handler looks at Accept itself
    while_draining: bool = True

    async def answer(self, request: Request, service: Service) -> Response:
        """Run it; every exception becomes a problem."""
        began = time.perf_counter()
        try:
            response = await self._run(request, service)
        except ClientDisconnect:
            response = Response(status_code=400)  # the client has gone
        except Exception as error:
            # A variable for the refusal would make a cycle (exception, traceback, this frame) that keeps the
            # 8 MiB of a refused body until the collector comes, which does not count bytes.
            response = problem_response(refusal_of(error, draining=service.draining), request.url.path)
        service.metrics.answered(self, response.status_code, time.perf_counter() - began)
        return response

    async def _run(self, request: Request, service: Service) -> Response:
        actor: Actor | None = request.scope["state"]["actor"]
        if self.scope is not None:
            assert actor is not None
            actor.require(self.scope)
        if service.draining and not self.while_draining:
            raise Refusal("draining", "the daemon is stopping; try again when it is back")
        call = Call(request, service, actor)
        check_encoding(call.header("content-encoding"))
        if not self.negotiates:
            accept(call.header("accept"), self.produces)
        call.query = parse_query(request.scope["query_string"], self.query)
        if self.body is not None:
            await self._read_body(call)
        return await self.handler(call)

    async def _read_body(self, call: Call) -> None:
        announced = announced_length(call.request)
        with call.service.large_bodies.admit(announced):
            await self._decode_body(call, await read_body(call.request))

    async def _decode_body(self, call: Call, parts: list[bytes]) -> None:
        content_type = call.header("content-type")
        if not parts and not self.body_required:
            call.body = self.body()
            return
        call.media = media_of(content_type, self.media)
        large = sum(map(len, parts)) > LARGE_BODY
        if call.media == JSON:
            if large:
                call.body = await compute_aside(_decode_large, parts, self.body)
            else:
                data = b"".join(parts)
                check_numbers(data)
                call.body = decode_json(data, self.body)
        else:
            call.body = await compute_aside(b"".join, parts) if large else b"".join(parts)


def json_response(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a value as JSON that no cache may store."""
    given = {"Cache-Control": "no-store", **(headers or {})}
    return Response(msgspec.json.encode(value), status, given, media_type=JSON)


def announced_length(request: Request) -> int | None:
    """Return the announced bytes of a body, None if it comes in chunks. Refusal `payload_too_large`."""
    announced = request.headers.get("content-length", "")
    if not announced.isdecimal():
        return None
    if int(announced) > MAX_BODY:
        raise _too_large()
    return int(announced)


async def read_body(request: Request) -> list[bytes]:
    """Return the parts of the whole body, none of which is empty. To join 8 MiB takes 5 ms.

    Raises Refusal `payload_too_large` as soon as that is known.
    """
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > MAX_BODY:
            raise _too_large()
        if part:
            parts.append(part)
    return parts


def check_encoding(header: str | None) -> None:
    """Raise Refusal `unsupported_media_type` for a compressed body: 8 MiB could become any size."""
    if header is not None and header.strip().lower() not in ("", "identity"):
        raise Refusal(
            "unsupported_media_type",
            f"Content-Encoding {header[:100]!r} is not taken here",
            hint="send the body uncompressed",
            headers={"Accept-Encoding": "identity"},
        )


def _too_large() -> Refusal:
    return Refusal("payload_too_large", f"a request has at most {MAX_BODY} bytes")


def media_of(content_type: str | None, accepted: tuple[str, ...]) -> str:
    """Return the media type of a body, one of `accepted`. Raises Refusal `unsupported_media_type`."""
    hint = f"send Content-Type: {accepted[0]}"
    if content_type is None:
        raise Refusal("unsupported_media_type", "the request does not say what it sends", hint=hint)
    kind, *parameters = [part.strip().lower() for part in content_type.split(";")]
    if kind in ("application/x-yaml", "text/yaml"):
        kind = YAML
    if kind not in accepted:
        raise Refusal("unsupported_media_type", f"{content_type[:100]!r} is not taken here", hint=hint)
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name == "charset" and value.strip('"') not in ("utf-8", "utf8", "us-ascii"):
            raise Refusal("unsupported_media_type", "bodies are UTF-8", hint=hint)
    return kind


def decode_json(data: bytes, kind: Any) -> Any:
    """Decode a JSON value of this type. Raises Refusal `malformed_json` or `invalid_parameter` with its
    place."""
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        problem = explain(error, kind)
        raise Refusal("invalid_parameter", problem.sentence("the body"), hint=problem.hint) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        found = re.search(r"byte (\d+)", str(error))
        where = f", at byte {found[1]}" if found else ""
        raise Refusal("malformed_json", f"the body is not JSON{where}") from None


def _decode_large(parts: list[bytes], kind: Any) -> Any:
    data = b"".join(parts)
    check_values(data)
    return decode_json(data, kind)


def parse_query(text: bytes, kind: type[msgspec.Struct] | None) -> Any:
    """Parse the query parameters as a Struct; a name may occur once. Raises Refusal `invalid_parameter`."""
    try:
        pairs = parse_qsl(text.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=64)
    except (UnicodeDecodeError, ValueError):
        raise Refusal("invalid_parameter", "the query is not readable") from None
    types = {} if kind is None else _parameter_types(kind)
    values: dict[str, Any] = {}
    for name, value in pairs:
        if name not in types:
            hint = f"known here: {', '.join(types)}" if types else "nothing may be asked for here"
            raise Refusal("invalid_parameter", f"unknown query parameter {name[:100]!r}", hint=hint)
        if name in values:
            raise Refusal("invalid_parameter", f"query parameter {name} stands there twice")
        values[name] = _parameter(name, value, types[name])
    if kind is None:
        return None
    for field in msgspec.structs.fields(kind):
        if field.required and field.encode_name not in values:
            raise Refusal("invalid_parameter", f"query parameter {field.encode_name} is missing")
    return msgspec.convert(values, kind)


def _parameter(name: str, value: str, kind: Any) -> Any:
    try:
        return msgspec.convert(value, kind, strict=False)
    except msgspec.ValidationError as error:
        problem = explain(error, kind)
        message = f"query parameter {name} {problem.message}"
        raise Refusal("invalid_parameter", message, hint=problem.hint) from None


@cache
def _parameter_types(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the types of parameters by name. None stands for their absence: no text means it, not even
    `null`."""
    hints = get_type_hints(kind, include_extras=True)
    found: dict[str, Any] = {}
    for field, name in zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True):
        choices = [choice for choice in get_args(hints[field]) if choice is not NoneType]
        optional = NoneType in get_args(hints[field])
        found[name] = Union[tuple(choices)] if optional else hints[field]  # noqa: UP007
    return found


def accept(header: str | None, produces: tuple[str, ...]) -> str:
    """Return the media type of `produces` that the client prefers. Raises Refusal 406."""
    if not header:
        return produces[0]
    best, best_quality = None, 0.0
    for media in produces:
        quality = _quality(header, media)
        if quality > best_quality:
            best, best_quality = media, quality
    if best is None:
        raise Refusal("not_acceptable", f"what can be answered here is {', '.join(produces)}")
    return best


def _quality(header: str, media: str) -> float:
    """Return the client's preference for a media type: of the ranges that fit, the most exact one decides."""
    kind = media.partition("/")[0]
    found: tuple[int, float] = (-1, 0.0)
    for part in header.split(","):
        name, *parameters = [piece.strip().lower() for piece in part.split(";")]
        exactness = {"*/*": 0, f"{kind}/*": 1, media: 2}.get(name, -1)
        if exactness > found[0]:
            quality = 1.0
            for parameter in parameters:
                if parameter.startswith("q="):
                    try:
                        quality = float(parameter[2:])
                    except ValueError:
                        quality = 0.0
            found = (exactness, quality)
    return found[1]
