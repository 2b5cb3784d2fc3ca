"""Security schemes of an OpenAPI document: where the credential of a scheme goes in a request.

A service gives credentials under `security`, by the name of the scheme in the document. A call carries those
of the first of the operation's alternatives that are all given.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, cast

from agentflow.tools.json_schemas import SchemaBook, Unusable
from agentflow.tools.openapi_text import BrokenDocument

__all__ = ["Alternatives", "Scheme", "credentials", "requirements", "schemes_of"]

Alternatives = tuple[tuple[str, ...], ...]
"""The names of schemes that a call needs: all of one of these."""


class Scheme(NamedTuple):
    """Where a credential goes. `prefix` stands before it; `pair`: it is `user:password`, sent as base64."""

    where: Literal["header", "query", "cookie"]
    name: str
    prefix: str = ""
    pair: bool = False

    def value(self, credential: str) -> str:
        """Return what is sent."""
        if self.pair:
            credential = base64.b64encode(credential.encode()).decode()
        return self.prefix + credential


def schemes_of(root: Mapping[str, Any], book: SchemaBook) -> dict[str, Scheme | str]:
    """Return the schemes of a document by name; a text says why one cannot be used."""
    components: Any = root.get("components")
    given: Any = (
        cast("dict[str, Any]", components).get("securitySchemes") if isinstance(components, dict) else None
    )
    if given is None:
        return {}
    if not isinstance(given, dict):
        raise BrokenDocument("#/components/securitySchemes is no object")
    return {name: _scheme(value, book) for name, value in cast("dict[str, Any]", given).items()}


def _scheme(value: Any, book: SchemaBook) -> Scheme | str:
    try:
        for _ in range(10):
            if not isinstance(value, dict) or "$ref" not in value:
                break
            value = book.resolve(cast("dict[str, Any]", value)["$ref"])
    except Unusable as reason:
        return str(reason)
    if not isinstance(value, dict):
        return "it is no object"
    members = cast("dict[str, Any]", value)
    kind, name, where = members.get("type"), members.get("name"), members.get("in")
    if kind == "apiKey":
        if not isinstance(name, str) or where not in ("header", "query", "cookie"):
            return 'an apiKey needs "name", and "in" as header, query or cookie'
        return Scheme(where, name)
    if kind in ("oauth2", "openIdConnect"):
        return Scheme("header", "Authorization", "Bearer ")
    if kind == "http":
        said = str(members.get("scheme", "")).lower()
        if said == "basic":
            return Scheme("header", "Authorization", "Basic ", pair=True)
        if said == "bearer":
            return Scheme("header", "Authorization", "Bearer ")
        return f'the HTTP scheme "{said[:40]}" is not supported; set the header under headers'
    return f'the type "{str(kind)[:40]}" is not supported'


def requirements(operation: Mapping[str, Any], root: Mapping[str, Any]) -> Alternatives:
    """Return the alternatives of an operation: its own, else those of the document. An empty one asks for
    nothing."""
    given: Any = operation.get("security", root.get("security"))
    if not isinstance(given, list):
        return ()
    found = cast("list[Any]", given)
    return tuple(tuple(cast("dict[str, Any]", one)) for one in found if isinstance(one, dict))


def credentials(
    alternatives: Alternatives, schemes: Mapping[str, Scheme | str], given: Mapping[str, str]
) -> list[tuple[Scheme, str]]:
    """Return the schemes of the first alternative whose credentials are all given, with what each sends.

    An alternative that asks for nothing counts last, since whoever gives a credential wants it sent.
    """
    for names in sorted(alternatives, key=lambda names: not names):
        found = [(schemes.get(name), given.get(name)) for name in names]
        if all(isinstance(scheme, Scheme) and value is not None for scheme, value in found):
            return [
                (scheme, scheme.value(value))
                for scheme, value in found
                if isinstance(scheme, Scheme) and value is not None
            ]
    return []
