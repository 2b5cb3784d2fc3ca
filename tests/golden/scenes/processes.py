"""Processes that die or are stopped, and forks."""

from __future__ import annotations

import asyncio
from typing import Any

from agentflow import Runtime
from tests.golden.adapter import fail_agent
from tests.golden.scenes.graphs import loop
from tests.golden.scenes.support import call, document, play, rest, start, step
from tests.golden.stage import HANG, RUN, After, Stage, failure, scene


async def _recover(runtime: Runtime) -> None:
    assert await runtime.recover() == [RUN]
    result = await rest(runtime)
    assert result.state == "completed", result


@scene("a crash in a model call and in a safe tool call")
def interrupted(stage: Stage) -> None:
    stage.says("a", HANG, {"ok": "a"})
    stage.says("b", call("look"), {"ok": "b"})
    stage.does("look", HANG, {"found": 1})
    stage.says("each 1", HANG, {"slot": 1})
    items = step("each", for_each="${{ inputs.items }}", prompt="each ${{ index }}", max_parallel=1)

    async def life(runtime: Runtime) -> None:
        looking = stage.start_of("look()")
        graph = document(
            step("a"), step("b", functions=["look"]), items, step("last", depends_on=["a", "each"])
        )
        await start(runtime, graph, {"items": [1, 2, 3]})
        await looking.wait()
        await asyncio.sleep(1)

    stage.process(life, crash=True)
    stage.elapsed += 100
    stage.process(_recover)


@scene("a crash in a call that may not be repeated")
def interrupted_unsafe(stage: Stage) -> None:
    stage.says("a", call("pay"), {"ok": True})
    stage.does("pay", HANG, {"paid": True})

    async def life(runtime: Runtime) -> None:
        paying = stage.start_of("pay()")
        await start(runtime, document(step("a", functions=["pay"])))
        await paying.wait()

    async def answer(runtime: Runtime) -> None:
        await runtime.recover()
        assert (await rest(runtime)).state == "waiting"
        (request,) = await runtime.requests(RUN)
        await runtime.answer(RUN, request.request_id, {"choice": "retry"}, by="ann")
        assert (await rest(runtime)).state == "completed"

    stage.process(life, crash=True)
    stage.process(answer)


@scene("a crash while a retry is waited for")
def interrupted_retry(stage: Stage) -> None:
    stage.says("a", failure("transient"), {"ok": True})

    async def life(runtime: Runtime) -> None:
        await start(runtime, document(step("a", retry={"backoff": "30s", "max_attempts": 2})))
        await asyncio.sleep(10)

    stage.process(life, crash=True)
    stage.process(_recover)


@scene("a crash in a cycle of tokens")
def interrupted_cycle(stage: Stage) -> None:
    stage.does("look", {"x": 0}, {"x": 1}, HANG, {"x": 2}, {"x": 9})

    async def life(runtime: Runtime) -> None:
        looking = [stage.start_of("look()")]
        await start(runtime, loop(5, tool="desk.look"), {"x": 0})
        for _ in range(3):
            await looking.pop().wait()
            looking.append(stage.start_of("look()"))

    stage.process(life, crash=True)
    stage.process(_recover)


@scene("a stopped process parks its runs, the next one goes on")
def parked(stage: Stage) -> None:
    stage.says("a", HANG, {"ok": True})
    stage.says("b", call("pay"), {"ok": True})
    stage.does("pay", After(2, {"paid": True}))

    async def life(runtime: Runtime) -> None:
        paying = stage.start_of("pay()")
        await start(runtime, document(step("a"), step("b", functions=["pay"]), step("c", depends_on=["a"])))
        await paying.wait()

    stage.process(life)
    stage.process(_recover)


@scene("five processes in a row die at the same step: recovery_limit")
def recovery_limit(stage: Stage) -> None:
    stage.says("a", *[HANG] * 5, {"ok": True})

    async def life(runtime: Runtime) -> None:
        asked = stage.start_of("a")
        if stage.lives:
            await runtime.recover()
        else:
            await start(runtime, document(step("a"), step("b", depends_on=["a"])))
        await asked.wait()
        await asyncio.sleep(1)

    async def last(runtime: Runtime) -> None:
        await runtime.recover()
        result = await rest(runtime)
        assert (result.state, result.pause) == ("paused", "recovery_limit"), result
        await runtime.resume(RUN, by="ann")
        assert (await rest(runtime)).state == "completed"

    for _ in range(5):
        stage.process(life, crash=True)
    stage.process(last)


