"""Reasoning that a provider wants back is kept in the log, survives a restart, and goes to that provider
alone (page 000 §3; agents-models-tools D6)."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from agentflow import Runtime
from agentflow.events.memory import MemoryLog
from agentflow.models import Models
from tests.integration.support.runs import Desk, document, log_of, step
from tests.unit.models.wire_formats import CHAT, GEMINI, MESSAGES, RESPONSES, Call, Wire, encode
from tests.unit.models.wire_server import WireServer, sending

CALL: list[Call] = [("p1", "desk__look", ["{}"])]
SECRETS = ("c2lnbmF0dXJl", "b3BhcXVl")


def thinking(wire: Wire) -> Any:
    """An answer that thinks and calls `look`."""
    events = wire.events([], CALL, "complete")
    begin = 1 if wire in (MESSAGES, RESPONSES) else 0
    reasoned = json.loads(json.dumps(wire.reasoned()).replace('"lookup"', '"desk__look"'))
    return sending(encode([*events[:begin], *reasoned, *events[begin:]]))


@pytest.mark.parametrize("wire", [pytest.param(w, id=w.name) for w in (MESSAGES, RESPONSES, GEMINI)])
async def test_reasoning_goes_back_after_a_restart_and_nowhere_else(wire: Wire) -> None:
    log, desk = MemoryLog(), Desk(look=True)
    steps = (
        step("a", functions=["look"]),
        step("b", depends_on=["a"], input="${{ steps.a.outputs.result }}"),
    )
    steps[0]["agent"]["model"], steps[1]["agent"]["model"] = "first:m", "other:m"
    async with (
        WireServer(thinking(wire), sending(wire.stream(['"fine"']))) as first,
        WireServer(sending(CHAT.stream(['"done"']))) as other,
    ):

        def models() -> Models:
            return Models(
                [
                    wire.provider(base_url=first.url, name="first"),
                    CHAT.provider(base_url=other.url, name="other"),
                ]
            )

        async with Runtime(log, services=[desk.service()], models=models(), grace=0.05) as runtime:
            handle = await runtime.submit(document(*steps), {}, workflow_id="wf_a")
            await desk.until(lambda: desk.calls == 1)
        desk.gates["look"].set()
        async with Runtime(log, services=[desk.service()], models=models()) as runtime:
            await runtime.resume(handle.workflow_id)
            result = await runtime.result(handle.workflow_id)
        assert result.state == "completed"
        second = first.requests[1].body
        assert wire.wanted_back(second) in (wire.reasoning, [])
        assert any(secret in json.dumps(second) for secret in SECRETS)
        assert not any(secret in json.dumps(other.requests[0].body) for secret in SECRETS)
    events = await log_of(log, "wf_a")
    holding = {
        event.type for event in events if any(s in msgspec.json.encode(event.data).decode() for s in SECRETS)
    }
    assert holding == {"model.call_completed"}
