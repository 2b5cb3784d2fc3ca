"""Regular expressions of JSON Schema: ECMA-262 with the `u` flag (page 001 §5.5).

A pattern is parsed by the grammar of ECMA-262 (§22.2.1, without annex B) and written again in the syntax
of the engine that matches it: jsonschema-rs, whose default engine is an automaton and therefore linear in
the text. What an automaton cannot do (looking around, `\\b` of ASCII words) is matched by backtracking. Such
a pattern is refused if its ways may double with each character; `steps` bounds the work of every other.
References back are refused: no bound can be given for them.

This module never matches: `schemas` does, with one compiled schema for each pattern.
"""

from __future__ import annotations

import math
import re
from functools import lru_cache
from typing import Final, NamedTuple

__all__ = ["Pattern", "PatternError", "compile_pattern"]

_MAX_DEPTH: Final = 100
_MAX_REPEAT: Final = 1_000
_LONGEST: Final = 1_000_000

_SYNTAX: Final = frozenset("^$\\.*+?()[]{}|/")
_CONTROLS: Final = {"f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_SURROGATES: Final = (0xD800, 0xDFFF)
_LAST: Final = 0x10FFFF

Ranges = tuple[tuple[int, int], ...]

_DIGIT: Final[Ranges] = ((0x30, 0x39),)
_WORD: Final[Ranges] = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
_SPACE: Final[Ranges] = (
    *((0x09, 0x0D), (0x20, 0x20), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A)),
    *((0x2028, 0x2029), (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF)),
)
_LINE_END: Final[Ranges] = ((0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029))
_CLASSES: Final = {"d": _DIGIT, "w": _WORD, "s": _SPACE}

_NEVER: Final = r"[^\s\S]"
_BEFORE, _AFTER = "(?<=[0-9A-Za-z_])", "(?=[0-9A-Za-z_])"
_NOT_BEFORE, _NOT_AFTER = "(?<![0-9A-Za-z_])", "(?![0-9A-Za-z_])"
_BOUNDARY: Final = f"(?:{_BEFORE}{_NOT_AFTER}|{_NOT_BEFORE}{_AFTER})"
_NO_BOUNDARY: Final = f"(?:{_BEFORE}{_AFTER}|{_NOT_BEFORE}{_NOT_AFTER})"

_QUANTIFIER: Final = re.compile(r"(?:([*+?])|\{(\d+)(?:(,)(\d*))?\})\??", re.ASCII)
_GROUP_NAME: Final = re.compile(r"<([A-Za-z_$][\w$]*)>")
_PROPERTY: Final = re.compile(r"\{(?:([A-Za-z_]+)=)?([A-Za-z0-9_]+)\}", re.ASCII)
_SCRIPT_NAME: Final = re.compile(r"[A-Z][a-z]+(?:_[A-Z][a-z]+)*", re.ASCII)

# General categories and binary properties by the names of ECMA-262, tables 69 to 71: case counts.
_CATEGORIES: Final = frozenset(
    """
    C Other Cc Control cntrl Cf Format Cn Unassigned Co Private_Use L Letter LC Cased_Letter Ll
    Lowercase_Letter Lm Modifier_Letter Lo Other_Letter Lt Titlecase_Letter Lu Uppercase_Letter M
    Mark Combining_Mark Mc Spacing_Mark Me Enclosing_Mark Mn Nonspacing_Mark N Number Nd
    Decimal_Number digit Nl Letter_Number No Other_Number P Punctuation punct Pc
    Connector_Punctuation Pd Dash_Punctuation Pe Close_Punctuation Pf Final_Punctuation Pi
    Initial_Punctuation Po Other_Punctuation Ps Open_Punctuation S Symbol Sc Currency_Symbol Sk
    Modifier_Symbol Sm Math_Symbol So Other_Symbol Z Separator Zl Line_Separator Zp
    Paragraph_Separator Zs Space_Separator
    """.split()  # noqa: SIM905 - a list this long is read as text
)
_BINARY: Final = frozenset(
    """
    ASCII_Hex_Digit AHex Alphabetic Alpha Bidi_Control Bidi_C Bidi_Mirrored Bidi_M Case_Ignorable CI
    Cased Changes_When_Casefolded CWCF Changes_When_Casemapped CWCM Changes_When_Lowercased CWL
    Changes_When_NFKC_Casefolded CWKCF Changes_When_Titlecased CWT Changes_When_Uppercased CWU Dash
    Default_Ignorable_Code_Point DI Deprecated Dep Diacritic Dia Emoji Emoji_Component EComp
    Emoji_Modifier EMod Emoji_Modifier_Base EBase Emoji_Presentation EPres Extended_Pictographic
    ExtPict Extender Ext Grapheme_Base Gr_Base Grapheme_Extend Gr_Ext Hex_Digit Hex ID_Continue IDC
    ID_Start IDS Ideographic Ideo Join_Control Join_C Logical_Order_Exception LOE Lowercase Lower
    Math Noncharacter_Code_Point NChar Pattern_Syntax Pat_Syn Pattern_White_Space Pat_WS
    Quotation_Mark QMark Radical Regional_Indicator RI Sentence_Terminal STerm Soft_Dotted SD
    Terminal_Punctuation Term Unified_Ideograph UIdeo Uppercase Upper Variation_Selector VS
    White_Space space XID_Continue XIDC XID_Start XIDS
    """.split()  # noqa: SIM905 - a list this long is read as text
)
_EVERYTHING: Final = frozenset({"Any", "ASCII", "Assigned"})


