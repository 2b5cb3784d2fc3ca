"""Scores of a local model: its likeliest answer, with the tokens that it considered at each place.

Talks to the child process alone; the OpenAI adapter has no use for log probabilities.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from agentflow.definition.conversation import Message
from agentflow.models import faults
from agentflow.models.http import HttpClient, HttpFailure
from agentflow.models.local.calibration import TokenChoice
from agentflow.models.local.process import Endpoint

__all__ = ["Scorer"]

_CONSIDERED: Final = 300
_LONGEST: Final = 64
_FIRST_BYTE_TIMEOUT_S: Final = 300.0
_MAX_BYTES: Final = 16 << 20


class _Token(msgspec.Struct):
    token: str
    logprob: float
    id: int
    top_logprobs: list[_Token] = []


class _Logprobs(msgspec.Struct):
    content: list[_Token]


class _Choice(msgspec.Struct):
    logprobs: _Logprobs


class _Scored(msgspec.Struct):
    choices: list[_Choice]


_scored = msgspec.json.Decoder(_Scored)


class Scorer:
    """A client of one child for log probabilities."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._url = f"{endpoint.url}/chat/completions"
        self._headers = {"Content-Type": "application/json", "Authorization": f"Bearer {endpoint.key}"}
        self._key = endpoint.key
        # Not streamed, so the first byte comes with the last token.
        self._http = HttpClient(first_byte_timeout=_FIRST_BYTE_TIMEOUT_S, loopback=True)

    async def score(self, turns: Sequence[Message], grammar: str) -> list[TokenChoice]:
        """Return the tokens of the likeliest answer, each with the 300 likeliest in its place. Raises
        ModelError."""
        body = {
            "messages": [{"role": turn.role, "content": turn.content} for turn in turns],
            "grammar": grammar,
            "temperature": 0,
            "seed": 0,
            "max_tokens": _LONGEST,
            "logprobs": True,
            "top_logprobs": _CONSIDERED,
        }
        try:
            async with self._http.post(
                self._url, headers=self._headers, body=msgspec.json.encode(body)
            ) as response:
                if response.status != 200:
                    refusal = await response.error_body()
                    raise faults.from_response(
                        "local", response.status, response.headers, refusal, secret=self._key
                    )
                data = await response.read(_MAX_BYTES)
        except HttpFailure as failure:
            raise faults.from_http_failure("local", failure) from failure
        try:
            tokens = _scored.decode(data).choices[0].logprobs.content
        except (msgspec.DecodeError, IndexError) as failure:
            raise faults.broken_answer("local", f"no log probabilities: {failure}") from failure
        return [TokenChoice(t.token, {o.token: (o.id, o.logprob) for o in t.top_logprobs}) for t in tokens]

    async def aclose(self) -> None:
        """Close the connection; idempotent."""
        await self._http.aclose()
