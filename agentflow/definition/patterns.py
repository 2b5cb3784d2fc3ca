"""Regular expressions of JSON Schemas, matched in bounded work.

Whether a pattern matches somewhere in a text is asked by schemas of strangers about texts of models.
Python's own matcher tries ways one after another, and for some patterns there are 2ⁿ of them. Here a pattern
that may be so is followed along all ways at once (a lazy automaton), at a cost that grows with the text; what
that cannot do (references back, looking around) is refused where it could cost too much. Work is counted,
never timed: the same question has the same answer everywhere.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import cached_property, lru_cache
from importlib import import_module
from typing import Any, Final, NamedTuple

__all__ = ["Effort", "Pattern", "TooCostly", "compile_pattern"]

# How Python itself reads patterns.
_op: Any = import_module("re._constants")
_parse: Any = import_module("re._parser")
_compile: Any = import_module("re._compiler")

MAX_EFFORT: Final = 1_500_000
"""Steps of one validation, some microseconds each at most."""

_STEPS: Final = 64  # of Python's matcher, for one of ours
_LONGEST: Final = 1_000_000
_MAX_STATES: Final = 20_000
_MAX_CACHE: Final = 5_000
_PLAIN_FLAGS: Final = re.UNICODE | re.IGNORECASE | re.DOTALL | re.VERBOSE | re.ASCII


class TooCostly(Exception):
    """The question has no answer within the effort that is left."""


class Effort:
    """What one validation may still do."""

    __slots__ = ("left",)

    def __init__(self, left: int = MAX_EFFORT) -> None:
        self.left = left

    def spend(self, steps: int) -> None:
        """Raises TooCostly when that is more than is left."""
        self.left -= steps
        if self.left < 0:
            raise TooCostly


class Pattern:
    """A compiled pattern. `found` answers as `re.search` does."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._tree = _parse.parse(source)
        self._work = _work_of(self._tree)
        self._anchored = bool(self._tree) and self._tree[0][0] is _op.AT
        if self._work.behind:
            re.compile(source)  # a look back may still be none: only the compiler knows

    @property
    def bounded(self) -> bool:
        """Whether short texts can always be judged. Only a pattern that may try 2ⁿ ways, and asks for more
        than an automaton knows, cannot."""
        return not self._work.wild or self._is_regular()

    def found(self, text: str, effort: Effort) -> bool:
        """Whether the pattern matches somewhere in the text. Raises TooCostly."""
        steps = self._steps(text)
        if steps is not None and steps <= effort.left:
            effort.spend(steps)
            return self._python.search(text) is not None
        automaton = self._all_at_once
        if automaton is None:
            raise TooCostly
        return automaton.found(text, effort)

    def afford(self, text: str, effort: Effort) -> None:
        """Take from the effort what `re.search` may need for this text. Raises TooCostly."""
        steps = self._steps(text)
        if steps is None:
            raise TooCostly
        effort.spend(steps)

    def _steps(self, text: str) -> int | None:
        """What Python's matcher may need; None: there is no bound."""
        if self._work.wild:
            return None
        places = len(text) + 1
        ways = math.prod(min(r, places) for r in self._work.ranges)
        once = min(self._work.length, places) + (len(self._source) + 1) * ways
        return 1 + (places + once if self._anchored else places * once) // _STEPS

    def _is_regular(self) -> bool:
        return not self._tree.state.flags & ~_PLAIN_FLAGS and _states_of(self._tree) <= _MAX_STATES

    @cached_property
    def _python(self) -> re.Pattern[str]:
        return re.compile(self._source)

    @cached_property
    def _all_at_once(self) -> _Automaton | None:
        return _Automaton(self._tree, self._tree.state.flags) if self._is_regular() else None


@lru_cache(maxsize=512)
def compile_pattern(source: str) -> Pattern:
    """The pattern of this text. Raises re.error, OverflowError, RecursionError for what is none here."""
    return Pattern(source)


# --- how the work of Python's matcher grows


class _Work(NamedTuple):
    """`length`: characters that it looks at from one place, but for repeats without end. `ranges`: for each
    repeat how many ways it has; those that share a text multiply. `wild`: whether the ways may double with
    each character. `branches`: whether there is a choice inside. `behind`: whether it looks back."""

    length: int
    ranges: tuple[int, ...]
    wild: bool
    branches: bool
    behind: bool


