"""Approvals, questions, pauses, cancels, signals."""

from __future__ import annotations

import asyncio
from typing import Any

from agentflow import Runtime
from tests.golden.scenes.support import call, document, play, rest, start, step
from tests.golden.stage import EARLIER, HANG, RUN, After, Stage, scene


async def _decide(runtime: Runtime, granted: bool, **more: Any) -> None:
    for request in await runtime.requests(RUN):
        await runtime.decide(RUN, granted=granted, request_id=request.request_id, by="ann", **more)


async def _grant(runtime: Runtime) -> None:
    await _decide(runtime, True)


async def _deny(runtime: Runtime) -> None:
    await _decide(runtime, False, reason="too dear")


ASKING = step(
    "a",
    input="${{ inputs.x }}",
    approval={"message": "Run with ${{ inputs.x }}?", "timeout": "1h"},
)


@scene("approval before a step, granted")
def approval_granted(stage: Stage) -> None:
    play(stage, document(ASKING, step("b", depends_on=["a"]), step("c")), {"x": 7}, then=_grant)


@scene("approval before a step, denied")
def approval_denied(stage: Stage) -> None:
    play(stage, document(ASKING, step("b", depends_on=["a"])), {"x": 7}, then=_deny, ends="failed")


@scene("approval before a step, denied, which skips it")
def approval_skipped(stage: Stage) -> None:
    asking = step("a", approval={"on_denied": "skip"})
    play(stage, document(asking, step("b", depends_on=["a"])), then=_deny)


@scene("approval before a step, expired")
def approval_expired(stage: Stage) -> None:
    async def life(runtime: Runtime) -> None:
        await start(runtime, document(ASKING, step("b", depends_on=["a"])), {"x": 7})
        assert (await rest(runtime)).state == "waiting"
        async for _ in runtime.events(RUN):
            pass
        assert (await rest(runtime)).state == "failed"

    stage.process(life)


@scene("approval before the iterations of a step")
def approval_for_each(stage: Stage) -> None:
    asking = step("a", approval=True, for_each="${{ inputs.items }}", input="${{ item }}")
    play(stage, document(asking), {"items": [1, 2]}, then=_grant)


@scene("approval before each call, one granted and one denied")
def approval_calls(stage: Stage) -> None:
    stage.says("a", [call("look"), call("pay")], {"ok": True})

    async def decide(runtime: Runtime) -> None:
        first, second = await runtime.requests(RUN)
        await runtime.decide(RUN, granted=True, request_id=first.request_id, by="ann")
        await runtime.decide(RUN, granted=False, request_id=second.request_id, by="bob", reason="no")

    play(stage, document(step("a", functions=["look", "pay"], approval={"before": "calls"})), then=decide)


@scene("approval before side effects only")
def approval_side_effects(stage: Stage) -> None:
    stage.says("a", [call("look"), call("pay")], {"ok": True})
    asking = step("a", functions=["look", "pay"], approval={"before": "side_effects"})
    play(stage, document(asking), then=_grant)


@scene("pause: what has begun comes to its end; resume")
def pause_drain(stage: Stage) -> None:
    stage.says("a", After(5, call("look")), {"ok": True})

    async def life(runtime: Runtime) -> None:
        asked = stage.start_of("a")
        await start(runtime, document(step("a", functions=["look"]), step("b", depends_on=["a"])))
        await asked.wait()
        await runtime.pause(RUN, reason="lunch", by="ann")
        await rest(runtime)
        await asyncio.sleep(100)
        await runtime.resume(RUN, by="ann")
        assert (await rest(runtime)).state == "completed"

    stage.process(life)


@scene("pause: open model calls are closed and made again")
def pause_suspend(stage: Stage) -> None:
    stage.says("a", HANG, {"ok": True})
    stage.says("b", After(30, {"ok": True}))

    async def life(runtime: Runtime) -> None:
        asked = stage.start_of("a")
        await start(runtime, document(step("a", timeout="20s"), step("b"), step("c", depends_on=["a"])))
        await asked.wait()
        await asyncio.sleep(10)
        await runtime.pause(RUN, in_flight="suspend", by="ann")
        await rest(runtime)
        await asyncio.sleep(100)
        await runtime.resume(RUN, by="ann")
        assert (await rest(runtime)).state == "completed"

    stage.process(life)


def _cancelling(mode: Any, grace: float) -> Any:
    def play_it(stage: Stage) -> None:
        stage.says("a", call("pay"), {"ok": True})
        stage.does("pay", After(3, {"paid": True}))
        stage.says("b", HANG)
        items = step("each", for_each="${{ inputs.items }}", prompt="b", max_parallel=1)

        async def life(runtime: Runtime) -> None:
            paying = stage.start_of("pay()")
            await start(
                runtime,
                document(
                    step("a", functions=["pay"]), items, step("c", depends_on=["a"]), step("d", approval=True)
                ),
                {"items": [1, 2]},
            )
            await paying.wait()
            await runtime.cancel(RUN, "not needed", mode=mode, grace=grace, by="ann")
            assert (await rest(runtime)).state == "cancelled"

        stage.process(life)

    play_it.__name__ = f"cancel_{mode}"
    return play_it


scene("cancel, soft: a function at work comes to its end")(_cancelling("soft", 10.0))
scene("cancel, hard")(_cancelling("hard", 0.0))


@scene("a signal is kept")
def signal(stage: Stage) -> None:
    async def life(runtime: Runtime) -> None:
        await start(runtime, document(step("a", approval=True)))
        await rest(runtime)
        await runtime.signal(RUN, "go", {"n": 1}, signal_id="sig_1")
        await runtime.signal(RUN, "go", {"n": 1}, signal_id="sig_1")
        await _grant(runtime)
        assert (await rest(runtime)).state == "completed"

    stage.process(life)


@scene("an iteration that waits for a person gives its slot away and takes it back")
def approval_in_iterations(stage: Stage) -> None:
    for i in range(4):
        stage.says(f"each {i}", After(3, call("pay", x=i)), After(5, {"slot": i}))
    stage.does("pay", After(1 + EARLIER, {"paid": True}))  # ann, who needs a second too, comes first
    each = step(
        "each",
        for_each="${{ inputs.items }}",
        prompt="each ${{ index }}",
        functions=["pay"],
        approval={"before": "calls"},
        max_parallel=1,
    )

    async def life(runtime: Runtime) -> None:
        await start(runtime, document(each, step("beside"), max_parallel=3), {"items": [1, 2, 3, 4]})
        async for event in runtime.events(RUN):
            if event.type == "approval.requested":
                await asyncio.sleep(1)
                await runtime.decide(RUN, granted=True, request_id=event.data.request_id, by="ann")
        assert (await rest(runtime)).state == "completed"

    stage.process(life)
