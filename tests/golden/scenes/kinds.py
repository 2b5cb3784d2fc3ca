"""One scene for each kind of page 003 that opens paths, waits, gathers or chooses."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec

from agentflow.definition.ir import (
    AgentNode,
    AgentSpec,
    Approval,
    BatchNode,
    Edge,
    EndNode,
    ErrorRoute,
    EventTriggerNode,
    GlobalUpdate,
    HumanNode,
    LlmNode,
    LoopNode,
    MapNode,
    MergeNode,
    Options,
    ParallelNode,
    Policy,
    RetryCompensateNode,
    Route,
    RouterNode,
    StartNode,
    SubgraphNode,
    ToolNode,
    TransformNode,
    WaitNode,
    Workflow,
    canonical_json,
)
from agentflow.definition.policy import Backoff, RetryPolicy
from agentflow.testing import scripted
from tests.golden.scenes.support import MODELS, rest, start
from tests.golden.stage import HANG, RUN, After, Stage, scene


async def end_of_run(runtime: Any, run: str = RUN) -> None:
    """Wait for the end of a run, also where it rests for timers alone."""
    result = await rest(runtime, run)
    for _ in range(100):  # it rests wherever only a timer moves it on
        if result.state != "waiting":
            break
        await asyncio.sleep(1)
        result = await rest(runtime, run)
    assert result.state == "completed", result


def play_graph(stage: Stage, graph: Workflow, input: Any) -> None:
    """Run a graph to its end, also where it waits for timers alone."""

    async def life(runtime: Any) -> None:
        await start(runtime, graph, input)
        await end_of_run(runtime)

    stage.process(life)


def graph_of(*nodes: Any, ends: tuple[Any, ...] = (), **more: Any) -> Workflow:
    """Return a graph of these nodes, which begins at the first of them."""
    first = StartNode(id="__start", next=nodes[0].id)
    last = ends or (EndNode(id="__end", index=len(nodes), drain=True),)
    return Workflow(name="graph", nodes=(first, *_placed(nodes), *last), models=MODELS, **more)


def _placed(nodes: Any) -> tuple[Any, ...]:
    return tuple(msgspec.structs.replace(node, index=i) for i, node in enumerate(nodes))


def tool_call(name: str, next: str | None, function: str = "add", **more: Any) -> ToolNode:
    """Return a call of a function of the service `desk`."""
    return ToolNode(id=name, tool=f"desk.{function}", next=next, **more)


@scene("a router takes its first true route")
def router(stage: Stage) -> None:
    routes = (Route(when="input.x > 5", next="many"), Route(when="input.x > 1", next="some"))
    nodes = [RouterNode(id="choose", routes=routes, default="few")]
    calls = [tool_call(name, "__end") for name in ("many", "some", "few")]
    play_graph(stage, graph_of(*nodes, *calls), {"x": 3})


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
    play_graph(stage, graph_of(loop, tool_call("work", "again"), tool_call("late", "__end")), {"x": 0})


@scene("a wait, and a process that ends meanwhile")
def wait_over_restart(stage: Stage) -> None:
    graph = graph_of(
        WaitNode(id="rest", duration=60.0, next="after"), tool_call("after", "__end", input={"x": 1})
    )

    async def first(runtime: Any) -> None:
        await start(runtime, graph, {"x": 0})
        result = await rest(runtime)
        assert result.state == "waiting", result

    async def second(runtime: Any) -> None:
        await runtime.recover()
        await end_of_run(runtime)

    stage.process(first)
    stage.process(second)


@scene("branches of different length, in slots, with values of the run")
def parallel(stage: Stage) -> None:
    add = {"total": GlobalUpdate(op="increment", source="nodes.last.output.x")}
    stage.does("look", After(2, {"x": 5}))
    play_graph(
        stage,
        graph_of(
            ParallelNode(id="fork", branches=("slow", "first", "single"), next="after", max_in_flight=2),
            tool_call("slow", "after", "look"),
            tool_call("first", "last"),
            tool_call("last", "after", update_globals=add),
            tool_call("single", "after", update_globals={"total": GlobalUpdate(op="increment", by=10)}),
            tool_call("after", "__end", input={"x": "${{ globals.total }}"}),
            globals={"total": 1},
        ),
        {"x": 0},
    )


@scene("a branch fails: the others are cancelled, and an error edge goes on")
def parallel_failing(stage: Stage) -> None:
    stage.does("look", RuntimeError("broken"))
    stage.does("pay", HANG)
    play_graph(
        stage,
        graph_of(
            ParallelNode(id="fork", branches=("a", "b"), next="after", on_error=ErrorRoute(next="mend")),
            tool_call("a", "after", "look"),
            tool_call("b", "b2"),
            WaitNode(id="b2", duration=60.0, next="after"),
            tool_call("after", "__end"),
            tool_call("mend", "__end", input={"x": 7}),
        ),
        {"x": 0},
    )


@scene("a merge of the first two of three, and one that its time-out closes")
def merge(stage: Stage) -> None:
    stage.does("look", After(1, {"x": 5}))
    play_graph(
        stage,
        graph_of(
            ParallelNode(id="fork", branches=("a", "b", "c"), next="both"),
            tool_call("a", "both"),
            tool_call("b", "both", "look"),
            WaitNode(id="c", duration=60.0, next="both"),
            MergeNode(id="both", sources=("c", "b", "a"), rule="quorum", quorum=2, next="again"),
            ParallelNode(id="again", branches=("d", "e"), next="join"),
            tool_call("d", "join", input={"x": 1}),
            WaitNode(id="e", duration=60.0, next="join"),
            MergeNode(
                id="join", sources=("d", "e"), rule="all", timeout=5.0, on_timeout="late", next="__end"
            ),
            tool_call("late", "__end", input={"x": 2}),
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
    play_graph(stage, graph_of(node), {"items": [1, 2, 3]})


@scene("a map over a body with an agent, whose process dies between items")
def map_body(stage: Stage) -> None:
    stage.says("work on 2", After(5, {"n": 2}))
    spec = AgentSpec(name="worker", system_prompt="work on ${{ item }}", plain_result="object")
    graph = graph_of(
        MapNode(id="each", items_path="input.items", body="work", max_in_flight=1, next="__end"),
        AgentNode(id="work", agent=spec, next="keep"),
        tool_call("keep", None, input={"x": "${{ index }}"}),
    )

    async def first(runtime: Any) -> None:
        begun = stage.start_of("work on 2")
        await start(runtime, graph, {"items": [1, 2, 3]})
        await begun.wait()

    async def second(runtime: Any) -> None:
        await runtime.recover()
        await end_of_run(runtime)

    stage.process(first, crash=True)
    stage.process(second)


@scene("tokens gathered by size, by time, and when no more can come")
def batch_window(stage: Stage) -> None:
    waits = [WaitNode(id=f"w{i}", duration=float(s), next="gather") for i, s in enumerate((1, 2, 3, 30, 31))]
    graph = graph_of(
        *waits,
        BatchNode(id="gather", size=2, max_wait=5.0, next="part"),
        BatchNode(id="part", items_path="nodes.gather.output", size=1, next="__end"),
        edges=tuple(Edge(source="__start", target=w.id) for w in waits[1:]),
    )
    play_graph(stage, graph, {"x": 0})


@scene("a graph inside a graph, whose end stops what is left of it")
def subgraph(stage: Stage) -> None:
    inner = graph_of(
        tool_call("a", "done"),
        WaitNode(id="long", duration=60.0, next="done"),
        edges=(Edge(source="__start", target="long"),),
        ends=(EndNode(id="done", output={"got": "${{ nodes.a.output.x }}"}),),
    )
    inner = msgspec.structs.replace(inner, models={})
    play_graph(
        stage,
        graph_of(
            SubgraphNode(id="sub", inline=inner, input={"x": "${{ input.x }}"}, next="after"),
            tool_call("after", "__end", input={"x": "${{ nodes.sub.output.output.got }}"}),
        ),
        {"x": 1},
    )


@scene(
    "a graph that is a value of the run: in its log, bound before it starts, another one at the next visit"
)
def graph_at_path(stage: Stage) -> None:
    stage.says("S", "a text")
    first = graph_of(
        tool_call("a", "done"),
        ends=(EndNode(id="done", output={"got": "${{ nodes.a.output.x }}"}),),
    )
    second = graph_of(
        LlmNode(id="a", model="scripted:m", system="S", prompt="p", next="done"),
        ends=(EndNode(id="done", output={"got": 7}),),
    )
    plans = [json.loads(canonical_json(msgspec.structs.replace(g, models={}))) for g in (first, second)]
    play_graph(
        stage,
        graph_of(
            LoopNode(id="again", condition="nodes.again.count < 2", body="choose", next="after"),
            TransformNode(id="choose", expression="input.plans[nodes.sub.visits]", next="sub"),
            SubgraphNode(
                id="sub", graph_path="nodes.choose.output", input={"x": "${{ input.x }}"}, next="again"
            ),
            tool_call("after", "__end", input={"x": "${{ nodes.sub.output.output.got }}"}),
        ),
        {"x": 1, "plans": plans},
    )


@scene("a start and an end of their own; the end cancels what is live")
def own_ends(stage: Stage) -> None:
    nodes = (
        StartNode(id="begin", next="work"),
        *_placed([tool_call("work", "done"), WaitNode(id="long", duration=60.0, next="done")]),
        EndNode(id="done", index=2, output={"x": "${{ nodes.work.output.x }}"}),
    )
    edges = (Edge(source="begin", target="long"),)
    play_graph(
        stage, Workflow(name="graph", nodes=nodes, edges=edges, options=Options(max_parallel=2)), {"x": 0}
    )


async def _end(runtime: Any) -> None:
    result = await rest(runtime)
    for _ in range(100):  # it rests wherever only a timer moves it on
        if result.state != "waiting":
            break
        await asyncio.sleep(1)
        result = await rest(runtime)
    assert result.state == "completed", result


@scene("a child run that asks a person, answered through its parent")
def child_run(stage: Stage) -> None:
    inner = graph_of(tool_call("pay", "__end", "pay", approval=Approval(before="step")))
    sub = SubgraphNode(id="sub", graph="inner", input={"x": 1}, next="after")

    async def life(runtime: Any) -> None:
        graph = graph_of(sub, tool_call("after", "__end", input={"x": 2}), graphs={"inner": inner})
        await start(runtime, graph, {"x": 0})
        await rest(runtime)
        (asked,) = await runtime.requests(RUN)
        await runtime.decide(RUN, granted=True, request_id=asked.request_id, by="ada")
        await _end(runtime)
        stage.runs += (await runtime.record(RUN)).children

    stage.process(life)


@scene("a child run that asks for a text, answered through its parent")
def child_run_asking(stage: Stage) -> None:
    inner = graph_of(HumanNode(id="say", input_type="text", prompt="Well?", next="__end"))
    sub = SubgraphNode(id="sub", graph="inner", input={"x": 1}, next="after")

    async def life(runtime: Any) -> None:
        graph = graph_of(sub, tool_call("after", "__end", input={"x": 2}), graphs={"inner": inner})
        await start(runtime, graph, {"x": 0})
        await rest(runtime)
        (asked,) = await runtime.requests(RUN)
        await runtime.answer(RUN, asked.request_id, "well", by="ada")
        await _end(runtime)

    stage.process(life)


@scene("a person approves, and another one fills in a form")
def human_in_the_loop(stage: Stage) -> None:
    schema = {"type": "object", "properties": {"x": {"type": "integer"}}}
    nodes = [
        HumanNode(id="may", prompt="Take {{ input.x }}?", on_approve="form", on_reject="__end", timeout=60.0),
        HumanNode(
            id="form",
            input_type="form",
            form_schema=schema,
            form_prefill={"x": "{{ input.x }}"},
            next="after",
        ),
        tool_call("after", "__end", input={"x": "${{ nodes.form.output.x }}"}),
    ]

    async def life(runtime: Any) -> None:
        await start(runtime, graph_of(*nodes), {"x": 1})
        await rest(runtime)
        (asked,) = await runtime.requests(RUN)
        await runtime.decide(RUN, granted=True, request_id=asked.request_id, by="ada", response="go")
        await rest(runtime)
        (asked,) = await runtime.requests(RUN)
        await runtime.answer(RUN, asked.request_id, {"x": 5}, by="ada")
        await _end(runtime)

    stage.process(life)


@scene("an early signal, one that does not match, and one that wakes the run after a restart")
def event_trigger(stage: Stage) -> None:
    nodes = [
        WaitNode(id="rest", duration=1.0, next="early"),
        EventTriggerNode(id="early", event="paid", next="late"),
        EventTriggerNode(id="late", event="paid", match="signal.data.x > 5", timeout=600.0, next="after"),
        tool_call("after", "__end", input={"x": "${{ nodes.late.output.data.x }}"}),
    ]

    async def first(runtime: Any) -> None:
        await start(runtime, graph_of(*nodes), {"x": 1})
        await rest(runtime)
        await runtime.signal(RUN, "paid", {"x": 1}, signal_id="sig_1")
        await asyncio.sleep(2)
        await rest(runtime)

    async def second(runtime: Any) -> None:
        await runtime.signal(RUN, "paid", {"x": 2}, signal_id="sig_2")
        await runtime.signal(RUN, "paid", {"x": 9}, signal_id="sig_3")
        await _end(runtime)

    stage.process(first)
    stage.process(second)


@scene("a model call with a function, a repair and a healed answer")
def llm(stage: Stage) -> None:
    schema = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
    stage.says("S", scripted.call("desk__look", x=1), "nothing", "{x: '4',}")
    node = LlmNode(
        id="ask",
        model="scripted:m",
        system="S",
        prompt="Look at {{ input.x }}",
        output_schema=schema,
        tools=("desk.look",),
        heal=True,
        next="after",
    )
    play_graph(stage, graph_of(node, tool_call("after", "__end", input="${{ nodes.ask.output }}")), {"x": 0})


@scene("a function that fails twice and is made up for")
def retry_compensate(stage: Stage) -> None:
    stage.does("look", RuntimeError("broken"))
    node = RetryCompensateNode(
        id="try",
        tool="desk.look",
        max_retries=1,
        compensate_tool="desk.wire",
        input={"x": 1},
        next="__end",
        on_compensated="after",
    )
    play_graph(stage, graph_of(node, tool_call("after", "__end", input={"x": 3})), {"x": 0})
