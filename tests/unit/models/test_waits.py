"""How long a provider asks to wait, in the ways in which providers say it (agents-models-tools D3)."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from agentflow.models import faults
from agentflow.models.waits import asked_wait

RETRY_INFO = {
    "error": {
        "code": 429,
        "status": "RESOURCE_EXHAUSTED",
        "details": [
            {"@type": "type.googleapis.com/google.rpc.QuotaFailure"},
            {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "34.07s"},
        ],
    }
}


@pytest.mark.parametrize(
    ("headers", "body", "seconds"),
    [
        ({"retry-after": "90"}, b"", 90),
        ({"retry-after-ms": "1500"}, b"", 1.5),
        ({}, json.dumps(RETRY_INFO).encode(), 34.07),
        ({}, json.dumps([RETRY_INFO]).encode(), 34.07),
        ({"retry-after": "5"}, json.dumps(RETRY_INFO).encode(), 5),
        ({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "6m0s"}, b"", 360),
        ({"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "20ms"}, b"", 0.02),
        (
            {
                "x-ratelimit-remaining-requests": "0",
                "x-ratelimit-reset-requests": "1s",
                "x-ratelimit-remaining-tokens": "0",
                "x-ratelimit-reset-tokens": "1h2m",
            },
            b"",
            3_720,
        ),
        ({"x-ratelimit-remaining-requests": "7", "x-ratelimit-reset-requests": "6m0s"}, b"", None),
        ({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "soon"}, b"", None),
        ({"x-ratelimit-remaining-requests": "0"}, b"", None),
        ({}, b'{"error": {"details": [{"@type": "RetryInfo"}, 1, null]}}', None),
        ({}, b"RetryInfo", None),
        ({}, b'{"error": "RetryInfo"}', None),
        ({}, b"", None),
    ],
)
def test_a_time_is_read_and_never_guessed(headers, body, seconds):
    assert asked_wait(headers, body) == (seconds if seconds is None else pytest.approx(seconds))


def test_dates_are_read():
    due = datetime.now(UTC) + timedelta(seconds=100)
    for headers in (
        {"retry-after": format_datetime(due, usegmt=True)},
        {
            "anthropic-ratelimit-tokens-remaining": "0",
            "anthropic-ratelimit-tokens-reset": due.isoformat(timespec="seconds").replace("+00:00", "Z"),
        },
    ):
        assert asked_wait(headers, b"") == pytest.approx(100, abs=5)
    assert asked_wait({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, b"") == 0


@pytest.mark.parametrize(
    ("status", "uncharged"), [(429, True), (400, True), (500, True), (503, True), (504, False), (408, False)]
)
def test_an_error_status_is_not_charged_unless_a_gateway_gave_up_waiting(status, uncharged):
    assert faults.from_response("p", status, {}, b"{}").uncharged is uncharged
