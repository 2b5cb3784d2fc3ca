"""Child paths under policy superstep: their messages wait for the barrier, too (page 002 §6, page 003 §4)."""

from __future__ import annotations

from typing import Any

import pytest

from agentflow.definition.ir import Approval, Edge, MergeNode, ParallelNode
from agentflow.engine.approvals import decided
from agentflow.events import catalogue as ev
from tests.unit.engine.driver import Fault
from tests.unit.engine.handlers import Context, Graph, graph, node

BOTH = pytest.mark.parametrize("policy", ["superstep", "eager"])


def forked(*nodes: Any, edges: list[Any], policy: str = "superstep", **fields: Any) -> Any:
    fork = ParallelNode(id="fork", next="after", **fields)
    return graph(fork, *nodes, node("after"), edges=edges, options={"policy": policy})


def silent(ctx: Context) -> None:
    """A handler that sends nothing."""


def supersteps(run: Graph) -> list[tuple[str, ...]]:
    return [data.activations for data in run.events(ev.SuperstepStarted)]


def outputs_of_fork(run: Graph) -> Any:
    (end,) = [data for data in run.events(ev.WorkflowStepCompleted) if data.step_id == "fork"]
    return end.output


def test_branches_begin_in_the_superstep_after_that_of_their_opener():
    edges = [("a", "b"), ("b", "after"), ("c", "after")]
    workflow = forked(node("a"), node("b"), node("c"), edges=edges, branches=("a", "c"))
    run = Graph(workflow, 1, handlers={"after": silent}).go()
    assert supersteps(run) == [
        ("/fork#0",),
        ("/fork#0.0/a#0", "/fork#0.1/c#0"),
        ("/fork#0.0/b#0",),
        ("/after#0",),
    ]
    assert outputs_of_fork(run) == {"a": 1, "c": 1}
    assert run.state.status == "completed"
    assert list(run.state.paths) == [""]


@BOTH
def test_a_fan_in_of_a_branch_has_rounds_of_its_own(policy: str):
    edges: list[Any] = [("a", "x"), ("a", "y"), ("c", "x"), ("c", "y"), ("z", "after")]
    edges += [Edge(source=source, target="z", kind="fan_in") for source in "xy"]
    workflow = forked(*map(node, "acxyz"), edges=edges, branches=("a", "c"), policy=policy)

    def says(ctx: Context) -> None:
        ctx.send(f"of {ctx.node}")

    run = Graph(workflow, 1, handlers={"a": says, "c": says, "after": silent}).go()
    assert sorted(run.inputs("z")) == [["of a", "of a"], ["of c", "of c"]]
    assert outputs_of_fork(run) == {"a": ["of a", "of a"], "c": ["of c", "of c"]}
    assert run.state.status == "completed"


@BOTH
def test_what_a_branch_leaves_in_a_join_is_told_when_the_run_ends(policy: str):
    edges: list[Any] = [("a", "x"), ("a", "y"), ("c", "after")]
    edges += [Edge(source=source, target="z", kind="fan_in", on_missing="wait") for source in "xy"]
    workflow = forked(*map(node, "acxyz"), edges=edges, branches=("a", "c"), policy=policy)
    run = Graph(workflow, 1, handlers={"y": silent, "after": silent}).go()
    assert run.state.status == "completed"
    assert run.undelivered() == [("/fork#0.0/x#0", "join_incomplete")]


@BOTH
def test_a_failure_on_a_branch_drops_what_waits_on_the_others(policy: str):
    def fails(ctx: Context) -> None:
        raise Fault("tool", "broken")

    edges = [("a", "b"), ("b", "after"), ("c", "after")]
    workflow = forked(node("a"), node("b"), node("c"), edges=edges, branches=("a", "c"), policy=policy)
    run = Graph(workflow, 1, handlers={"c": fails}).go()
    assert run.state.status == "failed"
    assert run.inputs("after") == []
    assert not run.state.mail.queue
    assert not run.state.activations


@BOTH
def test_a_question_of_a_branch_that_is_given_up_is_closed(policy: str):
    def asks(ctx: Context) -> None:
        if not ctx.is_answer:
            ctx.ask("may I?")

    def fails(ctx: Context) -> None:
        raise Fault("tool", "broken")

    workflow = forked(
        node("a"), node("c"), edges=[("a", "after"), ("c", "after")], branches=("a", "c"), policy=policy
    )
    run = Graph(workflow, 1, handlers={"a": asks, "c": fails}).go()
    assert [data.step_id for data in run.events(ev.InputCancelled)] == ["a"]
    assert not run.state.requests
    assert run.state.status == "failed"


@BOTH
def test_an_answer_goes_to_the_branch_that_asked(policy: str):
    def asks(ctx: Context) -> None:
        if ctx.is_answer:
            ctx.send(ctx.input)
        else:
            ctx.ask("which?")

    workflow = forked(
        node("a"), node("c"), edges=[("a", "after"), ("c", "after")], branches=("a", "c"), policy=policy
    )
    run = Graph(workflow, 1, handlers={"a": asks, "after": silent}).go()
    assert run.state.status == "waiting"
    run.reply("this one")
    run.go()
    assert outputs_of_fork(run) == {"a": "this one", "c": 1}
    assert run.state.status == "completed"


@BOTH
def test_a_merge_behind_branches_knows_their_group(policy: str):
    def says(ctx: Context) -> None:
        ctx.send(f"by {ctx.node}")

    merge = MergeNode(id="join", sources=("a", "c"), rule="first", rest="drain")
    fork = ParallelNode(id="fork", next="join", branches=("a", "c"))
    edges = [("a", "join"), ("c", "join")]
    workflow = graph(fork, node("a"), node("c"), merge, edges=edges, options={"policy": policy})
    run = Graph(workflow, 1, handlers={"a": says, "c": says}).go(choose=lambda found: found[-1])
    (end,) = [data for data in run.events(ev.WorkflowStepCompleted) if data.step_id == "join"]
    assert end.output == "by c", "c was the first to finish, a is declared first"
    assert run.state.status == "completed"


def test_a_denial_between_two_supersteps_ends_the_run_though_messages_of_branches_wait():
    """A crash may leave a log that ends with a barrier. Under halt no other one comes that would deliver."""
    fork = ParallelNode(id="fork", next="after", branches=("a", "c"))
    edges = [("first", "fork"), ("first", "q"), ("a", "b"), ("b", "after"), ("c", "after")]
    nodes = (node("first"), fork, node("q", approval=Approval()), *map(node, ("a", "b", "c", "after")))
    run = Graph(graph(*nodes, edges=edges), 1, handlers={"q": silent, "after": silent}).go()
    ended = [i for i, (data, _, _) in enumerate(run.log) if isinstance(data, ev.SuperstepCompleted)]
    del run.log[ended[2] + 1 :]
    run.state = run.refold()
    assert [queued.node.id for queued in run.state.mail.queue] == ["b"]
    (request,) = run.state.requests.values()
    run.advance(decided(request, granted=False, by="test", via="api"))
    assert run.go().state.status == "failed"
    assert not run.state.activations
