"""Private and shared state: what is seen, when it is committed, reducers and conflicts (page 002 §7)."""

from __future__ import annotations

from typing import Any

import pytest

from agentflow.definition.graph import SharedKey
from agentflow.definition.ir import Policy
from agentflow.definition.policy import RetryPolicy
from agentflow.definition.reducers import REDUCERS, register
from agentflow.engine import compile_graph
from agentflow.engine.shared_state import SharedState, Writes
from agentflow.events import catalogue as ev
from tests.unit.engine.driver import Fault
from tests.unit.engine.handlers import Context, Graph, graph, node

BOTH = pytest.mark.parametrize("policy", ["superstep", "eager"])


def silent(ctx: Context) -> None:
    """A handler that sends nothing."""


def writes(key: str, value: Any) -> Any:
    def handler(ctx: Context) -> None:
        ctx.write(key, value)

    return handler


def two(policy: str, first: Any, second: Any, choose: Any = lambda f: f[0], **more: Any) -> Graph:
    """b and c work at the same time."""
    options = {"policy": policy, "on_failure": more.pop("on_failure", "halt")}
    workflow = graph(*(node(i) for i in "abc"), edges=[("a", "b"), ("a", "c")], options=options, **more)
    return Graph(workflow, 1, handlers={"b": first, "c": second}).go(choose)


@BOTH
def test_an_executor_sees_its_own_earlier_activations_at_once(policy: str):
    seen: list[int] = []

    def count(ctx: Context) -> None:
        seen.append(ctx.private.get("n", 0))
        ctx.kept = {"n": seen[-1] + 1}

    def three(ctx: Context) -> None:
        for i in range(3):
            ctx.send(i)

    workflow = graph(node("a"), node("b"), edges=[("a", "b")], options={"policy": policy})
    run = Graph(workflow, 1, handlers={"a": three, "b": count}).go()
    assert seen == [0, 1, 2]
    assert run.state.shared.private == {"b": {"n": 3}}


def test_private_state_is_seen_by_its_executor_alone():
    def keep(ctx: Context) -> None:
        ctx.kept = {"n": 1}
        ctx.send(1)

    seen: list[Any] = []
    run = Graph(
        graph(node("a"), node("b"), edges=[("a", "b")]),
        1,
        handlers={"a": keep, "b": lambda c: seen.append(dict(c.private))},
    )
    run.go()
    assert seen == [{}]


def test_a_superstep_reads_what_was_committed_before_it():
    seen: dict[str, Any] = {}

    def start(ctx: Context) -> None:
        ctx.write("k", "before")
        ctx.send(1)

    def write(ctx: Context) -> None:
        ctx.write("k", "later")
        ctx.send(1)

    workflow = graph(*(node(i) for i in "abcd"), edges=[("a", "b"), ("a", "c"), ("b", "d")])
    handlers = {
        "a": start,
        "b": write,
        "c": lambda c: seen.update(c=c.shared.get("k")),
        "d": lambda c: seen.update(d=c.shared.get("k")),
    }
    Graph(workflow, 1, handlers=handlers).go(lambda found: found[0])
    assert seen == {"c": "before", "d": "later"}


def test_eager_reads_what_was_committed_at_dispatch_also_in_a_later_attempt():
    seen: list[Any] = []

    def reader(ctx: Context) -> None:
        seen.append(ctx.shared.get("k"))
        if ctx.attempt == 1:
            raise Fault("agent", "executor_failed")

    retrying = Policy(retry=RetryPolicy(max_attempts=2))
    workflow = graph(
        node("a"),
        node("b"),
        node("c", policy=retrying),
        edges=[("a", "b"), ("a", "c")],
        options={"policy": "eager"},
    )
    run = Graph(workflow, 1, handlers={"b": writes("k", 1), "c": reader}).go()
    assert run.state.shared.values == {"k": 1}
    assert seen == [None, None], "b committed between the dispatch of c and its attempts"


@BOTH
def test_a_value_is_declared_with_its_default(policy: str):
    seen: list[Any] = []
    options = {"policy": policy}
    workflow = graph(node("a"), edges=[], shared={"k": SharedKey(default=[1])}, options=options)
    Graph(workflow, 1, handlers={"a": lambda c: seen.append(c.shared["k"])}).go()
    assert seen == [[1]]


