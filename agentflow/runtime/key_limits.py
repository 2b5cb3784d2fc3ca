"""Rate limits of one provider key: when its next call may begin, by what is configured and what it answered.

Three things hold a call back: the configured requests and tokens of any 60 s; what the provider reports to be
left of its own limits; and a refusal (429), after which no call is made until it is over. It does no I/O and
reads no clock: `now` is seconds of a monotonic clock.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from typing import Final, NamedTuple

from agentflow.definition.failure import ErrorInfo
from agentflow.models.rate_limits import RateLimits, ReportedLimit

__all__ = ["KeyLimits", "KeyRefused", "LimitedCall"]

_WINDOW_S: Final = 60.0
_FIRST_WAIT_S: Final = 1.0
_LONGEST_WAIT_S: Final = 30.0
_PATIENCE_S: Final = 60.0
"""Calls wait so long for a refusal to be over, as long as retries do (page 000 §9); for longer ones they fail
at once, so that their runs pause, or go to another model."""


class KeyRefused(NamedTuple):
    """Why a call is not made: the refusal of another one holds. `retry_after` is seconds, None if the
    provider said no time."""

    error: ErrorInfo
    retry_after: float | None


class LimitedCall:
    """A call that has begun. `tokens` is what it is taken to use until its usage is known."""

    __slots__ = ("begun_at", "in_window", "tokens")

    def __init__(self, begun_at: float, tokens: int) -> None:
        self.begun_at = begun_at
        self.tokens = tokens
        self.in_window = False


class _Left:
    """What is left of a limit of the provider until it is full again."""

    __slots__ = ("remaining", "until")

    def __init__(self, remaining: int, until: float) -> None:
        self.remaining = remaining
        self.until = until


class KeyLimits:
    """Each call that `begin` returns is followed by exactly one `end` of it."""

    def __init__(self) -> None:
        self._known: set[RateLimits] = set()
        self._requests: int | None = None
        self._tokens: int | None = None
        self._window: deque[LimitedCall] = deque()  # begun within the last 60 s
        self._window_tokens = 0
        self._open: dict[LimitedCall, None] = {}
        self._left: dict[str, _Left] = {}
        self._refusal: ErrorInfo | None = None
        self._refused_since = 0.0
        self._refused_at = 0.0
        self._refused_until = 0.0
        self._says_when = False
        self._wait_s = _FIRST_WAIT_S
        self._probe: LimitedCall | None = None

    @property
    def counts_tokens(self) -> bool:
        """Whether it matters how many tokens a call uses."""
        return self._tokens is not None or "tokens" in self._left

    def restrict(self, limits: RateLimits | None) -> None:
        """Keep to these limits too: of several providers with one key the tightest hold."""
        if limits is None or limits in self._known:
            return
        self._known.add(limits)
        self._requests = _least(self._requests, limits.requests_per_minute)
        self._tokens = _least(self._tokens, limits.tokens_per_minute)

    def wait(self, tokens: int, now: float) -> float:
        """Return the seconds that a call of so many tokens must wait; `inf` until another one has ended.

        0 also for a call that `refused` keeps back.
        """
        if self._refusal is not None:
            if self.refused(now) is not None:
                return 0.0
            if now < self._refused_until:
                return self._refused_until - now
        if self._probe is not None:
            return math.inf
        return max(self._configured(tokens, now), self._reported(tokens, now))

    def refused(self, now: float) -> KeyRefused | None:
        """Return the refusal that a call fails by at once, because it lasts longer than calls wait."""
        if self._refusal is None or now >= self._refused_until:
            return None
        left = self._refused_until - now
        if self._says_when:
            return KeyRefused(self._refusal, left) if left > _PATIENCE_S else None
        lasts = self._refusal.category == "quota" or now - self._refused_since >= _PATIENCE_S
        return KeyRefused(self._refusal, None) if lasts else None

    def begin(self, tokens: int, now: float) -> LimitedCall:
        """Count a call that is made now."""
        call = LimitedCall(now, tokens)
        self._open[call] = None
        if self._requests is not None or self._tokens is not None:
            call.in_window = True
            self._window.append(call)
            self._window_tokens += tokens
        for kind, left in self._left.items():
            left.remaining -= 1 if kind == "requests" else tokens
        if self._refusal is not None and not self._says_when:
            self._probe = call  # one call finds out whether the key is served again
        return call

    def end(
        self,
        call: LimitedCall,
        now: float,
        *,
        error: ErrorInfo | None = None,
        retry_after: float | None = None,
        conclusive: bool = True,
        tokens: int | None = None,
        limits: Iterable[ReportedLimit] = (),
    ) -> None:
        """Note how a call ended. `error` None is an answer; a call that is not `conclusive` was cancelled or
        failed here. `tokens` are those it used, None if that is not known."""
        del self._open[call]
        if call is self._probe:
            self._probe = None
        if tokens is not None and call.in_window:
            self._window_tokens += tokens - call.tokens
            call.tokens = tokens
        if error is not None and error.category in ("rate_limited", "quota"):
            self._refuse(call, error, retry_after, now)
        elif conclusive and call.begun_at >= self._refused_at:
            self._refusal = None
        for limit in limits:
            # Whether calls under way are counted already is not known: counted twice they wait for the reset.
            pending = sum(1 if limit.kind == "requests" else c.tokens for c in self._open)
            left = _Left(limit.remaining - pending, now + limit.resets_after)
            known = self._left.get(limit.kind)
            if known is None or known.until <= now or left.remaining <= known.remaining:
                self._left[limit.kind] = left

    def forget_refusal(self) -> None:
        """Let one call find out now whether the key is served again."""
        if self._refusal is not None:
            self._refused_until, self._says_when = self._refused_at, False

    def _refuse(self, call: LimitedCall, error: ErrorInfo, retry_after: float | None, now: float) -> None:
        if self._refusal is None or now > self._refused_until + _PATIENCE_S:
            self._refused_since, self._wait_s, self._refused_at = now, _FIRST_WAIT_S / 2, -math.inf
            self._refused_until = now
        self._refusal = error
        if retry_after is not None:
            self._says_when = True
            self._refused_at, self._refused_until = now, max(self._refused_until, now + retry_after)
        elif call.begun_at >= self._refused_at:  # an older one says nothing new
            self._says_when = False
            self._wait_s = min(2 * self._wait_s, _LONGEST_WAIT_S)
            self._refused_at, self._refused_until = now, max(self._refused_until, now + self._wait_s)

    def _configured(self, tokens: int, now: float) -> float:
        """Return the seconds until the configured limits have room; a call that is larger than the limit of
        tokens waits until all of it is free."""
        while self._window and self._window[0].begun_at <= now - _WINDOW_S:
            oldest = self._window.popleft()
            oldest.in_window = False
            self._window_tokens -= oldest.tokens
        wait = 0.0
        if self._requests is not None and len(self._window) >= self._requests:
            wait = self._window[len(self._window) - self._requests].begun_at + _WINDOW_S - now
        if self._tokens is not None:
            over = self._window_tokens + min(tokens, self._tokens) - self._tokens
            for call in self._window:
                if over <= 0:
                    break
                over -= call.tokens
                wait = max(wait, call.begun_at + _WINDOW_S - now)
        return wait

    def _reported(self, tokens: int, now: float) -> float:
        wait = 0.0
        for kind, left in list(self._left.items()):
            if left.until <= now:
                del self._left[kind]
            elif left.remaining < (1 if kind == "requests" else tokens) and left.until - now <= _PATIENCE_S:
                wait = max(wait, left.until - now)  # a longer one the provider says by a refusal
        return wait


def _least(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else min(a, b)
