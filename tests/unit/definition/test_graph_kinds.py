"""The kinds of page 003 §4 and the edges of page 002 §4: each diagnostic of page 003 §5, at its pointer."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from agentflow.definition import to_mermaid
from agentflow.definition.compare import compare
from agentflow.definition.ir import (
    AgentNode,
    AgentSpec,
    Approval,
    BatchNode,
    Budget,
    Cache,
    CacheReadNode,
    CacheWriteNode,
    ConditionNode,
    DebounceNode,
    Edge,
    EndNode,
    ErrorRoute,
    EventTriggerNode,
    ExecutorNode,
    FilterNode,
    GlobalUpdate,
    HumanNode,
    LlmNode,
    LoopNode,
    MapNode,
    MergeNode,
    Node,
    NodeBase,
    Options,
    ParallelNode,
    Policy,
    ReduceNode,
    RetryCompensateNode,
    Route,
    RouterNode,
    SharedKey,
    StartNode,
    SubgraphNode,
    ThrottleNode,
    ToolNode,
    TransformNode,
    WaitNode,
    Workflow,
    canonical_json,
    decode_ir,
)
from agentflow.definition.kinds import KINDS
from agentflow.definition.loader import definition_of
from agentflow.definition.policy import RetryPolicy
from agentflow.definition.signature import signature
from agentflow.errors import DefinitionError

END = EndNode(id="end")


def graph(*nodes: Node, edges: tuple[Edge, ...] = (), **more: Any) -> Workflow:
    """A graph whose start leads to the first node."""
    return Workflow(
        name="w", nodes=(StartNode(id="start", next=nodes[0].id), *nodes, END), edges=edges, **more
    )


def tool(id: str, next: str | None = "end", **more: Any) -> ToolNode:
    return ToolNode(id=id, tool="s.f", next=next, **more)


def agent(id: str, **more: Any) -> AgentNode:
    return AgentNode(id=id, agent=AgentSpec(name=id, system_prompt="p"), **more)


def found(workflow: Workflow) -> list[tuple[str, str]]:
    """Code and pointer of every diagnostic; checks that the bytes of a sound graph say the same."""
    try:
        definition = definition_of(workflow)
    except DefinitionError as error:
        return [(d.code, d.path or "") for d in error.diagnostics]
    assert definition.workflow == workflow
    assert decode_ir(canonical_json(workflow)) == workflow
    return [(d.code, d.path or "") for d in definition.warnings]


def branches(*inner: Node, joined: Node | None = None, **more: Any) -> Workflow:
    """A parallel node `p` with the branches a and b, whose nodes are given, and what comes after it."""
    following = joined or tool("after")
    p = ParallelNode(id="p", branches=("a", "b"), next=following.id, **more)
    return graph(p, *inner, following)


def looped(**more: Any) -> LoopNode:
    fields: dict[str, Any] = {"id": "l", "condition": "input.more", "body": "t", "next": "end", **more}
    return LoopNode(**fields)


def merge(*sources: str, rule: str = "all", **more: Any) -> MergeNode:
    return MergeNode(id="m", sources=sources, rule=rule, next=more.pop("next", "end"), **more)  # type: ignore[arg-type]


SOUND = {
    "human": graph(
        HumanNode(id="h", on_approve="f", on_reject="end", timeout=9.0, on_timeout="end"),
        HumanNode(id="f", input_type="choice", options=("a", {"value": 1}), next="end"),
    ),
    "trigger": graph(
        EventTriggerNode(id="e", event="go", match="signal.data.x == input.x", next="c"),
        EventTriggerNode(id="c", event="go", event_path="input.e", on_mismatch="end", next="t"),
        tool("t"),
    ),
    "llm": graph(
        LlmNode(id="m", model="p:m", prompt="{{ input.x }}", tools=("s.f",), tool_choice="auto", next="end")
    ),
    "retry_compensate": graph(
        RetryCompensateNode(
            id="r", tool="s.f", max_retries=2, compensate_tool="s.g", next="end", on_compensated="t"
        ),
        tool("t"),
    ),
    "child runs": graph(
        SubgraphNode(id="g", graph="other", next="p"),
        SubgraphNode(id="p", graph_path="input.plan", next="i"),
        SubgraphNode(id="i", inline=graph(tool("t")), isolation="run", next="end"),
    ),
    "router": graph(
        RouterNode(id="r", routes=(Route(when="input.x > 1", next="t"),), default="end"), tool("t")
    ),
    "loop": graph(looped(max_iterations=3, on_limit="end"), tool("t", "l")),
    "parallel": branches(tool("a", "after"), tool("b", None)),
    "merge": branches(
        tool("a", "m"), tool("b", "m"), joined=merge("a", "b", rule="quorum", quorum=1, timeout=5)
    ),
    "nested parallel": branches(
        ParallelNode(id="a", branches=("x", "y"), next="z"),
        tool("x", None),
        tool("y", "z"),
        tool("z", None),
        tool("b", "after"),
    ),
    "map with a tool": graph(
        MapNode(id="m", items_path="$.input.rows", tool="s.f", input="{{ item }}", next="end")
    ),
    "map with a body": graph(
        MapNode(id="m", items_path="input.rows", body="t", next="end"),
        tool("t", None, input="{{ item }}{{ index }}"),
    ),
    "batch of an array": graph(BatchNode(id="b", items_path="input.rows", size=2, next="end")),
    "batch of tokens": graph(BatchNode(id="b", size=2, max_wait=1.5, key_path="input.key", next="end")),
    "subgraph": graph(
        SubgraphNode(id="g", inline=graph(tool("t")), input={"x": "{{ input.y }}"}, next="end")
    ),
    "wait for a time": graph(WaitNode(id="w", duration=5, next="end")),
    "wait until": graph(WaitNode(id="w", until="2030-01-31T08:00:00Z", next="end")),
    "wait until what is computed": graph(WaitNode(id="w", until="{{ input.at }}", next="end")),
    "reduce of a source": graph(
        MapNode(id="m", items_path="input.rows", tool="s.f", next="r"),
        ReduceNode(id="r", source="m", operation="sum", next="end"),
    ),
    "reduce of a source that opens branches": branches(
        tool("a", "after"),
        tool("b", None),
        joined=ReduceNode(id="after", source="p", operation="first", next="end"),
    ),
    "reduce": graph(ReduceNode(id="r", items_path="$.input.rows", operation="concat", next="end")),
    "filter": graph(
        FilterNode(id="f", items_path="input.rows", expression="item.x > 1 && index < 9", next="end")
    ),
    "transform to a literal": graph(TransformNode(id="t", expression='{"a": [1]}', next="end")),
    "transform": graph(TransformNode(id="t", expression="input.rows[0]", next="end")),
    "transform to a value": graph(TransformNode(id="t", value={"a": "{{ input.x }}"}, next="end")),
    "transform to null": graph(TransformNode(id="t", value=None, next="end")),
    "caches": graph(
        CacheReadNode(id="r", key_path="input.k", next="end", on_miss="w", scope="global"),
        CacheWriteNode(id="w", key="k/{{ input.k }}", value_path="input.v", ttl=5, next="end"),
    ),
    "debounce": graph(
        DebounceNode(id="d", key_path="input.k", window=5, next="end", on_suppressed="t", mode="trailing"),
        tool("t"),
    ),
    "debounce of steps": graph(
        DebounceNode(id="d", key_path="input.k", window_steps=5, next="end", on_suppressed="t"), tool("t")
    ),
    "throttle": graph(
        ThrottleNode(id="h", key_path="input.k", window=5, limit=3, next="end", on_throttled="t"), tool("t")
    ),
    "a way round what delays": graph(
        ConditionNode(id="c", expression="input", on_true="t", on_false="end"),
        tool("t", "h"),
        DebounceNode(id="h", key_path="input.k", window=5, mode="trailing", next="c", on_suppressed="end"),
    ),
    "executor": graph(ExecutorNode(id="x", executor="intake", accepts=("Claim",), emits=("Risk",))),
    "on_error": graph(
        tool("t", on_error=ErrorRoute(next="c", codes=("tool_timeout",))), tool("c", on_error="skip")
    ),
    "globals": graph(
        tool(
            "t",
            set_globals={"last": "nodes.t.output.x"},
            update_globals={
                "n": GlobalUpdate(op="increment", by=2),
                "all": GlobalUpdate(op="append", source="nodes.t.output"),
            },
            input="{{ globals.n }}",
        ),
        globals={"n": 0},
    ),
    "superstep": graph(
        ExecutorNode(id="x", executor="a"),
        options=Options(policy="superstep", max_iterations=10),
        shared={"history": SharedKey(reducer="append", default=[])},
    ),
    "approval of any kind": graph(looped(max_iterations=2, approval=Approval()), tool("t", "l")),
    "a dependency on a node that tokens enter": Workflow(
        name="w",
        nodes=(
            StartNode(id="start", next="t"),
            tool("t"),
            agent("d", depends_on=("t",), join="all_terminal"),
            END,
        ),
    ),
    "a node that is left by dependencies alone": Workflow(
        name="w",
        nodes=(
            StartNode(id="start", next="t"),
            tool("t", None),
            agent("d", depends_on=("t",), join="all_succeeded"),
            END,
        ),
    ),
}


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_graph_has_no_diagnostics(name: str):
    assert found(SOUND[name]) == []


def test_every_kind_is_in_a_sound_graph():
    kinds = {type(node) for workflow in SOUND.values() for node in workflow.nodes}
    assert {kind.spec for kind in KINDS.values()} <= kinds


STRUCTURE: dict[str, tuple[Workflow, list[tuple[str, str]]]] = {
    "a route to no node": (
        graph(RouterNode(id="r", routes=(Route(when="true", next="x"),), default="y")),
        [("E_UNKNOWN_TARGET", "/nodes/1/default"), ("E_UNKNOWN_TARGET", "/nodes/1/routes/0/next")],
    ),
    "a source that is no node": (graph(merge("x")), [("E_UNKNOWN_TARGET", "/nodes/1/sources/0")]),
    "an error route to no node": (
        graph(tool("t", on_error=ErrorRoute(next="x"))),
        [("E_UNKNOWN_TARGET", "/nodes/1/on_error/next")],
    ),
    "a wait that leads nowhere": (graph(WaitNode(id="w", duration=1)), [("E_MISSING_NEXT", "/nodes/1")]),
    "an error route is no way on": (
        graph(tool("t", None, on_error=ErrorRoute(next="end"))),
        [("E_MISSING_NEXT", "/nodes/1")],
    ),
    "branches are no way on": (
        graph(ParallelNode(id="p", branches=("a",)), tool("a", None)),
        [("E_MISSING_NEXT", "/nodes/1")],
    ),
    "a loop without a way to the end": (
        graph(looped(next="u"), tool("t", "l"), tool("u", "u")),
        [
            ("E_NO_PATH_TO_END", "/nodes/0"),
            *[("E_DEAD_END", f"/nodes/{i}") for i in (1, 2, 3)],
            ("E_UNREACHABLE_NODE", "/nodes/4"),
        ],
    ),
    "an end in a branch": (
        branches(tool("a", "end"), tool("b", "after")),
        [("E_END_IN_BRANCH", "/nodes/1/branches/0")],
    ),
    "an end deep in a branch": (
        branches(tool("a", "after"), tool("b", "c"), tool("c", "end")),
        [("E_END_IN_BRANCH", "/nodes/1/branches/1")],
    ),
    "a branch back to its parallel node": (
        branches(tool("a", "p"), tool("b", "after")),
        [("E_BRANCH_ESCAPE", "/nodes/1/branches/0")],
    ),
    "a branch past its join": (
        graph(
            ParallelNode(id="p", branches=("a", "b"), next="m"),
            tool("a", "late"),
            tool("b", "m"),
            merge("a", next="late"),
            tool("late"),
        ),
        [("E_BRANCH_ESCAPE", "/nodes/1/branches/0")],
    ),
    "a body that goes past its map": (
        graph(
            MapNode(id="m", items_path="input", body="t", next="u"), tool("t", "v"), tool("u", "v"), tool("v")
        ),
        [("E_BRANCH_ESCAPE", "/nodes/1/body")],
    ),
    "an inner branch into the outer one": (
        branches(
            ParallelNode(id="a", branches=("x",), next="y"),
            tool("x", "z"),
            tool("y", "z"),
            tool("z", None),
            tool("b", "after"),
        ),
        [("E_BRANCH_ESCAPE", "/nodes/2/branches/0")],
    ),
    "a branch twice": (
        graph(ParallelNode(id="p", branches=("a", "a"), next="end"), tool("a", None)),
        [("E_DUPLICATE_BRANCH", "/nodes/1/branches/1")],
    ),
    "two branches that meet": (
        branches(tool("a", "c"), tool("b", "c"), tool("c", "after")),
        [("W_BRANCH_OVERLAP", "/nodes/1/branches/1")],
    ),
    "a source beside the branches": (
        graph(
            tool("t", "p"),
            ParallelNode(id="p", branches=("a", "b"), next="m"),
            tool("a", "m"),
            tool("b", "m"),
            merge("a", "b", "t"),
        ),
        [("W_MERGE_SOURCE_OUTSIDE_BRANCHES", "/nodes/5/sources/2")],
    ),
    "a body that does not come back": (
        graph(looped(max_iterations=2), tool("t")),
        [("W_LOOP_BODY_NO_RETURN", "/nodes/1/body")],
    ),
    "a router with one target": (
        graph(RouterNode(id="r", routes=(Route(when="true", next="end"),), default="end")),
        [("W_GATE_WITHOUT_ALTERNATE", "/nodes/1")],
    ),
    "a condition with one target": (
        graph(ConditionNode(id="c", expression="true", on_true="end", on_false="end")),
        [("W_GATE_WITHOUT_ALTERNATE", "/nodes/1")],
    ),
    "a debounce with one way": (
        graph(DebounceNode(id="d", key_path="input.k", window=1, next="end")),
        [("W_GATE_WITHOUT_ALTERNATE", "/nodes/1")],
    ),
    "a throttle with one way": (
        graph(ThrottleNode(id="d", key_path="input.k", window=1, next="end", on_throttled="end")),
        [("W_GATE_WITHOUT_ALTERNATE", "/nodes/1")],
    ),
    "a cache read with one way": (
        graph(CacheReadNode(id="d", key_path="input.k", next="end")),
        [("W_GATE_WITHOUT_ALTERNATE", "/nodes/1")],
    ),
    "a way round a gate that drops": (
        graph(
            ThrottleNode(id="h", key_path="input.k", window=1, next="t", on_throttled="end"), tool("t", "h")
        ),
        [("W_UNBOUNDED_CYCLE", "/nodes/1")],
    ),
    "a reduce of no node": (
        graph(ReduceNode(id="r", source="x", operation="sum", next="end")),
        [("E_UNKNOWN_TARGET", "/nodes/1/source")],
    ),
    "a loop without a limit": (graph(looped(), tool("t", "l")), [("W_UNBOUNDED_CYCLE", "/nodes/1")]),
    "a way round a wait": (
        graph(
            ConditionNode(id="c", expression="input", on_true="w", on_false="end"),
            WaitNode(id="w", duration=1, next="c"),
        ),
        [],
    ),
    "a person who is asked on every way round": (
        graph(
            ConditionNode(id="c", expression="input", on_true="t", on_false="end", approval=Approval()),
            tool("t", "c"),
        ),
        [],
    ),
    "a way that passes the person by": (
        graph(
            RouterNode(
                id="r",
                routes=(Route(when="input.a", next="t"), Route(when="input.b", next="u")),
                default="end",
            ),
            tool("t", "r", approval=Approval()),
            tool("u", "r"),
        ),
        [("W_UNBOUNDED_CYCLE", "/nodes/1")],
    ),
    "a person who is never asked": (
        graph(
            ConditionNode(id="c", expression="input", on_true="t", on_false="end"),
            tool("t", "c", approval=Approval(before="never")),
        ),
        [("W_UNBOUNDED_CYCLE", "/nodes/1")],
    ),
    "a way back to the loop after it was done": (
        graph(
            looped(max_iterations=2, next="u"),
            tool("t", "l"),
            ConditionNode(id="u", expression="input", on_true="l", on_false="end"),
        ),
        [("W_UNBOUNDED_CYCLE", "/nodes/1")],
    ),
    "an inner graph": (
        graph(SubgraphNode(id="g", inline=graph(tool("t", "x", input="{{ no }}")), next="end")),
        [
            ("E_EXPR_NAME", "/nodes/1/inline/nodes/1/input"),
            ("E_UNKNOWN_TARGET", "/nodes/1/inline/nodes/1/next"),
        ],
    ),
    "limits of an inner graph": (
        graph(SubgraphNode(id="g", inline=graph(tool("t"), options=Options(max_steps=5)), next="end")),
        [("E_CONFLICTING_FIELDS", "/nodes/1/inline/options")],
    ),
}


@pytest.mark.parametrize("name", STRUCTURE)
def test_structure(name: str):
    workflow, expected = STRUCTURE[name]
    assert sorted(found(workflow)) == sorted(expected)


def fan(kind: Any, *more: dict[str, Any]) -> Workflow:
    """Edges of one kind from `x` to a, b, …; for a join: from a, b, … to `x`."""
    names = [chr(ord("a") + i) for i in range(len(more))]
    nodes = [ExecutorNode(id=name, executor=name) for name in ("x", *names)]
    if kind == "fan_in":
        first = [Edge(source="s", target=name, kind="fan_out") for name in names]
        first += [Edge(source="s", target="x", kind="fan_out")] if len(names) < 2 else []
        edges = [
            Edge(source=name, target="x", kind=kind, **fields)
            for name, fields in zip(names, more, strict=True)
        ]
        return graph(ExecutorNode(id="s", executor="s"), *nodes, edges=(*first, *edges))
    edges = [
        Edge(source="x", target=name, kind=kind, **fields) for name, fields in zip(names, more, strict=True)
    ]
    return graph(*nodes, edges=tuple(edges))


EDGES: dict[str, tuple[Workflow, list[tuple[str, str]]]] = {
    "fan-out": (fan("fan_out", {}, {}), []),
    "fan-out to one": (fan("fan_out", {}), [("E_FAN_TOO_SMALL", "/edges/0")]),
    "groups of one": (
        fan("fan_out", {"group": "1"}, {"group": "2"}),
        [("E_FAN_TOO_SMALL", "/edges/0"), ("E_FAN_TOO_SMALL", "/edges/1")],
    ),
    "selection": (fan("multi", {"selection": "f"}, {"selection": "f"}), []),
    "no selection": (
        fan("multi", {"selection": "f"}, {"selection": " "}),
        [("E_CONFLICTING_FIELDS", "/edges/1/selection"), ("E_EMPTY_FIELD", "/edges/1/selection")],
    ),
    "switch": (fan("switch", {"when": "message.a > 1"}, {}), []),
    "switch over functions": (fan("switch", {"predicate": "m:risky"}, {}), []),
    "switch over a function without default": (
        fan("switch", {"predicate": "m:risky"}, {"when": "true"}),
        [("E_MISSING_DEFAULT", "/edges/0")],
    ),
    "an expression and a function": (
        fan("single", {"predicate": "m:risky", "when": "message"}),
        [("E_CONFLICTING_FIELDS", "/edges/0/predicate")],
    ),
    "a function of a fan-out": (
        fan("fan_out", {"predicate": "m:risky"}, {}),
        [("E_CONFLICTING_FIELDS", "/edges/0/predicate")],
    ),
    "switch without default": (
        fan("switch", {"when": "true"}, {"when": "state.x"}),
        [("E_MISSING_DEFAULT", "/edges/0")],
    ),
    "switch with two defaults": (
        fan("switch", {}, {"when": "true"}, {}),
        [("E_MULTIPLE_DEFAULT", "/edges/2")],
    ),
    "join": (
        fan(
            "fan_in",
            {"quorum": 2, "timeout": 1.0, "on_missing": "fail"},
            {"quorum": 2, "timeout": 1.0, "on_missing": "fail"},
        ),
        [],
    ),
    "join of one": (fan("fan_in", {}), [("E_FAN_TOO_SMALL", "/edges/2")]),
    "join with two rules": (
        fan("fan_in", {"on_missing": "wait"}, {}),
        [("E_CONFLICTING_FIELDS", "/edges/3/on_missing")],
    ),
    "quorum above the sources": (
        fan("fan_in", {"quorum": 3}, {"quorum": 3}),
        [("E_VALUE", "/edges/2/quorum")],
    ),
    "time-out of a join": (
        fan("fan_in", {"timeout": 0.0}, {"timeout": 0.0}),
        [("E_VALUE", "/edges/2/timeout"), ("E_VALUE", "/edges/3/timeout")],
    ),
    "a condition on a single edge": (fan("single", {"when": "message == 1"}), []),
    "a root that edges have not": (fan("single", {"when": "input == 1"}), [("E_EXPR_NAME", "/edges/0/when")]),
    "fields of other kinds": (
        fan("single", {"quorum": 1, "group": "g", "selection": "f"}),
        [("E_CONFLICTING_FIELDS", f"/edges/0/{field}") for field in ("group", "quorum", "selection")],
    ),
    "the same edge twice": (
        graph(
            *[ExecutorNode(id=n, executor=n) for n in "xa"],
            edges=(Edge(source="x", target="a", when="message"), Edge(source="x", target="a")),
        ),
        [("E_DUPLICATE_EDGE", "/edges/1")],
    ),
    "edges with names": (
        graph(
            *[ExecutorNode(id=n, executor=n) for n in "xa"],
            edges=(Edge(source="x", target="a", when="message"), Edge(source="x", target="a", name="2")),
        ),
        [],
    ),
    "an error edge of a condition": (
        graph(
            ConditionNode(id="c", expression="input", on_true="t", on_false="end"),
            tool("t"),
            edges=(Edge(source="c", target="t", kind="error"),),
        ),
        [],
    ),
    "an error edge of the start": (
        graph(tool("t"), edges=(Edge(source="start", target="t", kind="error"),)),
        [("E_CONFLICTING_FIELDS", "/edges/0")],
    ),
    "an edge of a router": (
        graph(
            RouterNode(id="r", routes=(Route(when="input", next="t"),), default="end"),
            tool("t"),
            edges=(Edge(source="r", target="t"),),
        ),
        [("E_DUPLICATE_EDGE", "/edges/0")],
    ),
    "a way round with a condition": (
        graph(
            *[ExecutorNode(id=n, executor=n) for n in "xa"],
            edges=(Edge(source="x", target="a", when="message"), Edge(source="a", target="x")),
        ),
        [],
    ),
    "a way round without one": (
        graph(
            *[ExecutorNode(id=n, executor=n) for n in "xa"],
            edges=(Edge(source="x", target="a"), Edge(source="a", target="x")),
        ),
        [("W_UNBOUNDED_CYCLE", "/nodes/1")],
    ),
}


@pytest.mark.parametrize("name", EDGES)
def test_edges(name: str):
    workflow, expected = EDGES[name]
    assert sorted(found(workflow)) == sorted(expected)


VALUES: dict[str, tuple[Node, str, str]] = {
    "routes": (RouterNode(id="n", routes=(), default="end"), "E_EMPTY_FIELD", "routes"),
    "route": (
        RouterNode(id="n", routes=(Route(when="1 +", next="end"),), default="end"),
        "E_EXPR_SYNTAX",
        "routes/0/when",
    ),
    "loop condition": (
        LoopNode(id="n", condition="no", body="n", next="end", max_iterations=1),
        "E_EXPR_NAME",
        "condition",
    ),
    "loop limit": (
        LoopNode(id="n", condition="true", body="n", next="end", max_iterations=0),
        "E_VALUE",
        "max_iterations",
    ),
    "on_limit": (
        LoopNode(id="n", condition="true", body="n", next="end", on_limit="end"),
        "E_CONFLICTING_FIELDS",
        "on_limit",
    ),
    "no branches": (ParallelNode(id="n", branches=(), next="end"), "E_EMPTY_FIELD", "branches"),
    "max_in_flight": (
        ParallelNode(id="n", branches=(), next="end", max_in_flight=0),
        "E_VALUE",
        "max_in_flight",
    ),
    "no sources": (merge(), "E_EMPTY_FIELD", "sources"),
    "a quorum too large": (merge("m", rule="quorum", quorum=2), "E_VALUE", "quorum"),
    "a quorum of none": (merge("m", rule="quorum", quorum=0), "E_VALUE", "quorum"),
    "no quorum": (merge("m", rule="quorum"), "E_EMPTY_FIELD", "quorum"),
    "a quorum of all": (merge("m", quorum=1), "E_CONFLICTING_FIELDS", "quorum"),
    "the rest of all": (merge("m", rest="drain"), "E_CONFLICTING_FIELDS", "rest"),
    "a source twice": (merge("m", "m"), "E_DUPLICATE_BRANCH", "sources/1"),
    "merge time-out": (merge("m", timeout=0), "E_VALUE", "timeout"),
    "on_timeout": (merge("m", on_timeout="end"), "E_CONFLICTING_FIELDS", "on_timeout"),
    "items_path": (MapNode(id="n", items_path="a", tool="s.f", next="end"), "E_EXPR_NAME", "items_path"),
    "no path": (
        MapNode(id="n", items_path="input.a == 1", tool="s.f", next="end"),
        "E_INVALID_PATH",
        "items_path",
    ),
    "a computed path": (
        MapNode(id="n", items_path="input[input.x]", tool="s.f", next="end"),
        "E_INVALID_PATH",
        "items_path",
    ),
    "neither tool nor body": (MapNode(id="n", items_path="input", next="end"), "E_EMPTY_FIELD", "tool"),
    "map tool": (MapNode(id="n", items_path="input", tool="f", next="end"), "E_VALUE", "tool"),
    "batch size": (BatchNode(id="n", size=0, next="end"), "E_VALUE", "size"),
    "max_wait": (BatchNode(id="n", max_wait=0, next="end"), "E_VALUE", "max_wait"),
    "window of an array": (
        BatchNode(id="n", items_path="input", max_wait=1, next="end"),
        "E_CONFLICTING_FIELDS",
        "max_wait",
    ),
    "key of an array": (
        BatchNode(id="n", items_path="input", key_path="input", next="end"),
        "E_CONFLICTING_FIELDS",
        "key_path",
    ),
    "the error of an end that completes": (EndNode(id="n", error="x"), "E_CONFLICTING_FIELDS", "error"),
    "the error of an end": (EndNode(id="n", status="failed", error=1), "E_TYPE", "error"),
    "a key of the error of an end": (
        EndNode(id="n", status="failed", error={"message": "m", "cause": "x"}),
        "E_UNKNOWN_KEY",
        "error/cause",
    ),
    "an expression in the error of an end": (
        EndNode(id="n", status="failed", error="{{ no }}"),
        "E_EXPR_NAME",
        "error",
    ),
    "nothing to reduce": (ReduceNode(id="n", operation="sum", next="end"), "E_EMPTY_FIELD", "source"),
    "two arrays to reduce": (
        ReduceNode(id="n", source="n", items_path="input", operation="sum", next="end"),
        "E_CONFLICTING_FIELDS",
        "items_path",
    ),
    "filter path": (
        FilterNode(id="n", items_path="input == 1", expression="true", next="end"),
        "E_INVALID_PATH",
        "items_path",
    ),
    "filter expression": (
        FilterNode(id="n", items_path="input", expression="no.x", next="end"),
        "E_EXPR_NAME",
        "expression",
    ),
    "nothing to transform": (TransformNode(id="n", next="end"), "E_EMPTY_FIELD", "expression"),
    "a blank transform": (TransformNode(id="n", expression=" ", next="end"), "E_EMPTY_FIELD", "expression"),
    "an expression and a value": (
        TransformNode(id="n", expression="1", value=None, next="end"),
        "E_CONFLICTING_FIELDS",
        "value",
    ),
    "neither literal nor expression": (
        TransformNode(id="n", expression='{"a": ', next="end"),
        "E_EXPR_SYNTAX",
        "expression",
    ),
    "no key": (CacheReadNode(id="n", next="end"), "E_EMPTY_FIELD", "key_path"),
    "two keys": (
        CacheReadNode(id="n", key_path="input", key="k", next="end"),
        "E_CONFLICTING_FIELDS",
        "key",
    ),
    "a blank key": (CacheReadNode(id="n", key=" ", next="end"), "E_EMPTY_FIELD", "key"),
    "value_path": (
        CacheWriteNode(id="n", key="k", value_path="1 + 1", next="end"),
        "E_EXPR_SYNTAX",
        "value_path",
    ),
    "ttl of a cache": (
        CacheWriteNode(id="n", key="k", value_path="input", ttl=0, next="end"),
        "E_VALUE",
        "ttl",
    ),
    "no window": (DebounceNode(id="n", key_path="input", next="end"), "E_EMPTY_FIELD", "window"),
    "two windows": (
        ThrottleNode(id="n", key_path="input", window=1, window_steps=1, next="end"),
        "E_CONFLICTING_FIELDS",
        "window_steps",
    ),
    "a window of no time": (
        DebounceNode(id="n", key_path="input", window=0, next="end"),
        "E_VALUE",
        "window",
    ),
    "a window of no steps": (
        DebounceNode(id="n", key_path="input", window_steps=0, next="end"),
        "E_VALUE",
        "window_steps",
    ),
    "trailing steps": (
        DebounceNode(id="n", key_path="input", window_steps=2, mode="trailing", next="end"),
        "E_CONFLICTING_FIELDS",
        "window_steps",
    ),
    "delayed by steps": (
        ThrottleNode(id="n", key_path="input", window_steps=2, mode="delay", next="end"),
        "E_CONFLICTING_FIELDS",
        "window_steps",
    ),
    "steps of other runs": (
        ThrottleNode(id="n", key_path="input", window_steps=2, scope="definition", next="end"),
        "E_CONFLICTING_FIELDS",
        "window_steps",
    ),
    "limit of a throttle": (
        ThrottleNode(id="n", key_path="input", window=1, limit=0, next="end"),
        "E_VALUE",
        "limit",
    ),
    "a way of what is delayed": (
        ThrottleNode(id="n", key_path="input", window=1, mode="delay", on_throttled="end", next="end"),
        "E_CONFLICTING_FIELDS",
        "on_throttled",
    ),
    "no graph": (SubgraphNode(id="n", next="end"), "E_EMPTY_FIELD", "inline"),
    "two graphs": (
        SubgraphNode(id="n", graph="g", graph_path="input.g", next="end"),
        "E_CONFLICTING_FIELDS",
        "graph_path",
    ),
    "no options": (HumanNode(id="n", input_type="choice", next="end"), "E_MISSING_CHOICE_OPTIONS", "options"),
    "no form": (HumanNode(id="n", input_type="form", next="end"), "E_MISSING_FORM_SCHEMA", "form_schema"),
    "wrong form": (
        HumanNode(id="n", input_type="form", form_schema={"type": "x"}, next="end"),
        "E_INVALID_FORM_SCHEMA",
        "form_schema/type",
    ),
    "way of an approval": (HumanNode(id="n", on_approve="end", next=None), "E_EMPTY_FIELD", "on_reject"),
    "decision of a text": (
        HumanNode(id="n", input_type="text", decision_path="input", next="end"),
        "E_CONFLICTING_FIELDS",
        "decision_path",
    ),
    "time of no question": (
        HumanNode(id="n", input_type="text", on_timeout="end", next="end"),
        "E_CONFLICTING_FIELDS",
        "on_timeout",
    ),
    "match of a comparison": (
        EventTriggerNode(id="n", event="e", event_path="input", match="signal.data", next="end"),
        "E_CONFLICTING_FIELDS",
        "match",
    ),
    "mismatch of a wait": (
        EventTriggerNode(id="n", event="e", on_mismatch="end", next="end"),
        "E_CONFLICTING_FIELDS",
        "on_mismatch",
    ),
    "match of no root": (
        EventTriggerNode(id="n", event="e", match="sgnal.x", next="end"),
        "E_EXPR_NAME",
        "match",
    ),
    "blank event": (EventTriggerNode(id="n", event=" ", next="end"), "E_EMPTY_FIELD", "event"),
    "roundtrips": (
        LlmNode(id="n", model="m", prompt="p", max_tool_roundtrips=-1, next="end"),
        "E_INVALID_TOOL_ROUNDTRIPS",
        "max_tool_roundtrips",
    ),
    "tool without service": (
        LlmNode(id="n", model="m", prompt="p", tools=("x",), next="end"),
        "E_EMPTY_TOOL_NAME",
        "tools/0",
    ),
    "tool twice": (
        LlmNode(id="n", model="m", prompt="p", tools=("s.x", "s.x"), next="end"),
        "E_DUPLICATE_TOOL_NAME",
        "tools/1",
    ),
    "choice of a tool that is not there": (
        LlmNode(
            id="n",
            model="m",
            prompt="p",
            tools=("s.x",),
            tool_choice={"type": "function", "function": {"name": "y"}},
            next="end",
        ),
        "E_UNKNOWN_TOOL_CHOICE",
        "tool_choice/function/name",
    ),
    "choice of no form": (
        LlmNode(id="n", model="m", prompt="p", tools=("s.x",), tool_choice={"type": "x"}, next="end"),
        "E_INVALID_TOOL_CHOICE",
        "tool_choice",
    ),
    "blank prompt": (LlmNode(id="n", model="m", prompt=" ", next="end"), "E_EMPTY_FIELD", "prompt"),
    "compensation without service": (
        RetryCompensateNode(id="n", tool="s.x", compensate_tool="y", max_retries=1, next="end"),
        "E_VALUE",
        "compensate_tool",
    ),
    "retries": (
        RetryCompensateNode(id="n", tool="s.x", compensate_tool="s.y", max_retries=-1, next="end"),
        "E_VALUE",
        "max_retries",
    ),
    "no time": (WaitNode(id="n", next="end"), "E_EMPTY_FIELD", "duration"),
    "two times": (
        WaitNode(id="n", duration=1, until="2030-01-31T08:00:00Z", next="end"),
        "E_CONFLICTING_FIELDS",
        "until",
    ),
    "duration": (WaitNode(id="n", duration=-1, next="end"), "E_VALUE", "duration"),
    "a time without zone": (WaitNode(id="n", until="2030-01-31T08:00:00", next="end"), "E_VALUE", "until"),
    "executor": (ExecutorNode(id="n", executor=" "), "E_EMPTY_FIELD", "executor"),
    "type tag": (ExecutorNode(id="n", executor="x", emits=("",)), "E_EMPTY_FIELD", "emits/0"),
    "cached tool": (tool("n", cache=Cache(ttl=1)), "E_EMPTY_FIELD", "cache/key"),
    "error code": (
        tool("n", on_error=ErrorRoute(next="end", codes=("",))),
        "E_EMPTY_FIELD",
        "on_error/codes/0",
    ),
    "set_globals": (tool("n", set_globals={"a": "nope"}), "E_EXPR_NAME", "set_globals/a"),
    "key of set_globals": (tool("n", set_globals={" ": "input"}), "E_EMPTY_FIELD", "set_globals/ "),
    "update without from": (
        tool("n", update_globals={"a": GlobalUpdate(op="merge")}),
        "E_EMPTY_FIELD",
        "update_globals/a/from",
    ),
    "update by": (
        tool("n", update_globals={"a": GlobalUpdate(op="set", source="input", by=2)}),
        "E_CONFLICTING_FIELDS",
        "update_globals/a/by",
    ),
    "an item outside": (tool("n", input="{{ item }}"), "E_EXPR_SCOPE", "input"),
    "calls of a node that makes none": (
        WaitNode(id="n", duration=1, next="end", approval=Approval(before="calls")),
        "E_CONFLICTING_FIELDS",
        "approval/before",
    ),
    "error route of a step": (
        agent("n", join="all_succeeded", on_error=ErrorRoute(next="end")),
        "E_CONFLICTING_FIELDS",
        "on_error/next",
    ),
    "iterations without for_each": (
        agent("n", join="all_succeeded", max_parallel=2),
        "E_CONFLICTING_FIELDS",
        "max_parallel",
    ),
}


@pytest.mark.parametrize("name", VALUES)
def test_values(name: str):
    node, code, field = VALUES[name]
    assert (code, f"/nodes/1/{field}") in found(graph(node))


@pytest.mark.parametrize(
    ("more", "code", "path"),
    [
        ({"options": Options(max_map_items=0)}, "E_VALUE", "/options/max_map_items"),
        ({"options": Options(max_filter_items=0)}, "E_VALUE", "/options/max_filter_items"),
        ({"options": Options(policy="superstep", max_iterations=0)}, "E_VALUE", "/options/max_iterations"),
        ({"options": Options(max_iterations=5)}, "E_CONFLICTING_FIELDS", "/options/max_iterations"),
        ({"globals": {"": 1}}, "E_EMPTY_FIELD", "/globals/"),
        ({"shared": {"a": SharedKey(reducer="")}}, "E_EMPTY_FIELD", "/shared/a/reducer"),
    ],
)
def test_options(more: dict[str, Any], code: str, path: str):
    assert found(graph(tool("t"), **more)) == [(code, path)]


def test_the_paths_of_a_large_graph_are_found():
    """3,000 parallel nodes in a row: the ways of each must not be followed anew (8 s, now under 1)."""
    count = 3_000
    row: list[Node] = []
    for i in range(count):
        following = f"p{i + 1}" if i + 1 < count else "end"
        row += [ParallelNode(id=f"p{i}", branches=(f"t{i}",), next=following), tool(f"t{i}", None)]
    assert found(graph(*row)) == []


# -- kind × field --------------------------------------------------------------------------------

COMMON: dict[str, Any] = {
    "depends_on": ("start",),
    "join": "all_terminal",
    "guard": "true",
    "for_each": "${{ input }}",
    "max_parallel": 2,
    "required": False,
    "policy": Policy(timeout=5, retry=RetryPolicy(max_attempts=2)),
    "approval": Approval(),
    "cache": Cache(ttl=1, key="k"),
    "budget": Budget(max_tokens=1),
    "on_error": "skip",
    "set_globals": {"a": "input"},
    "update_globals": {"a": GlobalUpdate(op="increment")},
}
"""A value for every field of NodeBase that could be ignored silently."""

DESCRIPTIVE = {"id", "name", "index", "metadata", "capabilities"}
WAITING = {"depends_on", "join", "guard", "for_each", "max_parallel"}
EVERYWHERE = {"required", "on_error", "set_globals", "update_globals"}
WORK = EVERYWHERE | WAITING | {"policy", "approval", "budget"}
TAKES = {
    "start": set[str](),
    "end": set[str](),
    "agent": WORK | {"cache"},
    "tool": WORK | {"cache"},
    "condition": EVERYWHERE | {"approval"},
    "router": EVERYWHERE | {"approval"},
    "loop": EVERYWHERE | {"approval"},
    "parallel": EVERYWHERE | {"approval", "budget"},
    "merge": EVERYWHERE | {"approval"},
    "map": WORK,
    "batch": EVERYWHERE | {"approval"},
    **dict.fromkeys(("reduce", "filter", "transform"), EVERYWHERE | {"approval"}),
    **dict.fromkeys(("cache_read", "cache_write", "debounce", "throttle"), EVERYWHERE | {"approval"}),
    "subgraph": WORK - {"policy"},
    "wait": WORK - {"policy", "budget"},
    "executor": WORK,
    "human_in_the_loop": EVERYWHERE,
    "event_trigger": EVERYWHERE,
    "llm": WORK,
    "retry_compensate": EVERYWHERE | {"policy", "approval", "budget"},
}
"""By kind: the common fields that have an effect. Whatever else is set must be refused."""

SAMPLES: dict[str, Node] = {
    type(node).__struct_config__.tag: node  # type: ignore[misc]
    for workflow in [
        *reversed(SOUND.values()),
        graph(ConditionNode(id="c", expression="input", on_true="end", on_false="end")),
    ]
    for node in workflow.nodes
}


def test_the_table_has_every_kind_and_field():
    assert set(TAKES) == set(KINDS)
    assert set(COMMON) | DESCRIPTIVE == set(NodeBase.__struct_fields__)


@pytest.mark.parametrize("field", COMMON)
@pytest.mark.parametrize("kind", TAKES)
def test_a_field_of_a_kind_has_an_effect_or_is_refused(kind: str, field: str):
    node = msgspec.structs.replace(SAMPLES[kind], **{field: COMMON[field]})
    if field in WAITING - {"join"} and "join" in TAKES[kind]:
        node = msgspec.structs.replace(node, join="all_succeeded", for_each="${{ input }}")
    if "join" in TAKES[kind] and node.join != "any" and "next" in node.__struct_fields__:
        node = msgspec.structs.replace(node, next=None)
    if isinstance(node, MapNode) and field in ("for_each", "max_parallel"):
        node = msgspec.structs.replace(node, tool=None, body="each")  # a tool is called for the node's items
    inside = Workflow(name="w", nodes=(StartNode(id="_s"), node, END))
    refused = (
        "E_CONFLICTING_FIELDS",
        f"/nodes/1/{'call_policy' if isinstance(node, MergeNode) and field == 'policy' else field}",
    )
    allowed = field in TAKES[kind] or (KINDS[kind].is_border and field == "depends_on")
    assert (refused in found_codes(inside)) is not allowed


def found_codes(workflow: Workflow) -> list[tuple[str, str]]:
    try:
        return [(d.code, d.path or "") for d in definition_of(workflow).warnings]
    except DefinitionError as error:
        return [(d.code, d.path or "") for d in error.diagnostics]


def test_a_token_node_waits_for_nothing():
    for field in WAITING - {"join"}:
        node = tool("t", **{field: COMMON[field]})
        assert ("E_CONFLICTING_FIELDS", f"/nodes/1/{field}") in found_codes(graph(node))


# -- drawings and signatures -----------------------------------------------------------------------


def test_drawings_name_the_ports():
    workflow = branches(
        RouterNode(
            id="a", routes=(Route(when="input", next="l"), Route(when="input.x", next="m")), default="m"
        ),
        looped(body="t", next="m", max_iterations=1),
        tool("t", "l", on_error=ErrorRoute(next="m")),
        tool("b", "m"),
        joined=merge("a", "b"),
    )
    lines = to_mermaid(workflow).splitlines()
    assert [line for line in lines if '"' in line and "--" in line] == [
        '  a -- "route1" --> l',
        '  a -- "route2" --> m',
        '  a -- "default" --> m',
        '  l -- "continue" --> t',
        '  l -- "done" --> m',
        '  p -- "branch" --> a',
        '  p -- "branch" --> b',
        '  p -- "join" --> m',
        '  t -- "error" --> m',
        '  a -- "source" --> m',
        '  b -- "source" --> m',
    ]


def test_drawings_name_the_ports_of_gates_and_caches():
    workflow = graph(
        DebounceNode(id="d", key_path="input.k", window=1, next="h", on_suppressed="end"),
        ThrottleNode(id="h", key_path="input.k", window=1, next="r", on_throttled="end"),
        CacheReadNode(id="r", key_path="input.k", next="end", on_miss="s"),
        ReduceNode(id="s", source="r", operation="count", next="end"),
    )
    lines = to_mermaid(workflow).splitlines()
    assert [line for line in lines if '"' in line and "--" in line] == [
        '  d -- "emit" --> h',
        '  d -- "suppressed" --> n_end',
        '  h -- "emit" --> r',
        '  h -- "throttled" --> n_end',
        '  r -- "hit" --> n_end',
        '  r -- "miss" --> s',
        '  r -- "source" --> s',
    ]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (SOUND["parallel"], branches(tool("b", None), tool("a", "after"))),
        (SOUND["merge"], branches(tool("a", "m"), tool("b", "m"), joined=merge("a", "b"))),
        (
            SOUND["subgraph"],
            graph(SubgraphNode(id="g", inline=graph(tool("t"), tool("u")), input=1, next="end")),
        ),
        (fan("switch", {"when": "message"}, {}), fan("switch", {}, {"when": "message"})),
        (graph(tool("t")), graph(tool("t", on_error=ErrorRoute(next="end")))),
    ],
    ids=["order of nodes", "merge rule", "inner graph", "cases", "error route"],
)
def test_what_joins_nodes_is_in_the_signature(old: Workflow, new: Workflow):
    structural = any(d.structural for d in compare(old, new))
    assert (signature(old) != signature(new)) is structural is (old is not SOUND["parallel"])


def test_settings_of_a_kind_are_differences_that_a_fork_may_have():
    old, new = (
        graph(WaitNode(id="w", duration=5, next="end")),
        graph(WaitNode(id="w", duration=6, next="end")),
    )
    assert [(d.message, d.structural) for d in compare(old, new)] == [('duration of "w" changed', False)]
