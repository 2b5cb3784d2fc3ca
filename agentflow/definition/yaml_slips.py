"""What is wrong with a text that is not YAML: where the slip of the author is, in our own words.

A parser stops where it can read no further, which is often a line or a page behind the slip: a quote that is
not closed ends at the next quote of the document. This module looks back from there. It sees the errors of
`PythonLoader` alone, so that its answer does not depend on the installation, and it never passes on a
library's own message.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple, cast

import yaml

from agentflow.definition.report import shown
from agentflow.definition.yaml_scanner import PythonLoader

__all__ = ["Slip", "slip_of"]

_QUOTE_EXPRESSION = 'quote the value: "${{ … }}"'
_QUOTE = "put the value in quotes"
_KEY_LINE = re.compile(r"[ ]*(?:-[ ]+)*(?:[\w$-]+|\"[^\"\n]*\"):(?:[ ]|$)|[ ]*-[ ]", re.MULTILINE)
_INDENT = re.compile(r"[ ]*")


class Slip(NamedTuple):
    """What is wrong: where (an index of the text), the message, and what to do about it."""

    at: int
    message: str
    hint: str | None


def slip_of(text: str, error: yaml.MarkedYAMLError, loader: PythonLoader) -> Slip:
    """Return the slip behind an error of the parser in Python. `loader` is the one that raised it."""
    problem_mark: Any = error.problem_mark
    context_mark: Any = error.context_mark
    at: int = min(problem_mark.index if problem_mark else len(text), len(text))
    begin: int | None = context_mark.index if context_mark else None
    found = _look_back(text, at, begin, error, loader)
    if any("${{" in _line(text, index) for index in (at, begin, found.at) if index is not None):
        return found._replace(hint=_QUOTE_EXPRESSION)
    return found


def _look_back(
    text: str, at: int, begin: int | None, error: yaml.MarkedYAMLError, loader: PythonLoader
) -> Slip:
    problem, context = error.problem or "", error.context or ""
    if "quoted scalar" in context and begin is not None and problem.startswith("found unexpected"):
        return _open_quote(text, begin)
    for start, end in reversed(loader.long_quotes):
        # A value in quotes over lines that look like keys: it was to end on its first line.
        if end <= at and _KEY_LINE.search(text, _next_line(text, start), end):
            return _open_quote(text, start)
    if loader.last_quote is not None and re.match(r"'\w", text[at - 1 : at + 1]):
        start, end = loader.last_quote
        if end == at and text[start] == "'":
            hint = "write '' for an apostrophe inside single quotes, or use double quotes"
            return Slip(start, "the quote ' is closed before the value ends", hint)
    marks: list[Any] = getattr(loader, "marks", [])
    if cast("Any", loader).flow_level and marks and not text[at:].strip():
        return _in_brackets(text, at, marks[-1].index)
    if context in ("while parsing a flow sequence", "while parsing a flow mapping") and begin is not None:
        return _in_brackets(text, at, begin)
    if begin is not None and problem == "could not find expected ':'":
        return _key_without_colon(text, begin)
    if problem == "mapping values are not allowed here":
        return _stray_colon(text, at, loader.last_plain)
    return _stray_token(text, at, problem, context)


def _open_quote(text: str, start: int) -> Slip:
    return Slip(start, f"the quote {text[start : start + 1]} is not closed", "close it on the same line")


def _in_brackets(text: str, at: int, begin: int) -> Slip:
    """Explain a collection in brackets: not closed, closed by the other bracket, or without a comma."""
    bracket = text[begin]
    close = {"[": "]", "{": "}"}.get(bracket, "]")
    unclosed = Slip(begin, f'the bracket "{bracket}" is not closed', f'add "{close}"')
    if not text[at:].strip() or (text.startswith(("---", "..."), at) and text[at - 1 : at] == "\n"):
        return unclosed
    base = _indentation(text, begin)
    line_end = _next_line(text, begin)
    for match in _KEY_LINE.finditer(text, line_end, max(_next_line(text, at), line_end)):
        if _indentation(text, match.start()) <= base:
            return unclosed
    if at >= line_end and bracket == "{" and _is_key_below(text, at):
        return unclosed
    if text[at] in "]}":
        return Slip(at, f'expected "," or "{close}", got "{text[at]}"', f'close "{bracket}" by "{close}"')
    behind = _behind_token(text, at)
    place = at if _line_start(text, at) == _line_start(text, behind) else behind - 1
    return Slip(place, f'expected "," or "{close}" before "{shown(_word(text, at), 30)}"', 'add ","')


def _is_key_below(text: str, at: int) -> bool:
    """Return whether the parser stopped in a line that begins a block key with brackets of its own."""
    return re.match(r"[ ]*[\w$-]+:[ ]+[^\n]*[^,\n]\n", text[_line_start(text, at) :] + "\n") is not None


def _key_without_colon(text: str, begin: int) -> Slip:
    line = text[begin : _next_line(text, begin)].split(" #")[0].strip()
    glued = re.match(r"([\w$-]+):(?=\S)", line)
    if glued:
        return Slip(begin, f'no space after "{glued[0]}"', 'write a space after ":"')
    if line.startswith("-") and not line.startswith("---"):
        return Slip(begin, f'no space after "-" in "{shown(line, 40)}"', 'write "- " before an item')
    name = re.match(r"[\w$-]+", line)
    hint = f'write "{name[0]}:"' if name else 'write ":" behind the key'
    return Slip(begin, f'no ":" behind the key in "{shown(line, 40)}"', hint)


def _stray_colon(text: str, at: int, plain: tuple[int, int] | None) -> Slip:
    start, end = plain or (at, at)
    if end <= at and not text[end:at].strip() and _line_start(text, start) != _line_start(text, at):
        before = text[_line_start(text, start) : start]
        if not before.strip(" -"):
            return _key_without_colon(text, start)
        first = _line_start(text, at) + _indentation(text, at)
        hint = "indent it like the key that it belongs beside"
        return Slip(first, "a key is indented deeper than the value before it allows", hint)
    return Slip(at, 'a plain value cannot have ": " in it', _QUOTE)


_STRAY: tuple[tuple[str, str, str], ...] = (
    ("sequence entries are not allowed", 'an item "- " cannot begin here', "begin it on a line of its own"),
    ("mapping keys are not allowed", 'a key "? " cannot begin here', "begin it on a line of its own"),
    ("found unknown escape character", "unknown escape in double quotes", "use single quotes, or write \\\\"),
    ("expected escape sequence of", "an escape lacks hexadecimal digits", "use single quotes, or write \\\\"),
    ("expected chomping or indentation", "text behind | or >", "begin the text on the next line"),
    ("expected a comment or a line break", "more text in this line", "begin the text on the next line"),
    ("expected indentation indicator", "the indentation of a block is 1 to 9", "write | alone"),
    ("expected the node content", "a value is missing here", "write a value, or take the comma away"),
    ("found undefined tag handle", "the tag is not known", 'quote a value that begins with "!"'),
    ("expected '<document start>'", "the document ended before this", "indent it like the first key"),
)
_STRAY_IN: tuple[tuple[str, str, str], ...] = (
    ("tag", "this is not a tag", 'quote a value that begins with "!"'),
    ("directive", 'a line that begins with "%" is a directive of YAML', _QUOTE),
    ("anchor", "the name of an anchor is made of letters, digits, _ and -", 'quote a value with "&"'),
    ("alias", "the name of an alias is made of letters, digits, _ and -", 'quote a value with "*"'),
)


def _stray_token(text: str, at: int, problem: str, context: str) -> Slip:
    if problem.startswith("found character"):
        if text[at] == "\t":
            return Slip(at, "a tab stands where the indentation is", "indent with spaces")
        return Slip(at, f'a plain value cannot begin with "{shown(text[at])}"', _QUOTE)
    directive = re.search(r"^%", text[:at], re.MULTILINE)
    if directive is not None and problem.startswith("expected '<document start>'"):
        return Slip(directive.start(), 'a line that begins with "%" is a directive of YAML', _QUOTE)
    for start, message, hint in _STRAY:
        if problem.startswith(start):
            return Slip(at, message, hint)
    for word, message, hint in _STRAY_IN:
        if context.startswith("while") and word in context:
            return Slip(at, message, hint)
    word = shown(_word(text, at), 40)
    if word in ("]", "}"):
        return Slip(at, f'"{word}" closes nothing', "take it away")
    if "block" in context and word:
        if re.match(r"[\"']", text[at:]) or ":" not in _line(text, at)[at - _line_start(text, at) :]:
            return Slip(at, f'unexpected "{word}" behind the value', _QUOTE)
        if _word(text, at) == "-":
            return Slip(at, 'an item "-" is indented otherwise than the ones before', "indent all alike")
        if text[at] == "-":
            return Slip(at, f'no space after "-" in "{word}"', 'write "- " before an item')
        return Slip(at, f'"{word}" is indented otherwise than the keys before', "indent all keys alike")
    return Slip(at, "the text is not YAML here", None)


def _word(text: str, at: int) -> str:
    found = re.match(r"[^\s,\[\]{}\"']+|\S", text[at : at + 100])
    return found[0] if found else ""


def _behind_token(text: str, at: int) -> int:
    """Return the index behind the last character before `at` that is no blank."""
    while at > 0 and text[at - 1] in " \t\r\n":
        at -= 1
    return at


def _line_start(text: str, index: int) -> int:
    return text.rfind("\n", 0, index) + 1


def _next_line(text: str, index: int) -> int:
    end = text.find("\n", index)
    return len(text) if end < 0 else end + 1


def _line(text: str, index: int) -> str:
    return text[_line_start(text, index) : _next_line(text, index)]


def _indentation(text: str, index: int) -> int:
    match = _INDENT.match(text, _line_start(text, index))
    return len(match[0]) if match else 0
