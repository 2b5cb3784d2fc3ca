"""Rows of the data kinds: map, reduce, batch, filter, transform, cache_read, cache_write."""

from __future__ import annotations

from typing import Any

from tests.conformance.kinds.row import boom, row

_ITEMS = {"items": [3, 1, 2]}

# -- map ----------------------------------------------------------------------------------------


def _map(name: str, node: dict[str, Any], *, input: Any = None, **more: Any) -> None:
    row(
        "map",
        name,
        {"items_path": "input.items", "next": "done", **node},
        input=_ITEMS if input is None else input,
        **more,
    )


_BODY = ({"id": "body", "type": "tool", "tool": "s.body", "input": {"i": "{{ item }}", "x": "{{ index }}"}},)
_map("over a function", {"tool": "s.call"}, out=[3, 1, 2], way="done")
_map("one at a time", {"tool": "s.call", "max_in_flight": 1}, out=[3, 1, 2])
_map(
    "with an input",
    {"tool": "s.call", "input": {"v": "{{ item }}", "i": "{{ index }}"}},
    out=[{"v": 3, "i": 0}, {"v": 1, "i": 1}, {"v": 2, "i": 2}],
)
_map(
    "other names of the item",
    {"tool": "s.call", "input": ["{{ map_item }}", "{{ map_index }}", "{{ item_index }}"]},
    out=[[3, 0, 0], [1, 1, 1], [2, 2, 2]],
)
_map(
    "over a body",
    {"body": "body"},
    others=_BODY,
    out=[{"i": 3, "x": 0}, {"i": 1, "x": 1}, {"i": 2, "x": 2}],
    way="done",
)
_map("no items", {"tool": "s.call"}, input={"items": []}, out=[])
_map("no items of a body", {"body": "body"}, others=_BODY, input={"items": []}, out=[])
_ODD: Any = [lambda p: p, boom(), lambda p: p]
for _how, _out in {"collect": [3, None, 2], "skip": [3, 2]}.items():
    _map(
        f"{_how}s a failure",
        {"tool": "s.call", "on_item_error": _how, "max_in_flight": 1},
        calls={"call": _ODD},
        out=_out,
    )
    _map(
        f"{_how}s a failure of a body",
        {"body": "body", "on_item_error": _how, "max_in_flight": 1},
        others=_BODY,
        calls={"body": _ODD},
        out=[None if one is None else {"i": one, "x": [3, 1, 2].index(one)} for one in _out],
    )
_map(
    "fails with an item",
    {"tool": "s.call", "max_in_flight": 1, "on_item_error": "fail"},
    calls={"call": _ODD},
    failed="item_failed",
    details={"index": 1},
    category="agent",
)
_map(
    "fails with an item of a body",
    {"body": "body", "max_in_flight": 1},
    others=_BODY,
    calls={"body": _ODD},
    failed="item_failed",
    details={"index": 1},
)
for _given in (None, 1, {"a": 1}, "text"):
    _map(
        f"no array: {_given!r}",
        {"tool": "s.call"},
        input={"items": _given},
        failed="map_items_not_array",
        category="invalid_input",
    )
_map(
    "too many items",
    {"tool": "s.call"},
    top={"options": {"max_map_items": 2}},
    failed="map_item_limit_exceeded",
    details={"limit": 2},
    category="agent",
)
_map("as many as the limit", {"tool": "s.call"}, top={"options": {"max_map_items": 3}}, out=[3, 1, 2])
_map(
    "items count as no steps",
    {"tool": "s.call"},
    top={"options": {"max_steps": 4}},
    input={"items": [0] * 9},
    out=[0] * 9,
)
_map(
    "bodies are steps",
    {"body": "body"},
    others=_BODY,
    top={"options": {"max_steps": 6}},
    input={"items": [0] * 6},
    failed="step_limit_exceeded",
    details={"limit": 6},
)

# -- reduce -------------------------------------------------------------------------------------

_FROM: dict[str, Any] = {
    "count": ([3, 1, 2], 3),
    "sum": ([3, 1, 2], 6),
    "min": ([3, 1, 2], 1),
    "max": ([3, 1, 2], 3),
    "avg": ([3, 1, 2], 2),
    "concat": ([[1], [2, 3]], [1, 2, 3]),
    "merge": ([{"a": 1}, {"b": 2, "a": 3}], {"a": 3, "b": 2}),
    "first": ([3, 1], 3),
    "last": ([3, 1], 1),
}
for _operation, (_given, _out) in _FROM.items():
    row(
        "reduce",
        _operation,
        {"items_path": "input.v", "operation": _operation, "next": "done"},
        input={"v": _given},
        out=_out,
        way="done",
    )
    row(
        "reduce",
        f"{_operation} of nothing",
        {"items_path": "input.v", "operation": _operation, "next": "done"},
        input={"v": []},
        out=0 if _operation in ("count", "sum") else None,
    )
