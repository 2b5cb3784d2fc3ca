"""Runs, or resumes, one workflow in a process that may be killed at any moment.

Prints each durable event as `offset type` and at the end `result STATE OUTPUT`. The model is a function of
the conversation alone, so that it says the same after a restart; each call is noted in the effects file.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from agentflow import Runtime
from agentflow.models import ModelRequest
from agentflow.testing import ScriptedModel
from agentflow.testing.scripted import call
from tests.faults.killed.tools import note


def answer(request: ModelRequest):
    note("model", str(len(request.messages)))
    last = request.messages[-1]
    if last.role == "tool":
        return last.content
    data = json.loads(last.content)
    if isinstance(data, list):
        return data
    name = request.tools[data["n"] % len(request.tools)].name
    return call(name, n=data["n"])


async def main(store: str, run_id: str, mode: str) -> None:
    async with Runtime(f"sqlite:{store}", models=[ScriptedModel(answer)]) as runtime:
        if mode == "run":
            flow = Path(__file__).parent / "flow.yaml"
            handle = await runtime.submit(flow, {"n": 0, "items": [1, 2, 3, 4, 5]}, workflow_id=run_id)
        else:
            handle = await runtime.resume(run_id)
        async for event in handle.events():
            print(event.offset, event.type, flush=True)
        result = await handle.result()
        print("result", result.state, json.dumps(result.output), flush=True)


asyncio.run(main(*sys.argv[1:]))
