"""The graphs of the suite: each of `n` steps of one shape, with its input and expected output."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal, NamedTuple

from agentflow import Executor, Never, WorkflowBuilder, WorkflowContext, executor, function
from agentflow.definition.ir import (
    AgentNode,
    AgentSpec,
    EndNode,
    FunctionRef,
    ModelRef,
    Options,
    StartNode,
    ToolNode,
    Workflow,
)

__all__ = [
    "FUNCTIONS",
    "SHAPES",
    "Work",
    "agents",
    "chain",
    "executors",
    "fan_out",
    "for_each",
    "independent",
    "tokens",
    "turns",
]

MODEL = ModelRef(provider="scripted", model="m")


class Work(NamedTuple):
    """A graph of `steps` steps, its input, and the output of its run. `executors`: of one built in Python."""

    graph: Any
    input: Any
    output: Any
    steps: int
    executors: WorkflowBuilder | None = None


@function(side_effect="none")
async def add(x: int) -> dict[str, int]:
    return {"x": x + 1}


@function(side_effect="none")
async def source(width: int) -> list[int]:
    return list(range(width))


@function(side_effect="none")
async def work(item: int) -> int:
    return item


@function(side_effect="none")
async def join(values: list[int]) -> int:
    return sum(values)


FUNCTIONS = (add, source, work, join)


def _graph(name: str, nodes: list[Any], first: str | None = None) -> Workflow:
    steps = len(nodes)
    return Workflow(
        name=f"{name}{steps}",
        nodes=(StartNode(id="__start", next=first), *nodes, EndNode(id="__end", index=steps, drain=True)),
        options=Options(max_parallel=100, max_steps=1_000_000),
    )


def _step(i: int, name: str, tool: str, input: Any, *after: str, **more: Any) -> ToolNode:
    return ToolNode(
        id=name, index=i, tool=f"bench.{tool}", input=input, depends_on=after, join="all_succeeded", **more
    )


def tokens(n: int) -> Work:
    """Return a line of function nodes that hand a token on."""
    following = [f"n{i}" for i in range(1, n)] + ["__end"]
    nodes = [ToolNode(id=f"n{i}", index=i, tool="bench.add", next=following[i]) for i in range(n)]
    return Work(_graph("tokens", nodes, "n0"), {"x": 0}, {"x": n}, n)


def chain(n: int) -> Work:
    """Return a line of function steps, each depending on the one before it."""
    nodes = [_step(0, "n0", "add", {"x": "${{ inputs.x }}"})]
    nodes += [
        _step(i, f"n{i}", "add", {"x": f"${{{{ steps.n{i - 1}.outputs.result.x }}}}"}, f"n{i - 1}")
        for i in range(1, n)
    ]
    return Work(_graph("chain", nodes), {"x": 0}, {f"n{n - 1}": {"x": n}}, n)


def fan_out(n: int) -> Work:
    """Return one step, n - 2 that depend on it, and one that depends on those."""
    names = [f"n{i}" for i in range(1, n - 1)]
    nodes = [_step(0, "first", "add", {"x": 0})]
    nodes += [
        _step(i, name, "add", {"x": "${{ steps.first.outputs.result.x }}"}, "first")
        for i, name in enumerate(names, 1)
    ]
    nodes.append(_step(n - 1, "last", "add", {"x": f"${{{{ steps.n{n - 2}.outputs.result.x }}}}"}, *names))
    return Work(_graph("fan_out", nodes), {}, {"last": {"x": 3}}, n)


def independent(n: int) -> Work:
    """Return n function steps without dependencies."""
    nodes = [_step(i, f"n{i}", "add", {"x": i}) for i in range(n)]
    return Work(_graph("independent", nodes), {}, {f"n{i}": {"x": i + 1} for i in range(n)}, n)


def for_each(n: int) -> Work:
    """Return one step that gives a list, n - 2 iterations over it, and one that adds the results up."""
    nodes = [
        _step(0, "source", "source", {"width": "${{ inputs.width }}"}),
        _step(
            1,
            "work",
            "work",
            {"item": "${{ item }}"},
            "source",
            for_each="${{ steps.source.outputs.result }}",
            max_parallel=100,
        ),
        _step(2, "join", "join", {"values": "${{ steps.work.outputs.result }}"}, "work"),
    ]
    return Work(_graph("for_each", nodes), {"width": n - 2}, {"join": sum(range(n - 2))}, n)


def agents(n: int) -> Work:
    """Return a line of agents; the scripted model of the suite adds one in each."""
    nodes = []
    for i in range(n):
        spec = AgentSpec(name=f"a{i}", system_prompt="Add one.", model=MODEL, plain_result="object")
        following = f"n{i + 1}" if i + 1 < n else "__end"
        nodes.append(AgentNode(id=f"n{i}", index=i, agent=spec, next=following))
    return Work(_graph("agents", nodes, "n0"), {"x": 0}, {"x": n}, n)


def turns(n: int) -> Work:
    """Return one agent of n turns: the scripted model calls a function in each but the last."""
    spec = AgentSpec(
        name="a",
        system_prompt="Count.",
        model=MODEL,
        functions=(FunctionRef("bench", "add"),),
        max_turns=n,
        max_tool_calls=n,
        plain_result="object",
    )
    graph = _graph("turns", [AgentNode(id="n0", agent=spec, next="__end")], "n0")
    return Work(graph, {"x": n - 1}, {"x": n - 1}, n)


def _hop(number: int) -> Executor:
    @executor(id=f"n{number}")
    async def hop(message: dict, ctx: WorkflowContext[dict]) -> None:
        await ctx.send_message({**message, "hop": number})

    return hop


@executor(id="last")
async def last(message: dict, ctx: WorkflowContext[Never, dict]) -> None:
    await ctx.yield_output({**message, "hop": message["hop"] + 1})


def executors(n: int, policy: Literal["eager", "superstep"]) -> Work:
    """Return a line of executors that hand a message on; the last one gives it out."""
    nodes = [*map(_hop, range(n - 1)), last]
    builder = WorkflowBuilder("executors", policy=policy, max_iterations=10 * n)
    builder.set_start_executor(nodes[0]).add_chain(nodes)
    message = {"task": "t", "text": "hello world", "hop": 0}
    return Work(None, message, message | {"hop": n - 1}, n, builder)


SHAPES = {
    "tokens": tokens,
    "chain": chain,
    "fan-out": fan_out,
    "independent": independent,
    "for_each": for_each,
    "agents": agents,
    "turns": turns,
    "executors eager": partial(executors, policy="eager"),
    "executors superstep": partial(executors, policy="superstep"),
}
