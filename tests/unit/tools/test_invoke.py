"""One call: conversion both ways, threads, cancellation, and every failure as data."""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import enum
import functools
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import anyio
import msgspec
import pytest

from agentflow.definition.failure import ErrorInfo
from agentflow.tools import PythonTool, ToolContext, ToolError, function, invoke
from agentflow.tools.python import make_tool

CTX = ToolContext(
    context={"tenant": "t1"},
    workflow_id="wf_1",
    step_id="a",
    iteration=None,
    call_id="call_1",
    idempotency_key="wf_1/a//call_1",
    attempt=1,
)


def tool(f: Callable[..., Any], **changes: Any) -> PythonTool:
    made = make_tool("s", f)
    # The two derived fields are not arguments.
    given = {f.name: getattr(made, f.name) for f in dataclasses.fields(made) if f.init}
    return PythonTool(**{**given, **changes})


async def call(f: Callable[..., Any], /, **arguments: Any) -> Any:
    return await invoke(tool(f), arguments, CTX)


async def failure(
    f: Callable[..., Any], /, *, changes: dict[str, Any] | None = None, **arguments: Any
) -> ErrorInfo:
    with pytest.raises(ToolError) as caught:
        await invoke(tool(f, **(changes or {})), arguments, CTX)
    return caught.value.info


class Item(msgspec.Struct):
    sku: str
    n: int = 1


@dataclasses.dataclass
class Point:
    x: float


class Color(enum.Enum):
    RED = "red"


async def test_arguments_have_their_annotated_types() -> None:
    def f(
        item: Item,
        point: Point,
        when: datetime,
        color: Color,
        price: Decimal,
        ids: set[int],
        names: dict[int, str],
    ) -> Any:
        assert (item, point, color) == (Item("a"), Point(1.5), Color.RED)
        assert when == datetime(2026, 1, 2, tzinfo=UTC)
        assert (price, ids, names) == (Decimal("1.10"), {1, 2}, {7: "x"})
        return "as declared"

    arguments = {
        "item": {"sku": "a"},
        "point": {"x": 1.5},
        "when": "2026-01-02T00:00:00Z",
        "color": "red",
        "price": "1.10",
        "ids": [1, 2],
        "names": {"7": "x"},
    }
    assert await call(f, **arguments) == "as declared"


async def test_an_integral_float_is_an_integer_as_in_json_schema() -> None:
    def f(n: int, inner: list[dict[str, int]], ratio: float) -> list[Any]:
        return [n, type(n).__name__, inner[0]["x"], type(ratio).__name__]

    assert await call(f, n=2.0, inner=[{"x": 3.0}], ratio=4) == [2, "int", 3, "float"]


async def test_what_is_left_out_takes_the_functions_own_default() -> None:
    sentinel = object()

    def f(a: int, b: int = 5, c: Any = sentinel, d: str = None) -> list[Any]:  # type: ignore[assignment]  # noqa: RUF013
        return [a, b, c is sentinel, d]

    assert await call(f, a=1) == [1, 5, True, None]
    assert await call(f, a=1, b=2, c=3, d=None) == [1, 2, False, None]


async def test_ctx_is_given_where_it_is_asked_for() -> None:
    async def f(ctx: ToolContext, x: int) -> list[Any]:
        return [ctx.context["tenant"], ctx.idempotency_key, ctx.attempt, x]

    assert await call(f, x=1) == ["t1", "wf_1/a//call_1", 1, 1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, 'the input has no "n"'),
        ({"n": "x"}, "n must be an integer, not a string"),
        ({"n": 1.5}, "n must be an integer, not a number"),
        ({"n": True}, "n must be an integer, not a boolean"),
        ({"n": 1, "m": 2}, 'an unknown key "m"'),
        ({"n": 1, "ctx": {}}, 'an unknown key "ctx"'),
    ],
)
async def test_arguments_that_do_not_fit_are_not_executed(arguments: dict[str, Any], message: str) -> None:
    ran: list[int] = []

    def f(n: int, ctx: ToolContext) -> None:
        ran.append(n)

    info = await failure(f, **arguments)
    assert (info.category, info.code) == ("invalid_input", "invalid_tool_input")
    assert message in info.message
    assert ran == []


