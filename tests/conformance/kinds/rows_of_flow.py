"""Rows of the flow kinds: start, end, condition, router, loop, parallel, merge, wait."""

from __future__ import annotations

from typing import Any

from tests.conformance.kinds.row import boom, row

# -- start, end ---------------------------------------------------------------------------------

row("start", "the input goes along next", {"next": "done"}, input={"x": 1}, way="done")
row(
    "start",
    "an input that its schema takes",
    {"next": "done", "input_schema": {"type": "object", "required": ["x"]}},
    input={"x": 1},
    way="done",
)
_BEFORE = {"id": "before", "type": "transform", "value": {"b": 1}, "next": "end"}
row("end", "the output before it", {}, others=(_BEFORE,), way={"b": 1})
row("end", "the input, if nothing comes before it", {}, input={"i": 2}, way={"i": 2})
row("end", "a template", {"output": {"o": "{{ nodes.before.output.b }}"}}, others=(_BEFORE,), way={"o": 1})
row("end", "a null is an output", {"output": None}, others=(_BEFORE,), way=None)
row("end", "a status", {"status": "completed", "drain": False}, others=(_BEFORE,), way={"b": 1})
row(
    "end",
    "a failed run",
    {"status": "failed", "error": "no {{ input.x }}"},
    input={"x": 7},
    failed="end_failed",
)
row(
    "end",
    "an error with a code",
    {"status": "failed", "error": {"code": "sold_out", "message": "m", "details": {"d": "{{ input.x }}"}}},
    input={"x": 7},
    failed="sold_out",
    details={"d": 7},
)
_TWO = {"edges": [{"source": "before", "target": "slow"}]}
_SLOW = (_BEFORE, {"id": "slow", "type": "wait", "duration": 5, "next": "end"})
row(
    "end",
    "it drains what is live",
    {"drain": True, "output": "{{ nodes.slow.output.due_at != null }}"},
    others=_SLOW,
    top=_TWO,
    way=True,
)
row(
    "end",
    "it cancels what is live",
    {"output": "{{ nodes.slow.output == null }}"},
    others=_SLOW,
    top=_TWO,
    way=True,
)

# -- condition, router --------------------------------------------------------------------------

_WAYS = {"on_true": "yes", "on_false": "no"}
for _value, _truth in {"1": True, "0": False, "''": False, "null": False, "'x'": True}.items():
    row(
        "condition",
        f"the truth of {_value}",
        {"expression": _value, **_WAYS},
        out=_truth,
        way="yes" if _truth else "no",
    )
row("condition", "an array is true", {"expression": "input", **_WAYS}, input=[], out=True, way="yes")
row(
    "condition",
    "an absent member is null",
    {"expression": "input.a.b.c", **_WAYS},
    input={},
    out=False,
    way="no",
)
row(
    "condition",
    "an expression that fails",
    {"expression": "input.a > 1", **_WAYS},
    input={"a": "x"},
    failed="expression_error",
    category="expression",
    details={"reason": "type", "path": "/expression"},
)
row(
    "condition",
    "events",
    {"expression": "true", **_WAYS},
    events=("workflow.step_started", "workflow.step_completed"),
)
_ROUTES = [{"when": "input.n > 5", "next": "many"}, {"when": "input.n > 1", "next": "some"}]
_ROUTER = {"routes": _ROUTES, "default": "few"}
row(
    "router",
    "the first true route",
    _ROUTER,
    input={"n": 9},
    out={"selected": "many", "route": 0},
    way="many",
)
row("router", "the second", _ROUTER, input={"n": 3}, out={"selected": "some", "route": 1}, way="some")
row("router", "the default", _ROUTER, input={"n": 0}, out={"selected": "few", "route": None}, way="few")
row(
    "router",
    "later routes are not evaluated",
    {"routes": [_ROUTES[0], {"when": "input.n > 'x'", "next": "some"}], "default": "few"},
    input={"n": 9},
    way="many",
)
row(
    "router",
    "an expression that fails",
    _ROUTER,
    input={"n": "x"},
    failed="expression_error",
    details={"path": "/routes/0/when"},
)

# -- loop ---------------------------------------------------------------------------------------

_WORK = {"id": "work", "type": "tool", "tool": "s.call", "input": {"n": "{{ nodes.n.count }}"}, "next": "n"}


def _loop(name: str, node: dict[str, Any], **more: Any) -> None:
    row("loop", name, {"body": "work", "next": "done", **node}, others=(_WORK,), **more)


_loop(
    "three times round",
    {"condition": "nodes.n.count < 3", "max_iterations": 5},
    out=False,
    way="done",
    visits=4,
    view={"count": 0},
)
_loop("never round", {"condition": "false", "max_iterations": 1}, out=False, way="done", visits=1)
_loop("as often as the limit", {"condition": "nodes.n.count < 2", "max_iterations": 2}, way="done", visits=3)
_loop(
    "beyond the limit",
    {"condition": "true", "max_iterations": 2},
    failed="loop_iteration_limit_exceeded",
    details={"limit": 2},
    category="agent",
    visits=3,
)
_loop(
    "a way at the limit", {"condition": "true", "max_iterations": 2, "on_limit": "late"}, way="late", visits=3
)
_loop(
    "an expression that fails",
    {"condition": "input > 1", "max_iterations": 2},
    input="x",
    failed="expression_error",
    details={"path": "/condition"},
)

