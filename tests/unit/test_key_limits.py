"""Limits of a provider key: what waits, how long, and when a refusal is over (page 000 §9)."""

from __future__ import annotations

import math
import random

import pytest

from agentflow.definition.failure import ErrorInfo
from agentflow.models.rate_limits import RateLimits, ReportedLimit
from agentflow.models.waits import reported_limits
from agentflow.runtime.key_limits import KeyLimits

REFUSED = ErrorInfo(category="rate_limited", code="rate_limited", message="slow down", retryable=True)
NO_QUOTA = ErrorInfo(category="quota", code="insufficient_quota", message="pay")


def limits(requests: int | None = None, tokens: int | None = None) -> KeyLimits:
    made = KeyLimits()
    made.restrict(RateLimits(requests_per_minute=requests, tokens_per_minute=tokens))
    return made


def made(key: KeyLimits, now: float, tokens: int = 0) -> float:
    """Make a call as soon as it may be made; return when."""
    while wait := key.wait(tokens, now):
        now += wait
    key.end(key.begin(tokens, now), now, tokens=tokens)
    return now


@pytest.mark.parametrize("seed", range(5))
def test_no_minute_has_more_requests_and_tokens_than_configured(seed: int) -> None:
    draw, key, now = random.Random(seed), limits(20, 1_000), 0.0
    calls: list[tuple[float, int]] = []
    for _ in range(300):
        tokens = draw.randrange(1, 120)
        now = made(key, now + draw.random(), tokens)
        calls.append((now, tokens))
    for time, _ in calls:
        window = [tokens for at, tokens in calls if time - 60 + 1e-6 < at <= time]
        assert len(window) <= 20
        assert sum(window) <= 1_000
    assert len(calls) / now * 60 > 10  # and they are used


def test_a_call_larger_than_the_limit_of_tokens_is_made_on_its_own() -> None:
    key = limits(tokens=100)
    assert made(key, 0.0, 50) == 0.0
    assert made(key, 1.0, 5_000) == 60.0
    assert made(key, 61.0, 10) == 120.0


def test_what_a_call_used_replaces_what_it_was_taken_to_use() -> None:
    key = limits(tokens=100)
    key.end(key.begin(100, 0.0), 1.0, tokens=10)
    assert key.wait(80, 1.0) == 0.0
    assert key.wait(95, 1.0) == 59.0


def test_of_several_providers_with_one_key_the_tightest_limits_hold() -> None:
    key = limits(5)
    key.restrict(RateLimits(requests_per_minute=1))
    key.restrict(None)
    assert [made(key, 0.0), made(key, 0.0)] == [0.0, 60.0]


def reported(**headers: str) -> tuple[ReportedLimit, ...]:
    return reported_limits({name.replace("_", "-"): value for name, value in headers.items()})


@pytest.mark.parametrize(
    ("headers", "found"),
    [
        (
            {"x_ratelimit_remaining_requests": "3", "x_ratelimit_reset_requests": "1m2s"},
            ("requests", 3, 62.0),
        ),
        ({"x_ratelimit_remaining_tokens": "0", "x_ratelimit_reset_tokens": "20ms"}, ("tokens", 0, 0.02)),
        (
            {
                "anthropic_ratelimit_output_tokens_remaining": "7",
                "anthropic_ratelimit_output_tokens_reset": "5",
            },
            ("tokens", 7, 5.0),
        ),
    ],
)
def test_limits_are_read_from_headers(headers: dict[str, str], found: tuple[str, int, float]) -> None:
    (limit,) = reported(**headers)
    assert (limit.kind, limit.remaining, limit.resets_after) == found


@pytest.mark.parametrize("remaining", ["", "-1", "many", "²"])
def test_headers_that_say_no_limit_are_ignored(remaining: str) -> None:
    assert reported(x_ratelimit_remaining_requests=remaining, x_ratelimit_reset_requests="1s") == ()
    assert reported(x_ratelimit_remaining_requests="1") == ()


