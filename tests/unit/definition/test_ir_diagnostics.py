"""Every diagnostic of page 003 §5 in graph documents: the document that has it, and the one beside it."""

from __future__ import annotations

from typing import Any

import pytest

from agentflow.definition import load_value
from agentflow.definition.diagnostics import DiagnosticCode
from agentflow.docs.codes import DIAGNOSTICS
from agentflow.errors import DefinitionError

START = {"id": "start", "type": "start", "next": "a"}
END = {"id": "end", "type": "end"}


def graph(*nodes: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"name": "w", "nodes": [START, *nodes, END], **more}


def tool(id: str = "a", next: str | None = "end", **more: Any) -> dict[str, Any]:
    return {"id": id, "type": "tool", "tool": "s.call", **({"next": next} if next else {}), **more}


def pick(expression: str, on_true: str = "b", on_false: str = "end", **more: Any) -> dict[str, Any]:
    fields = {"expression": expression, "on_true": on_true, "on_false": on_false}
    return {"id": "a", "type": "condition", **fields, **more}


def loop(body: str = "b", **more: Any) -> dict[str, Any]:
    return {"id": "a", "type": "loop", "condition": "input", "body": body, "next": "end", **more}


def fork(*branches: str, next: str = "m") -> dict[str, Any]:
    return {"id": "a", "type": "parallel", "branches": list(branches), "next": next}


def merge(*sources: str, **more: Any) -> dict[str, Any]:
    return {"id": "m", "type": "merge", "sources": list(sources), "policy": "all", "next": "end", **more}


def each(body: str = "b", **more: Any) -> dict[str, Any]:
    return {"id": "a", "type": "map", "items_path": "input", "body": body, "next": "end", **more}


def granted(node: dict[str, Any], **capabilities: list[str]) -> dict[str, Any]:
    return graph({**node, "capabilities": capabilities}, globals={"g": 1, "h": 2})


GPT = {"id": "a", "type": "llm", "model": "openai:gpt-4.1", "prompt": "p", "next": "end"}


def inline(**capabilities: list[str]) -> dict[str, Any]:
    inner = {"name": "i", "nodes": [START, tool(set_globals={"g": "input"}), END]}
    return granted({"id": "a", "type": "subgraph", "inline": inner, "next": "end"}, **capabilities)


def read(text: str, **more: Any) -> dict[str, Any]:
    return graph(tool(input={"x": "${{ " + text + " }}"}, **more), globals={"g": 1})


def without(value: dict[str, Any], key: str) -> dict[str, Any]:
    return {k: v for k, v in value.items() if k != key}


CHAIN = " && ".join(["input"] * 66)
RIGHT = graph(tool())
TWO = (tool("b"), tool("c"))

CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "version": ("E_UNSUPPORTED_VERSION", graph(tool(), version="v1"), graph(tool(), version=" v0 ")),
    "version of a list": ("E_UNSUPPORTED_VERSION", graph(tool(), version=0), RIGHT),
    "blank name": ("E_EMPTY_WORKFLOW_NAME", {**RIGHT, "name": " \t"}, RIGHT),
    "no name": ("E_EMPTY_WORKFLOW_NAME", without(RIGHT, "name"), RIGHT),
    "no nodes": ("E_EMPTY_WORKFLOW", {"name": "w", "nodes": []}, RIGHT),
    "blank id": ("E_EMPTY_NODE_ID", graph(tool(), tool(" ")), RIGHT),
    "no id": ("E_EMPTY_NODE_ID", graph(tool(), without(tool(), "id")), RIGHT),
    "same id": ("E_DUPLICATE_NODE_ID", graph(tool(), tool(" a ")), RIGHT),
    "unknown target": ("E_UNKNOWN_TARGET", graph(tool(next="b")), graph(tool(next=" end "))),
    "unknown edge": (
        "E_UNKNOWN_TARGET",
        graph(tool(), edges=[{"source": "start", "target": "x"}]),
        graph(tool(), edges=[{"source": "start", "target": "end", "name": "x"}]),
    ),
    "unknown source": (
        "E_UNKNOWN_TARGET",
        graph(fork("b", "c"), tool("b", None), tool("c", None), merge("b", "x")),
        graph(fork("b", "c"), tool("b", None), tool("c", None), merge("b", "c")),
    ),
    "no start": ("E_MISSING_START", {"name": "w", "nodes": [tool(), END]}, RIGHT),
    "two starts": ("E_MULTIPLE_START", graph(tool(), {**START, "id": "s"}), RIGHT),
    "no end": ("E_MISSING_END", {"name": "w", "nodes": [START, tool(next="a")]}, RIGHT),
    "unreachable": ("E_UNREACHABLE_NODE", graph(tool(), tool("b")), graph(tool(next="b"), tool("b"))),
    "no way": ("E_NO_PATH_TO_END", graph(tool(next="b"), tool("b", "a")), graph(pick("input"), tool("b"))),
    "required field": ("E_EMPTY_FIELD", graph(without(pick("input"), "on_false"), tool("b")), RIGHT),
    "blank field": ("E_EMPTY_FIELD", graph(pick(" "), tool("b")), graph(pick(" input "), tool("b"))),
    "no type": ("E_EMPTY_FIELD", graph({"id": "a", "next": "end"}), RIGHT),
    "form of an id": ("E_INVALID_NODE_ID", graph(tool(), tool("b c")), RIGHT),
    "reserved id": ("E_INVALID_NODE_ID", graph(tool(next="__x"), tool("__x")), RIGHT),
    "kind": ("E_UNKNOWN_KIND", graph({**tool(), "type": "tol"}), RIGHT),
    "kind of defaults": (
        "E_UNKNOWN_KIND",
        graph(tool(), defaults={"tol": {}}),
        graph(tool(), defaults={"tool": {}}),
    ),
    "key": ("E_UNKNOWN_KEY", graph(tool(nxt="end")), graph(tool(**{"x-nxt": 1}))),
    "key of the document": ("E_UNKNOWN_KEY", graph(tool(), edgs=[]), graph(tool(), edges=[])),
    "no next": (
        "E_MISSING_NEXT",
        graph(pick("input"), tool("b", None)),
        graph(fork("b", "c", next="end"), tool("b", None), tool("c", None)),
    ),
    "dead end": (
        "E_DEAD_END",
        graph(pick("input"), tool("b", "b")),
        graph(pick("input"), tool("b", "c"), tool("c")),
    ),
    "same edge": (
        "E_DUPLICATE_EDGE",
        graph(tool(), edges=[{"source": "a", "target": "end"}]),
        graph(tool(), edges=[{"source": "a", "target": "end", "name": "again"}]),
    ),
    "end in a branch": (
        "E_END_IN_BRANCH",
        graph(fork("b", "c"), tool("b"), tool("c", "m"), merge("b", "c")),
        graph(fork("b", "c"), tool("b", "m"), tool("c", "m"), merge("b", "c")),
    ),
    "leaving a group": (
        "E_BRANCH_ESCAPE",
        graph(
            pick("input"), {**fork("c", "d", next="m"), "id": "b"}, tool("c", "a"), tool("d", "m"), merge("c")
        ),
        graph(
            pick("input"), {**fork("c", "d", next="m"), "id": "b"}, tool("c", "m"), tool("d", "m"), merge("c")
        ),
    ),
    "branch twice": (
        "E_DUPLICATE_BRANCH",
        graph(fork("b", "b"), tool("b", "m"), merge("b")),
        graph(fork("b"), tool("b", "m"), merge("b")),
    ),
    "type": ("E_TYPE", graph(tool(next=1)), RIGHT),
    "range": (
        "E_VALUE",
        graph(loop(max_iterations=0), tool("b", "a")),
        graph(loop(max_iterations=1), tool("b", "a")),
    ),
    "enum": ("E_VALUE", graph(tool(on_error="skp")), graph(tool(on_error=" skip "))),
    "duration": (
        "E_VALUE",
        graph({"id": "a", "type": "wait", "duration": "1 hour", "next": "end"}),
        graph({"id": "a", "type": "wait", "duration": "1h", "next": "end"}),
    ),
    "quorum": (
        "E_VALUE",
        graph(fork("b", "c"), *(tool(n, "m") for n in "bc"), merge("b", "c", policy="quorum", quorum=3)),
        graph(fork("b", "c"), *(tool(n, "m") for n in "bc"), merge("b", "c", policy="quorum", quorum=2)),
    ),
    "quorum elsewhere": (
        "E_CONFLICTING_FIELDS",
        graph(fork("b", "c"), *(tool(n, "m") for n in "bc"), merge("b", "c", quorum=2)),
        graph(fork("b", "c"), *(tool(n, "m") for n in "bc"), merge("b", "c")),
    ),
    "tool and body": (
        "E_CONFLICTING_FIELDS",
        graph(each(tool="s.call"), tool("b", None)),
        graph(each(), tool("b", None)),
    ),
    "attempts twice": (
        "E_CONFLICTING_FIELDS",
        graph(tool(policy={"retry": {"max_attempts": 2, "max_retries": 1}})),
        graph(tool(policy={"retry": {"max_retries": 1}})),
    ),
    "schema": (
        "E_SCHEMA",
        graph(tool(), input_schema={"type": "objct"}),
        graph(tool(), input_schema={"type": "object"}),
    ),
    "retry": (
        "E_RETRY_POLICY",
        graph(tool(policy={"retry": {"max_attempts": 0}})),
        graph(tool(policy={"retry": {"max_attempts": 1}})),
    ),
    "syntax": ("E_EXPR_SYNTAX", graph(pick("input >"), tool("b")), graph(pick("input > 1"), tool("b"))),
    "root": ("E_EXPR_NAME", graph(pick("inptu"), tool("b")), graph(pick("$.last_tool_output"), tool("b"))),
    "function": ("E_EXPR_FUNCTION", read("size(input)"), read("length(input)")),
    "unclosed": ("E_EXPR_UNCLOSED", graph(tool(input="{{ input")), graph(tool(input="{{ input }}"))),
    "scope of signals": ("E_EXPR_SCOPE", read("signal.data"), read("state.x")),
    "operators": ("E_EXPR_LIMIT", read(CHAIN), read(CHAIN.removesuffix(" && input"))),
    "segments": ("E_EXPR_LIMIT", read("input" + ".a" * 17), read("input" + ".a" * 16)),
    "characters": ("E_EXPR_LIMIT", read("input." + "a" * 2043), read("input." + "a" * 2042)),
    "depth": ("E_EXPR_LIMIT", read("!" * 24 + "input"), read("!" * 23 + "input")),
    "path": (
        "E_INVALID_PATH",
        graph(each("b", items_path="input == 1"), tool("b", None)),
        graph(each(), tool("b", None)),
    ),
    "reference": ("E_UNKNOWN_REFERENCE", read("nodes.b"), read("nodes.a.visits")),
    "reads": (
        "E_CAPABILITY_DENIED",
        granted(tool(input="{{ globals.h }}"), read=["globals.g"]),
        granted(tool(input="{{ globals.g }}"), read=["globals.g"]),
    ),
    "reads all": (
        "E_CAPABILITY_DENIED",
        granted(tool(input="{{ globals[input] }}"), read=["input", "globals.g"]),
        granted(tool(input="{{ globals[input] }}"), read=["input", "globals"]),
    ),
    "writes": (
        "E_CAPABILITY_DENIED",
        granted(tool(set_globals={"g": "input"}), write=["globals.h"]),
        granted(tool(set_globals={"g": "input"}), write=["globals.g"]),
    ),
    "calls": ("E_CAPABILITY_DENIED", granted(tool(), tools=["t.*"]), granted(tool(), tools=["s.*"])),
    "calls of workers": (
        "E_CAPABILITY_DENIED",
        granted(tool() | {"tool": "worker:w"}, tools=["s.*"]),
        granted(tool() | {"tool": "worker:w"}, tools=["worker:*"]),
    ),
    "models": (
        "E_CAPABILITY_DENIED",
        granted(GPT, models=["openai:gpt-4.*"]),
        granted(GPT, models=["openai:*"]),
    ),
    "grant of a subgraph": ("E_CAPABILITY_DENIED", inline(tools=["s.other"]), inline(tools=["s.call"])),
    "globals of a subgraph": ("E_CAPABILITY_DENIED", inline(write=[]), inline(write=["globals.g"])),
    "input type": (
        "E_VALUE",
        graph(
            {"id": "a", "type": "human_in_the_loop", "input_type": "chioce", "options": [1], "next": "end"}
        ),
        graph(
            {"id": "a", "type": "human_in_the_loop", "input_type": "choice", "options": [1], "next": "end"}
        ),
    ),
    "unknown area": ("E_VALUE", granted(tool(), read=["global"]), granted(tool(), read=["globals"])),
    "unbounded": (
        "W_UNBOUNDED_CYCLE",
        graph(loop(), tool("b", "a")),
        graph(loop(max_iterations=3), tool("b", "a")),
    ),
    "no return": (
        "W_LOOP_BODY_NO_RETURN",
        graph(loop(max_iterations=3), tool("b")),
        graph(loop(max_iterations=3), tool("b", "a")),
    ),
    "no alternate": (
        "W_GATE_WITHOUT_ALTERNATE",
        graph(pick("input", "end", "end")),
        graph(pick("input"), tool("b")),
    ),
    "overlap": (
        "W_BRANCH_OVERLAP",
        graph(fork("b", "c"), tool("b", "d"), tool("c", "d"), tool("d", "m"), merge("b", "c")),
        graph(fork("b", "c"), tool("b", "m"), tool("c", "d"), tool("d", "m"), merge("b", "c")),
    ),
    "source outside": (
        "W_MERGE_SOURCE_OUTSIDE_BRANCHES",
        graph(fork("b"), tool("b", "m"), merge("b", "start")),
        graph(fork("b"), tool("b", "m"), merge("b")),
    ),
    "unset on a way": (
        "W_MAYBE_UNSET",
        graph(pick("input", on_false="c"), tool("b", "c"), tool("c", input="{{ nodes.b.output }}")),
        graph(pick("input", on_false="c"), tool("b", "c"), tool("c", input="{{ nodes.a.output }}")),
    ),
    "unset in the body": (
        "W_MAYBE_UNSET",
        graph(loop(condition="nodes.b.output", max_iterations=3), tool("b", "a")),
        graph(loop(condition="nodes.b.visits", max_iterations=3), tool("b", "a")),
    ),
    "unset behind branches": (
        "W_MAYBE_UNSET",
        graph(
            fork("b", "c"),
            *(tool(n, "m") for n in "bc"),
            merge("b", "c", policy="first", next="d"),
            tool("d", input="{{ nodes.b.output }}"),
        ),
        graph(
            fork("b", "c"),
            *(tool(n, "m") for n in "bc"),
            merge("b", "c", next="d"),
            tool("d", input="{{ nodes.b.output }}"),
        ),
    ),
    "unset behind items": (
        "W_MAYBE_UNSET",
        graph(each(next="c"), tool("b", None), tool("c", input="{{ nodes.b.output }}")),
        graph(
            each(next="c"),
            tool("b", None, set_globals={"g": "nodes.b.output"}),
            tool("c", input="{{ nodes.a }}"),
        ),
    ),
}