# -- parallel, merge ----------------------------------------------------------------------------


def call(id: str, next: str | None = None, **more: Any) -> dict[str, Any]:
    """Return a call of the function that has the name of the node."""
    way = {} if next is None else {"next": next}
    return {"id": id, "type": "tool", "tool": f"s.{id}", "input": id, **way, **more}


_THREE = (call("a"), call("b"), call("c"))
_OPEN = {"branches": ["c", "a", "b"], "next": "done"}
row(
    "parallel",
    "results in branch order",
    _OPEN,
    others=_THREE,
    out={"c": "c", "a": "a", "b": "b"},
    way="done",
)
row(
    "parallel",
    "one at a time",
    {**_OPEN, "max_in_flight": 1},
    others=_THREE,
    out={"c": "c", "a": "a", "b": "b"},
)
row(
    "parallel",
    "a branch of two nodes",
    {"branches": ["a", "b"], "next": "done"},
    others=(call("a", "c"), call("b"), call("c")),
    out={"a": "c", "b": "b"},
)
row(
    "parallel",
    "the first failure fails it",
    _OPEN,
    others=_THREE,
    calls={"a": [boom()]},
    failed="branch_failed",
    details={"branch": "a"},
    category="agent",
)
row(
    "parallel",
    "failures are collected",
    {**_OPEN, "on_branch_error": "collect"},
    others=_THREE,
    calls={"a": [boom()]},
    out={"c": "c", "a": None, "b": "b"},
)
row(
    "parallel",
    "too many branches",
    _OPEN,
    others=_THREE,
    top={"options": {"max_parallel_branches": 2}},
    failed="parallel_branch_limit_exceeded",
    details={"limit": 2},
)
row(
    "parallel",
    "as many as the limit",
    _OPEN,
    others=_THREE,
    top={"options": {"max_parallel_branches": 3}},
    way="done",
)
row(
    "parallel",
    "two set one global differently",
    _OPEN,
    others=(call("a", set_globals={"g": "input.x"}), call("b", set_globals={"g": "input.y"}), call("c")),
    input={"x": 1, "y": 2},
    failed="state_conflict",
    details={"key": "g"},
)
row(
    "parallel",
    "two add to one global",
    {**_OPEN, "next": "show"},
    others=(
        *(call(i, update_globals={"g": {"op": "append", "from": f"nodes.{i}.output"}}) for i in "ab"),
        call("c"),
        {"id": "show", "type": "transform", "expression": "globals.g", "next": "end"},
    ),
    way=["a", "b"],
)
row(
    "parallel",
    "a branch does not see its sibling",
    {"branches": ["a", "b"], "next": "done", "max_in_flight": 1},
    others=(call("a"), {"id": "b", "type": "transform", "expression": "nodes.a.output == null"}),
    out={"a": "a", "b": True},
)
row(
    "parallel",
    "outputs are seen behind the join",
    {"branches": ["a", "b"], "next": "show"},
    others=(
        call("a"),
        call("b"),
        {"id": "show", "type": "transform", "value": "{{ nodes.b.output }}", "next": "end"},
    ),
    way="b",
)


def _merge(name: str, node: dict[str, Any], *, fork: Any = None, branches: Any = _THREE, **more: Any) -> None:
    others = tuple({**one, "next": "n"} for one in branches)
    ids = [one["id"] for one in branches]
    first = {"id": "first", "type": "parallel", "branches": ids, "next": "n", **(fork or {})}
    row("merge", name, {"sources": ids, "next": "done", **node}, others=(first, *others), **more)


