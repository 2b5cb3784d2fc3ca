"""Budgets, time-outs, quotas, and a wall clock that steps."""

from __future__ import annotations

import asyncio
from typing import Any

from agentflow import Runtime
from tests.golden.scenes.support import call, document, play, rest, start, step
from tests.golden.stage import EARLIER, HANG, RUN, After, Stage, failure, scene


def _two(on_exceeded: str) -> dict[str, Any]:
    return document(
        step("a", budget={"max_model_calls": 1, "on_exceeded": on_exceeded}, functions=["look"]),
        step("b", depends_on=["a"]),
    )


@scene("budget: pause, raised at the resume")
def budget_pause(stage: Stage) -> None:
    stage.says("a", call("look"), {"ok": True})

    async def resume(runtime: Runtime) -> None:
        await runtime.resume(RUN, budget={"max_model_calls": 5}, by="ann")

    play(stage, _two("pause"), then=resume)


def _asking(choice: str) -> Any:
    def play_it(stage: Stage) -> None:
        stage.says("a", call("look"), {"ok": True})

        async def answer(runtime: Runtime) -> None:
            (request,) = await runtime.requests(RUN)
            value: dict[str, Any] = {"choice": choice} | ({"limit": 9} if choice == "raise" else {})
            await runtime.answer(RUN, request.request_id, value, by="ann")

        play(stage, _two("ask"), then=answer, ends="completed" if choice == "raise" else "failed")

    play_it.__name__ = f"budget_ask_{choice}"
    return play_it


scene("budget: asked, raised")(_asking("raise"))
scene("budget: asked, refused")(_asking("fail"))


@scene("budget: fail")
def budget_fail(stage: Stage) -> None:
    stage.says("a", call("look"), {"ok": True})
    play(stage, _two("fail"), ends="failed")


@scene("budget of the run: tokens and steps, parallel calls wait for room")
def budget_run(stage: Stage) -> None:
    for place, name in enumerate("abc"):
        stage.says(name, After(1 + place * EARLIER, {"n": name}))
    stage.says("d", After(3 * EARLIER, {"said": "d"}))  # begun behind a, and over behind c
    steps = [step(name) for name in "abc"] + [step("d", depends_on=["a"]), step("e", depends_on=["d"])]

    async def resume(runtime: Runtime) -> None:
        await runtime.resume(RUN, budget={"max_steps": 10}, by="ann")

    play(
        stage,
        document(*steps, budget={"max_tokens": 20_000, "max_model_calls": 20, "max_steps": 4}),
        then=resume,
    )


@scene("time-outs: attempt")
def attempt_timeout(stage: Stage) -> None:
    stage.says("a", HANG, {"ok": True})
    play(stage, document(step("a", retry={"timeout": "5s", "max_attempts": 2, "backoff": "1s"})))


@scene("time-outs: step, with its iterations")
def step_timeout(stage: Stage) -> None:
    stage.says("a", HANG)
    stage.says("each 1", HANG)
    items = step(
        "each", for_each="${{ inputs.items }}", prompt="each ${{ index }}", timeout="9s", required=False
    )
    play(
        stage,
        document(step("a", timeout="5s", required=False), items, step("b", depends_on=["a"])),
        {"items": [1, 2, 3]},
    )


@scene("time-outs: run")
def run_timeout(stage: Stage) -> None:
    stage.says("b", HANG)
    asking = step("c", approval=True)
    play(
        stage,
        document(step("a"), step("b", depends_on=["a"]), asking, timeout="30s"),
        ends="failed",
    )


@scene("a provider's quota pauses the run, which goes on by itself")
def quota_pause(stage: Stage) -> None:
    stage.says("a", failure("rate_limited", retry_after=3_600.0), {"ok": True})
    stage.says("b", After(5, {"ok": True}))

    async def life(runtime: Runtime) -> None:
        await start(runtime, document(step("a"), step("b")))
        assert (await rest(runtime)).state == "paused"
        async for _ in runtime.events(RUN):
            pass
        assert (await rest(runtime)).state == "completed"

    stage.process(life)


@scene("no credit pauses the run")
def quota_exhausted(stage: Stage) -> None:
    stage.says("a", failure("quota"), {"ok": True})

    async def resume(runtime: Runtime) -> None:
        await asyncio.sleep(50)
        await runtime.resume(RUN, by="ann")

    play(stage, document(step("a")), then=resume)


@scene("the wall clock steps back while a retry and a time-out run")
def clock_back(stage: Stage) -> None:
    stage.says("a", After(1, failure("transient")), {"ok": True})
    stage.says("b", HANG)

    async def life(runtime: Runtime) -> None:
        asked = stage.start_of("a")
        retry = {"max_attempts": 2, "backoff": "20s", "jitter": 0}
        await start(runtime, document(step("a", retry=retry), step("b", timeout="30s", required=False)))
        await asked.wait()
        await asyncio.sleep(5)
        stage.step = -3_600_000_000
        assert (await rest(runtime)).state == "completed"

    stage.process(life)
