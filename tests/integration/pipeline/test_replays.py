"""Replays of requests: the recorded run answers, whatever its stages did (page 003 §9)."""

from __future__ import annotations

from typing import Any

import pytest

from agentflow import Runtime
from agentflow.records.trace import encode_trace
from agentflow.testing import call
from tests.integration.pipeline.support import Desk, done, model_of, normalized, plan, requests_of, step
from tests.integration.support.runs import must_be_sound


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTFLOW_MODEL", "scripted:m")


def sends(step_id: str, request: Any) -> Any:
    if any(m.role == "tool" for m in request.messages) or step_id != "b":
        return done(step_id)
    return call("messaging__send", to="ann", body="hi")


PLANS = {
    "steps": (plan(step("a"), step("b", "a")), None),
    "a function that asks": (plan(step("a"), step("b", "a", toolsets=["messaging"])), sends),
}


@pytest.mark.parametrize("policy", ["Always", "Mixed", "Refresh"])
@pytest.mark.parametrize("name", PLANS)
async def test_a_request_is_replayed(tmp_path: Any, name: str, policy: Any):
    given, delegate = PLANS[name]
    desk, model = Desk(), model_of([given, given], delegate, normal=[normalized(), normalized()])
    async with Runtime(models=[model], services=desk.services()) as runtime:
        accepted = await requests_of(runtime, tmp_path).submit("workflow: mail a digest", mode="workflow")
        assert accepted.run is not None
        handle = accepted.run
        first = await handle.rest()
        for asked in await runtime.requests(handle.workflow_id):
            first = await (
                await runtime.decide(handle.workflow_id, granted=True, request_id=asked.request_id)
            ).rest()
        assert first.state == "completed", first
        sent, calls = len(model.requests), len(desk.calls)
        again = await runtime.replay(handle.workflow_id, policy)
        second = await again.rest()
        if policy == "Refresh":
            assert second.state == ("waiting" if delegate else "completed"), second
            assert len(model.requests) > sent
            return
        assert second.state == "completed", second.error
        assert (len(model.requests), len(desk.calls)) == (sent, calls), "something was asked again"
        assert second.output["final_output"] == first.output["final_output"]
        await must_be_sound(runtime, again.workflow_id)
        one, two = [encode_trace(await runtime.trace(h.workflow_id, "logical")) for h in (handle, again)]
        assert one == two
