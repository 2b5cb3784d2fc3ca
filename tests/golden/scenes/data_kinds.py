"""One scene for each kind of page 003 that makes values, keeps them, or lets tokens through by a window."""

from __future__ import annotations

import asyncio
from typing import Any

from agentflow.definition.ir import (
    CacheReadNode,
    CacheWriteNode,
    DebounceNode,
    Edge,
    ErrorRoute,
    FilterNode,
    MapNode,
    ReduceNode,
    ThrottleNode,
    TransformNode,
    WaitNode,
    Workflow,
)
from agentflow.definition.kinds import targets_of
from tests.golden.scenes.kinds import end_of_run, graph_of, play_graph, tool_call
from tests.golden.scenes.support import rest, start
from tests.golden.stage import Stage, scene


@scene("a reduce of what a map gave, exactly, and one that cannot")
def reduce(stage: Stage) -> None:
    nodes = [
        MapNode(
            id="each", items_path="input.items", tool="desk.add", input={"x": "${{ item }}"}, next="made"
        ),
        TransformNode(id="made", value=[1180591620717411303424, 1], next="sum"),
        ReduceNode(id="sum", source="made", operation="sum", next="all"),
        ReduceNode(id="all", source="each", operation="merge", next="bad"),
        ReduceNode(id="bad", source="each", operation="max", on_error=ErrorRoute(next="none"), next="__end"),
        ReduceNode(id="none", items_path="input.none", operation="count", next="__end"),
    ]
    play_graph(stage, graph_of(*nodes), {"items": [1, 2], "none": []})


@scene("a filter by item and index, and one whose expression fails for an item")
def filter(stage: Stage) -> None:
    nodes = [
        FilterNode(id="some", items_path="input.items", expression="item > 1 && index > 0", next="bad"),
        FilterNode(id="bad", items_path="input.mixed", expression="item > 1", on_error="skip", next="after"),
        tool_call("after", "__end", input={"x": "${{ nodes.some.output[0] }}"}),
    ]
    play_graph(stage, graph_of(*nodes), {"items": [5, 1, 2], "mixed": [1, "x"]})


@scene("a transform to a literal, by an expression, and by templates")
def transform(stage: Stage) -> None:
    nodes = [
        TransformNode(id="literal", expression='{"text": "${{ no }}"}', next="chosen"),
        TransformNode(id="chosen", expression="nodes.literal.output.text", next="made"),
        TransformNode(id="made", value={"x": "${{ input.x }}", "of": "{{ input.x }} of 9"}, next="after"),
        tool_call("after", "__end", input={"x": "${{ nodes.made.output.x }}"}),
    ]
    play_graph(stage, graph_of(*nodes), {"x": 3})


@scene("a value of the run that is read until its time is over, and a null that is a hit")
def cache_read(stage: Stage) -> None:
    nodes = [
        CacheReadNode(id="before", key_path="input.k", next="__end", on_miss="keep"),
        CacheWriteNode(id="keep", key_path="input.k", value_path="input.none", ttl=60.0, next="read"),
        CacheReadNode(id="read", key="{{ input.k }}", next="rest", on_miss="__end"),
        WaitNode(id="rest", duration=60.0, next="late"),
        CacheReadNode(id="late", key_path="input.k", next="__end", on_miss="over"),
        tool_call("over", "__end", input={"x": 1}),
    ]
    play_graph(stage, graph_of(*nodes), {"k": "a", "none": None})


@scene("a value that another run of the definition reads, after the death of the process")
def cache_write(stage: Stage) -> None:
    stage.runs = ["wf_golden", "wf_other"]
    graph = graph_of(
        CacheReadNode(id="read", key_path="input.k", scope="definition", next="__end", on_miss="keep"),
        CacheWriteNode(id="keep", key_path="input.k", value_path="input.v", scope="definition", next="rest"),
        WaitNode(id="rest", duration=60.0, next="__end"),
    )

    async def first(runtime: Any) -> None:
        await start(runtime, graph, {"k": "a", "v": {"n": 1}})
        await rest(runtime)

    async def second(runtime: Any) -> None:
        await runtime.recover()
        await end_of_run(runtime)
        await runtime.submit(graph, {"k": "a", "v": {"n": 2}}, workflow_id="wf_other")
        result = await rest(runtime, "wf_other")
        assert result.output == {"key": "a", "hit": True, "value": {"n": 1}}

    stage.process(first, crash=True)
    stage.process(second)


def _burst(gate: Any, *seconds: float) -> Workflow:
    """Tokens that come to a gate after so many seconds."""
    waits = [WaitNode(id=f"w{i}", duration=s, next="gate") for i, s in enumerate(seconds)]
    calls = [tool_call(name, "__end", input={"x": 1}) for _, name in targets_of(gate)]
    edges = tuple(Edge(source="__start", target=w.id) for w in waits[1:])
    return graph_of(*waits, gate, *calls, edges=edges)


def _killed(stage: Stage, graph: Workflow, at: float) -> None:
    """Run a graph in a process that dies after so many seconds, and to its end in another one."""

    async def first(runtime: Any) -> None:
        await start(runtime, graph, {"k": "a"})
        await asyncio.sleep(at)

    async def second(runtime: Any) -> None:
        await runtime.recover()
        await end_of_run(runtime)

    stage.process(first, crash=True)
    stage.process(second)


@scene("the last token of a burst goes on, over the death of the process")
def debounce(stage: Stage) -> None:
    gate = DebounceNode(
        id="gate", key_path="input.k", window=5.0, mode="trailing", next="on", on_suppressed="off"
    )
    _killed(stage, _burst(gate, 1.0, 3.0, 20.0), at=4.0)


@scene("a burst over two runs of one definition: the second is suppressed")
def debounce_definition(stage: Stage) -> None:
    stage.runs = ["wf_golden", "wf_other"]
    gate = DebounceNode(
        id="gate", key_path="input.k", window=5.0, scope="definition", next="on", on_suppressed="off"
    )
    graph = _burst(gate, 1.0)

    async def life(runtime: Any) -> None:
        await start(runtime, graph, {"k": "a"})
        await end_of_run(runtime)
        await runtime.submit(graph, {"k": "a"}, workflow_id="wf_other")
        await end_of_run(runtime, "wf_other")

    stage.process(life)


@scene("tokens pass one in each window, over the death of the process")
def throttle(stage: Stage) -> None:
    gate = ThrottleNode(id="gate", key_path="input.k", window=5.0, mode="delay", next="on")
    graph = _burst(gate, 1.0, 2.0, 3.0)
    _killed(stage, graph, at=4.0)
