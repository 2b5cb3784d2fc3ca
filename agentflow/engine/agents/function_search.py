"""`find_functions`: stands in for the functions of services that have too many to be offered at once. Pure.

A service that is declared with `search` offers none of its functions; a model finds them by words, and those
that it has found are offered in its next turns. The calls themselves are ordinary ones, with their own
side effects and approvals.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from agentflow.engine.bindings import ToolInfo

__all__ = ["FIND_FUNCTIONS", "MAX_FOUND", "find", "is_search", "merge_found", "search_tool"]

FIND_FUNCTIONS: Final = "find_functions"
MAX_FOUND: Final = 32
"""How many found functions are offered at once; of more, those that were found last."""

_DEFAULT_LIMIT: Final = 8
_WORD: Final = re.compile(r"[A-Za-z][a-z]+|[A-Z]+(?![a-z])|\d+|[^\W\d_]+")
_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "query": {"type": "string", "description": "Words that the function's name or description has."},
        "limit": {"type": "integer", "minimum": 1, "maximum": MAX_FOUND, "default": _DEFAULT_LIMIT},
    },
    "required": ["query"],
    "additionalProperties": False,
}


def search_tool(count: int) -> ToolInfo:
    """Return the function that finds `count` others."""
    return ToolInfo(
        name=FIND_FUNCTIONS,
        service="",
        function=FIND_FUNCTIONS,
        description=(
            f"Find functions among {count:,} by what they do. What is found can be called from then on."
        ),
        input_schema=_SCHEMA,
        schema_hash=FIND_FUNCTIONS,
        side_effect="none",
        idempotent=True,
        timeout=60.0,
        declared=True,
    )


def is_search(info: ToolInfo | None) -> bool:
    """Return whether this is the search function, and not one of a service."""
    return info is not None and info.name == FIND_FUNCTIONS and not info.service


def find(tools: Mapping[str, ToolInfo], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the best functions for a query, best first: those with most of its words in their names, then in
    their descriptions; of equals, those that were declared first."""
    words = set(_words(str(arguments["query"])))
    hidden = [tool for tool in tools.values() if tool.searched is True]
    scored = [(_score(tool, words), -at, tool) for at, tool in enumerate(hidden)]
    best = sorted((one for one in scored if one[0] > 0), key=lambda one: one[:2], reverse=True)
    limit = int(arguments.get("limit", _DEFAULT_LIMIT))
    found = [
        {"name": tool.name, "description": tool.description[:300], "side_effect": tool.side_effect}
        for _, _, tool in best[:limit]
    ]
    return {"functions": found, "matches": len(best), "of": len(hidden)}


def merge_found(before: tuple[str, ...], output: Any) -> tuple[str, ...]:
    """Return the names of the functions that are offered after a search with this recorded output."""
    new = [one["name"] for one in output["functions"]]
    return tuple([*(name for name in before if name not in new), *new][-MAX_FOUND:])


def _score(tool: ToolInfo, words: set[str]) -> int:
    name, about = set(_words(tool.function)), set(_words(tool.description))
    return sum(4 * _has(name, word) + (len(word) > 2) * _has(about, word) for word in words)


def _has(known: Iterable[str], word: str) -> int:
    """Return 2 for the word itself, 1 for one that begins alike (issue, issues), 0 for none."""
    if word in known:
        return 2
    return int(any(k.startswith(word) or (len(k) > 3 and word.startswith(k)) for k in known))


def _words(text: str) -> list[str]:
    return [word.lower() for word in _WORD.findall(text)]
