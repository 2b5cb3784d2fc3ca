"""A store that had to be mended when it was opened says so, in the logs of the runs that go on."""

from __future__ import annotations

import logging
from pathlib import Path

from agentflow import Runtime
from agentflow.testing import ScriptedModel

ASKED = {
    "version": "1.0",
    "models": {"default": "scripted:m"},
    "workflow": {
        "steps": [
            {
                "type": "run",
                "id": "a",
                "approval": True,
                "agent": {"systemPrompt": "p", "attachedFunctions": "none"},
            }
        ]
    },
}


async def test_a_torn_end_is_written_down_once(tmp_path: Path, caplog):
    store = f"file:{tmp_path / 'log'}"
    async with Runtime(store, models=[ScriptedModel(["{}"])]) as runtime:
        handle = await runtime.submit(ASKED, {}, workflow_id="wf_a")
        assert (await handle.result()).state == "waiting"
    segment = max((tmp_path / "log" / "segments").glob("*.ndjson"))
    with segment.open("ab") as file:
        file.write(b'{"c":"00000000","b":99,"i":0,"n":2,"e":{"id":"evt')
    with caplog.at_level(logging.WARNING, "agentflow.runtime"):
        async with Runtime(store, models=[ScriptedModel(["{}"])]) as runtime:
            await runtime.pause("wf_a")
            await runtime.resume("wf_a")
            await runtime.decide("wf_a", step_id="a", granted=True)
            assert (await runtime.rest("wf_a")).state == "completed"
            found = [e async for e in runtime.events("wf_a", follow=False)]
    errors = [e.data for e in found if e.type == "system.error"]
    assert [(e.error.code, e.severity, e.component) for e in errors] == [("torn_tail", "warning", "log")]
    assert [e.offset for e in found] == list(range(len(found)))
    assert any("cut" in r.getMessage() or "torn" in r.getMessage() for r in caplog.records)
