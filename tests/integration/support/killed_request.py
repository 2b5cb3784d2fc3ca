"""A request of five stages in a process of its own, killed by itself right behind the commit of one event.

`python -m tests.integration.support.killed_request FOLDER OFFSET [RUN]`: a new run, or RUN goes on; OFFSET -1
kills nothing. Every call of a function is a line of FOLDER/calls. Prints at its end the
final output with how often the model was asked, as JSON.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import msgspec

from agentflow import Runtime
from agentflow.pipeline.requests import Requests
from agentflow.pipeline.settings import PipelineSettings
from agentflow.testing import call
from agentflow.tools import Service, function
from tests.integration.pipeline.support import (
    DELEGATE,
    NORMALIZER,
    PLANNER,
    asked,
    done,
    model_of,
    plan,
    step,
)
from tests.integration.support.killed_app import kill_behind

PLAN = plan(
    step("a", toolsets=["desk"], expected_artifacts=["a.txt"]),
    step("b", "a", toolsets=["desk"]),
    step("c", "b", toolsets=["desk"], requires_approval=True),
)


def _delegate(step_id: str, request: Any) -> Any:
    if any(m.role == "tool" for m in request.messages):
        return done(step_id)
    return call("desk__note", text=step_id)


async def main(folder: Path, run_id: str | None) -> None:
    @function(side_effect="write", idempotent=False)
    def note(text: str) -> str:
        """Write a line, and a file of the workspace."""
        with (folder / "calls").open("a") as calls:
            calls.write(text + "\n")
        (folder / "work" / f"{text}.txt").write_text(text)
        return "noted"

    model = model_of(PLAN, _delegate)
    settings = PipelineSettings(workspace_roots=(str(folder / "work"),))
    store = f"sqlite:{folder}/runs.db"
    async with Runtime(store, models=[model], services=[Service.of("desk", note)]) as runtime:
        await runtime.recover()
        if run_id is None:
            requests = Requests(runtime, settings)
            run = (
                await requests.submit(
                    "workflow: x", workspace=str(folder / "work"), workflow_id="wf_killed", review=True
                )
            ).run
            assert run is not None
        else:
            run = await runtime.attach(run_id)
        while (await run.result(raise_on_failure=False)).state not in ("completed", "failed"):
            for request in await runtime.requests(run.workflow_id):
                if request.kind == "step":
                    await runtime.decide(run.workflow_id, request_id=request.request_id, granted=True)
                elif request.request_type == "review":
                    await runtime.execute(run.workflow_id)
                else:
                    await runtime.answer(run.workflow_id, request.request_id, {"choice": "retry"})
        result = await run.result(raise_on_failure=False)
    counts = [asked(model, stage) for stage in (NORMALIZER, PLANNER, DELEGATE)]
    answer = {"final": result.output["final_output"], "asked": counts}
    sys.stdout.write(msgspec.json.encode(answer).decode() + "\n")


if __name__ == "__main__":
    place, offset = Path(sys.argv[1]), int(sys.argv[2])
    (place / "work").mkdir(exist_ok=True)
    if offset >= 0:
        kill_behind(offset)
    asyncio.run(main(place, sys.argv[3] if len(sys.argv) > 3 else None))