_ONE_AT_A_TIME = {"max_in_flight": 1}
_merge(
    "all, in sources order", {"policy": "all", "sources": ["b", "a", "c"]}, out=["b", "a", "c"], way="done"
)
_merge("the first to finish", {"policy": "first"}, fork=_ONE_AT_A_TIME, out="a", way="done")
_merge(
    "the first without a failure", {"policy": "first"}, fork=_ONE_AT_A_TIME, calls={"a": [boom()]}, out="b"
)
_merge("the rest ends unread", {"policy": "first", "rest": "drain"}, fork=_ONE_AT_A_TIME, out="a")
_merge("the first k", {"policy": "quorum", "quorum": 2}, fork=_ONE_AT_A_TIME, out=["a", "b"])
_merge(
    "the first k bear a failure",
    {"policy": "quorum", "quorum": 2},
    fork=_ONE_AT_A_TIME,
    calls={"a": [boom()]},
    out=["b", "c"],
)
_merge(
    "the quorum cannot be met",
    {"policy": "quorum", "quorum": 2},
    calls={"a": [boom()], "b": [boom()]},
    failed="merge_quorum_not_met",
    details={"needed": 2},
)
_merge(
    "none succeeds",
    {"policy": "first"},
    calls={i: [boom()] for i in "abc"},
    failed="merge_quorum_not_met",
    details={"needed": 1, "arrived": 0, "failed": 3},
)
_merge(
    "all, and one fails",
    {"policy": "all", "on_branch_error": "fail"},
    calls={"b": [boom()]},
    failed="branch_failed",
)
_merge(
    "all, and failures are collected",
    {"policy": "all", "on_branch_error": "collect"},
    calls={"b": [boom()]},
    out=["a", None, "c"],
)
_LATE = (call("a"), {"id": "b", "type": "wait", "duration": 60})
_merge(
    "its time is over",
    {"policy": "all", "timeout": 5},
    branches=_LATE,
    failed="merge_timeout",
    category="timeout",
)
_merge(
    "a way at the time-out",
    {"policy": "all", "timeout": 5, "on_timeout": "late"},
    branches=_LATE,
    out={"timed_out": True, "arrived": 1},
    way="late",
)
_merge("in time", {"policy": "all", "timeout": 90, "on_timeout": "late"}, branches=_LATE, way="done")
_ON_ONE_PATH = ({"id": "first", "type": "transform", "value": 1, "next": "a"}, call("a", "n"), call("b", "n"))
row(
    "merge",
    "on one path it reads outputs in scope",
    {"sources": ["first", "a"], "policy": "all", "next": "done"},
    others=_ON_ONE_PATH[:2],
    out=[1, "a"],
)
_PICK = {"id": "first", "type": "condition", "expression": "true", "on_true": "a", "on_false": "b"}
row(
    "merge",
    "on one path a source is missing",
    {"sources": ["a", "b"], "policy": "all", "next": "done"},
    others=(_PICK, *_ON_ONE_PATH[1:]),
    failed="missing_merge_source",
    details={"source": "b"},
)
row(
    "merge",
    "on one path the first that is there",
    {"sources": ["b", "a"], "policy": "first", "next": "done"},
    others=(_PICK, *_ON_ONE_PATH[1:]),
    out="a",
)

# -- wait ---------------------------------------------------------------------------------------

row(
    "wait",
    "a duration",
    {"duration": "90s", "next": "done"},
    out={},
    way="done",
    events=(
        "workflow.step_started",
        "timer.scheduled",
        "workflow.step_waiting",
        "timer.fired",
        "workflow.step_completed",
    ),
)
row(
    "wait",
    "a moment",
    {"until": "{{ input.t }}", "next": "done"},
    input={"t": "1970-01-02T00:00:00Z"},
    way="done",
)
row(
    "wait",
    "a moment in the past",
    {"until": "1970-01-01T00:00:00Z", "next": "done"},
    way="done",
    events=("workflow.step_started", "workflow.step_completed"),
)
row(
    "wait",
    "no moment",
    {"until": "{{ input.t }}", "next": "done"},
    input={"t": "soon"},
    failed="invalid_until",
    category="invalid_input",
)

# -- what an expression reads, by page 003 §6 ----------------------------------------------------

_LARGE = {"text": "x" * 200, "n": 1}
_ROOM = {"options": {"max_expression_scope_bytes": 100}}
_BEYOND: dict[str, Any] = {
    "input": _LARGE,
    "top": _ROOM,
    "failed": "expression_scope_limit_exceeded",
    "category": "agent",
}
row("condition", "an expression that reads too much", {"expression": "input.text == 'x'", **_WAYS}, **_BEYOND)
row(
    "condition",
    "one that reads a part",
    {"expression": "input.n == 1", **_WAYS},
    input=_LARGE,
    top=_ROOM,
    way="yes",
)
row(
    "condition",
    "the default is 128 KiB",
    {"expression": "input.text == 'x'", **_WAYS},
    input={"text": "x" * 131_080},
    failed="expression_scope_limit_exceeded",
)
row(
    "condition",
    "less than 128 KiB",
    {"expression": "input.text == 'x'", **_WAYS},
    input={"text": "x" * 131_000},
    way="no",
)
row(
    "router",
    "a route that reads too much",
    {"routes": [{"when": "length(input) > 1", "next": "a"}], "default": "b"},
    **_BEYOND,
)
_loop(
    "a condition that reads too much", {"condition": "length(input.text) > 1", "max_iterations": 2}, **_BEYOND
)
row(
    "filter",
    "an expression that reads too much",
    {"items_path": "input.items", "expression": "length(item) > 1", "next": "done"},
    **{**_BEYOND, "input": {"items": ["x" * 200]}},
)
row("transform", "an expression that reads too much", {"expression": "input.text", "next": "done"}, **_BEYOND)
row(
    "transform",
    "a template has no such limit",
    {"value": "{{ input.text }}", "next": "done"},
    input=_LARGE,
    top=_ROOM,
    out="x" * 200,
)
row(
    "event_trigger",
    "a match that reads too much",
    {"event": "e", "match": "signal.data == 'y'", "next": "done"},
    signals=(("e", "x" * 200),),
    **{**_BEYOND, "input": None},
)
