"""Requests of five stages in processes of their own, each killed by itself behind the commit of one event.

`python -m tests.integration.support.killed_request` reads lines {folder, offset, run} and forks a process for
each, so that imports are paid for once: a new run if `run` is null, or that run goes on; offset -1 kills
nothing. Every call of a function is a line of FOLDER/calls. A process that ends leaves the final output, with
how often the model was asked, in FOLDER/answer as JSON. The exit code of each is a line of standard output.
"""

from __future__ import annotations

import asyncio
import os
import sys
import traceback
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
    (folder / "answer").write_bytes(msgspec.json.encode(answer))


def _run(folder: Path, offset: int, run_id: str | None) -> None:
    """Do the work of one forked process, which never returns to the loop of `serve`."""
    code = 1
    try:
        os.environ["XDG_DATA_HOME"] = str(folder / "data")
        (folder / "work").mkdir(parents=True, exist_ok=True)
        if offset >= 0:
            kill_behind(offset)
        asyncio.run(main(folder, run_id))
        code = 0
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


def serve() -> None:
    """Fork a process for each line of standard input, one after another."""
    for line in sys.stdin:
        order = msgspec.json.decode(line)
        pid = os.fork()
        if pid == 0:
            _run(Path(order["folder"]), order["offset"], order["run"])
        _, status = os.waitpid(pid, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    serve()
