"""Whether a schema that stands in a graph or document is one; those that are sound are remembered."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from agentflow.definition.ir import canonical_json

if TYPE_CHECKING:
    from agentflow.definition.schemas import SchemaProblem

__all__ = ["schema_problems", "sound_schema"]

_REMEMBERED = 4096
_sound: set[bytes] = set()


def schema_problems(schema: dict[str, Any] | bool) -> list[SchemaProblem]:
    """Return what is wrong with a schema. Schemas repeat, in a document and over its submissions, and
    checking one takes milliseconds."""
    if isinstance(schema, bool):
        return []
    digest = hashlib.sha256(canonical_json(schema)).digest()
    if digest in _sound:
        return []
    from agentflow.definition.schemas import check_applicable, check_schema

    problems = check_schema(schema) or check_applicable(schema)
    if not problems:
        if len(_sound) >= _REMEMBERED:
            _sound.clear()
        _sound.add(digest)
    return problems


def sound_schema(schema: dict[str, Any] | bool) -> dict[str, Any] | bool:
    """Return the schema, or True for one that is wrong: its values are then unknown."""
    return True if schema_problems(schema) else schema
