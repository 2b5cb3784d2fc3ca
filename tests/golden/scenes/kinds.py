"""One scene for each kind of page 003 that opens paths, waits, gathers or chooses."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from agentflow.definition.ir import (
    AgentNode,
    AgentSpec,
    BatchNode,
    Edge,
    EndNode,
    ErrorRoute,
    GlobalUpdate,
    LoopNode,
    MapNode,
    MergeNode,
    Options,
    ParallelNode,
    Policy,
    Route,
    RouterNode,
    StartNode,
    SubgraphNode,
    ToolNode,
    WaitNode,
    Workflow,
)
from agentflow.definition.policy import Backoff, RetryPolicy
from tests.golden.scenes.support import MODELS, rest, start
from tests.golden.stage import HANG, After, Stage, scene


async def _end(runtime: Any) -> None:
    result = await rest(runtime)
    for _ in range(100):  # it rests wherever only a timer moves it on
        if result.state != "waiting":
            break
        await asyncio.sleep(1)
        result = await rest(runtime)
    assert result.state == "completed", result


def _play(stage: Stage, graph: Workflow, input: Any) -> None:
    """Run a graph to its end, also where it waits for timers alone."""

    async def life(runtime: Any) -> None:
        await start(runtime, graph, input)
        await _end(runtime)

    stage.process(life)


def _graph(*nodes: Any, ends: tuple[Any, ...] = (), **more: Any) -> Workflow:
    first = StartNode(id="__start", next=nodes[0].id)
    last = ends or (EndNode(id="__end", index=len(nodes), drain=True),)
    return Workflow(name="graph", nodes=(first, *_placed(nodes), *last), models=MODELS, **more)


def _placed(nodes: Any) -> tuple[Any, ...]:
    return tuple(msgspec.structs.replace(node, index=i) for i, node in enumerate(nodes))


def _call(name: str, next: str | None, function: str = "add", **more: Any) -> ToolNode:
    return ToolNode(id=name, tool=f"desk.{function}", next=next, **more)


@scene("a router takes its first true route")
def router(stage: Stage) -> None:
    routes = (Route(when="input.x > 5", next="many"), Route(when="input.x > 1", next="some"))
    nodes = [RouterNode(id="choose", routes=routes, default="few")]
    calls = [_call(name, "__end") for name in ("many", "some", "few")]
    _play(stage, _graph(*nodes, *calls), {"x": 3})


@scene("a loop with a count, which its limit ends")
def loop_limit(stage: Stage) -> None:
    loop = LoopNode(
        id="again",
        condition="nodes.again.count < 9",
        body="work",
        next="__end",
        max_iterations=2,
        on_limit="late",
    )
    _play(stage, _graph(loop, _call("work", "again"), _call("late", "__end")), {"x": 0})


@scene("a wait, and a process that ends meanwhile")
def wait_over_restart(stage: Stage) -> None:
    graph = _graph(WaitNode(id="rest", duration=60.0, next="after"), _call("after", "__end", input={"x": 1}))

    async def first(runtime: Any) -> None:
        await start(runtime, graph, {"x": 0})
        result = await rest(runtime)
        assert result.state == "waiting", result

    async def second(runtime: Any) -> None:
        await runtime.recover()
        await _end(runtime)

    stage.process(first)
    stage.process(second)


@scene("branches of different length, in slots, with values of the run")
def parallel(stage: Stage) -> None:
    add = {"total": GlobalUpdate(op="increment", source="nodes.last.output.x")}
    stage.does("look", After(2, {"x": 5}))
    _play(
        stage,
        _graph(
            ParallelNode(id="fork", branches=("slow", "first", "single"), next="after", max_in_flight=2),
            _call("slow", "after", "look"),
            _call("first", "last"),
            _call("last", "after", update_globals=add),
            _call("single", "after", update_globals={"total": GlobalUpdate(op="increment", by=10)}),
            _call("after", "__end", input={"x": "${{ globals.total }}"}),
            globals={"total": 1},
        ),
        {"x": 0},
    )


@scene("a branch fails: the others are cancelled, and an error edge goes on")
def parallel_failing(stage: Stage) -> None:
    stage.does("look", RuntimeError("broken"))
    stage.does("pay", HANG)
    _play(
        stage,
        _graph(
            ParallelNode(id="fork", branches=("a", "b"), next="after", on_error=ErrorRoute(next="mend")),
            _call("a", "after", "look"),
            _call("b", "b2"),
            WaitNode(id="b2", duration=60.0, next="after"),
            _call("after", "__end"),
            _call("mend", "__end", input={"x": 7}),
        ),
        {"x": 0},
    )


@scene("a merge of the first two of three, and one that its time-out closes")
def merge(stage: Stage) -> None:
    stage.does("look", After(1, {"x": 5}))
    _play(
        stage,
        _graph(
            ParallelNode(id="fork", branches=("a", "b", "c"), next="both"),
            _call("a", "both"),
            _call("b", "both", "look"),
            WaitNode(id="c", duration=60.0, next="both"),
            MergeNode(id="both", sources=("c", "b", "a"), rule="quorum", quorum=2, next="again"),
            ParallelNode(id="again", branches=("d", "e"), next="join"),
            _call("d", "join", input={"x": 1}),
            WaitNode(id="e", duration=60.0, next="join"),
            MergeNode(
                id="join", sources=("d", "e"), rule="all", timeout=5.0, on_timeout="late", next="__end"
            ),
            _call("late", "__end", input={"x": 2}),
        ),
        {"x": 0},
    )


@scene("a map over a tool: retried calls, and one that is left out")
def map_tool(stage: Stage) -> None:
    stage.does("look", {"x": 1}, RuntimeError("busy"), {"x": 2}, RuntimeError("busy"))
    retry = RetryPolicy(max_attempts=2, backoff=Backoff(initial=1.0), jitter=0.0, retry_on=("tool",))
    node = MapNode(
        id="each",
        items_path="input.items",
        tool="desk.look",
        input={"x": "${{ item }}"},
        max_in_flight=1,
        on_item_error="skip",
        policy=Policy(retry=retry),
        next="__end",
    )
    _play(stage, _graph(node), {"items": [1, 2, 3]})


@scene("a map over a body with an agent, whose process dies between items")
def map_body(stage: Stage) -> None:
    stage.says("work on 2", After(5, {"n": 2}))
    spec = AgentSpec(name="worker", system_prompt="work on ${{ item }}", plain_result="object")
    graph = _graph(
        MapNode(id="each", items_path="input.items", body="work", max_in_flight=1, next="__end"),
        AgentNode(id="work", agent=spec, next="keep"),
        _call("keep", None, input={"x": "${{ index }}"}),
    )

    async def first(runtime: Any) -> None:
        begun = stage.start_of("work on 2")
        await start(runtime, graph, {"items": [1, 2, 3]})
        await begun.wait()

    async def second(runtime: Any) -> None:
        await runtime.recover()
        await _end(runtime)

    stage.process(first, crash=True)
    stage.process(second)


@scene("tokens gathered by size, by time, and when no more can come")
def batch_window(stage: Stage) -> None:
    waits = [WaitNode(id=f"w{i}", duration=float(s), next="gather") for i, s in enumerate((1, 2, 3, 30, 31))]
    graph = _graph(
        *waits,
        BatchNode(id="gather", size=2, max_wait=5.0, next="part"),
        BatchNode(id="part", items_path="nodes.gather.output", size=1, next="__end"),
        edges=tuple(Edge(source="__start", target=w.id) for w in waits[1:]),
    )
    _play(stage, graph, {"x": 0})


@scene("a graph inside a graph, whose end stops what is left of it")
def subgraph(stage: Stage) -> None:
    inner = _graph(
        _call("a", "done"),
        WaitNode(id="long", duration=60.0, next="done"),
        edges=(Edge(source="__start", target="long"),),
        ends=(EndNode(id="done", output={"got": "${{ nodes.a.output.x }}"}),),
    )
    inner = msgspec.structs.replace(inner, models={})
    _play(
        stage,
        _graph(
            SubgraphNode(id="sub", inline=inner, input={"x": "${{ input.x }}"}, next="after"),
            _call("after", "__end", input={"x": "${{ nodes.sub.output.output.got }}"}),
        ),
        {"x": 1},
    )


@scene("a start and an end of their own; the end cancels what is live")
def own_ends(stage: Stage) -> None:
    nodes = (
        StartNode(id="begin", next="work"),
        *_placed([_call("work", "done"), WaitNode(id="long", duration=60.0, next="done")]),
        EndNode(id="done", index=2, output={"x": "${{ nodes.work.output.x }}"}),
    )
    edges = (Edge(source="begin", target="long"),)
    _play(stage, Workflow(name="graph", nodes=nodes, edges=edges, options=Options(max_parallel=2)), {"x": 0})
