"""Whatever any test makes the API answer stands in its OpenAPI document: status, and code of a problem."""

from __future__ import annotations

import json
from functools import cache

import msgspec
import pytest

from agentflow.server.app import described
from agentflow.server.openapi import operation_id
from agentflow.server.operations import Operation
from agentflow.server.problems import MEDIA

_undocumented: list[str] = []
_answer = Operation.answer


@cache
def _responses() -> dict[str, dict[str, str]]:
    """The descriptions of the answers by status, of each operation."""
    paths = json.loads(described())["paths"]
    return {
        one["operationId"]: {status: each["description"] for status, each in one["responses"].items()}
        for methods in paths.values()
        for one in methods.values()
    }


async def _checked(self, request, service):
    response = await _answer(self, request, service)
    name, status = operation_id(self), str(response.status_code)
    told = _responses()[name].get(status)
    if told is None:
        _undocumented.append(f"{name} answers {status}: {getattr(response, 'body', b'')[:300]}")
    elif response.headers.get("content-type") == MEDIA and told != "Failure":
        code = msgspec.json.decode(response.body)["code"]
        if code not in told.split(", "):
            _undocumented.append(f"{name} answers {status} {code}, which is not among {told}")
    return response


@pytest.fixture(autouse=True)
def answers_are_documented():
    """Fails a test in whose process the API gave an answer that its document does not have."""
    Operation.answer = _checked
    yield
    Operation.answer = _answer
    found, _undocumented[:] = list(_undocumented), []
    assert not found, "\n".join(found)
