"""Addresses of servers and paths of requests, as documents write them."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import urlsplit

__all__ = ["PATH_ARGUMENT", "address_problem", "path_arguments", "path_problem"]

PATH_ARGUMENT: Final = re.compile(r"\{([^{}/?#]+)\}")
_CONTROL = re.compile(r"[\x00-\x20\x7f]")


def address_problem(url: str) -> str | None:
    """Return why this is not the address of a server, or None. Credentials have their place in `headers`."""
    try:
        parts = urlsplit(url)
        port_is_right = parts.port is None or parts.port > 0
    except ValueError:
        return "is not a URL"
    if parts.scheme not in ("http", "https") or not parts.hostname or not port_is_right:
        return "is not an http or https URL"
    if parts.username is not None or parts.password is not None:
        return "has credentials in it; put them under headers"
    if _CONTROL.search(url):
        return "has a blank or a control character in it"
    return None


def path_arguments(template: str) -> list[str]:
    """Return the names in braces, in order."""
    return list(dict.fromkeys(PATH_ARGUMENT.findall(template)))


def path_problem(template: str) -> str | None:
    """Return what is wrong with a template, or None."""
    if not template.startswith("/"):
        return "does not begin with /"
    rest = PATH_ARGUMENT.sub("", template)
    if "{" in rest or "}" in rest:
        return "has a brace that names no argument"
    if "?" in rest or "#" in rest or _CONTROL.search(rest):
        return "has ?, #, a blank or a control character in it; name arguments under query"
    if any(segment in (".", "..") for segment in rest.split("/")):
        return "has the segment . or .. in it"
    return None
