"""Edges of messages, fan-in and supersteps, between functions."""

from __future__ import annotations

from typing import Any

from agentflow.definition.ir import Edge, EndNode, Options, StartNode, ToolNode, Workflow
from tests.golden.scenes.support import play
from tests.golden.stage import After, Stage, scene

SUPERSTEP = Options(policy="superstep", on_failure="halt")


def _graph(functions: dict[str, str], *edges: Edge, **more: Any) -> Workflow:
    """Return a graph of nodes that call these functions; the first gets the input."""
    nodes = [
        ToolNode(id=i, index=n, tool=f"desk.{tool}", input={"x": n})
        for n, (i, tool) in enumerate(functions.items())
    ]
    leading = {edge.source for edge in edges if edge.kind != "error"}
    edges += tuple(Edge(source=i, target="__end") for i in functions if i not in leading)
    begin = StartNode(id="__start", next=next(iter(functions)))
    end = EndNode(id="__end", index=len(nodes), drain=True)
    return Workflow(name="messages", nodes=(begin, *nodes, end), edges=edges, **more)


def _diamond(**more: Any) -> tuple[Edge, ...]:
    """Return the edges from a to b and c, which meet in last."""
    joined = {key: more.pop(key) for key in ("on_missing", "quorum", "timeout") if key in more}
    return (
        Edge(source="a", target="b", when=more.get("left")),
        Edge(source="a", target="c", when=more.get("right")),
        Edge(source="b", target="last", kind="fan_in", **joined),
        Edge(source="c", target="last", kind="fan_in", **joined),
    )


FOUR = {"a": "look", "b": "wire", "c": "pay", "last": "add"}


@scene("supersteps: a barrier between rounds of functions")
def superstep(stage: Stage) -> None:
    stage.does("wire", After(3, {"x": 1}))
    edges = (
        Edge(source="a", target="b"), Edge(source="a", target="c"), Edge(source="c", target="d"),
        Edge(source="b", target="__end"), Edge(source="d", target="__end"),
    )  # fmt: skip
    play(
        stage, _graph({"a": "look", "b": "wire", "c": "pay", "d": "add"}, *edges, options=SUPERSTEP), {"x": 0}
    )


@scene("a run that goes round is ended by max_iterations")
def max_iterations(stage: Stage) -> None:
    options = Options(policy="superstep", max_iterations=3)
    again = (
        Edge(source="a", target="a", when="message.x < 9"),
        Edge(source="a", target="__end", when="message.x >= 9"),
    )
    graph = _graph({"a": "add"}, *again, options=options)
    play(stage, graph, {"x": 0}, ends="failed")


@scene("a failure in a superstep of a halting run")
def superstep_failure(stage: Stage) -> None:
    stage.does("pay", RuntimeError("refused"))
    edges = (*_diamond()[:2], Edge(source="b", target="d"))
    play(
        stage,
        _graph({"a": "look", "b": "wire", "c": "pay", "d": "add"}, *edges, options=SUPERSTEP),
        {"x": 0},
        ends="failed",
    )


def _last(*edges: Edge, **more: Any) -> Workflow:
    """Return a diamond of functions."""
    return _graph(FOUR, *edges, **more)


@scene("a fan-in without one of its sources")
def fan_in_partial(stage: Stage) -> None:
    stage.does("look", {"x": 5})
    play(stage, _last(*_diamond(right="message.x == 1")), {"x": 0})


@scene("a fan-in that must not lack a source")
def fan_in_fail(stage: Stage) -> None:
    edges = _diamond(right="message.x == 1", on_missing="fail")
    stage.does("look", {"x": 5})
    play(stage, _last(*edges), {"x": 0}, ends="failed")


@scene("a fan-in that waits for a source which never comes")
def fan_in_wait(stage: Stage) -> None:
    stage.does("look", {"x": 5})
    play(stage, _last(*_diamond(right="message.x == 1", on_missing="wait")), {"x": 0})


@scene("a fan-in whose time is over before its last source")
def fan_in_timeout(stage: Stage) -> None:
    stage.does("pay", After(30, {"x": 2}))
    stage.does("look", {"x": 5})
    play(stage, _last(*_diamond(timeout=10.0)), {"x": 0})


@scene("a fan-in with a quorum, and what comes too late")
def fan_in_quorum(stage: Stage) -> None:
    stage.does("pay", After(30, {"x": 2}))
    stage.does("look", {"x": 5})
    play(stage, _last(*_diamond(quorum=1), options=Options(max_parallel=8)), {"x": 0})


@scene("a fan-in at the barrier of a superstep")
def fan_in_superstep(stage: Stage) -> None:
    edges = _diamond(right="message.x == 1")
    stage.does("look", {"x": 5})
    play(stage, _last(*edges, options=SUPERSTEP), {"x": 0})


def _switch(**more: Any) -> Workflow:
    edges = (
        Edge(source="a", target="b", kind="switch", when="message.x > 5"),
        Edge(source="a", target="c", kind="switch"),
    )
    return _graph({"a": "look", "b": "wire", "c": "add"}, *edges, **more)


@scene("a switch of messages: a case and the default")
def switch_edges(stage: Stage) -> None:
    stage.does("look", {"x": 1})
    play(stage, _switch(), {"x": 0})


@scene("a condition on a message cannot be evaluated")
def routing_failed(stage: Stage) -> None:
    stage.does("look", {"x": "text"})
    play(stage, _switch(), {"x": 0}, ends="failed")


@scene("an error edge takes a failure")
def error_edge(stage: Stage) -> None:
    stage.does("pay", RuntimeError("refused"))
    edges = (Edge(source="a", target="b"), Edge(source="a", target="c", kind="error"))
    play(stage, _graph({"a": "pay", "b": "wire", "c": "look"}, *edges), {"x": 0})


@scene("a message that no edge delivers is recorded")
def undelivered(stage: Stage) -> None:
    stage.does("look", {"x": 1})
    play(stage, _graph({"a": "look", "b": "add"}, Edge(source="a", target="b", when="message.x > 5")), {})


@scene("a message that no edge delivers fails the run")
def undelivered_fails(stage: Stage) -> None:
    stage.does("look", {"x": 1})
    edge = Edge(source="a", target="b", when="message.x > 5")
    options = Options(on_undelivered="fail")
    play(stage, _graph({"a": "look", "b": "add"}, edge, options=options), {}, ends="failed")