def test_two_nodes_that_write_one_key_fail_the_run_at_the_barrier():
    run = two("superstep", writes("k", 1), writes("k", 2))
    assert run.error().code == "state_conflict"
    assert run.error().details == {"key": "k", "steps": ["b", "c"]}
    assert run.state.shared.values == {}
    assert [d.step_id for d in run.events(ev.WorkflowStepCompleted)] == ["a", "b", "c"]


@pytest.mark.parametrize("last", [False, True])
def test_eager_fails_the_later_activation(last: bool):
    run = two("eager", writes("k", 1), writes("k", 2), lambda found: found[-1 if last else 0])
    (failed,) = run.events(ev.WorkflowStepFailed)
    later, earlier = ("b", "c") if last else ("c", "b")
    assert failed.step_id == later
    assert failed.error.code == "state_conflict"
    assert failed.error.details == {"key": "k", "steps": [earlier, later]}


def test_eager_has_no_conflict_with_what_was_committed_before_the_dispatch():
    workflow = graph(node("a"), node("b"), edges=[("a", "b")], options={"policy": "eager"})

    def first(ctx: Context) -> None:
        ctx.write("k", 1)
        ctx.send(1)

    run = Graph(workflow, 1, handlers={"a": first, "b": writes("k", 2)}).go()
    assert (run.state.status, run.state.shared.values) == ("completed", {"k": 2})


@BOTH
def test_equal_values_do_not_conflict(policy: str):
    run = two(policy, writes("k", {"x": 1}), writes("k", {"x": 1}))
    assert (run.state.status, run.state.shared.values) == ("completed", {"k": {"x": 1}})


@BOTH
def test_several_writes_of_one_node_do_not_conflict(policy: str):
    def twice(ctx: Context) -> None:
        ctx.write("k", ctx.input)
        ctx.write("k", ctx.input + 1)

    def start(ctx: Context) -> None:
        ctx.send(1)
        ctx.send(5)

    workflow = graph(node("a"), node("b"), edges=[("a", "b")], options={"policy": policy})
    run = Graph(workflow, 1, handlers={"a": start, "b": twice}).go()
    assert (run.state.status, run.state.shared.values) == ("completed", {"k": 6})


def test_a_barrier_folds_updates_in_the_order_of_step_ids():
    shared = {"k": SharedKey(reducer="append")}
    for choose in (lambda f: f[0], lambda f: f[-1]):
        run = two("superstep", writes("k", "b"), writes("k", "c"), choose, shared=shared)
        assert run.state.shared.values == {"k": ["b", "c"]}


def test_eager_folds_updates_in_the_order_of_completions():
    shared = {"k": SharedKey(reducer="append")}
    run = two("eager", writes("k", "b"), writes("k", "c"), lambda f: f[-1], shared=shared)
    assert run.state.shared.values == {"k": ["c", "b"]}


@pytest.mark.parametrize(
    ("name", "default", "updates", "value"),
    [
        ("append", None, [1, 2], [1, 2]),
        ("append", [0], [1, 2], [0, 1, 2]),
        ("extend", None, [[1], [2, 3]], [1, 2, 3]),
        ("add", 10, [1, 2], 13),
        ("add", None, [1, 2], 3),
        ("max", None, [3, 2], 3),
        ("max", 5, [3, 2], 5),
        ("min", None, [3, 2], 2),
        ("union", [1], [[1, 2, 2], [3, 1]], [1, 2, 3]),
        ("merge", None, [{"a": 1, "b": 1}, {"b": 2}], {"a": 1, "b": 2}),
        ("last", 0, [1, 2], 2),
    ],
)
@BOTH
def test_a_built_in_reducer(policy: str, name: str, default: Any, updates: list[Any], value: Any):
    shared = {"k": SharedKey(reducer=name, default=default)}
    run = two(policy, writes("k", updates[0]), writes("k", updates[1]), shared=shared)
    assert run.state.status == "completed"
    assert run.state.shared.values == {"k": value}


def test_reducers_change_neither_the_value_nor_the_update():
    cases = {"append": ([1], 2), "extend": ([1], [2]), "union": ([1], [2]), "merge": ({"a": 1}, {"b": 2})}
    for name, (value, update) in cases.items():
        before = (str(value), str(update))
        assert REDUCERS[name](value, update) is not value
        assert (str(value), str(update)) == before


