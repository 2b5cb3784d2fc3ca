"""The forms in which a secret may stand in a text: as it is, or encoded by the server that quotes it.

A server that echoes a request quotes a secret as base64 (`Authorization: Basic …`), percent-encoded (a URL, a
form), or escaped (JSON, Python's `repr`, HTML). Pure: patterns over strings.
"""

from __future__ import annotations

import base64
import json
import re
from bisect import bisect_right
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import quote

__all__ = ["HIDDEN", "hide"]

HIDDEN = "***"

# The text may come from a server that is not trusted. So repetitions are bounded, and possessive where a
# neighbour matches the same characters: a pattern costs at most its length for each character of the text.
_PERCENT = "%(?:25){0,3}"  # a percent sign that was percent-encoded again counts as one
_ESCAPE = r"\\{1,8}+"
_BLANK = rf"(?:\s|{_ESCAPE}(?:[nrt]|u000[9aAdD]))"  # as it is, or escaped
_BLANK_IN_URL = rf"(?:\+|{_PERCENT}(?:20|0[9aAdD]))"
_LINE_BREAK = re.compile(rf"(?:\s|{_ESCAPE}[nr]|{_PERCENT}0[aAdD])+")
_SHORTEST_BROKEN = 16
"""Characters of base64. Shorter ones are not broken into lines, and would be found in words by chance."""
_LONGEST = 4_096
"""Characters; of a longer secret only the exact text is recognised: its patterns would cost too much."""
_BASE64 = "[A-Za-z0-9+/_-]"
_BASE64_CHARACTERS = {
    "+": rf"(?:\+|-|{_PERCENT}2[bB]|{_ESCAPE}u002[bB])",
    "/": rf"(?:\\{{0,8}}+/|_|{_PERCENT}2[fF]|{_ESCAPE}u002[fF])",
}
_PADDING = rf"(?:=|{_PERCENT}3[dD]|{_ESCAPE}u003[dD]){{0,2}}"
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&apos;"}


class _Form(NamedTuple):
    """A pattern, and parts: all that it matches holds one of them, so it is not even compiled for a text that
    holds none."""

    parts: tuple[str, ...]
    pattern: str
    broken: bool = False
    """True if line breaks may stand anywhere in it."""


def hide(text: str, secret: str) -> str:
    """Return the text with `***` in the place of every form of the secret.

    Forms: itself (a run of white space matches any other); percent and form encoding, in lower and upper
    case, also twice; the escapes of JSON, `repr` and HTML; hex; base64, standard and URL-safe, with and
    without padding, in one line or several, alone or at any place of a longer base64 text, such as that of
    a JSON text or of a form.
    """
    text = text.replace(secret, HIDDEN)
    if len(secret) > _LONGEST:
        return text
    for form in _forms(secret):
        if any(part in text for part in form.parts):
            pattern = _compiled(form.pattern)
            text = _hide_broken(text, pattern) if form.broken else pattern.sub(HIDDEN, text)
    return text


def _hide_broken(text: str, pattern: re.Pattern[str]) -> str:
    """Replace what the pattern matches in the text without its line breaks, the breaks inside included."""
    kept: list[str] = []
    begins: list[tuple[int, int]] = []  # of each piece: in the joined text, in the text
    joined = position = 0
    for gap in (*_LINE_BREAK.finditer(text), None):
        end = len(text) if gap is None else gap.start()
        begins.append((joined, position))
        kept.append(text[position:end])
        joined += end - position
        position = end if gap is None else gap.end()

    def place(index: int) -> int:
        at, begin = begins[bisect_right(begins, (index, len(text))) - 1]
        return begin + index - at

    found: list[str] = []
    done = 0
    for match in pattern.finditer("".join(kept)):
        found += (text[done : place(match.start())], HIDDEN)
        done = place(match.end() - 1) + 1
    return "".join((*found, text[done:]))


_compiled = lru_cache(maxsize=1024)(re.compile)


@lru_cache(maxsize=1024)
def _forms(secret: str) -> tuple[_Form, ...]:
    data = secret.encode("utf-8", "surrogatepass")
    found = [_Form((_longest_word(secret),), _escaped(secret))]
    # What is put into base64 may be a JSON text or a form that holds the secret.
    inside = dict.fromkeys((data, json.dumps(secret)[1:-1].encode(), quote(data, safe="").encode()))
    found += [_in_base64(each, before) for each in inside for before in range(3)]
    found += [_Form((text,), text) for text in (data.hex(), data.hex().upper())]
    return tuple(found)


def _longest_word(text: str) -> str:
    """Return the longest run of ASCII letters and digits: no encoding but base64 and hex changes it."""
    return max(re.findall("[A-Za-z0-9]+", text), key=len, default="")


def _escaped(secret: str) -> str:
    pieces = re.split(r"(\s+|\\+)", secret)
    return "".join(_run(p) if i % 2 else "".join(map(_character, p)) for i, p in enumerate(pieces) if p)


def _run(piece: str) -> str:
    """Return a pattern of a run of blanks, or of backslashes, which escaping multiplies."""
    count = len(piece)
    if piece[0] != "\\":
        return f"(?>{_BLANK}{{1,{count + 1}}}+|{_BLANK_IN_URL}{{1,{count + 1}}}+)"
    return rf"(?:\\{{{count},{8 * count}}}+|(?:{_PERCENT}5[cC]){{{count}}}|(?:{_ESCAPE}x5[cC]){{{count}}})"


def _character(character: str) -> str:
    """Return a pattern of one character that is neither a blank nor a backslash, in any escape."""
    if character.isascii() and character.isalnum():
        return character
    code, data = ord(character), character.encode("utf-8", "surrogatepass")
    units = character.encode("utf-16-be", "surrogatepass")
    ways = [
        re.escape(character),
        _ESCAPE + re.escape(character),
        "".join(_PERCENT + _hex(byte) for byte in data),
        "".join(rf"{_ESCAPE}x{_hex(byte)}" for byte in data),
        "".join(rf"{_ESCAPE}u{_hex(units[i])}{_hex(units[i + 1])}" for i in range(0, len(units), 2)),
        f"&#(?:0{{0,8}}{code}|[xX]0{{0,8}}(?i:{code:x}));",
    ]
    if character in _ENTITIES:
        ways.append(_ENTITIES[character])
    return f"(?:{'|'.join(ways)})"


def _hex(byte: int) -> str:
    return "".join(f"[{d}{d.upper()}]" if d.isalpha() else d for d in f"{byte:02x}")


def _in_base64(data: bytes, before: int) -> _Form:
    """Return the form behind `before` bytes, modulo 3, of a longer text. The character at each end that also
    holds bits of a neighbour is hidden too."""
    encoded = base64.b64encode(b"\0" * before + data).decode()
    begin, end = -(-8 * before // 6), 8 * (before + len(data)) // 6
    core = encoded[begin:end]
    first = _BASE64 + "?" if before else ""
    last = _BASE64 + "?" if 8 * (before + len(data)) % 6 else ""
    pattern = first + "".join(_BASE64_CHARACTERS.get(c, c) for c in core) + last + _PADDING
    word = _longest_word(core)
    half = min(12, len(word) // 2)  # lines are longer than that: a break is in one of two halves at most
    parts = (word[:half], word[half : 2 * half]) if half > 3 else (word,)
    return _Form(parts, pattern, len(core) >= _SHORTEST_BROKEN)
