"""Graphs of tokens built in Python, and agent lists."""

from __future__ import annotations

from typing import Any

from agentflow.definition.ir import (
    AgentNode,
    AgentSpec,
    ConditionNode,
    Edge,
    EndNode,
    Options,
    Policy,
    StartNode,
    ToolNode,
    Workflow,
)
from agentflow.definition.policy import Backoff, RetryPolicy
from tests.golden.scenes.support import MODELS, call, play
from tests.golden.stage import After, Stage, failure, scene


def _graph(*nodes: Any, start: str = "step", **more: Any) -> Workflow:
    placed = (StartNode(id="__start", next=start), *nodes, EndNode(id="__end", index=len(nodes), drain=True))
    return Workflow(name="graph", nodes=placed, models=MODELS, **more)


def loop(limit: int = 2, tool: str = "desk.add", **more: Any) -> Workflow:
    """Return a cycle that calls a function until its output reaches the limit."""
    return _graph(
        ToolNode(id="step", index=0, tool=tool, next="more"),
        ConditionNode(
            id="more",
            index=1,
            expression=f"nodes.step.output.x < {limit}",
            on_true="step",
            on_false="__end",
        ),
        **more,
    )


@scene("a cycle with a condition")
def condition_cycle(stage: Stage) -> None:
    play(stage, loop(), {"x": 0})


@scene("a cycle with an agent, guarded by what the agent says")
def agent_cycle(stage: Stage) -> None:
    stage.says("write", "draft", "better draft", "final")
    stage.says("judge", {"good": False}, {"good": False}, {"good": True})
    spec = AgentSpec(name="writer", system_prompt="write")
    judge = AgentSpec(name="judge", system_prompt="judge", plain_result="object")
    play(
        stage,
        _graph(
            AgentNode(id="write", index=0, agent=spec, next="judge"),
            AgentNode(id="judge", index=1, agent=judge, next="enough"),
            ConditionNode(
                id="enough",
                index=2,
                expression="nodes.judge.output.good",
                on_true="__end",
                on_false="write",
            ),
            start="write",
        ),
        {"topic": "rain"},
    )


@scene("tokens: two edges out of one node, two into another")
def token_fan_out(stage: Stage) -> None:
    spec = AgentSpec(name="writer", system_prompt="${{ input.x }}")
    play(
        stage,
        _graph(
            ToolNode(id="step", index=0, tool="desk.add", next="left"),
            ToolNode(id="left", index=1, tool="desk.add", next="both"),
            ToolNode(id="right", index=2, tool="desk.add", next="both"),
            AgentNode(id="both", index=3, agent=spec, next="__end"),
            edges=(Edge(source="step", target="right"),),
        ),
        {"x": 0},
    )


@scene("max_steps ends an endless cycle")
def max_steps(stage: Stage) -> None:
    play(stage, loop(1_000, options=Options(max_steps=7)), {"x": 0}, ends="failed")


@scene("an error in a condition")
def condition_error(stage: Stage) -> None:
    graph = _graph(
        ToolNode(id="step", index=0, tool="desk.add", next="more"),
        ConditionNode(id="more", index=1, expression="nodes.step > 3", on_true="step", on_false="__end"),
    )
    play(stage, graph, {"x": 0}, ends="failed")


@scene("an agent list")
def agent_list(stage: Stage) -> None:
    stage.says("Find it.", call("look", x=1), "Found")
    agents = [
        {"name": "finder", "system_prompt": "Find it.", "tools": ["desk.look"]},
        {
            "name": "judge",
            "system_prompt": "Judge it.",
            "output_schema": {"type": "object", "required": ["said"]},
        },
        {"name": "writer", "system_prompt": "Write it."},
    ]
    play(stage, {"name": "team", "agents": agents}, {"question": "where?"})


@scene("an agent list that fails")
def agent_list_failing(stage: Stage) -> None:
    stage.says("Judge it.", failure("policy"))
    agents = [{"name": name, "system_prompt": f"{name} it."} for name in ("Find", "Judge", "Write")]
    play(stage, {"name": "team", "agents": agents}, "x", ends="failed")


def _retried() -> Workflow:
    retry = RetryPolicy(max_attempts=3, backoff=Backoff(initial=2.0), jitter=0.5, retry_on=("tool",))
    return _graph(ToolNode(id="step", tool="desk.look", policy=Policy(retry=retry), next="__end"))


@scene("a tool node is retried, with drawn jitter")
def tool_retry(stage: Stage) -> None:
    stage.does("look", RuntimeError("busy"), RuntimeError("busy"), {"found": 1})
    play(stage, _retried(), {"x": 1})


@scene("a tool node is not retried when its policy is used up")
def tool_retry_exhausted(stage: Stage) -> None:
    stage.does("look", RuntimeError("busy"))
    play(stage, _retried(), {"x": 1}, ends="failed")


@scene("two token paths of different length")
def token_paths(stage: Stage) -> None:
    stage.does("look", After(2, {"x": 5}))
    last = ToolNode(
        id="last", index=2, tool="desk.add", input={"x": "${{ nodes.other.output.x }}"}, next="__end"
    )
    graph = _graph(
        ToolNode(id="step", index=0, tool="desk.look", next="__end"),
        ToolNode(id="other", index=1, tool="desk.add", next="last"),
        last,
        edges=(Edge(source="__start", target="other"),),
    )
    play(stage, graph, {"x": 0})
