"""Rows of the kinds that call: llm, tool, retry_compensate, subgraph, agent, executor."""

from __future__ import annotations

from typing import Any

from tests.conformance.kinds.row import asks_for, boom, row

_QUICK = {"backoff": {"initial": "10ms"}, "jitter": 0}
_RETRIES = {"retry": {"max_attempts": 2, **_QUICK}}
_ONCE = {"retry": {"max_attempts": 1}}
_SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}

# -- llm ----------------------------------------------------------------------------------------


def _llm(name: str, *said: Any, node: dict[str, Any] | None = None, **more: Any) -> None:
    row(
        "llm",
        name,
        {"model": "scripted:m", "prompt": "Say {{ input.x }}", "next": "done", **(node or {})},
        said=said,
        **more,
    )


_llm(
    "an answer is text",
    "hello",
    out="hello",
    way="done",
    events=(
        "workflow.step_started",
        "node.llm_input_resolved",
        "model.call_started",
        "model.call_completed",
        "workflow.step_completed",
    ),
)
_llm(
    "all settings",
    "hello",
    node={
        "system": "Be {{ input.x }}",
        "temperature": 0.5,
        "top_p": 0.9,
        "max_tokens": 9,
        "send_schema": False,
        "tool_errors": "return",
    },
    out="hello",
)
_llm(
    "a history and no prompt",
    "hello",
    node={"messages_path": "input.h", "append_prompt_as_user": False},
    input={"h": [{"role": "user", "content": "a"}]},
    out="hello",
)
for _given in (None, [], "text", [{"content": "no role"}], [{"role": "user", "content": "a", "more": 1}]):
    _llm(
        f"no history: {_given!r}",
        "hello",
        node={"messages_path": "input.h"},
        input={"h": _given},
        failed="invalid_messages",
        category="invalid_input",
    )
_llm("a value of its schema", '{"n": 1}', node={"output_schema": _SCHEMA}, out={"n": 1})
_llm("two repairs", "x", '{"n": "1"}', '{"n": 1}', node={"output_schema": _SCHEMA}, out={"n": 1})
_llm(
    "no third repair",
    "x",
    node={"output_schema": _SCHEMA},
    failed="invalid_output",
    category="invalid_output",
)
_llm("a healed answer", "{n: 1,}", node={"output_schema": _SCHEMA, "heal": True}, out={"n": 1})
_llm("streams", "hello", node={"stream": True}, out="hello")
_llm(
    "streams lines",
    '{"n": 1}',
    node={"stream": True, "stream_json_as_text": True, "output_schema": _SCHEMA},
    out={"n": 1},
)
_llm(
    "streaming is off when it heals",
    '{"n": 1}',
    node={"stream": True, "heal": True, "output_schema": _SCHEMA},
    out={"n": 1},
    events=(
        "workflow.step_started",
        "node.stream_disabled",
        "node.llm_input_resolved",
        "model.call_started",
        "model.call_completed",
        "workflow.step_completed",
    ),
)
_llm("calls of functions", asks_for(), "done", node={"tools": ["s.call"], "tool_choice": "auto"}, out="done")
_llm(
    "too many rounds of calls",
    asks_for(),
    node={"tools": ["s.call"], "max_tool_roundtrips": 1},
    failed="tool_roundtrips_exceeded",
    details={"limit": 1},
)
_llm(
    "two rounds of calls",
    asks_for(),
    asks_for(),
    "done",
    node={"tools": ["s.call"], "max_tool_roundtrips": 2},
    out="done",
)
_llm(
    "no rounds of calls",
    asks_for(),
    node={"tools": ["s.call"], "max_tool_roundtrips": 0},
    failed="tool_roundtrips_exceeded",
    details={"limit": 0},
)
_llm(
    "the error of a function goes to the model",
    asks_for(),
    "done",
    node={"tools": ["s.call"]},
    calls={"call": [boom()]},
    out="done",
)
_llm(
    "the error of a function fails it",
    asks_for(),
    "done",
    node={"tools": ["s.call"], "tool_errors": "fail"},
    calls={"call": [boom()]},
    failed="boom",
)
_llm("retries", boom("down", "transient"), "hello", node={"policy": _RETRIES}, out="hello")
_llm(
    "attempts are used up",
    boom("down", "transient"),
    node={"policy": _RETRIES},
    failed="llm_retry_exhausted",
    details={"attempts": 2},
    category="transient",
)
_llm(
    "one attempt is used up too",
    boom("down", "transient"),
    node={"policy": _ONCE},
    failed="llm_retry_exhausted",
    details={"attempts": 1},
)
_llm(
    "too late",
    boom("timeout", "timeout"),
    node={"policy": {"retry": {"max_attempts": 1, "timeout": "2s"}}},
    failed="llm_timeout",
    details={"attempts": 1, "timeout_ms": 2000},
    category="timeout",
)