def test_calls_wait_for_the_reset_of_a_limit_that_the_provider_reports() -> None:
    key = KeyLimits()
    left = ReportedLimit(kind="requests", remaining=2, resets_after=10.0)
    key.end(key.begin(0, 0.0), 1.0, limits=[left])
    assert [made(key, 1.0), made(key, 1.0), made(key, 1.0)] == [1.0, 1.0, 11.0]
    assert key.wait(0, 11.0) == 0.0


def test_calls_under_way_count_against_what_is_reported() -> None:
    key = KeyLimits()
    first, _ = key.begin(0, 0.0), key.begin(0, 0.0)
    key.end(first, 1.0, limits=[ReportedLimit(kind="requests", remaining=1, resets_after=10.0)])
    assert key.wait(0, 1.0) == 10.0


def test_a_refusal_with_a_time_holds_all_calls_until_then() -> None:
    key = KeyLimits()
    key.end(key.begin(0, 0.0), 1.0, error=REFUSED, retry_after=20.0)
    assert key.wait(0, 1.0) == 20.0
    assert key.refused(1.0) is None
    assert [key.wait(0, 21.0), key.wait(0, 21.0)] == [0.0, 0.0]


def test_a_refusal_longer_than_calls_wait_fails_them_at_once() -> None:
    key = KeyLimits()
    key.end(key.begin(0, 0.0), 1.0, error=REFUSED, retry_after=90.0)
    refused = key.refused(11.0)
    assert refused is not None
    assert refused.retry_after == 80.0
    assert key.wait(0, 11.0) == 0.0
    assert key.refused(91.0) is None


def test_a_refusal_without_a_time_is_tried_by_one_call_after_growing_waits() -> None:
    key, now = KeyLimits(), 0.0
    tries: list[float] = []
    key.end(key.begin(0, now), now, error=REFUSED)
    while key.refused(now) is None and len(tries) < 20:
        now += key.wait(0, now)
        tries.append(now)
        if key.refused(now) is None:
            probe = key.begin(0, now)
            assert key.wait(0, now) == math.inf
            key.end(probe, now, error=REFUSED)
    assert tries == [1.0, 3.0, 7.0, 15.0, 31.0, 61.0]  # then calls fail at once
    refused = key.refused(now)
    assert refused is not None
    assert refused.retry_after is None
    now += 30.0
    key.end(key.begin(0, now), now)
    assert key.wait(0, now) == 0.0


def test_refusals_of_calls_that_were_made_before_the_first_one_say_nothing_new() -> None:
    key = KeyLimits()
    calls = [key.begin(0, 0.0) for _ in range(8)]
    for call in calls:
        key.end(call, 0.5, error=REFUSED)
    assert key.wait(0, 0.5) == 1.0


def test_an_answer_to_a_call_made_before_the_refusal_does_not_end_it() -> None:
    key = KeyLimits()
    older, newer = key.begin(0, 0.0), key.begin(0, 0.0)
    key.end(newer, 1.0, error=REFUSED, retry_after=10.0)
    key.end(older, 2.0)
    assert key.wait(0, 2.0) == 9.0


def test_a_probe_that_was_cancelled_is_followed_by_another() -> None:
    key = KeyLimits()
    key.end(key.begin(0, 0.0), 0.0, error=REFUSED)
    probe = key.begin(0, 1.0)
    key.end(probe, 2.0, conclusive=False)
    assert key.wait(0, 2.0) == 0.0
    key.begin(0, 2.0)
    assert key.wait(0, 2.0) == math.inf


def test_an_exhausted_quota_fails_waiting_calls_at_once_and_is_tried_again_later() -> None:
    key = KeyLimits()
    key.end(key.begin(0, 0.0), 0.0, error=NO_QUOTA)
    assert key.refused(0.0) is not None
    assert key.refused(1.0) is None


def test_a_refusal_that_is_forgotten_is_tried_at_once() -> None:
    key = KeyLimits()
    key.end(key.begin(0, 0.0), 0.0, error=REFUSED, retry_after=3_600.0)
    key.forget_refusal()
    assert (key.refused(5.0), key.wait(0, 5.0)) == (None, 0.0)
