"""The events of a result are decoded when somebody looks at them, and are then those of the log."""

from __future__ import annotations

import copy
import pickle
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentflow import (
    EventLog,
    Never,
    RunResult,
    Runtime,
    Service,
    WorkflowBuilder,
    WorkflowContext,
    executor,
    function,
    register_type,
)
from agentflow.events.memory import MemoryLog
from agentflow.events.open import open_log
from agentflow.events.retention import RetentionPolicy
from agentflow.events.sealing import UnsealedBatch
from agentflow.runtime.retention import collect

HOUR_US = 3_600_000_000


@executor(id="first")
async def first(message: dict[str, Any], ctx: WorkflowContext[dict[str, Any]]) -> None:
    await ctx.send_message({**message, "seen": True})


@executor(id="last")
async def last(message: dict[str, Any], ctx: WorkflowContext[Never, dict[str, Any]]) -> None:
    await ctx.yield_output(message)


async def run_chain(log: EventLog) -> tuple[Any, Any, list[Any]]:
    """Return the result of a run, another one of it, and the events that a reader of its log gets after."""
    async with Runtime(log) as runtime:
        builder = WorkflowBuilder("chain").set_start_executor(first).add_chain([first, last])
        workflow = builder.with_checkpointing(runtime).build()
        result = await workflow.run({"list": [1]})
        again = await (await workflow.attach(result.workflow_id)).result()
        result.output["list"].append(2)  # a value of the caller, not of the log
        return result, again, [event async for event in runtime.events(result.workflow_id)]


async def test_a_run_of_which_nobody_reads_the_log_is_not_encoded():
    log = MemoryLog()
    async with Runtime(log) as runtime:
        builder = WorkflowBuilder("chain").set_start_executor(first).add_chain([first, last])
        result = await builder.with_checkpointing(runtime).build().run({})
        batches = [p for p in log.parts(result.workflow_id) if isinstance(p, UnsealedBatch)]
        assert batches
        assert all(batch.unread() is not None for batch in batches)
        assert result.events[-1].type == "workflow.completed"
        assert all(batch.unread() is None for batch in batches)


@pytest.mark.parametrize("store", ["memory:", "sqlite:{}/runs.db"])
async def test_events_are_those_of_the_log(tmp_path: Path, store: str):
    log = open_log(store.format(tmp_path))
    result, again, logged = await run_chain(log)
    assert result.events == tuple(logged)
    assert tuple(logged) == result.events
    assert result.events == again.events
    assert repr(result.events) == repr(tuple(logged))
    assert result.events[1:3] == tuple(logged[1:3])
    assert result.events != tuple(logged[:-1])
    assert again.events[0].data.input == {"list": [1]}
    await log.close()


async def test_a_result_is_pickled_copied_and_encoded():
    result, _, logged = await run_chain(MemoryLog())
    for other in (pickle.loads(pickle.dumps(result)), copy.deepcopy(result)):
        assert other == result
        assert other.events == tuple(logged)
    plain = msgspec.structs.replace(result, events=tuple(result.events))
    assert plain == result
    assert len(msgspec.json.decode(msgspec.json.encode(plain))["events"]) == len(logged)
    encoded = msgspec.json.encode(result, enc_hook=list)
    assert encoded == msgspec.json.encode(plain)
    assert type(msgspec.json.decode(encoded, type=RunResult[Any]).events) is tuple
    assert result.events + result.events == (*logged, *logged)
    assert tuple(logged) + result.events == (*logged, *logged)


async def test_a_result_is_given_out_by_a_function_and_as_a_message():
    inner = WorkflowBuilder("chain").set_start_executor(first).add_chain([first, last]).build()

    @function
    async def ask(message: dict[str, Any]) -> Any:
        return await inner.run(message)

    @executor(id="asks")
    async def asks(message: dict[str, Any], ctx: WorkflowContext[Never, Any]) -> None:
        told = await ctx.call_tool("service.ask", {"message": message})
        await ctx.yield_output([event["type"] for event in told["events"]])
        await ctx.yield_output(await inner.run(message))

    register_type(RunResult)
    async with Runtime(services=[Service.of("service", ask)]) as runtime:
        builder = WorkflowBuilder("outer").set_start_executor(asks).with_checkpointing(runtime)
        types, result = (await builder.build().run({})).outputs
    assert types == [event["type"] for event in result.events]
    assert (types[0], types[-1], result.output) == ("workflow.started", "workflow.completed", {"seen": True})


async def test_threads_may_look_at_once():
    results = [(await run_chain(MemoryLog()))[0:2] for _ in range(8)]
    found: list[tuple[Any, int]] = []
    start = threading.Barrier(4)

    def look() -> None:
        start.wait()
        found.extend((one.workflow_id, len(one.events)) for pair in results for one in pair)

    threads = [threading.Thread(target=look) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4 * 16
    assert {count for _, count in found} == {len(results[0][0].events)}


async def test_the_result_of_a_trimmed_graph_run_is_what_was_kept():
    async with Runtime() as runtime:
        builder = WorkflowBuilder("chain").set_start_executor(first).add_chain([first, last])
        workflow = builder.with_checkpointing(runtime).build()
        before = await workflow.run({})
        policy = RetentionPolicy(mode="size", max_bytes=0, trim_to_events=2)
        await collect(runtime.log, policy, time.time_ns() // 1000 + HOUR_US)
        assert (await runtime.log.run(before.workflow_id)).earliest_offset > 0
        after = await (await workflow.attach(before.workflow_id)).result()
    assert (after.state, after.output, after.events) == ("completed", before.output, ())