# -- tool ---------------------------------------------------------------------------------------


def _tool(name: str, node: dict[str, Any] | None = None, **more: Any) -> None:
    row("tool", name, {"tool": "s.call", "next": "done", **(node or {})}, **more)


_tool(
    "the result",
    {"input": {"v": "{{ input.x }}"}},
    input={"x": 1},
    out={"v": 1},
    way="done",
    events=("workflow.step_started", "tool.call_started", "tool.call_completed", "workflow.step_completed"),
)
_tool("retries", {"input": 1, "policy": _RETRIES}, calls={"call": [boom("a", "transient"), 7]}, out=7)
_tool(
    "it retries what a function raises", {"input": 1, "policy": _RETRIES}, calls={"call": [boom(), 7]}, out=7
)
_tool(
    "attempts are used up",
    {"input": 1, "policy": _RETRIES},
    calls={"call": [boom("down", "transient")]},
    failed="tool_retry_exhausted",
    details={"attempts": 2},
    category="transient",
)
_tool(
    "too late",
    {"input": 1, "policy": _ONCE},
    calls={"call": [boom("timeout", "timeout")]},
    failed="tool_timeout",
    category="timeout",
)
_tool("a failure is skipped", {"input": 1, "on_error": "skip"}, calls={"call": [boom()]}, way="done")
_tool(
    "a failure goes elsewhere",
    {"input": 1, "on_error": {"next": "saved"}},
    calls={"call": [boom()]},
    others=({"id": "saved", "type": "transform", "value": "{{ nodes.n.error.code }}", "next": "end"},),
    way="boom",
)
_tool(
    "a failure of another code",
    {"input": 1, "on_error": {"next": "saved", "codes": ["other"]}},
    calls={"call": [boom()]},
    others=({"id": "saved", "type": "transform", "value": 1, "next": "end"},),
    failed="boom",
)

# -- retry_compensate ---------------------------------------------------------------------------


def _compensate(name: str, node: dict[str, Any] | None = None, **more: Any) -> None:
    row(
        "retry_compensate",
        name,
        {
            "tool": "s.book",
            "input": {"r": 1},
            "max_retries": 1,
            "compensate_tool": "s.undo",
            "compensate_input": {"u": 1},
            "next": "done",
            "policy": {"retry": _QUICK},
            "on_compensated": "undone",
            **(node or {}),
        },
        **more,
    )


_compensate("it succeeds", out={"status": "ok", "attempt": 1, "value": {"r": 1}}, way="done")
_compensate("the second attempt", calls={"book": [boom(), 5]}, out={"status": "ok", "attempt": 2, "value": 5})
_compensate("it is made up for", calls={"book": [boom()]}, way="undone")
_compensate(
    "no retry",
    {"max_retries": 0, "compensate_policy": {"retry": {"max_attempts": 2, **_QUICK}}},
    calls={"book": [boom()], "undo": [boom("a", "transient"), 3]},
    way="undone",
)
_compensate(
    "the compensation fails",
    calls={"book": [boom()], "undo": [boom()]},
    failed="retry_compensate_failed",
    details={"attempts": 2},
    category="agent",
)