def _forked(stage: Stage, graph: Any, input: Any = None, *, ends: str = "completed", **fork: Any) -> None:
    second = "wf_fork"
    stage.runs.append(second)

    async def life(runtime: Runtime) -> None:
        await start(runtime, graph, input)
        await rest(runtime)
        await runtime.fork(RUN, as_id=second, by="ann", **fork)
        result = await rest(runtime, second)
        assert result.state == ends, result

    stage.process(life)


@scene("fork from an offset")
def fork_offset(stage: Stage) -> None:
    items = step("each", for_each="${{ inputs.items }}", input="${{ item }}", max_parallel=1)
    _forked(
        stage,
        document(step("a", functions=["look"]), items, step("b", depends_on=["a", "each"])),
        {"items": [1, 2]},
        offset=16,
    )


@scene("fork from the failure")
def fork_failure(stage: Stage) -> None:
    stage.says("b", failure("auth"), {"ok": True})
    graph = document(step("a"), step("b", depends_on=["a"]), step("c", depends_on=["b"]), step("d"))
    _forked(stage, graph, from_failure=True)


@scene("fork before a step")
def fork_step(stage: Stage) -> None:
    stage.says("b", {"n": 1}, {"n": 2})
    graph = document(step("a"), step("b", depends_on=["a"]), step("c", depends_on=["b"]), step("d"))
    _forked(stage, graph, from_step="b")


@scene("fork of a cancelled run: what was cancelled counts as failed")
def fork_cancelled(stage: Stage) -> None:
    stage.says("b", HANG, {"ok": True})
    second = "wf_fork"
    stage.runs.append(second)

    async def life(runtime: Runtime) -> None:
        asked = stage.start_of("b")
        graph = document(step("a"), step("b", depends_on=["a"]), step("c", depends_on=["b"]))
        await start(runtime, graph)
        await asked.wait()
        await runtime.cancel(RUN, mode="hard", by="ann")
        await rest(runtime)
        await runtime.fork(RUN, as_id=second, by="ann")
        assert (await rest(runtime, second)).state in ("completed", "failed")

    stage.process(life)


@scene("on_failure is an option of the submission")
def submitted_halt(stage: Stage) -> None:
    stage.says("bad", failure("auth"))
    play(
        stage,
        document(step("bad"), step("b", depends_on=["c"]), step("c")),
        options={"on_failure": "halt", "max_parallel": 1},
        ends="failed",
    )


@scene("the actor of a step dies six times: recovery_limit")
def worker_lost(stage: Stage) -> None:
    stage.says("a", *[HANG] * 6, {"ok": True})

    async def life(runtime: Runtime) -> None:
        asked = stage.start_of("a")
        await start(runtime, document(step("a"), step("b", depends_on=["a"])))
        for _ in range(6):
            await asked.wait()
            asked = stage.start_of("a")
            fail_agent(runtime, RUN, "a#0@1")
        result = await rest(runtime)
        assert (result.state, result.pause) == ("paused", "recovery_limit"), result
        await runtime.resume(RUN, by="ann")
        assert (await rest(runtime)).state == "completed"

    stage.process(life)


@scene("fork before a step, while another one is at work")
def fork_unfinished(stage: Stage) -> None:
    stage.says("slow", HANG, {"ok": True})
    stage.says("b", {"n": 1}, {"n": 2})
    second = "wf_fork"
    stage.runs.append(second)

    async def life(runtime: Runtime) -> None:
        asked = stage.start_of("c")
        graph = document(step("a"), step("b", depends_on=["a"]), step("c", depends_on=["b"]), step("slow"))
        await start(runtime, graph)
        await asked.wait()
        await runtime.pause(RUN, in_flight="suspend", by="ann")
        await rest(runtime)
        await runtime.fork(RUN, from_step="b", as_id=second, by="ann")
        assert (await rest(runtime, second)).state == "completed"
        await runtime.resume(RUN, by="ann")
        assert (await rest(runtime)).state == "completed"

    stage.process(life)
