"""What the scenes share: short documents, and the way to submit one and to wait where it rests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from agentflow import Runtime
from agentflow.definition.ir import ModelRef, Workflow
from agentflow.runtime import RunResult
from agentflow.testing import scripted
from tests.golden.stage import RUN, Stage
from tests.integration.support.runs import document, step

__all__ = ["MODELS", "call", "document", "play", "rest", "start", "step"]

MODELS = {"default": ModelRef(provider="scripted", model="m")}


def call(name: str, /, **arguments: Any) -> scripted.Call:
    """Return a turn that calls a function of the service `desk`."""
    return scripted.call(f"desk__{name}", **arguments)


async def start(runtime: Runtime, submission: Any, input: Any = None, **more: Any) -> None:
    """Submit the scene's run; a document gets the scripted model."""
    if not isinstance(submission, Workflow):
        submission = {"models": {"default": "scripted:m"}, **submission}
    await runtime.submit(submission, {} if input is None else input, workflow_id=RUN, **more)


async def rest(runtime: Runtime, run: str = RUN) -> RunResult:
    """Wait until the run rests."""
    return await (await runtime.attach(run)).rest()


def play(
    stage: Stage,
    submission: Any,
    input: Any = None,
    *,
    then: Callable[[Runtime], Awaitable[object]] | None = None,
    ends: str = "completed",
    **more: Any,
) -> None:
    """Run a submission in one process: begin, do `then` where it first rests, wait for its end."""

    async def life(runtime: Runtime) -> None:
        await start(runtime, submission, input, **more)
        result = await rest(runtime)
        if then is not None:
            await then(runtime)
            result = await rest(runtime)
        assert result.state == ends, result

    stage.process(life)