def _work_of(tree: Any) -> _Work:
    length = 1
    ranges: tuple[int, ...] = ()
    beside: tuple[int, ...] = ()
    wild = branches = behind = False
    for op, argument in tree:
        if op in (_op.MAX_REPEAT, _op.MIN_REPEAT, _op.POSSESSIVE_REPEAT):
            low, high, repeated = argument
            inner = _work_of(repeated)
            endless = high is _op.MAXREPEAT
            length += inner.length * (low + 1 if endless else high)
            ranges += inner.ranges + ((_LONGEST if endless else high - low + 1,) if low != high else ())
            wild |= inner.wild or (inner.branches and (endless or high > 1))
            branches |= low != high or inner.branches
            behind |= inner.behind
        elif op is _op.BRANCH:
            found = [_work_of(branch) for branch in argument[1]]
            length += sum(work.length for work in found)
            ranges += (*max((work.ranges for work in found), key=math.prod), len(found))
            wild |= any(work.wild for work in found)
            behind |= any(work.behind for work in found)
            branches = True
        elif op in (_op.GROUPREF, _op.GROUPREF_EXISTS):
            return _Work(_LONGEST, ranges, True, True, True)
        else:
            for inner in map(_work_of, _parts(op, argument)):
                length += inner.length
                wild |= inner.wild
                branches |= inner.branches
                behind |= inner.behind or op in (_op.ASSERT, _op.ASSERT_NOT)
                if op is _op.SUBPATTERN:
                    ranges += inner.ranges
                else:  # what looks around is done with before the rest begins
                    beside = max(beside, inner.ranges, key=math.prod)
            length += 1
    return _Work(min(length, _LONGEST), max(ranges, beside, key=math.prod), wild, branches, behind)


def _parts(op: Any, argument: Any) -> list[Any]:
    """The parts of a node that are patterns themselves."""
    if op is _op.SUBPATTERN:
        return [argument[3]]
    if op is _op.ATOMIC_GROUP:
        return [argument]
    return [argument[1]] if op in (_op.ASSERT, _op.ASSERT_NOT) else []


# --- all ways at once


def _states_of(tree: Any) -> int:
    """How many states an automaton for this needs; more than may be if it asks for more than one knows."""
    states = 2
    for op, argument in tree:
        if op in (_op.MAX_REPEAT, _op.MIN_REPEAT):
            low, high, inner = argument
            states += (low + 1 if high is _op.MAXREPEAT else high) * (_states_of(inner) + 1)
        elif op is _op.SUBPATTERN:
            _, added, removed, inner = argument
            states += _states_of(inner) if not (added or removed) else _MAX_STATES
        elif op is _op.BRANCH:
            states += sum(map(_states_of, argument[1]))
        elif op not in (_op.AT, _op.LITERAL, _op.NOT_LITERAL, _op.ANY, _op.IN):
            states += _MAX_STATES
        else:
            states += 2
        if states > _MAX_STATES:
            break
    return states


