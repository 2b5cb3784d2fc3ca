"""PyYAML's parser in Python, reading plain scalars and tabs as libyaml does.

It decides what a document says where libyaml cannot be trusted to agree with it (`is_doubtful`), where
libyaml refuses, and where PyYAML was installed without libyaml. Two rules of its scanner are mended, because
documents use them: `?` inside a plain scalar of a flow collection (`[qualified?]`), and a tab behind a token
(`name:<TAB>judge`). A tab in the indentation stays refused.
"""

from __future__ import annotations

import re
from typing import Any, cast

import yaml
from yaml.tokens import ScalarToken

__all__ = ["PythonLoader", "is_doubtful"]

# Each pattern is searched only if one of its characters is there.
_DOUBTFUL: tuple[tuple[str, re.Pattern[str]], ...] = (
    # Separators and line breaks that the two treat differently.
    ("\t\r\x85\u2028\u2029", re.compile("[\t\r\x85\u2028\u2029]")),
    # Directives.
    ("%", re.compile(r"^%", re.MULTILINE)),
    # Escapes of characters that may be none.
    ("\\", re.compile(r"\\[UuxN_LP]")),
    # Keys in long form.
    ("?", re.compile(r"(?:^|[\s,\[{(])\?", re.MULTILINE)),
    # An empty value behind a comment.
    ("#", re.compile(r":[ \n]*#")),
    # Where a token may begin: a tag but !!name, an anchor or alias but of letters.
    (
        "!&*",
        re.compile(
            r"(?:^|[-:,?\[{]|[!&]\w+)[ \n]*(?:!(?!!\w+(?:[ \n]|$))|[&*](?!\w+(?:[ \n,\]}]|$)))", re.MULTILINE
        ),
    ),
)
_FLOW_PLAIN = re.compile(r"(?:[^\0 \t\r\n\x85\u2028\u2029,\[\]{}:]|:(?![\0 \t\r\n\x85\u2028\u2029,\[\]{}]))+")
_BLOCK_PLAIN = re.compile(r"(?:[^\0 \t\r\n\x85\u2028\u2029:]|:(?![\0 \t\r\n\x85\u2028\u2029]))+")
_BLANKS = re.compile(r"[ \t]*")
_BREAKS = "\r\n\x85\u2028\u2029"


def is_doubtful(text: str) -> bool:
    """Return True if libyaml and the parser in Python may read the text differently.

    Established by comparing both on mutated documents: what is listed here differed.
    """
    return any(
        any(character in text for character in characters) and pattern.search(text) is not None
        for characters, pattern in _DOUBTFUL
    )


class PythonLoader(yaml.SafeLoader):
    """The parser in Python with the two mended rules. Only its events are used.

    `long_quotes` are start and end of the scalars in quotes that span lines, `last_quote` and
    `last_plain` those of the last scalar in quotes and without: where the slip of an author may be.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.long_quotes: list[tuple[int, int]] = []
        self.last_quote: tuple[int, int] | None = None
        self.last_plain: tuple[int, int] | None = None

    def scan_flow_scalar(self, style: str) -> ScalarToken:
        """Read a scalar in quotes."""
        own: Any = self
        line = own.line
        token: Any = cast("Any", super()).scan_flow_scalar(style)
        self.last_quote = token.start_mark.index, token.end_mark.index
        if own.line != line:
            self.long_quotes.append(self.last_quote)
        return token

    def scan_to_next_token(self) -> None:
        """Skip blanks, comments and line breaks; a tab only where no key can begin."""
        own: Any = self
        while True:
            while own.peek() == " " or (own.peek() == "\t" and (own.flow_level or not own.allow_simple_key)):
                own.forward()
            if own.peek() == "#":
                while own.peek() not in "\0" + _BREAKS:
                    own.forward()
            if not own.scan_line_break():
                return
            if not own.flow_level:
                own.allow_simple_key = True

    def scan_plain(self) -> ScalarToken:
        """Read a plain scalar, over several lines where the indentation allows it."""
        own: Any = self
        pattern = _FLOW_PLAIN if own.flow_level else _BLOCK_PLAIN
        indent = own.indent + 1
        chunks: list[str] = []
        spaces: list[str] = []
        start = end = own.get_mark()
        while own.peek() != "#":
            found = pattern.match(own.buffer, own.pointer)
            if found is None:
                break
            own.allow_simple_key = False
            chunks += [*spaces, found[0]]
            self._advance(len(found[0]))
            end = own.get_mark()
            spaces = self._plain_spaces()
            if not spaces or (not own.flow_level and own.column < indent):
                break
        self.last_plain = start.index, end.index
        return ScalarToken("".join(chunks), True, start, end)

    def _plain_spaces(self) -> list[str]:
        """Return the text that blanks and line breaks inside a plain scalar fold to; empty at its end."""
        own: Any = self
        blanks = cast("re.Match[str]", _BLANKS.match(own.buffer, own.pointer))[0]
        self._advance(len(blanks))
        if own.peek() not in _BREAKS:
            return [blanks] if blanks else []
        first = own.scan_line_break()
        own.allow_simple_key = True
        breaks: list[str] = []
        while True:
            if self._is_document_mark():
                return []
            while own.peek() == " ":
                own.forward()
            if own.peek() not in _BREAKS:
                break
            breaks.append(own.scan_line_break())
        if first != "\n":
            return [first, *breaks]
        return breaks or [" "]

    def _is_document_mark(self) -> bool:
        own: Any = self
        return own.column == 0 and own.prefix(3) in ("---", "...") and own.peek(3) in "\0 \t" + _BREAKS

    def _advance(self, length: int) -> None:
        """Step over characters of one line."""
        own: Any = self
        own.pointer += length
        own.index += length
        own.column += length
