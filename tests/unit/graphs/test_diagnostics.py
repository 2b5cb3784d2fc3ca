"""What build() refuses and warns of (page 002 §13): code, the node or edge named, and near misses."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Never

import msgspec
import pytest

from agentflow import (
    Case,
    Default,
    Executor,
    NodeFailure,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowValidationError,
    handler,
)
from agentflow.definition.diagnostics import Diagnostic
from agentflow.docs.codes import DIAGNOSTICS
from tests.unit.graphs.nodes import Animal, Asker, Dog, Gather, Pass, Sink, Source, sends, takes

Make = Callable[[], WorkflowBuilder]


def begin(*, start: bool = True, **more: Any) -> WorkflowBuilder:
    builder = WorkflowBuilder("w", **more)
    return builder.set_start_executor(Source("a")) if start else builder


def loop(*args: Any, **more: Any) -> WorkflowBuilder:
    """a, then b and c round and round, then an output."""
    builder = begin(**more).add_chain(["a", Pass("b"), Pass("c"), Sink("out")])
    return builder.add_edge("c", "b", *args)


async def wait_for(value: int) -> bool:
    return True


def is_big(value: int) -> bool:
    return value > 1


def is_odd(value: int) -> bool:
    return bool(value % 2)


class Empty(Executor):
    async def go(self, message: int, ctx: WorkflowContext[int]) -> None: ...


class Twice(Executor):
    @handler
    async def one(self, message: int, ctx: WorkflowContext[int]) -> None: ...

    @handler
    async def two(self, message: int, ctx: WorkflowContext[int]) -> None: ...


class Untyped(Executor):
    @handler
    async def go(self, message, ctx: WorkflowContext[Never, int]) -> None: ...  # type: ignore[no-untyped-def]


class Locked(Sink):
    def __init__(self, id: str) -> None:
        super().__init__(id)
        self.lines = (line for line in "ab")


def clash(text: str) -> Executor:
    kind = msgspec.defstruct("Twin", [(text, str)])
    return sends(f"s_{text}", kind)


CASES: dict[str, tuple[Make, str, tuple[str, ...]]] = {
    "type": (
        lambda: begin().add_edge("a", takes("b", str)),
        "E_TYPE_INCOMPATIBLE",
        ('"a" sends int', '"b" takes str', 'add_edge("a", "b")'),
    ),
    "type of a fan-out": (
        lambda: begin().add_fan_out_edges("a", [Sink("b"), takes("c", str)]),
        "E_TYPE_INCOMPATIBLE",
        ('from "a" to "c"',),
    ),
    "type of a case": (
        lambda: begin().add_switch_case_edge_group("a", [Case(is_big, Sink("b")), Default(takes("c", str))]),
        "E_TYPE_INCOMPATIBLE",
        ('from "a" to "c"',),
    ),
    "type of a fan-in": (
        lambda: (
            begin().add_fan_out_edges("a", [Pass("b"), Pass("c")]).add_fan_in_edges(["b", "c"], Sink("d"))
        ),
        "E_TYPE_INCOMPATIBLE",
        ('fan-in at "d"', "list[int]"),
    ),
    "type of an error edge": (
        lambda: begin().add_edge("a", Sink("b")).add_error_edge("a", "b"),
        "E_TYPE_INCOMPATIBLE",
        ("NodeFailure", '"b" takes int'),
    ),
    "a sender that declares nothing": (
        lambda: begin().add_chain(["a", Sink("b"), Sink("c")]),
        "E_TYPE_INCOMPATIBLE",
        ('leaves "b"', "WorkflowContext[Out]"),
    ),
    "elements of a map": (
        lambda: begin().add_map_edges("a", Pass("b"), Gather("c")),
        "E_TYPE_INCOMPATIBLE",
        ('"a" sends int', '"b" takes int', "list[int]"),
    ),
    "results of a map": (
        lambda: (
            WorkflowBuilder("w")
            .set_start_executor(sends("a", list[int]))
            .add_map_edges("a", Pass("b"), Sink("c"))
        ),
        "E_TYPE_INCOMPATIBLE",
        ('worker "b" sends int', '"c" takes int'),
    ),
    "fan-out of one": (
        lambda: begin().add_fan_out_edges("a", [Sink("b")]),
        "E_FAN_TOO_SMALL",
        ('the fan_out from "a"', 'add_fan_out_edges("a", ["b"])'),
    ),
    "fan-in of one": (
        lambda: begin().add_fan_in_edges(["a"], Gather("b")),
        "E_FAN_TOO_SMALL",
        ('the fan_in to "b"',),
    ),
    "fan-out of none": (lambda: begin().add_fan_out_edges("a", []), "E_FAN_TOO_SMALL", ("without targets",)),
    "chain of one": (lambda: begin().add_chain(["a"]), "E_FAN_TOO_SMALL", ('add_chain(["a"])',)),
    "no default": (
        lambda: begin().add_switch_case_edge_group("a", [Case(is_big, Sink("b"))]),
        "E_MISSING_DEFAULT",
        ('the switch from "a"',),
    ),
    "two defaults": (
        lambda: begin().add_switch_case_edge_group("a", [Default(Sink("b")), Default(Sink("c"))]),
        "E_MULTIPLE_DEFAULT",
        ('the switch from "a"',),
    ),
    "edge twice": (
        lambda: begin().add_edge("a", Sink("b")).add_edge("a", "b"),
        "E_DUPLICATE_EDGE",
        ('from "a" to "b"',),
    ),
    "one name, two conditions": (
        lambda: begin().add_edge("a", Sink("b"), is_big, "x").add_edge("a", Sink("c"), is_odd, "x"),
        "E_DUPLICATE_EDGE",
        ('named "x"', 'of "a"'),
    ),
    "unknown output node": (
        lambda: begin(output_from=["bb"]).add_edge("a", Sink("b")),
        "E_UNKNOWN_OUTPUT_NODE",
        ('"bb"',),
    ),
    "async condition": (
        lambda: begin().add_edge("a", Sink("b"), wait_for),  # type: ignore[arg-type]
        "E_ASYNC_PREDICATE",
        ("wait_for", 'add_edge("a", "b")'),
    ),
    "async selection": (
        lambda: begin().add_multi_selection_edge_group("a", [Sink("b"), Sink("c")], wait_for),  # type: ignore[arg-type]
        "E_ASYNC_PREDICATE",
        ("selection wait_for",),
    ),
    "condition of three": (
        lambda: begin().add_edge("a", Sink("b"), lambda x, y, z: True, "n"),
        "E_VALUE",
        ("condition n takes (x, y, z)",),
    ),
    "cycle": (
        lambda: loop(is_big, acyclic=True),
        "E_CYCLE_NOT_ALLOWED",
        ("b → c → b",),
    ),
    "no start": (
        lambda: begin(start=False).add_edge(Source("a"), Sink("b")),
        "E_MISSING_START",
        ("no start", 'WorkflowBuilder("w")'),
    ),
    "start twice": (
        lambda: begin().set_start_executor(Sink("b")),
        "E_MULTIPLE_START",
        ("set_start_executor",),
    ),
    "no nodes": (lambda: WorkflowBuilder("w"), "E_EMPTY_WORKFLOW", ("no nodes",)),
    "no name": (lambda: WorkflowBuilder(" ").set_start_executor(Sink("a")), "E_EMPTY_WORKFLOW_NAME", ()),
    "unknown node": (
        lambda: begin().add_edge("a", Sink("beta")).add_edge("a", "bета"),
        "E_UNKNOWN_TARGET",
        (),
    ),
    "misspelt node": (
        lambda: begin().add_edge("a", Sink("beta")).add_edge("a", "betta", is_big),
        "E_UNKNOWN_TARGET",
        ('"betta"', 'did you mean "beta"?'),
    ),
    "id twice": (
        lambda: begin().add_edge("a", Sink("b")).add_edge("a", Sink("b"), name="2"),
        "E_DUPLICATE_NODE_ID",
        ('"b"',),
    ),
    "reserved id": (lambda: begin().add_edge("a", Sink("__b")), "E_INVALID_NODE_ID", ('"__b"',)),
    "bad id": (lambda: begin().add_edge("a", Sink("b c")), "E_INVALID_NODE_ID", ('"b c"',)),
    "unreachable": (
        lambda: begin().add_edge("a", Sink("b")).add_edge(Pass("c"), "b"),
        "E_UNREACHABLE_NODE",
        ('"c"',),
    ),
    "no handler": (lambda: begin().add_edge("a", Empty("b")), "E_NO_HANDLER", ('"b"', "@handler")),
    "two handlers": (
        lambda: begin().add_chain(["a", Twice("b"), Sink("c")]),
        "E_DUPLICATE_HANDLER",
        ('"b"',),
    ),
    "no JSON form": (lambda: begin().add_edge("a", takes("b", Path)), "E_NOT_ENCODABLE", ('"b"', "Path")),
    "one tag": (
        lambda: WorkflowBuilder("w").set_start_executor(clash("x"), clash("y")),
        "E_TYPE_TAG_CLASH",
        ('"Twin"',),
    ),
    "not copyable": (
        lambda: begin().add_edge("a", Locked("b")),
        "E_EXECUTOR_NOT_COPYABLE",
        ('"b"', "factory"),
    ),
    "no node": (lambda: begin().add_edge("a", 3), "E_TYPE", ("int", 'add_edge("a", int)')),
    "plain function": (lambda: begin().add_edge("a", is_big), "E_TYPE", ("is_big", "@executor")),
    "quorum": (
        lambda: (
            begin()
            .add_fan_out_edges("a", [Pass("b"), Pass("c")])
            .add_fan_in_edges(["b", "c"], Gather("d"), quorum=3)
        ),
        "E_VALUE",
        ("quorum 3",),
    ),
    "duration": (
        lambda: begin().add_fan_in_edges(["a"], Gather("b"), timeout="soon"),
        "E_VALUE",
        ("'soon'",),
    ),
    "rule": (
        lambda: begin().add_fan_in_edges(["a"], Gather("b"), on_missing="perhaps"),  # type: ignore[arg-type]
        "E_TYPE",
        ("perhaps",),
    ),
    "expression": (
        lambda: begin().add_edge("a", Sink("b"), "message >"),
        "E_EXPR_SYNTAX",
        ('add_edge("a", "b")',),
    ),
    "shared key twice": (
        lambda: begin().add_edge("a", Sink("b")).add_shared("k", int).add_shared("k", str),
        "E_DUPLICATE_KEY",
        ('"k"',),
    ),
    "unregistered reducer": (
        lambda: begin().add_edge("a", Sink("b")).add_shared("k", int, reducer=is_odd),
        "E_UNREGISTERED_CALLABLE",
        ("is_odd", "reducers.register"),
    ),
    "default without JSON form": (
        lambda: begin().add_edge("a", Sink("b")).add_shared("k", object, default=object()),
        "E_NOT_ENCODABLE",
        ('"k"',),
    ),
}

WARNINGS: dict[str, tuple[Make, str, tuple[str, ...]]] = {
    "self loop": (
        lambda: begin().add_chain(["a", Pass("b"), Sink("c")]).add_edge("b", "b", is_big),
        "W_SELF_LOOP",
        ('"b"',),
    ),
    "unbounded": (loop, "W_UNBOUNDED_CYCLE", ("b, c",)),
    "anonymous": (
        lambda: begin().add_edge("a", Sink("b"), lambda x: x > 2),
        "W_ANONYMOUS_CONDITION",
        ('add_edge("a", "b")',),
    ),
    "no output": (lambda: begin(), "W_NO_OUTPUT", ("yield_output",)),
    "untyped": (lambda: begin().add_edge("a", Untyped("b")), "W_UNTYPED_HANDLER", ('"b"',)),
}


def found_by(builder: WorkflowBuilder) -> list[Diagnostic]:
    try:
        return builder.build().diagnostics
    except WorkflowValidationError as error:
        return error.diagnostics


@pytest.mark.parametrize(("make", "code", "words"), CASES.values(), ids=CASES)
def test_build_refuses(make: Make, code: str, words: tuple[str, ...]):
    with pytest.raises(WorkflowValidationError) as refused:
        make().build()
    found = [d for d in refused.value.diagnostics if d.code == code]
    assert found, refused.value
    assert found[0].severity == "error"
    assert (found[0].file, bool(found[0].line)) == (__file__, True)
    for word in words:
        assert word in found[0].render()


@pytest.mark.parametrize(("make", "code", "words"), WARNINGS.values(), ids=WARNINGS)
def test_build_warns(make: Make, code: str, words: tuple[str, ...]):
    (found,) = (d for d in make().build().diagnostics if d.code == code)
    assert found.severity == "warning"
    for word in words:
        assert word in found.render()


SOUND: dict[str, Make] = {
    "subclass sent": lambda: (
        WorkflowBuilder("w").set_start_executor(sends("a", Dog)).add_edge("a", takes("b", Animal))
    ),
    "base class sent": lambda: (
        WorkflowBuilder("w").set_start_executor(sends("a", Animal)).add_edge("a", takes("b", Dog))
    ),
    "one member of a union": lambda: begin().add_edge("a", takes("b", str | int)),
    "one of several sent": lambda: (
        WorkflowBuilder("w").set_start_executor(sends("a", str | int)).add_edge("a", takes("b", int))
    ),
    "any": lambda: begin().add_edge("a", takes("b", Any)),
    "bare list": lambda: (
        WorkflowBuilder("w").set_start_executor(sends("a", list[int])).add_edge("a", takes("b", list))
    ),
    "bool for int": lambda: (
        WorkflowBuilder("w").set_start_executor(sends("a", bool)).add_edge("a", takes("b", int))
    ),
    "elements of a base class": lambda: (
        WorkflowBuilder("w")
        .set_start_executor(sends("a", Dog), sends("b", Dog))
        .add_fan_in_edges(["a", "b"], takes("c", list[Animal]))
    ),
    "a loop with a condition": lambda: loop(is_big),
    "a loop with a person": lambda: (
        begin().add_chain(["a", Asker("ask"), Pass("b"), Sink("out")]).add_edge("b", "ask")
    ),
    "a named lambda": lambda: begin().add_edge("a", Sink("b"), lambda x: x > 2, name="large"),
    "edges with names": lambda: begin().add_edge("a", Sink("b"), name="1").add_edge("a", "b", name="2"),
    "acyclic": lambda: begin(acyclic=True).add_chain(["a", Pass("b"), Sink("c")]),
    "output node": lambda: begin(output_from=["b"]).add_edge("a", Sink("b")),
    "what a factory makes need not be copied": lambda: begin().add_edge("a", lambda: Locked("b")),
    "an error edge to a handler of failures": lambda: (
        begin().add_edge("a", Sink("b")).add_error_edge("a", takes("c", NodeFailure))
    ),
}


@pytest.mark.parametrize("make", SOUND.values(), ids=SOUND)
def test_build_accepts_near_misses(make: Make):
    assert make().build().diagnostics == []


def test_every_mistake_is_told_at_once_in_the_order_of_the_lines():
    builder = begin()
    builder.add_edge("a", takes("b", str))
    builder.add_fan_out_edges("b", [Sink("c")])
    builder.add_edge("c", "nowhere")
    found = found_by(builder)
    codes = [d.code for d in found if d.severity == "error"]
    assert codes[:1] == ["E_TYPE_INCOMPATIBLE"]
    assert {"E_FAN_TOO_SMALL", "E_UNKNOWN_TARGET"} <= set(codes)
    assert [d.line for d in found] == sorted(d.line or 0 for d in found)


def test_every_code_is_explained():
    codes = {code for _, code, _ in [*CASES.values(), *WARNINGS.values()]}
    assert codes <= DIAGNOSTICS.keys()


def test_the_message_names_the_call_and_its_line():
    builder = begin()
    builder.add_edge("a", takes("b", str))
    text = found_by(builder)[0].render()
    assert re.search(
        r'test_diagnostics\.py:\d+: error E_TYPE_INCOMPATIBLE: .*, in add_edge\("a", "b"\)', text
    )
