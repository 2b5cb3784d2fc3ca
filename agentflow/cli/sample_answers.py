"""An answer that a question takes, as an example in its hint: from what was filled in and the schema."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

if TYPE_CHECKING:
    from agentflow.records.requests import RequestRecord

__all__ = ["sample_answer"]

_MAX_DEPTH: Final = 8
_MAX_LENGTH: Final = 200
_NOTHING: Final = object()


def sample_answer(question: RequestRecord) -> str | None:
    """Return an answer as `agentflow answer` takes it; None if none was found that satisfies the schema."""
    import msgspec

    from agentflow.definition.schemas import validate

    schema: Any = question.response_schema
    subject: Any = question.subject
    offered: Any = cast("dict[str, Any]", subject).get("form_data") if isinstance(subject, dict) else None
    for value in (offered, _sample(schema, schema, offered, 0)):
        if value is not None and value is not _NOTHING and not validate(schema, value):
            is_word = isinstance(value, str) and _reads_as_text(value)
            text = cast("str", value) if is_word else msgspec.json.encode(value).decode()
            return text if len(text) <= _MAX_LENGTH else None
    return None


def _reads_as_text(value: str) -> bool:
    """Return whether a text is no JSON, so that it needs no quotes on the command line."""
    import msgspec

    try:
        msgspec.json.decode(value)
    except msgspec.DecodeError:
        return bool(value.strip()) and not value.startswith("-")
    return False


def _sample(root: Any, schema: Any, offered: Any, depth: int) -> Any:
    """Return a value by the keywords that people write in forms; what was `offered` goes before."""
    if not isinstance(schema, dict) or depth > _MAX_DEPTH:
        return "TEXT" if schema is True or schema == {} else _NOTHING
    rules = cast("dict[str, Any]", schema)
    if isinstance(rules.get("$ref"), str):
        return _sample(root, _at(root, rules["$ref"]), offered, depth + 1)
    for key in ("anyOf", "oneOf"):
        if isinstance(rules.get(key), list) and rules[key]:
            return _sample(root, rules[key][0], offered, depth + 1)
    for key in ("const", "default"):
        if key in rules:
            return rules[key]
    for key in ("enum", "examples"):
        if isinstance(rules.get(key), list) and rules[key]:
            return rules[key][0]
    if offered is not None and not isinstance(offered, dict):
        return offered
    given: Any = rules.get("type", "string")
    if isinstance(given, list):
        given = cast("list[Any]", given)[0] if given else "string"
    match str(given):
        case "boolean":
            return True
        case "null":
            return None
        case "integer" | "number":
            return _number(rules)
        case "array":
            item = _sample(root, rules.get("items", True), None, depth + 1)
            return [item] * int(rules.get("minItems", 0))
        case "object":
            return _object(root, rules, cast("dict[str, Any]", offered or {}), depth)
        case "string":
            return "TEXT".ljust(int(rules.get("minLength", 0)), "T")
        case _:
            return _NOTHING


def _at(root: Any, reference: str) -> Any:
    """Return what a reference inside the schema leads to; None if it is elsewhere."""
    found: Any = root if reference.startswith("#") else None
    for step in reference.split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        found = cast("dict[str, Any]", found).get(name) if isinstance(found, dict) else None
    return found


def _number(rules: dict[str, Any]) -> Any:
    if "minimum" in rules:
        return rules["minimum"]
    if "exclusiveMinimum" in rules:
        return rules["exclusiveMinimum"] + 1
    most = min(rules.get("maximum", 1), rules.get("exclusiveMaximum", 2) - 1)
    return min(1, most)


def _object(root: Any, rules: dict[str, Any], offered: dict[str, Any], depth: int) -> dict[str, Any]:
    known = cast("dict[str, Any]", rules.get("properties") or {})
    wanted = dict.fromkeys([*cast("list[str]", rules.get("required") or ()), *offered])
    return {name: _sample(root, known.get(name, True), offered.get(name), depth + 1) for name in wanted}