class _Automaton:
    """States are numbers; `_ways` are what may be done in each: go on freely, go on if the place is right,
    or read a character. The sets of states that come up are remembered, as are the steps between them."""

    def __init__(self, tree: Any, flags: int) -> None:
        self._tree_state = tree.state
        self._flags = flags
        self._word = re.compile(r"\w", flags & re.ASCII).match
        self._free: list[list[int]] = []
        self._conditions: list[tuple[Any, int] | None] = []
        self._reads: list[tuple[Any, int] | None] = []
        self._first = self._state()
        self._last = self._state()
        self._add(tree, self._first, self._last)
        self._by_place = any(condition is not None for condition in self._conditions)
        self._closures: dict[tuple[frozenset[int], int], frozenset[int]] = {}
        self._steps: dict[tuple[frozenset[int], str], frozenset[int]] = {}

    def found(self, text: str, effort: Effort) -> bool:
        """Whether there is a match. Raises TooCostly."""
        begin = frozenset((self._first,))
        current = begin
        for at in range(len(text) + 1):
            effort.spend(1)
            place = _place(text, at, self._word) if self._by_place else 0
            closure = self._closures.get((current, place))
            if closure is None:
                closure = self._close(current, place, effort)
            if self._last in closure:
                return True
            if at == len(text):
                return False
            after = self._steps.get((closure, text[at]))
            current = self._step(closure, text[at], effort) if after is None else after
        return False

    # -- running

    def _close(self, states: frozenset[int], place: int, effort: Effort) -> frozenset[int]:
        todo = list(states)
        found = set(todo)
        while todo:
            state = todo.pop()
            targets = self._free[state]
            condition = self._conditions[state]
            if condition is not None and _holds(condition[0], place):
                targets = [*targets, condition[1]]
            for target in targets:
                if target not in found:
                    found.add(target)
                    todo.append(target)
        effort.spend(len(found))
        closure = frozenset(found)
        if len(self._closures) >= _MAX_CACHE:
            self._closures.clear()
        self._closures[states, place] = closure
        return closure

    def _step(self, closure: frozenset[int], character: str, effort: Effort) -> frozenset[int]:
        after = {self._first}  # a match may begin at every place
        effort.spend(len(closure))
        for state in closure:
            reads = self._reads[state]
            if reads is not None and reads[0](character):
                after.add(reads[1])
        found = frozenset(after)
        if len(self._steps) >= _MAX_CACHE:
            self._steps.clear()
        self._steps[closure, character] = found
        return found

    # -- building

    def _state(self) -> int:
        self._free.append([])
        self._conditions.append(None)
        self._reads.append(None)
        return len(self._free) - 1

    def _add(self, tree: Any, start: int, end: int) -> None:
        """What matches `tree` leads from `start` to `end`."""
        nodes = list(tree)
        for i, (op, argument) in enumerate(nodes):
            following = end if i == len(nodes) - 1 else self._state()
            self._node(op, argument, start, following)
            start = following
        if not nodes:
            self._free[start].append(end)

    def _node(self, op: Any, argument: Any, start: int, end: int) -> None:
        if op in (_op.MAX_REPEAT, _op.MIN_REPEAT):
            low, high, inner = argument
            self._repeat(low, high, inner, start, end)
        elif op is _op.SUBPATTERN:
            self._add(argument[3], start, end)
        elif op is _op.BRANCH:
            for branch in argument[1]:
                begin = self._state()
                self._free[start].append(begin)
                self._add(branch, begin, end)
        elif op is _op.AT:
            begin = self._state()
            self._free[start].append(begin)
            self._conditions[begin] = (argument, end)
        else:
            begin = self._state()
            self._free[start].append(begin)
            self._reads[begin] = (self._test(op, argument), end)

    def _repeat(self, low: int, high: Any, inner: Any, start: int, end: int) -> None:
        for _ in range(low):
            following = self._state()
            self._add(inner, start, following)
            start = following
        if high is _op.MAXREPEAT:
            loop = self._state()
            self._free[start].append(loop)
            self._add(inner, loop, start)
        else:
            for _ in range(high - low):
                self._free[start].append(end)
                following = self._state()
                self._add(inner, start, following)
                start = following
        self._free[start].append(end)

    def _test(self, op: Any, argument: Any) -> Any:
        """Whether one character fits, as Python's matcher sees it; remembered by character."""
        single = _parse.SubPattern(self._tree_state, [(op, argument)])
        match = _compile.compile(single, self._flags).match
        known: dict[str, bool] = {}

        def test(character: str) -> bool:
            answer = known.get(character)
            if answer is None:
                if len(known) >= _MAX_CACHE:
                    known.clear()
                answer = known[character] = match(character) is not None
            return answer

        return test


_START, _BEFORE_WORD, _AFTER_WORD, _END, _LAST_BREAK, _NO_INSIDE = 1, 2, 4, 8, 16, 32
# Whether the empty text has a place that is no boundary, on which versions of Python differ.
_EMPTY_HAS_INSIDE = re.search(r"\B", "") is not None


def _place(text: str, at: int, word: Callable[[str], object]) -> int:
    """What conditions ask about a place in a text, as bits."""
    if not text and not _EMPTY_HAS_INSIDE:
        return _START | _END | _NO_INSIDE
    place = _START if at == 0 else 0
    if at == len(text):
        place |= _END
    elif at == len(text) - 1 and text[at] == "\n":
        place |= _LAST_BREAK
    if at > 0 and word(text[at - 1]):
        place |= _AFTER_WORD
    if at < len(text) and word(text[at]):
        place |= _BEFORE_WORD
    return place


def _holds(condition: Any, place: int) -> bool:
    if condition in (_op.AT_BEGINNING, _op.AT_BEGINNING_STRING):
        return bool(place & _START)
    if condition is _op.AT_END:
        return bool(place & (_END | _LAST_BREAK))
    if condition is _op.AT_END_STRING:
        return bool(place & _END)
    boundary = bool(place & _BEFORE_WORD) != bool(place & _AFTER_WORD)
    return boundary if condition is _op.AT_BOUNDARY else not boundary and not place & _NO_INSIDE