row(
    "reduce",
    "integers stay exact",
    {"items_path": "input.v", "operation": "sum", "next": "done"},
    input={"v": [2**53, 1]},
    out=2**53 + 1,
)
_LIST = {"id": "first", "type": "transform", "value": [1, 2], "next": "n"}
row(
    "reduce",
    "the output of a node",
    {"source": "first", "operation": "sum", "next": "done"},
    others=(_LIST,),
    out=3,
)
row(
    "reduce",
    "the output of a node that did not run",
    {"source": "b", "operation": "sum", "next": "done"},
    others=(
        {"id": "first", "type": "condition", "expression": "true", "on_true": "n", "on_false": "b"},
        {"id": "b", "type": "transform", "value": [1], "next": "n"},
    ),
    failed="missing_merge_source",
    details={"source": "b"},
)
for _name, _operation, _given in (
    ("no array", "sum", 7),
    ("words", "sum", ["a"]),
    ("numbers", "merge", [1]),
    ("booleans", "max", [True]),
):
    row(
        "reduce",
        f"{_operation} of {_name}",
        {"items_path": "input.v", "operation": _operation, "next": "done"},
        input={"v": _given},
        failed="invalid_reduce_input",
        category="invalid_input",
    )

# -- batch --------------------------------------------------------------------------------------


def _batch(name: str, node: dict[str, Any], **more: Any) -> None:
    row("batch", name, {"next": "done", **node}, **{"input": _ITEMS, **more})


_batch("the array", {"items_path": "input.items"}, out=[3, 1, 2], way="done")
_batch("arrays of a size", {"items_path": "input.items", "size": 2}, out=[[3, 1], [2]])
_batch("no array", {"items_path": "input.x"}, failed="batch_items_not_array", category="invalid_input")
_batch(
    "too many",
    {"items_path": "input.items"},
    top={"options": {"max_batch_items": 2}},
    failed="batch_item_limit_exceeded",
    details={"limit": 2},
)
_LIVE = (
    {"id": "first", "type": "transform", "value": {"k": "x"}, "next": "a"},
    {"id": "a", "type": "tool", "tool": "s.a", "input": {"k": "x"}, "next": "n"},
    {"id": "b", "type": "tool", "tool": "s.b", "input": {"k": "y"}, "next": "n"},
)
_FAN = {"edges": [{"source": "first", "target": "b"}]}
_END_DRAINS: Any = {
    "others": (*_LIVE, {"id": "done", "type": "transform", "value": "{{ nodes.n.output }}", "next": "end"})
}
_batch("a window that nothing reaches any more", {}, top=_FAN, **_END_DRAINS, way=[{"k": "x"}, {"k": "y"}])
_batch("a window that is full", {"size": 2}, top=_FAN, **_END_DRAINS, way=[{"k": "x"}, {"k": "y"}])
_batch("a window of a key", {"size": 1, "key_path": "input.items[0]"}, top=_FAN, others=_LIVE, way="done")
_batch(
    "a window whose time is over",
    {"max_wait": 1},
    top=_FAN,
    others=(
        *_LIVE[:2],
        {"id": "b", "type": "wait", "duration": 60, "next": "n"},
        {"id": "done", "type": "transform", "value": "{{ nodes.n.output }}", "next": "end"},
    ),
    way=[{"k": "x"}],
    events=None,
)

# -- filter, transform --------------------------------------------------------------------------


def _filter(name: str, expression: str, **more: Any) -> None:
    row(
        "filter",
        name,
        {"items_path": "input.items", "expression": expression, "next": "done"},
        **{"input": _ITEMS, **more},
    )


_filter("the kept items in order", "item > 1", out=[3, 2], way="done")
_filter("by the index", "index > 0", out=[1, 2])
_filter("none", "false", out=[])
_filter("no array", "true", input={"items": 1}, failed="filter_items_not_array", category="invalid_input")
_filter(
    "too many",
    "true",
    top={"options": {"max_filter_items": 2}},
    failed="filter_item_limit_exceeded",
    details={"limit": 2},
)
_filter(
    "an error names the index",
    "item < 'x'",
    input={"items": ["a", 1]},
    failed="expression_error",
    details={"index": 1},
)
for _text, _out in {
    "[1, 2]": [1, 2],
    "null": None,
    "7": 7,
    "input.items[0]": 3,
    "'a'": "a",
    '"a"': "a",
}.items():
    row(
        "transform",
        f"expression {_text}",
        {"expression": _text, "next": "done"},
        input=_ITEMS,
        out=_out,
        way="done",
    )
