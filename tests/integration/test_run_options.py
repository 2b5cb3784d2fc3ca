"""Options of a run that change its graph (page 003 §2, §6, §12), with a real Runtime."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from agentflow import (
    RetryPolicy,
    Runtime,
    Service,
    WorkflowBuilder,
    WorkflowContext,
    executor,
    function,
)
from agentflow.errors import ConfigurationError, DefinitionError, InvalidOptions
from agentflow.events.memory import MemoryLog
from agentflow.executors import Never
from agentflow.telemetry import conventions as c
from agentflow.telemetry.projection import project
from agentflow.telemetry.sampling import is_in_sample
from agentflow.telemetry.span import Limits
from agentflow.testing import ScriptedModel
from agentflow.tools import ToolError
from tests.integration.support.runs import log_of
from tests.integration.virtual import LoopClock

SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}


def llm(id: str = "a", **fields: Any) -> dict[str, Any]:
    return {"id": id, "node_type": {"llm_call": {"model": "scripted:named", "prompt": "p", **fields}}}


def document(*nodes: dict[str, Any], **more: Any) -> dict[str, Any]:
    ids = [node["id"] for node in nodes]
    edges = [{"from": a, "to": b} for a, b in itertools.pairwise(ids)]
    return {"id": "w", "entry_node": ids[0], "nodes": list(nodes), "edges": edges, **more}


async def test_the_model_of_the_run_is_that_of_every_node():
    model = ScriptedModel(lambda request: request.model)
    agent = {"id": "b", "node_type": {"agent": {"agent": {"system_prompt": "s", "model": "scripted:own"}}}}
    inner = {"name": "inner", "version": "v0", "nodes": [
        {"id": "s", "type": "start", "next": "c"},
        {"id": "c", "type": "llm", "model": "scripted:inner", "prompt": "p", "next": "e"},
        {"id": "e", "type": "end"},
    ]}  # fmt: skip
    child = {"id": "c", "node_type": {"subgraph": {"inline": inner, "isolation": "run"}}}
    async with Runtime(models=[model]) as runtime:
        await runtime.run(document(llm(), agent, child), {}, options={"model": "scripted:chosen"})
    assert [request.model for request in model.requests] == ["chosen"] * 3


async def test_a_model_that_does_not_exist_is_refused():
    async with Runtime(models=[ScriptedModel(["x"])]) as runtime:
        with pytest.raises(DefinitionError, match="E_UNKNOWN_MODEL"):
            await runtime.submit(document(llm()), {}, options={"model": "nobody:chosen"})


@pytest.mark.parametrize("healing", [True, False])
async def test_healing_is_an_option_of_the_run(healing: bool):
    answers = ["{'x': 1,}"] * 3
    async with Runtime(models=[ScriptedModel(answers)]) as runtime:
        definition = document(llm(output_schema=SCHEMA))
        result = await runtime.run(definition, {}, options={"healing": healing}, raise_on_failure=False)
        types = [event.type for event in await log_of(runtime, result.workflow_id)]
    assert (result.state, "node.healed" in types) == (("completed", True) if healing else ("failed", False))


@pytest.mark.parametrize(
    ("options", "stream", "shown"),
    [
        ({}, True, True),
        ({}, False, False),
        ({"node_llm_streaming": False}, True, False),
        ({"workflow_streaming": True}, False, True),
    ],
)
async def test_options_say_what_streams(options: dict[str, Any], stream: bool, shown: bool):
    model = ScriptedModel(["hello"])
    async with Runtime(models=[model]) as runtime:
        handle = await runtime.submit(document(llm(stream=stream)), {}, options=options)
        await handle.result()
        events = await log_of(runtime, handle.workflow_id)
    assert [e.data.stream for e in events if e.type == "node.llm_input_resolved"] == [shown]


@pytest.mark.parametrize(
    ("own", "option", "tries"),
    [
        (None, {"retry": {"max_retries": 2}}, 3),
        ({"max_attempts": 2, "jitter": 0}, {"retry": {"max_attempts": 3}}, 2),
        ({"backoff": {"type": "fixed", "initial": "1ms"}}, {"retry": {"max_attempts": 2}}, 2),
        (None, {"retry": False}, 1),
    ],
    ids=["of the run", "of the node", "merged by key", "none"],
)
async def test_the_policy_of_the_run_is_below_that_of_a_node(own: Any, option: dict[str, Any], tries: int):
    called: list[int] = []

    @function(side_effect="none")
    def fail() -> None:
        called.append(1)
        raise ValueError("no")

    node: dict[str, Any] = {"id": "a", "node_type": {"tool": {"tool": "desk.fail", "input": {}}}}
    if own is not None:
        node["retry"] = own
    if isinstance(option["retry"], dict):
        option = {"retry": {**option["retry"], "backoff": "1ms"}}
    async with Runtime(services=[Service.of("desk", fail)]) as runtime:
        await runtime.run(document(node), {}, options={"tool_node_policy": option}, raise_on_failure=False)
    assert len(called) == tries


async def test_a_limit_of_the_run_stands_in_for_that_of_the_graph():
    nodes = [{"id": f"n{i}", "node_type": {"transform": {"value": i}}} for i in range(4)]
    async with Runtime() as runtime:
        result = await runtime.run(
            document(*nodes), {}, options={"max_map_items": 1, "max_steps": 2}, raise_on_failure=False
        )
        assert (await runtime.graph(result.workflow_id)).options.max_map_items == 1
    assert result.state == "completed"  # a graph may always visit each node once


WRONG = {
    "unknown": ({"modell": "m"}, "E_UNKNOWN_KEY", "/options/modell"),
    "type": ({"healing": "yes"}, "E_TYPE", "/options/healing"),
    "inner key": ({"telemetry": {"sample": 1}}, "E_UNKNOWN_KEY", "/options/telemetry/sample"),
    "range": ({"telemetry": {"sample_rate": 2}}, "E_VALUE", "/options/telemetry/sample_rate"),
    "word": ({"telemetry": {"payload_mode": "all"}}, "E_VALUE", "/options/telemetry/payload_mode"),
    "tools": ({"telemetry": {"tool_trace_mode": "some"}}, "E_VALUE", "/options/telemetry/tool_trace_mode"),
    "limit": ({"max_steps": 0}, "E_VALUE", "/options/max_steps"),
    "policy": ({"llm_node_policy": {"retries": 1}}, "E_UNKNOWN_KEY", "/options/llm_node_policy/retries"),
    "budget": (
        {"llm_node_policy": {"budget": {"max_tokens": 1}}},
        "E_UNKNOWN_KEY",
        "/options/llm_node_policy/budget",
    ),
    "replay": ({"replay_mode": "yes"}, "E_VALUE", "/options/replay_mode"),
    "both": (
        {"workflow_streaming": True, "node_llm_streaming": False},
        "E_CONFLICTING_FIELDS",
        "/options/workflow_streaming",
    ),
    "old": ({"on_failure": "explode"}, "E_VALUE", "/options/on_failure"),
}


@pytest.mark.parametrize("name", list(WRONG))
async def test_a_wrong_option_is_a_diagnostic_with_its_place(name: str):
    options, code, path = WRONG[name]
    async with Runtime() as runtime:
        with pytest.raises(InvalidOptions) as refused:
            await runtime.submit(document(llm()), {}, options=options)
        assert not (await runtime.log.runs()).items
    assert [(found.code, found.path) for found in refused.value.diagnostics] == [(code, path)]
    assert isinstance(refused.value, ConfigurationError)


async def test_all_wrong_options_are_reported_at_once():
    async with Runtime() as runtime:
        with pytest.raises(InvalidOptions) as refused:
            await runtime.submit(document(llm()), {}, options={"a": 1, "healing": 2, "on_unknown": 3})
    assert len(refused.value.diagnostics) == 3


async def test_options_that_are_too_many_are_refused_in_one_sentence():
    """90,000 unknown options held the event loop of the daemon for 3.2 s."""
    async with Runtime() as runtime:
        with pytest.raises(InvalidOptions, match="more than 2,000 values or 64 Ki characters") as refused:
            await runtime.submit(document(llm()), {}, options={f"o{n}": 1 for n in range(90_000)})
    assert [(found.code, found.path) for found in refused.value.diagnostics] == [("E_LIMIT", "/options")]


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ({f"l{n}": "v" for n in range(65)}, "at most 64 labels, not 65"),
        ({"n" * 257: "v"}, "is too long: a name has at most 256 characters"),
        ({"n": "v" * 4_097}, "is too long: a name has at most 256 characters, a value 4,096"),
    ],
    ids=["too many", "a long name", "a long value"],
)
async def test_labels_have_limits(labels: dict[str, str], message: str):
    """A run with 90,000 labels was accepted, and every list of runs read all of them."""
    async with Runtime() as runtime:
        with pytest.raises(ConfigurationError, match=message):
            await runtime.submit(document(llm()), {}, labels=labels)
        assert not (await runtime.log.runs()).items


async def test_a_repeated_submission_with_other_options_is_another_one():
    async with Runtime(models=[ScriptedModel(lambda request: "x")]) as runtime:
        first = await runtime.submit(document(llm()), {}, workflow_id="wf_a", options={"healing": True})
        again = await runtime.submit(document(llm()), {}, workflow_id="wf_a", options={"healing": True})
        assert (first.created, again.created) == (True, False)
        with pytest.raises(Exception, match="other labels or options"):
            await runtime.submit(document(llm()), {}, workflow_id="wf_a")


# -- telemetry -------------------------------------------------------------------------------------


async def exported(telemetry: dict[str, Any] | None, *, capture: bool = True) -> tuple[list[Any], bool]:
    """Return the spans of a run, and whether they are to be exported."""

    @function(side_effect="none")
    def find(x: int) -> int:
        return x

    nodes = [{"id": "a", "node_type": {"tool": {"tool": "desk.find", "input": {"x": 7}}}}, llm("b")]
    options = {} if telemetry is None else {"telemetry": telemetry}
    async with Runtime(models=[ScriptedModel(["x"])], services=[Service.of("desk", find)]) as runtime:
        result = await runtime.run(document(*nodes), {}, options=options)
        rows = await runtime.log.read(result.workflow_id, 0, 1_000)
    spans, fold = project(result.workflow_id, rows, Limits(8_192, 128, 128), capture=capture)
    return spans, fold.is_wanted


def captured(spans: list[Any]) -> tuple[bool, bool, bool]:
    """Return whether there are spans of functions, whether they have values, and whether others have."""
    tools = [s for s in spans if s.attributes.get(c.OPERATION) == c.EXECUTE_TOOL]
    values = any(c.TOOL_ARGUMENTS in s.attributes or c.TOOL_RESULT in s.attributes for s in tools)
    return bool(tools), values, any(c.INPUT_MESSAGES in s.attributes for s in spans)


@pytest.mark.parametrize(
    ("telemetry", "found"),
    [
        (None, (True, True, True)),
        ({"payload_mode": "full_payload"}, (True, True, True)),
        ({"payload_mode": "redacted_payload"}, (True, False, False)),
        ({"tool_trace_mode": "redacted"}, (True, False, True)),
        ({"tool_trace_mode": "off"}, (False, False, True)),
    ],
)
async def test_a_run_says_what_its_spans_hold(telemetry: Any, found: tuple[bool, bool, bool]):
    spans, wanted = await exported(telemetry)
    assert (captured(spans), wanted) == (found, True)


async def test_a_run_records_no_more_than_its_process():
    spans, _ = await exported({"payload_mode": "full_payload", "tool_trace_mode": "full"}, capture=False)
    assert captured(spans) == (True, False, False)


@pytest.mark.parametrize(
    ("telemetry", "wanted"),
    [({"enabled": False}, False), ({"sample_rate": 0}, False), ({"sample_rate": 1}, True)],
)
async def test_a_run_says_whether_its_spans_are_exported(telemetry: dict[str, Any], wanted: bool):
    assert (await exported(telemetry))[1] is wanted


def test_a_sample_is_drawn_by_the_trace_id():
    ids = [f"{i:032x}" for i in range(1_000)]
    drawn = [i for i in ids if is_in_sample(i, 0.3)]
    assert 250 < len(drawn) < 350
    assert drawn == [i for i in ids if is_in_sample(i, 0.3)]
    assert set(drawn) <= {i for i in ids if is_in_sample(i, 0.6)}


def flaky(begun: list[int], **own: Any) -> Any:
    @executor(id="flaky", **own)
    async def fails_twice(value: int, ctx: WorkflowContext[Never, int]) -> None:
        begun.append(ctx.attempt)
        if ctx.attempt < 3:
            raise ConnectionError("away")
        await ctx.yield_output(value)

    return WorkflowBuilder("w").set_start_executor(fails_twice).build()


_NO_WAIT = {"backoff": "1ms", "jitter": 0}


@pytest.mark.parametrize(
    ("own", "option", "attempts"),
    [
        ({}, {"max_attempts": 3, **_NO_WAIT}, [1, 2, 3]),
        ({}, False, [1]),
        ({"retry": RetryPolicy(max_attempts=2, backoff="1ms")}, {"max_attempts": 3}, [1, 2]),
        ({"retry": RetryPolicy(max_attempts=3, backoff="1ms")}, False, [1, 2, 3]),
    ],
    ids=["inherited", "off", "its own", "its own, off for others"],
)
async def test_the_retry_of_the_run_is_below_that_of_a_node(own: Any, option: Any, attempts: list[int]):
    begun: list[int] = []
    async with Runtime() as runtime:
        result = await runtime.run(flaky(begun, **own), 5, options={"retry": option}, raise_on_failure=False)
    assert (begun, result.state) == (attempts, "completed" if 3 in attempts else "failed")


async def test_the_retry_of_the_run_counts_for_calls_of_functions_and_survives_a_restart():
    tried: list[int] = []

    @function(side_effect="none")
    async def add(x: int) -> int:
        tried.append(x)
        if len(tried) < 3:
            raise ToolError.of("transient", "away", "away", executed=False)
        return x

    log, begun = MemoryLog(), list[int]()
    call = {"id": "a", "node_type": {"tool": {"tool": "desk.add", "input": {"x": 1}}}}
    async with Runtime(services=[Service.of("desk", add)]) as runtime:
        retry = {"max_attempts": 3, **_NO_WAIT}
        await runtime.run(document(call), {}, options={"retry": retry})
    assert len(tried) == 3
    graph = flaky(begun)
    async with Runtime(log, clock=LoopClock()) as runtime:
        retry = {"max_attempts": 3, "backoff": "10s", "max_elapsed": "10h"}
        run = await runtime.submit(graph, 5, options={"retry": retry})
        async for event in run.events():
            if event.type == "workflow.step_retrying":
                break
    clock = LoopClock()
    clock.step = 3_600_000_000
    async with Runtime(log, clock=clock) as runtime:
        runtime.register(flaky(begun))
        await runtime.recover()
        async for event in runtime.events(run.workflow_id):
            if event.type == "workflow.step_retrying" and event.data.next_attempt == 3:
                break
    assert begun == [1, 2]


@pytest.mark.parametrize("deadline", [0.05, "50ms"])
async def test_the_deadline_of_the_run_fails_it(deadline: Any):
    @executor(id="hangs")
    async def hangs(value: int, ctx: WorkflowContext) -> None:
        await asyncio.Event().wait()

    graph = WorkflowBuilder("w").set_start_executor(hangs).build()
    async with Runtime() as runtime:
        result = await runtime.run(graph, 1, options={"deadline": deadline}, raise_on_failure=False)
        again = await runtime.run(
            graph, 1, options={"deadline": "1h"}, budget={"max_duration_s": 0.05}, raise_on_failure=False
        )
    assert result.error is not None
    assert again.error is not None
    assert result.error.code == again.error.code == "run_deadline"


@pytest.mark.parametrize(
    ("option", "path"),
    [
        ({"deadline": "soon"}, "/options/deadline"),
        ({"deadline": -1}, "/options/deadline"),
        ({"retry": 3}, "/options/retry"),
        ({"retry": {"max_attempts": 0}}, "/options/retry/max_attempts"),
        ({"retry": {"attempts": 3}}, "/options/retry/attempts"),
        ({"retry": {"retry_on": ["nonsense!"]}}, "/options/retry/retry_on/0"),
    ],
)
async def test_a_wrong_retry_or_deadline_is_refused_with_its_place(option: Any, path: str):
    async with Runtime() as runtime:
        with pytest.raises(InvalidOptions) as refused:
            await runtime.submit(flaky([]), 5, options=option)
    assert [found.path for found in refused.value.diagnostics] == [path]