def test_a_reducer_of_your_own_has_a_name():
    def times(value: Any, update: Any) -> Any:
        return (value or 1) * update

    register("times", times)
    try:
        register("times", times)
        with pytest.raises(ValueError, match="times"):
            register("times", max)
        with pytest.raises(ValueError, match="append"):
            register("append", times)
        run = two("superstep", writes("k", 3), writes("k", 4), shared={"k": SharedKey(reducer="times")})
        assert run.state.shared.values == {"k": 12}
    finally:
        del REDUCERS["times"]


@BOTH
def test_an_update_that_the_reducer_refuses_fails_the_run(policy: str):
    run = two(policy, writes("k", "text"), silent, shared={"k": SharedKey(reducer="add", default=1)})
    assert run.error().code == "reducer_failed"
    assert run.error().details == {"key": "k", "steps": ["b"]}


@BOTH
def test_a_failed_attempt_leaves_no_write_no_message_and_no_request(policy: str):
    def flaky(ctx: Context) -> None:
        ctx.write("k", ctx.attempt)
        ctx.kept = {"k": ctx.attempt}
        ctx.send(ctx.attempt)
        if ctx.attempt == 1:
            ctx.ask("?")
            raise Fault("agent", "executor_failed")

    retry = Policy(retry=RetryPolicy(max_attempts=2))
    workflow = graph(
        node("a", policy=retry), node("b"), edges=[("a", "b")], options={"policy": policy},
        shared={"k": SharedKey(reducer="append")},
    )  # fmt: skip
    run = Graph(workflow, 1, handlers={"a": flaky, "b": silent}).go()
    assert run.state.shared.values == {"k": [2]}
    assert run.state.shared.private == {"a": {"k": 2}}
    assert run.inputs("b") == [2]
    assert run.state.requests == {}


def fail(ctx: Context) -> None:
    raise Fault("agent", "executor_failed")


def test_under_halt_a_superstep_with_a_failure_commits_no_shared_write():
    run = two("superstep", writes("k", 1), fail)
    assert run.state.status == "failed"
    assert run.state.shared.values == {}
    assert "b" in [d.step_id for d in run.events(ev.WorkflowStepCompleted)]
    assert len(run.events(ev.SuperstepCompleted)) == 1, "only that of a"


def test_under_continue_the_others_of_the_superstep_commit():
    run = two("superstep", writes("k", 1), fail, on_failure="continue")
    assert run.state.status == "failed"
    assert run.state.shared.values == {"k": 1}


def test_the_version_counts_the_commits():
    def write(ctx: Context) -> None:
        ctx.write("k", 1)
        ctx.send(1)

    workflow = graph(*(node(i) for i in "abc"), edges=[("a", "b"), ("b", "c")])
    run = Graph(workflow, 1, handlers={"a": write, "c": writes("k", 2)}).go()
    assert [d.state_version for d in run.events(ev.SuperstepCompleted)] == [1, 1, 2]


def test_only_versions_that_a_handler_can_still_read_are_kept():
    def many(ctx: Context) -> None:
        ctx.write("k", ctx.input)
        if ctx.input < 50:
            ctx.send(ctx.input + 1)

    workflow = graph(
        node("a"), edges=[("a", "a")], options={"policy": "eager"}, shared={"k": SharedKey(reducer="last")}
    )
    run = Graph(workflow, 0, handlers={"a": many}).go()
    assert len(run.state.shared._history["k"]) <= 2


def test_expressions_of_nodes_read_the_shared_state():
    from agentflow.definition.ir import EndNode, SharedKey, StartNode, Workflow
    from tests.unit.engine.driver import Driver

    nodes = (StartNode(id="start", next="end"), EndNode(id="end", output="${{ state.n }}"))
    state = Driver(Workflow(name="w", nodes=nodes, shared={"n": SharedKey(default=7)})).run()
    assert (state.status, state.output) == ("completed", 7)


def test_eager_has_no_conflict_of_a_step_with_itself():
    """Two activations of one step may be at work side by side on child paths: the later one wins."""
    state = SharedState(compile_graph(graph(node("a"), edges=[])))
    assert state.commit(Writes("a", 0, "p0", (("k", 1),)), bases=[0]) is None
    assert state.conflict_with_commits(Writes("a", 1, "p1", (("k", 2),)), base=0) is None
    assert state.conflict_with_commits(Writes("b", 0, "", (("k", 1),)), base=0) is None
    conflict = state.conflict_with_commits(Writes("b", 0, "", (("k", 2),)), base=0)
    assert conflict is not None
    assert conflict.details == {"key": "k", "steps": ["a", "b"]}
