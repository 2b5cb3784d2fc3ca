"""Evidence of mail and messages: a recorded call of the step, never the word of an agent (page 004 §9).

Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast
from urllib.parse import unquote

from agentflow.definition.toolsets import CLASSES
from agentflow.pipeline.verification.findings import Finding, failed, passed

__all__ = ["address_of", "check_message", "find_unreported", "normal_message_uri"]

_EXTERNAL = CLASSES.index("external")
_MAX_VALUES = 100_000
_RECIPIENTS = ("to", "cc", "bcc")
"""Parameters whose text is a list of addresses, separated by commas."""
_SYNTAX = frozenset('"<>()\\:;')
"""Characters by which a comma of such a text may stand in a name or a comment."""


def address_of(uri: str) -> str | None:
    """Return the address of a `mailto:` URI; None for any other."""
    scheme, colon, rest = uri.partition(":")
    if not colon or scheme.lower() != "mailto":
        return None
    return unquote(rest.partition("?")[0]).strip()


def normal_message_uri(uri: str) -> str:
    """Return the form by which artifacts of mail are matched: scheme and domain do not depend on case."""
    address = address_of(uri)
    return uri.strip() if address is None else f"mailto:{_folded(address)}"


def check_message(
    type: str, uri: str, message_id: str | None, calls: Iterable[Mapping[str, Any]]
) -> tuple[list[Finding], dict[str, Any] | None]:
    """Return the checks of an email or message artifact and its evidence {tool_call_id, offset, id}.

    The id is that of the artifact, else its uri. Of several calls with that id one with the address decides.
    """
    wanted = message_id or uri
    found = [
        call
        for call in _sent(calls)
        if wanted in _ids(type, call["output"])
        or (type == "message" and _is_at(call["output"], uri, message_id))
    ]
    if not found:
        return [failed("evidence", "evidence_missing", "no recorded call of the step gave this id")], None
    address = address_of(uri)
    fitting = [call for call in found if address is None or _has_address(call.get("parameters"), address)]
    call = (fitting or found)[0]
    evidence = {"tool_call_id": call.get("tool_call_id"), "offset": call.get("offset"), "id": wanted}
    checks = [passed("evidence")]
    if address is not None:
        detail = f"the recorded call was not to {address[:120]}"
        checks.append(passed("address") if fitting else failed("address", "evidence_mismatch", detail))
    return checks, evidence


def find_unreported(
    type: str, uri: str, calls: Iterable[Mapping[str, Any]]
) -> tuple[list[Finding], dict[str, Any]] | None:
    """Return the evidence of an expected artifact that no step reported: a call that sent to its address, or
    that gave its uri as id. None if there is none."""
    address = address_of(uri)
    for call in _sent(calls):
        ids = _ids(type, call["output"])
        is_to = address is not None and _has_address(call.get("parameters"), address)
        is_at = type == "message" and _is_at(call["output"], uri, None)
        if not ids or not (uri in ids or is_to or is_at):
            continue
        shown = uri if uri in ids else ids[0]
        evidence = {"tool_call_id": call.get("tool_call_id"), "offset": call.get("offset"), "id": shown}
        return [passed("evidence"), *([passed("address")] if address is not None else [])], evidence
    return None


def _sent(calls: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield the completed calls of functions of class external or above."""
    for call in calls:
        side_effect = call.get("side_effect")
        if side_effect in CLASSES and CLASSES.index(side_effect) >= _EXTERNAL and "output" in call:
            yield call


def _ids(type: str, output: Any) -> list[str]:
    """Return what identifies a message in the output of a call: `message_id` and `id`; for a message without
    both, its timestamp beside a target."""
    if not isinstance(output, dict):
        return []
    members = cast("dict[str, Any]", output)
    found = [_as_id(members.get("message_id")), _as_id(members.get("id"))]
    if type == "message" and _as_id(members.get("target")):
        found.append(_as_id(members.get("timestamp")))
    return [one for one in found if one]


def _is_at(output: Any, uri: str, timestamp: str | None) -> bool:
    """Return whether the output is of a message to the target `uri`, at this timestamp if one is given."""
    if not isinstance(output, dict):
        return False
    members = cast("dict[str, Any]", output)
    given = _as_id(members.get("timestamp"))
    return given is not None and _as_id(members.get("target")) == uri and timestamp in (None, given)


def _as_id(value: Any) -> str | None:
    if isinstance(value, str):
        return value or None
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _has_address(parameters: Any, address: str) -> bool:
    wanted = _folded(address)
    todo, seen = [parameters], 0
    while todo and seen < _MAX_VALUES:
        value = todo.pop()
        seen += 1
        if isinstance(value, str):
            if _folded(value.strip()) == wanted:
                return True
        elif isinstance(value, dict):
            for key, member in cast("dict[str, Any]", value).items():
                is_list = (
                    key.lower() in _RECIPIENTS and isinstance(member, str) and _SYNTAX.isdisjoint(member)
                )
                todo.extend(cast("str", member).split(",") if is_list else [member])
        elif isinstance(value, (list, tuple)):
            todo.extend(cast("list[Any]", value))
    return False


def _folded(address: str) -> str:
    local, at, domain = address.rpartition("@")
    return f"{local}{at}{domain.lower()}"
