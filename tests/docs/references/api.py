"""The page `api`: every operation of the daemon, from its routing table."""

from __future__ import annotations

import inspect
from typing import Any

import msgspec

from agentflow.server.app import OPERATIONS
from agentflow.server.openapi import _HEADERS  # pyright: ignore[reportPrivateUsage]
from agentflow.server.operations import MAX_BODY, Operation
from tests.docs.references.events import _type  # pyright: ignore[reportPrivateUsage]
from tests.docs.references.tables import GENERATED, table

__all__ = ["make_api"]


def make_api() -> str:
    """Return the page."""
    rows = [(f"`{o.method} {o.path}`", o.summary, o.scope or "none") for o in OPERATIONS]
    text = f"""# The HTTP API

{GENERATED}

The daemon serves it on a Unix socket and on the addresses of `--listen`. `GET /openapi.json` is the same as an
OpenAPI 3.1 document. A request has at most {MAX_BODY >> 20} MiB. Errors are `application/problem+json` with a `code` (see
`agentflow help codes`). A token is sent as `Authorization: Bearer TOKEN`; its scopes must include that of the
operation. Every token may `read`; `admin` includes all.

{table(("operation", "what it does", "scope"), rows)}"""
    for operation in OPERATIONS:
        text += _operation(operation)
    return text


def _operation(operation: Operation) -> str:
    text = f"\n## `{operation.method} {operation.path}`\n\n{operation.summary}.\n"
    headers = _HEADERS.get((operation.method, operation.path), ())
    for title, rows in (
        ("Headers", [(f"`{name}`", about) for name, about in headers]),
        ("Query parameters", _fields(operation.query)),
        ("Members of the body", _fields(operation.body)),
    ):
        if rows:
            text += f"\n{title}:\n\n" + table(("name", "value"), rows)
    answers = ", ".join(f"{status} {_answer(kind)}".rstrip() for status, kind in operation.answers.items())
    text += f"\nAnswers: {answers or '200'}." if answers else ""
    if operation.problems:
        text += " Problems: " + ", ".join(f"`{code}`" for code in operation.problems) + "."
    return text + "\n"


def _fields(kind: Any) -> list[tuple[str, str]]:
    if not (inspect.isclass(kind) and issubclass(kind, msgspec.Struct)):
        return []
    info: Any = msgspec.inspect.type_info(kind)
    return [
        (f"`{field.encode_name}`", _type(field.type) + (" (required)" if field.required else ""))
        for field in info.fields
    ]


def _answer(kind: Any) -> str:
    return f"`{kind.__name__}`" if inspect.isclass(kind) else ""