async def test_every_breach_of_the_input_schema_is_told() -> None:
    def f(n: int, item: Item, when: datetime) -> None: ...

    info = await failure(f, n="1", item={"n": "x"}, when="2026-01-02T00:00:00Z")
    assert info.details == {
        "errors": [
            {"path": "/item", "message": '"sku" is missing'},
            {"path": "/item/n", "message": '"x" is not an integer'},
            {"path": "/n", "message": '"1" is not an integer'},
        ]
    }
    info = await failure(f, n=1, item={"sku": "a"}, when="tomorrow")
    assert (info.code, info.details) == ("invalid_tool_input", None)
    assert "when is not a date and time as RFC 3339 writes it" in info.message


async def test_results_become_json() -> None:
    def f() -> Any:
        return {
            "item": Item("a"),
            "point": Point(2.0),
            "color": Color.RED,
            "when": datetime(2026, 1, 2, tzinfo=UTC),
            "bytes": b"hi",
            "tuple": (1, None),
            7: {True},
            "big": 10**30,
        }

    assert await call(f) == {
        "item": {"sku": "a", "n": 1},
        "point": {"x": 2.0},
        "color": "red",
        "when": "2026-01-02T00:00:00Z",
        "bytes": "aGk=",
        "tuple": [1, None],
        "7": [True],
        "big": 10**30,
    }
    assert await call(lambda: None) is None


class Opaque:
    pass


class Maybe(msgspec.Struct):
    absent: int | msgspec.UnsetType = msgspec.UNSET
    held: Any = None


def cyclic() -> Any:
    value: list[Any] = []
    value.append(value)
    return value


@pytest.mark.parametrize(
    ("make", "path", "message"),
    [
        (Opaque, None, "a value of type Opaque"),
        (lambda: {"a": [1, {"b/c": Opaque()}]}, "/a/1/b~1c", "a value of type Opaque"),
        (lambda: [Point(Opaque())], "/0/x", "a value of type Opaque"),
        (lambda: Maybe(held=Opaque()), "/held", "a value of type Opaque"),
        (lambda: {"ok": None, "n": [1.0, float("nan")]}, "/n/1", "nan is no JSON number"),
        (lambda: float("-inf"), None, "-inf is no JSON number"),
        (lambda: [1e300] * 6_000, None, "more than 5,000 numbers with an exponent"),
        (lambda: {"t": ["\ud800"]}, "/t/0", "half of a surrogate pair"),
        (lambda: {"n": 10**5000}, "/n", "4300"),
        (cyclic, None, "refers to itself"),
        (lambda: [(i for i in range(3))], "/0", "generator"),
        (lambda: {(1, 2): 3}, None, ""),
    ],
)
async def test_results_that_are_no_json(make: Callable[[], Any], path: str | None, message: str) -> None:
    def f() -> Any:
        return make()

    info = await failure(f)
    assert (info.category, info.code, info.path) == ("tool", "invalid_tool_output", path)
    assert message in info.message
    if path is not None:
        assert f"at {path}" in info.message


async def test_results_over_the_limit() -> None:
    def f(n: int) -> str:
        return "x" * n

    assert len(await invoke(tool(f, max_output_bytes=100), {"n": 98}, CTX)) == 98
    info = await failure(f, changes={"max_output_bytes": 100}, n=99)
    assert info.code == "invalid_tool_output"
    assert info.message == "the result of s__f has 101 bytes, the limit is 100"
    assert len(await call(f, n=(4 << 20) - 2)) == (4 << 20) - 2
    assert (await failure(f, n=(4 << 20) - 1)).code == "invalid_tool_output"