class PatternError(ValueError):
    """The text is no regular expression of ECMA-262 with the `u` flag, or asks for references back."""


class Pattern(NamedTuple):
    """A pattern in the engine's syntax."""

    source: str
    engine: str
    states: int
    """States of the automaton; each may be looked at for each character."""
    compiling: int
    """What compiling it may cost, in units of 20 ns."""
    linear: bool
    """True if an automaton matches it: work grows with the text alone."""
    wild: bool
    """True if backtracking may try 2ⁿ ways."""
    ranges: tuple[int, ...]
    """For each repeat that shares a text with others, how many ways it has."""

    @property
    def bounded(self) -> bool:
        """True if there is a bound of the work for every text."""
        return self.linear or not self.wild

    def steps(self, length: int) -> int:
        """Return a bound of the engine's steps for a text of `length` characters."""
        places = length + 1
        if self.linear:
            return places
        ways = math.prod(min(r, places) for r in self.ranges)
        return places * (len(self.engine) + 1) * ways


class _Part(NamedTuple):
    """One parsed part: its text for the engine, and what backtracking through it may cost."""

    text: str
    states: int = 1
    unicode: int = 0  # classes of all of Unicode, some hundreds of states each when compiled
    linear: bool = True
    ranges: tuple[int, ...] = ()
    wild: bool = False
    branches: bool = False


@lru_cache(maxsize=512)
def compile_pattern(source: str) -> Pattern:
    """Return the pattern in the engine's syntax. Raises PatternError if it is none of ECMA-262."""
    try:
        part = _Parser(source).parse()
    except RecursionError:
        raise PatternError("groups are nested too deep") from None
    compiling = 1_500 + 20 * part.states + 12_000 * part.unicode
    return Pattern(source, part.text, part.states, compiling, part.linear, part.wild, part.ranges)


