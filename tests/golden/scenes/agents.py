"""Agents: turns, tools, repairs, retries, fallback, outcomes that are not known."""

from __future__ import annotations

import asyncio
from typing import Any

from agentflow import Runtime
from tests.golden.scenes.support import call, document, play, rest, step
from tests.golden.stage import HANG, RUN, After, Stage, failure, scene

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


@scene("an answer is repaired")
def repair(stage: Stage) -> None:
    stage.says("a", "no json", {"n": "three"}, {"n": 3})
    play(stage, document(step("a", schema=SCHEMA)))


@scene("a repair that fails twice, then a fresh context")
def repair_exhausted(stage: Stage) -> None:
    stage.says("a", "x", "y", "z", {"n": 1})
    retry = {"max_attempts": 2, "backoff": "1s", "retry_on": ["invalid_output"]}
    play(stage, document(step("a", schema=SCHEMA, retry=retry)))


@scene("an answer that stays wrong")
def repair_failed(stage: Stage) -> None:
    stage.says("a", "x")
    play(stage, document(step("a", schema=SCHEMA)), ends="failed")


@scene("a model call is repeated in place, with drawn jitter and retry-after")
def model_retry(stage: Stage) -> None:
    stage.says(
        "a",
        failure("transient"),
        call("look", x=1),
        failure("rate_limited", retry_after=7.0),
        {"ok": True},
    )
    play(stage, document(step("a", functions=["look"], retry={"max_attempts": 3, "jitter": 0.5})))


@scene("the fallback model serves")
def fallback_model(stage: Stage) -> None:
    stage.says("m: a", failure("transient"))
    stage.says("other: a", failure("transient"), {"from": "other"})
    agent = step("a", retry={"max_attempts": 2, "backoff": "1s", "jitter": 0})
    agent["agent"]["fallback"] = ["scripted:other"]
    play(stage, document(agent))


@scene("parallel tool calls, one of them wrong, one failing")
def parallel_tool_calls(stage: Stage) -> None:
    stage.does("look", After(3, {"slow": 1}), {"quick": 2})
    stage.does("wire", RuntimeError("no line"))
    calls = [
        call("look", x=1),
        call("look", x=2),
        call("wire"),
        call("missing"),
        call("look", x="text"),
    ]
    stage.says("a", calls, {"ok": True})
    play(stage, document(step("a", functions=["look", "wire"])))


@scene("turns and tool calls are limited")
def agent_limits(stage: Stage) -> None:
    stage.says("turns", call("look"))
    stage.says("calls", [call("look"), call("look"), call("look")])
    turns, calls = step("turns", functions=["look"]), step("calls", functions=["look"])
    turns["agent"]["max_turns"] = 2
    calls["agent"]["max_tool_calls"] = 2
    play(stage, document(turns, calls), ends="failed")


def _unknown(choice: str) -> Any:
    def play_it(stage: Stage) -> None:
        stage.does("pay", HANG, {"paid": True})
        stage.says("a", [call("look"), call("pay")], {"ok": True})

        async def answer(runtime: Runtime) -> None:
            (request,) = await runtime.requests(RUN)
            value: dict[str, Any] = {"choice": choice}
            if choice == "done":
                value["output"] = {"paid": "by hand"}
            await runtime.answer(RUN, request.request_id, value, by="ann")

        play(
            stage,
            document(step("a", functions=["look", "pay"]), step("b", depends_on=["a"])),
            then=answer,
        )

    play_it.__name__ = f"unknown_outcome_{choice}"
    return play_it


for _choice in ("retry", "done", "fail"):
    scene(f"a call whose outcome is not known: {_choice}")(_unknown(_choice))


@scene("a call whose outcome is not known fails by option")
def unknown_outcome_option(stage: Stage) -> None:
    stage.does("pay", HANG)
    stage.says("a", call("pay"), {"ok": True})
    play(stage, document(step("a", functions=["pay"])), options={"on_unknown": "fail"}, ends="failed")


@scene("a cached result serves another run")
def cache_hit(stage: Stage) -> None:
    graph = document(
        step("a", cache={"ttl": "1h"}),
        step("each", for_each="${{ inputs.items }}", input="${{ item }}", cache={"ttl": "1h"}),
    ) | {"models": {"default": "scripted:m"}}
    second = "wf_second"
    stage.runs.append(second)

    async def life(runtime: Runtime) -> None:
        await runtime.submit(graph, {"items": [1, 2]}, workflow_id=RUN)
        await rest(runtime)
        kept: dict[str, Any] = {}
        while len(kept) < 3:
            await asyncio.sleep(0)  # the log in memory never waits, and would let nothing be kept
            kept = await runtime.log.cursors("result/")
        await runtime.submit(graph, {"items": [2, 3]}, workflow_id=second)
        assert (await rest(runtime, second)).state == "completed"

    stage.process(life)


@scene("no fresh context after a call that cannot be repeated")
def unsafe_restart(stage: Stage) -> None:
    retry = {"max_attempts": 3, "backoff": "1s", "retry_on": ["invalid_output"]}
    for name, used in (("safe", "look"), ("unsafe", "pay")):
        stage.says(name, call(used), "x", "y", "z", {"n": 1})
    play(
        stage,
        document(
            step("safe", functions=["look"], schema=SCHEMA, retry=retry),
            step("unsafe", functions=["pay"], schema=SCHEMA, retry=retry, required=False),
        ),
    )