def codes(value: dict[str, Any]) -> list[str]:
    try:
        return [d.code for d in load_value(value).warnings]
    except DefinitionError as error:
        return [d.code for d in error.diagnostics]


@pytest.mark.parametrize("name", CASES)
def test_a_diagnostic_has_its_document_and_not_the_one_beside_it(name: str):
    code, wrong, right = CASES[name]
    assert codes(wrong).count(code) == 1
    assert code not in codes(right)


_FOLLOWING = {"no way", "no end", "end in a branch"}


@pytest.mark.parametrize("name", [name for name in CASES if name not in _FOLLOWING])
def test_one_cause_has_one_error(name: str):
    code, wrong, _ = CASES[name]
    errors = [found for found in codes(wrong) if found.startswith("E_")]
    assert errors == ([code] if code.startswith("E_") else [])


_WAITS = {"timeout": 1, "on_timeout": "end"}
_TOOLS = {"tool": "s.call", "compensate_tool": "s.call", "max_retries": 1}
WITHOUT_NEXT: dict[str, dict[str, Any]] = {
    "debounce": {"key_path": "input", "window": 1, "on_suppressed": "end"},
    "throttle": {"key_path": "input", "window": 1, "on_throttled": "end"},
    "cache_read": {"key": "k", "on_miss": "end"},
    "loop": {"condition": "input", "body": "b", "max_iterations": 2, "on_limit": "end"},
    "human_in_the_loop": {"input_type": "text", **_WAITS},
    "event_trigger": {"event": "go", **_WAITS},
    "retry_compensate": {**_TOOLS, "on_compensated": "end"},
}
"""Nodes whose other ways lead on, but not the one that they take as a rule."""


@pytest.mark.parametrize("kind", WITHOUT_NEXT)
def test_next_is_missing_but_at_the_end_of_a_branch(kind: str):
    node = {"id": "a", "type": kind, **WITHOUT_NEXT[kind]}
    body = [tool("b", "a")] if kind == "loop" else []
    found = [code for code in codes(graph(node, *body)) if code.startswith("E_")]
    assert found == ["E_MISSING_NEXT"]
    branch = {key: value for key, value in node.items() if not key.startswith("on_")} | {"id": "x"}
    body = [tool("b", "x")] if kind == "loop" else []
    found = codes(graph(each("x"), branch, *body))
    assert not [code for code in found if code.startswith("E_")]


def test_the_cases_have_all_codes_of_the_page():
    written = {code for code, _, _ in CASES.values()}
    assert written >= {code.value for code in DiagnosticCode}
    assert written <= set(DIAGNOSTICS)