class _Parser:
    """Recursive descent over the grammar of ECMA-262 §22.2.1, with its parameter UnicodeMode."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._at = 0
        self._depth = 0
        self._names: set[str] = set()

    def parse(self) -> _Part:
        part = self._disjunction()
        if self._at < len(self._source):
            raise self._error("unmatched ')'")
        return part

    # -- the grammar

    def _disjunction(self) -> _Part:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise PatternError(f"groups are nested more than {_MAX_DEPTH} deep")
        branches = [self._alternative()]
        while self._take("|"):
            branches.append(self._alternative())
        self._depth -= 1
        if len(branches) == 1:
            return branches[0]
        ranges = (*max((b.ranges for b in branches), key=math.prod), len(branches))
        text = "|".join(branch.text for branch in branches)
        states, unicode = sum(b.states for b in branches), sum(b.unicode for b in branches)
        linear, wild = all(b.linear for b in branches), any(b.wild for b in branches)
        return _Part(text, states + 1, unicode, linear, ranges, wild, branches=True)

    def _alternative(self) -> _Part:
        parts: list[_Part] = []
        while self._at < len(self._source) and self._source[self._at] not in "|)":
            parts.append(self._term())
        return _Part(
            "".join(part.text for part in parts),
            sum(part.states for part in parts),
            sum(part.unicode for part in parts),
            all(part.linear for part in parts),
            tuple(r for part in parts for r in part.ranges),
            any(part.wild for part in parts),
            any(part.branches for part in parts),
        )

    def _term(self) -> _Part:
        character = self._source[self._at]
        if character in "^$":
            self._at += 1
            return _Part(character)
        for text, engine in ((r"\b", _BOUNDARY), (r"\B", _NO_BOUNDARY)):
            if self._take(text):
                return _Part(engine, linear=False)
        for opening in ("(?=", "(?!", "(?<=", "(?<!"):
            if self._take(opening):
                inner = self._closed()
                return inner._replace(text=f"{opening}{inner.text})", linear=False)
        return self._quantified(self._atom(character))

    def _quantified(self, atom: _Part) -> _Part:
        found = _QUANTIFIER.match(self._source, self._at)
        if found is None:
            return atom
        self._at = found.end()
        sign, low_text, comma, high_text = found.groups()
        low, high = (
            {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(sign, (0, 0)) if sign else (int(low_text), None)
        )
        if not sign:
            high = low if comma is None else int(high_text) if high_text else None
            if high is not None and high < low:
                raise self._error(f"numbers of {{{low},{high}}} are out of order")
            if max(low, high or 0) > _MAX_REPEAT:
                raise self._error(f"a part repeats more than {_MAX_REPEAT} times")
        ranges = atom.ranges + ((_LONGEST if high is None else high - low + 1,) if low != high else ())
        wild = atom.wild or (atom.branches and (high is None or high > 1))
        count = f"{{{low}}}" if low == high else f"{{{low},{'' if high is None else high}}}"
        times = max(low + 1 if high is None else high, 1)
        return _Part(
            f"(?:{atom.text}){count}",
            (atom.states + 1) * times,
            atom.unicode * times,
            atom.linear,
            ranges,
            wild,
            atom.branches or low != high,
        )

    def _atom(self, character: str) -> _Part:
        if character == "(":
            return self._group()
        self._at += 1
        if character == ".":
            return _Part(_class(_LINE_END, negated=True))
        if character == "[":
            return self._class()
        if character == "\\":
            return self._escape()
        if character in _SYNTAX and character != "/":
            raise self._error(
                f"{character!r} has nothing to repeat" if character in "*+?" else f"unescaped {character!r}"
            )
        return _Part(_literal(ord(character)))

    def _group(self) -> _Part:
        self._at += 1
        if self._take("?:"):
            pass
        elif self._take("?"):
            named = _GROUP_NAME.match(self._source, self._at)
            if named is None:
                raise self._error("a group begins with '(?' and is none of ECMA-262")
            if named[1] in self._names:
                raise self._error(f"there are two groups {named[1]!r}")
            self._names.add(named[1])
            self._at = named.end()
        inner = self._closed()
        return inner._replace(text=f"(?:{inner.text})")

    def _closed(self) -> _Part:
        inner = self._disjunction()
        if not self._take(")"):
            raise self._error("a group is not closed")
        return inner

    def _escape(self) -> _Part:
        """Read an escape outside a class, behind its backslash."""
        following = self._peek()
        if following in "123456789" and following:
            raise self._error("references back have no bound of work")
        if following == "k":
            raise self._error("references back have no bound of work")
        found = self._class_escape()
        if isinstance(found, int):
            return _Part(_literal(found))
        text = found if found.startswith("\\") else f"[{found}]"
        return _Part(text, states=_states(text), unicode=_is_large(text))

    def _class(self) -> _Part:
        negated = self._take("^")
        items: list[str] = []
        while not self._take("]"):
            low = self._class_atom()
            if self._peek() == "-" and self._peek(1) not in ("]", ""):
                self._at += 1
                high = self._class_atom()
                if not (isinstance(low, int) and isinstance(high, int)):
                    raise self._error("a class of characters is no end of a range")
                if high < low:
                    raise self._error("a range is out of order")
                items.append(_members(((low, high),)))
            else:
                items.append(_members(((low, low),)) if isinstance(low, int) else low)
        text = "".join(items)
        if text:
            text = f"[{'^' if negated else ''}{text}]"
            return _Part(text, states=_states(text), unicode=_is_large(text))
        return _Part(r"[\s\S]" if negated else _NEVER)

    def _class_atom(self) -> int | str:
        """Return one character of a class, or the members of a class inside it in the engine's syntax."""
        character = self._peek()
        if not character:
            raise self._error("a class is not closed")
        self._at += 1
        if character != "\\":
            return ord(character)
        if self._take("b"):
            return 0x08
        return ord("-") if self._take("-") else self._class_escape()

    def _class_escape(self) -> int | str:
        """Return what an escape stands for behind its backslash: a character, or members of a class."""
        letter = self._peek()
        self._at += 1
        if letter.lower() in _CLASSES and letter:
            ranges = _CLASSES[letter.lower()]
            return _members(ranges if letter.islower() else _complement(ranges))
        if letter in ("p", "P"):
            return self._property(letter)
        if letter in _CONTROLS:
            return ord(_CONTROLS[letter])
        if letter == "c" and self._peek().isascii() and self._peek().isalpha():
            self._at += 1
            return ord(self._source[self._at - 1]) % 32
        if letter == "0" and not self._peek().isdecimal():
            return 0
        if letter == "x":
            return self._hexadecimal(2)
        if letter == "u":
            return self._unicode()
        if letter in _SYNTAX and letter:
            return ord(letter)
        raise self._error(f"unknown escape \\{letter}")

    def _unicode(self) -> int:
        if self._take("{"):
            end = self._source.find("}", self._at)
            digits = self._source[self._at : end] if end >= 0 else ""
            if not re.fullmatch(r"[0-9A-Fa-f]+", digits) or int(digits, 16) > _LAST:
                raise self._error("\\u{…} names no code point")
            self._at = end + 1
            return int(digits, 16)
        unit = self._hexadecimal(4)
        if 0xD800 <= unit <= 0xDBFF and self._source.startswith("\\u", self._at):
            start = self._at
            self._at += 2
            second = self._hexadecimal(4) if self._peek() != "{" else 0
            if 0xDC00 <= second <= 0xDFFF:
                return 0x10000 + ((unit - 0xD800) << 10) + (second - 0xDC00)
            self._at = start
        return unit

    def _hexadecimal(self, count: int) -> int:
        digits = self._source[self._at : self._at + count]
        if len(digits) < count or not re.fullmatch(r"[0-9A-Fa-f]+", digits):
            raise self._error(f"an escape lacks its {count} hexadecimal digits")
        self._at += count
        return int(digits, 16)

    def _property(self, letter: str) -> str:
        found = _PROPERTY.match(self._source, self._at)
        if found is None:
            raise self._error(f"\\{letter} lacks its property in braces")
        self._at = found.end()
        name, value = found.groups()
        if name in ("Script", "sc", "Script_Extensions", "scx"):
            known = _SCRIPT_NAME.fullmatch(value) is not None
            key = "scx" if name in ("Script_Extensions", "scx") else "sc"
            text = f"\\{letter}{{{key}={value}}}"
        elif name in ("General_Category", "gc"):
            known, text = value in _CATEGORIES, f"\\{letter}{{gc={value}}}"
        else:
            known = name is None and (value in _CATEGORIES or value in _BINARY or value in _EVERYTHING)
            text = f"\\{letter}{{{f'gc={value}' if value in _CATEGORIES else value}}}"
        if not known:
            raise self._error(f"there is no property of characters {found[0]}")
        return text

    # -- reading

    def _peek(self, ahead: int = 0) -> str:
        return self._source[self._at + ahead : self._at + ahead + 1]

    def _take(self, text: str) -> bool:
        found = self._source.startswith(text, self._at)
        self._at += len(text) * found
        return found

    def _error(self, reason: str) -> PatternError:
        return PatternError(f"{reason}, at character {min(self._at, len(self._source)) + 1}")


