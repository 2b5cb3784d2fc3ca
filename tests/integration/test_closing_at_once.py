"""A Runtime that is closed while its first runs begin waits for the calls at work, and for nothing else."""

from __future__ import annotations

import asyncio

import pytest
import yaml

from agentflow import Runtime, Service, function
from agentflow.events.memory import MemoryLog
from agentflow.testing import ScriptedModel, call

GRACE_S = 3_600.0

NODES = """
version: v0
name: looked up
nodes:
  - {id: start, type: start, next: find}
  - {id: find, type: tool, tool: crm.find, input: {}, next: end}
  - {id: end, type: end}
"""

AGENT = {
    "agents": [{"name": "clerk", "system_prompt": "find it", "model": "scripted:m", "tools": ["crm.find"]}]
}


@function(name="find", side_effect="write")
async def find() -> str:
    return "found"


@pytest.mark.parametrize("definition", ["nodes", "agent"])
@pytest.mark.parametrize("passes", range(12))
async def test_a_call_that_no_actor_takes_any_more_is_not_waited_for(definition, passes):
    """Whatever of its beginning the run has done when the Runtime is closed."""
    log = MemoryLog()
    answers = ScriptedModel(
        lambda request: call("crm__find") if request.messages[-1].role == "user" else "done"
    )
    document = yaml.safe_load(NODES) if definition == "nodes" else AGENT
    services = [Service.of("crm", find)]
    async with Runtime(log, models=[answers], services=services, grace=GRACE_S) as runtime:
        handle = await runtime.submit(document, "x" if definition == "agent" else {})
        for _ in range(passes):
            await asyncio.sleep(0)
    async with Runtime(log, models=[answers], services=services, grace=GRACE_S) as runtime:
        found = await (await runtime.attach(handle.workflow_id)).result()
        if found.state == "paused":
            found = await (await runtime.resume(handle.workflow_id)).result()
    assert found.state in ("completed", "waiting")  # a call that may have begun is asked about