for _way, _fields in {"a value": {"value": "{{ nodes }}"}, "an expression": {"expression": "nodes"}}.items():
    row(
        "transform",
        f"all nodes as {_way} of their own",
        {**_fields, "next": "done"},
        input=_ITEMS,
        out={"start": {"output": _ITEMS, "status": "succeeded", "error": None, "visits": 1}},
    )
row(
    "transform",
    "the input by the node that it came through",
    {"expression": "nodes.start.output.items[0]", "next": "done"},
    input=_ITEMS,
    out=3,
)
row(
    "transform",
    "a value",
    {"value": {"v": "{{ input.items }}", "t": "n={{ input.items[0] }}"}, "next": "done"},
    input=_ITEMS,
    out={"v": [3, 1, 2], "t": "n=3"},
)
row("transform", "a null", {"value": None, "next": "done"}, out=None, way="done")
row("transform", "a null of a whole template", {"value": "{{ input.x }}", "next": "done"}, input={}, out=None)
row("transform", "a null inside text", {"value": "a{{ input.x }}b", "next": "done"}, input={}, out="ab")
row(
    "transform",
    "inserted text is not evaluated",
    {"value": "{{ input.x }}", "next": "done"},
    input={"x": "{{ input.y }}", "y": 1},
    out="{{ input.y }}",
)
row(
    "transform",
    "an expression that fails",
    {"expression": "input.x > 1", "next": "done"},
    input={"x": "y"},
    failed="expression_error",
)

# -- caches -------------------------------------------------------------------------------------

for _scope in ("run", "definition", "global"):
    _SCOPE = {"scope": _scope}
    _WRITE = {
        "id": "first",
        "type": "cache_write",
        "key": "k",
        "value_path": "input.v",
        "next": "n",
        **_SCOPE,
    }
    row(
        "cache_read",
        f"a hit, {_scope}",
        {"key": "k", "next": "hit", "on_miss": "miss", **_SCOPE},
        others=(_WRITE,),
        input={"v": {"x": 1}},
        out={"key": "k", "hit": True, "value": {"x": 1}},
        way="hit",
    )
    row(
        "cache_read",
        f"a null is a hit, {_scope}",
        {"key": "k", "next": "hit", "on_miss": "miss", **_SCOPE},
        others=(_WRITE,),
        input={"v": None},
        out={"key": "k", "hit": True, "value": None},
        way="hit",
    )
    row(
        "cache_read",
        f"a miss, {_scope}",
        {"key_path": "input.k", "next": "hit", "on_miss": "miss", **_SCOPE},
        input={"k": "a"},
        out={"key": "a", "hit": False, "value": None},
        way="miss",
    )
    row(
        "cache_write",
        f"it keeps the value, {_scope}",
        {"key_path": "input.k", "value_path": "input.v", "next": "done", **_SCOPE},
        input={"k": "a", "v": 1},
        out={"key": "a", "value": 1},
        way="done",
    )
    _AFTER = (
        {"id": "rest", "type": "wait", "duration": 60, "next": "read"},
        {"id": "read", "type": "cache_read", "key": "a", "next": "hit", "on_miss": "miss", **_SCOPE},
        *({"id": i, "type": "transform", "value": i, "next": "end"} for i in ("hit", "miss")),
    )
    for _ttl, _way in ((5, "miss"), ("2m", "hit")):
        row(
            "cache_write",
            f"ttl {_ttl}, {_scope}",
            {"key": "a", "value_path": "input", "ttl": _ttl, "next": "rest", **_SCOPE},
            others=_AFTER,
            way=_way,
        )
row("cache_read", "a miss without a way", {"key": "k", "next": "hit"}, way="hit")
row(
    "cache_read",
    "a key of a template",
    {"key": "k-{{ input.n }}", "next": "hit"},
    input={"n": 1},
    out={"key": "k-1", "hit": False, "value": None},
)
for _kind in ("cache_read", "cache_write"):
    for _given in (None, 1, [], True):
        row(
            _kind,
            f"no key: {_given!r}",
            {
                "key_path": "input.k",
                "next": "done",
                **({"value_path": "input"} if _kind == "cache_write" else {}),
            },
            input={"k": _given},
            failed="cache_key_not_string",
            category="invalid_input",
        )