async def test_results_in_breach_of_the_output_schema() -> None:
    def f(v: Any) -> Any:
        return v

    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    assert await invoke(tool(f, output_schema=schema), {"v": {"n": 1}}, CTX) == {"n": 1}
    info = await failure(f, changes={"output_schema": schema}, v={"n": "1"})
    assert info.code == "invalid_tool_output"
    assert info.details == {"errors": [{"path": "/n", "message": '"1" is not an integer'}]}


class OwnError(Exception):
    pass


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OwnError("no stock"), "s__f raised OwnError: no stock"),
        (OwnError(), "s__f raised OwnError"),
        (TimeoutError("slow"), "s__f raised TimeoutError: slow"),
        (SystemExit(2), "s__f raised SystemExit: 2"),
        (StopIteration(), "StopIteration"),
        (asyncio.CancelledError(), "s__f cancelled itself"),
        (ExceptionGroup("two", [OwnError(), OwnError()]), "s__f raised ExceptionGroup: two"),
        (OwnError("x" * 100_000), "s__f raised OwnError: xxx"),
    ],
)
async def test_a_function_that_raises(error: BaseException, message: str, is_async: bool) -> None:
    def f() -> None:
        raise error

    async def g() -> None:
        raise error

    g.__name__ = "f"
    info = await failure(g if is_async else f)
    assert (info.category, info.code) == ("tool", "tool_execution_failed")
    assert message in info.message
    assert len(info.message) <= 2_000


async def test_sync_functions_leave_the_loop_free_and_async_ones_stay_on_it() -> None:
    here = threading.get_ident()
    meet = threading.Barrier(3)
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")
    variable.set("set by the caller")

    def f() -> list[Any]:
        meet.wait(10)
        return [threading.get_ident() == here, variable.get()]

    async def g() -> bool:
        return threading.get_ident() == here

    async with asyncio.TaskGroup() as group:
        calls = [group.create_task(call(f)) for _ in range(2)]
        await asyncio.to_thread(meet.wait, 10)  # both run at once, or the barrier breaks
    assert [c.result() for c in calls] == [[False, "set by the caller"]] * 2
    assert await call(g) is True


async def test_a_plain_function_around_an_async_one() -> None:
    async def inner(x: int) -> int:
        await asyncio.sleep(0)
        return x + 1

    @functools.wraps(inner)
    def outer(*args: Any, **kwargs: Any) -> Any:
        return inner(*args, **kwargs)

    assert await call(outer, x=1) == 2


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_cancelled_call_ends_at_once(is_async: bool) -> None:
    began, release, ended = threading.Event(), threading.Event(), threading.Event()

    def f() -> None:
        began.set()
        release.wait(20)
        ended.set()

    async def g() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    task = asyncio.create_task(call(g if is_async else f))
    await asyncio.to_thread(began.wait, 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set() is is_async
    # The thread that was left behind ends by itself; nobody listens to it any more.
    release.set()
    assert await asyncio.to_thread(ended.wait, 10)


@pytest.mark.parametrize("is_async", [True, False])
async def test_the_callers_time_limit_holds(is_async: bool) -> None:
    release = threading.Event()

    def f() -> None:
        release.wait(20)

    async def g() -> None:
        await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        with anyio.fail_after(0.02):
            await call(g if is_async else f)
    release.set()


def test_a_function_that_never_returns_does_not_hold_up_the_end_of_the_process() -> None:
    program = """
import asyncio, threading
from agentflow.tools import ToolContext, invoke
from agentflow.tools.python import make_tool

def stuck():
    print("began", flush=True)
    threading.Event().wait()

async def main():
    ctx = ToolContext(context=None, workflow_id="w", step_id="s", iteration=None, call_id="c",
                      idempotency_key="k", attempt=1)
    try:
        async with asyncio.timeout(0.05):
            await invoke(make_tool("s", stuck), {}, ctx)
    except TimeoutError:
        print("left behind", flush=True)

asyncio.run(main())
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout.split("\n") == ["began", "left behind", ""]


@function(name="odd name!")
def odd(x: int) -> int:
    return x


async def test_a_name_need_not_be_an_identifier() -> None:
    assert tool(odd).name == "s__odd_name_"
    assert await call(odd, x=1) == 1