# --- the engine's syntax


def _is_large(text: str) -> bool:
    return "\\p{" in text or "\\P{" in text


def _states(text: str) -> int:
    """Return how many states the bytes of one character of a class take, as a rule."""
    return 1 if text.isascii() and not text.startswith("[^") and not _is_large(text) else 4


def _literal(code: int) -> str:
    if _SURROGATES[0] <= code <= _SURROGATES[1]:
        return _NEVER  # half of a pair: no text holds one
    character = chr(code)
    # `\<` is a word boundary of the engine, so it stays as it is.
    return (
        f"\\{character}"
        if character.isascii()
        and not character.isalnum()
        and character.isprintable()
        and character not in "<> "
        else character
    )


def _class(ranges: Ranges, *, negated: bool) -> str:
    return f"[{'^' if negated else ''}{_members(ranges)}]"


def _members(ranges: Ranges) -> str:
    """Return ranges as members of a class; halves of surrogate pairs, which no text holds, are left out."""
    texts: list[str] = []
    for low, high in ranges:
        for start, end in ((low, min(high, _SURROGATES[0] - 1)), (max(low, _SURROGATES[1] + 1), high)):
            if start <= end:
                texts.append(_literal(start) if start == end else f"{_literal(start)}-{_literal(end)}")
    return "".join(texts)


def _complement(ranges: Ranges) -> Ranges:
    found: list[tuple[int, int]] = []
    following = 0
    for low, high in ranges:
        if following < low:
            found.append((following, low - 1))
        following = high + 1
    return (*found, (following, _LAST))
