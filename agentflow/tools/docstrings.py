"""Docstrings as models are shown them: what a function does, and what each argument is."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection
from typing import Any, Final, NamedTuple

__all__ = ["Described", "described"]

_SECTION: Final = re.compile(
    r"^\s*(?:(?:Args|Arguments|Params|Parameters|Attributes):\s*$|Parameters\n\s*-{3,}|:param\s)", re.M
)


class Described(NamedTuple):
    """`text` is what the function does, without its sections; `arguments` what each one is, by name."""

    text: str
    arguments: dict[str, str]


def described(f: Callable[..., Any], parameters: Collection[str]) -> Described:
    """Return the docstring of a function, read as Google, NumPy or Sphinx write it.

    Sections are taken out of the text only where they describe a parameter of this function; what is written
    in no style, or of other names, stays text.
    """
    doc = inspect.getdoc(f) or ""
    if not _SECTION.search(doc):
        return Described(doc, {})
    import docstring_parser  # for such functions alone

    try:
        parsed = docstring_parser.parse(doc)
    except docstring_parser.ParseError:
        return Described(doc, {})
    arguments = {
        param.arg_name.lstrip("*"): " ".join(param.description.split())
        for param in parsed.params
        if param.description and param.arg_name.lstrip("*") in parameters
    }
    if not arguments:
        return Described(doc, {})
    texts = [part for part in (parsed.short_description, parsed.long_description) if part]
    if parsed.returns is not None and parsed.returns.description:
        texts.append(f"Returns: {' '.join(parsed.returns.description.split())}")
    return Described("\n\n".join(texts), arguments)