# -- subgraph -----------------------------------------------------------------------------------

_INNER = {
    "name": "inner",
    "nodes": [
        {"id": "start", "type": "start", "next": "w"},
        {"id": "w", "type": "tool", "tool": "s.w", "input": {"v": "{{ input.x }}"}, "next": "end"},
        {"id": "end", "type": "end"},
    ],
}
_OUT = {
    "terminal_node_id": "end",
    "output": {"v": 1},
    "workflow_id": None,
    "node_outputs": {"start": {"x": 1}, "w": {"v": 1}, "end": {"v": 1}},
}
row("subgraph", "inline", {"inline": _INNER, "next": "done"}, input={"x": 1}, out=_OUT, way="done")
row(
    "subgraph",
    "inline with an input",
    {"inline": _INNER, "input": {"x": "{{ input.y }}"}, "next": "done"},
    input={"y": 1},
    out=_OUT,
)
row(
    "subgraph",
    "it does not see its caller",
    {"inline": _INNER, "input": {}, "next": "done"},
    input={"x": 1},
    out={**_OUT, "output": {"v": None}, "node_outputs": {"start": {}, "w": {"v": None}, "end": {"v": None}}},
)
row(
    "subgraph",
    "a failure inside",
    {"inline": _INNER, "next": "done"},
    input={"x": 1},
    calls={"w": [boom()]},
    failed="subgraph_failed",
)
_NESTED = {
    "name": "outer",
    "nodes": [
        {"id": "start", "type": "start", "next": "in"},
        {"id": "in", "type": "subgraph", "inline": _INNER, "next": "end"},
        {"id": "end", "type": "end"},
    ],
}
row(
    "subgraph",
    "too deep",
    {"inline": _NESTED, "next": "done"},
    top={"options": {"budget": {"max_depth": 1}}},
    input={"x": 1},
    failed="subgraph_failed",
)
row(
    "subgraph",
    "as deep as the budget says",
    {"inline": _NESTED, "next": "done"},
    top={"options": {"budget": {"max_depth": 2}}},
    input={"x": 1},
    way="done",
)

# -- agent, executor ----------------------------------------------------------------------------


def _agent(name: str, *said: Any, node: dict[str, Any] | None = None, agent: Any = None, **more: Any) -> None:
    spec = {"system_prompt": "p", "model": "scripted:m", **(agent or {})}
    row("agent", name, {"agent": spec, "next": "done", **(node or {})}, said=said, **more)


_agent("its data", "hello", node={"input": {"x": "{{ input.x }}"}}, input={"x": 1}, out="hello", way="done")
_agent("a value of its schema", '{"n": 1}', agent={"output_schema": _SCHEMA}, out={"n": 1})
_agent("calls of functions", asks_for(), "done", agent={"tools": ["s.call"]}, out="done")
_agent("too many turns", asks_for(), agent={"tools": ["s.call"], "max_turns": 2}, failed="max_turns_exceeded")


def _echo(context: Any) -> None:
    context.send({"said": context.input})


def _break(context: Any) -> None:
    raise boom("broken", "tool")


_EXECUTOR = {"executor": "echo", "accepts": ["str"], "emits": ["dict"], "answers": []}
_EDGE = {"edges": [{"source": "n", "target": "done"}]}
_DONE = ({"id": "done", "type": "transform", "expression": "nodes.n.status", "next": "end"},)
row(
    "executor",
    "a message goes along its edge",
    _EXECUTOR,
    input="x",
    handler=_echo,
    top=_EDGE,
    others=_DONE,
    way="succeeded",
    policies=("eager",),
)
row(
    "executor",
    "a handler that fails",
    _EXECUTOR,
    input="x",
    handler=_break,
    top=_EDGE,
    others=_DONE,
    failed="broken",
    policies=("eager",),
)
