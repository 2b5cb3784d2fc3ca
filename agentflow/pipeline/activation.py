"""Decides whether a text asks for a workflow (page 004 §2). Deterministic: no model, and linear in the text.

Matching runs on a folded copy in which every character keeps its position; what is given on is cut from the
text itself.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, lru_cache
from typing import Literal, NamedTuple

from agentflow.definition.stage_schemas import Activation, Matched
from agentflow.errors import AgentflowError
from agentflow.pipeline import activation_terms as terms

__all__ = ["MAX_MESSAGE", "MessageLength", "classify", "fold", "mask"]

MAX_MESSAGE = 100_000
"""Characters of one text."""

_PREFIX = re.compile(r"\s*(?:(?:啟用|启用)\s*)?workflow\s*:")
_PRINTABLE = re.compile(r"[\x21-\x7e]+")
_PIECE = re.compile(r"[^,;()\[\]{}<>\"'`|]+")
_EMAIL = re.compile(r"(?:mailto:)?[a-z0-9._%+-]+@[a-z0-9-]+(?:\.[a-z0-9-]+)+")
_FILE = re.compile(r"[a-z0-9_.~-]*\.[a-z][a-z0-9]{0,7}")
_FENCES = re.compile(r"`+|~{3,}")
_URL_REST = re.compile(r"(?:[\x21\x23-\x3b\x3d\x3f-\x5f\x61-\x7e]|(?<=[/=#?&])[^\W\x00-\x7f]+)*")
"""The rest of a URL: ASCII but <>"`, and letters beyond it that begin a part of the path or the query; behind
another character they are the text that goes on without a blank."""
_WORDS = re.compile(r"\S+")
_NEAR_CHARACTERS, _NEAR_WORDS = 6, 3
_MARKS = {"\u2019": "'", "\u2018": "'"}


class MessageLength(AgentflowError):
    """The text is empty or longer than 100 000 characters."""

    code = "message_length"


class _Hit(NamedTuple):
    start: int
    end: int
    term: str


def fold(text: str) -> str:
    """Return the text with full-width ASCII as ASCII, in lower case; every character keeps its position."""
    return "".join(map(_folded, text))


@lru_cache(maxsize=8192)
def _folded(char: str) -> str:
    if "\uff01" <= char <= "\uff5e":
        char = chr(ord(char) - 0xFEE0)
    elif char in "\u3000\ufeff":  # the ideographic space, and the mark that some files begin with
        return " "
    # By way of the upper case: ſ and ı have one, and are no lower case of it.
    for found in (_MARKS.get(char, ""), char.upper().lower(), char.lower()):
        if len(found) == 1:
            return found
    return char


def mask(folded: str) -> str:
    """Return the folded text with blanks in place of back-quoted text, URLs, addresses, paths and files."""
    found = list(folded)
    for start, end in (*_quoted(folded), *_links(folded)):
        found[start:end] = " " * (end - start)
    rest = "".join(found)
    for run in _PRINTABLE.finditer(rest):
        for piece in _PIECE.finditer(run[0]):
            text = piece[0].rstrip(".!?:")
            if _is_name(text):
                start = run.start() + piece.start()
                found[start : start + len(text)] = " " * len(text)
    return "".join(found)


def _quoted(text: str) -> Iterator[tuple[int, int]]:
    """Yield what stands between two equal runs of back quotes, and blocks of code.

    A run of three or more back quotes or tildes begins a block if a line begins with a run of that character
    which is at least as long. What precedes the first run on its line does not matter, so that words in
    front of a text never show what it hides.
    """
    runs = list(_FENCES.finditer(text))
    closing = _closing(text, runs)
    index = 0
    while index < len(runs):
        end = closing[index]
        if end is None:
            index += 1
            continue
        yield runs[index].start(), runs[end].end()
        index = end + 1


def _closing(text: str, runs: list[re.Match[str]]) -> list[int | None]:
    """Return for each run the index of the next one that closes it."""
    found: list[int | None] = [None] * len(runs)
    equal: dict[int, int] = {}
    lines: dict[str, list[tuple[int, int]]] = {"`": [], "~": []}  # length and index; the nearest is the last
    for index in range(len(runs) - 1, -1, -1):
        run = runs[index]
        char, length = run[0][0], len(run[0])
        longer = lines[char]
        ends = [equal[length]] if char == "`" and length in equal else []
        if length >= 3:
            place = bisect_right(longer, -length, key=lambda known: -known[0])
            ends += [longer[place - 1][1]] if place else []
        found[index] = min(ends, default=None)
        if char == "`":
            equal[length] = index
        if length >= 3 and _begins_line(text, run.start()):
            while longer and longer[-1][0] <= length:
                longer.pop()
            longer.append((length, index))
    return found


def _begins_line(text: str, at: int) -> bool:
    """Return whether only blanks, at most three, stand before a place on its line."""
    before = text[max(0, at - 4) : at].rstrip(" ")
    return before[-1:] in ("", "\n", "\r") and (at < 4 or len(before) > 0)


def _links(text: str) -> Iterator[tuple[int, int]]:
    """Yield URLs: from the scheme, or `www.`, to the next blank."""
    at = 0
    while True:
        found = [place for mark in ("://", "www.") if (place := text.find(mark, at)) >= 0]
        if not found:
            return
        place = start = min(found)
        while start > at and (
            text[start - 1].isascii() and (text[start - 1].isalnum() or text[start - 1] in "+.-")
        ):
            start -= 1
        rest = _URL_REST.match(text, place)
        end = place if rest is None else rest.end()
        yield start, end
        at = max(end, place + 3)


def _is_name(text: str) -> bool:
    """Return whether a piece without blanks is an e-mail address, a path or the name of a file."""
    if "/" in text or "\\" in text:
        return any(char.isalnum() for char in text)
    return bool(_EMAIL.fullmatch(text) or _FILE.fullmatch(text))


def classify(message: str, *, review: bool = False) -> Activation:
    """Return what a text asks for. `review`: the caller wants to see the plan first.

    Raises MessageLength.
    """
    if not 1 <= len(message.strip()) <= MAX_MESSAGE:
        limit = f"{MAX_MESSAGE:,}".replace(",", " ")
        raise MessageLength(f"the message has {len(message.strip())} characters, not 1 to {limit}")
    folded = fold(message)
    text = mask(folded)
    intent, reviews = _hits(text, terms.INTENT), _hits(text, terms.REVIEW)
    action = _actions(text, intent)
    matched = Matched(intent=_names(intent), action=_names(action), review=_names(reviews))
    prefix = _PREFIX.match(folded)
    if prefix is not None:
        return _workflow("explicit_prefix", matched, message[prefix.end() :].strip(), review)
    if intent and action and not _asks_what(text, action):
        return _workflow("semantic_detector", matched, message.strip(), review)
    return Activation(
        mode="direct_answer",
        trigger="none",
        matched=matched,
        execution_requested=False,
        user_input=message.strip(),
    )


def _workflow(
    trigger: Literal["explicit_prefix", "semantic_detector"], matched: Matched, rest: str, review: bool
) -> Activation:
    requested = not matched.review and not review
    return Activation(
        mode="workflow", trigger=trigger, matched=matched, execution_requested=requested, user_input=rest
    )


def _names(hits: Iterable[_Hit]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(hit.term for hit in sorted(hits)))


def _actions(text: str, intent: list[_Hit]) -> list[_Hit]:
    """Return the action terms that are not negated."""
    found = _hits(text, terms.ACTION)
    if any(hit.term in terms.WORKFLOW for hit in intent):
        found += _hits(text, terms.ACTION_BESIDE_WORKFLOW)
    found += _builds(text, intent)
    negations = _negations(text) if found else []
    return [hit for hit in found if not _is_negated(text, hit, negations)]


def _builds(text: str, intent: list[_Hit]) -> list[_Hit]:
    """Return where the single character for "build" is a word of its own."""
    begins = {hit.start for hit in intent}
    found: list[_Hit] = []
    at = text.find(terms.BUILD)
    while at >= 0:
        after, rest = at + 1, _skip_blanks(text, at + 1)
        fits = (
            text[after : after + 1] in tuple(terms.BUILD_BEFORE)
            or after in begins
            or (rest < len(text) and text[rest].isalnum() and not _is_cjk(text[rest]))
        )
        if fits and text[max(0, at - 1) : at] not in tuple(terms.BUILD_NOT_AFTER):
            found.append(_Hit(at, after, terms.BUILD))
        at = text.find(terms.BUILD, at + 1)
    return found


def _skip_blanks(text: str, at: int) -> int:
    while at < len(text) and text[at].isspace() and text[at] not in "\n\r":
        at += 1
    return at


def _negations(text: str) -> list[_Hit]:
    found = _hits(text, terms.NEGATION)
    for word in terms.NEGATION_AT_START:
        at = text.find(word)
        while at >= 0:
            before = text[:at].rstrip(" \t")[-1:] if at < 64 else text[at - 64 : at].rstrip(" \t")[-1:]
            if not before or before in terms.CLAUSE_ENDS or before in terms.NEGATION_AT_START_AFTER:
                found.append(_Hit(at, at + 1, word))
            at = text.find(word, at + 1)
    return sorted(found)


def _is_negated(text: str, hit: _Hit, negations: list[_Hit]) -> bool:
    """Return whether a negation stands shortly before a term, in its clause."""
    last = bisect_right(negations, (hit.start,))
    for negation in reversed(negations[max(0, last - 8) : last]):
        if negation.end > hit.start:
            continue
        between = text[negation.end : hit.start]
        if len(between) > 400 or any(end in between for end in terms.CLAUSE_ENDS):
            return False
        bare = between.strip()
        if len(bare) <= _NEAR_CHARACTERS:
            return True
        if len(_WORDS.findall(bare)) <= _NEAR_WORDS and not any(map(_is_cjk, bare)):
            return True
    return False


def _asks_what(text: str, action: list[_Hit]) -> bool:
    """Return whether the text is a question about the subject."""
    if _hits(text, terms.REQUEST):
        return False
    first = min(hit.start for hit in action)
    return bool(_hits(text, terms.DEFINITION) or _hits(text[:first], terms.DEFINITION_BEFORE))


# -- terms --------------------------------------------------------------------------------------


def _hits(text: str, wanted: tuple[str, ...]) -> list[_Hit]:
    found: list[_Hit] = []
    longer: Mapping[str, tuple[str, ...]] = terms.LONGER
    for match in _pattern(wanted).finditer(text):
        hit = _Hit(match.start(1), match.end(1), _canonical(match[1]))
        if _is_apart(text, hit) and not _is_part(text, hit, longer.get(hit.term, ())):
            found.append(hit)
    return found


@cache
def _pattern(wanted: tuple[str, ...]) -> re.Pattern[str]:
    """Return a pattern that finds the terms at every place, overlapping ones too; the longest first."""
    ordered = sorted(wanted, key=len, reverse=True)
    choices = "|".join(re.escape(term).replace(r"\ ", r"[^\S\n\r]{1,16}") for term in ordered)
    return re.compile(f"(?=({choices}))")


def _canonical(found: str) -> str:
    return " ".join(found.split())


def _is_apart(text: str, hit: _Hit) -> bool:
    """Return whether no Latin word goes on at either end of a term."""
    if _is_latin(text[hit.start]) and hit.start and _is_word(text[hit.start - 1]):
        return False
    is_inside = _is_latin(text[hit.end - 1]) and hit.end < len(text) and _is_word(text[hit.end])
    return not is_inside


def _is_part(text: str, hit: _Hit, longer: tuple[str, ...]) -> bool:
    """Return whether a term is part of one of these longer words."""
    for word in longer:
        at = word.find(hit.term)
        if at >= 0 and text.startswith(word, hit.start - at) and hit.start >= at:
            return True
    return False


def _is_latin(char: str) -> bool:
    return char.isalnum() and not _is_cjk(char)


def _is_word(char: str) -> bool:
    if char == "_" or unicodedata.category(char).startswith("M"):
        return True
    return char.isalnum() and not _is_cjk(char)


def _is_cjk(char: str) -> bool:
    """Return whether a character is of the scripts Han, kana or hangul."""
    code = ord(char)
    if code < 0x1100:
        return False
    return any(first <= code <= last for first, last in _CJK)


_CJK = (
    (0x1100, 0x11FF),
    (0x2E80, 0x2FDF),
    (0x3005, 0x3007),
    (0x3021, 0x3029),
    (0x3031, 0x303B),
    (0x3041, 0x30FF),
    (0x3105, 0x31FF),
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xA960, 0xA97F),
    (0xAC00, 0xD7FF),
    (0xF900, 0xFAFF),
    (0xFF66, 0xFFDC),
    (0x1AFF0, 0x1B16F),
    (0x20000, 0x3FFFF),
)
