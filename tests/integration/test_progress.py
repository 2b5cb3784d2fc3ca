"""Generators, and what a function may ask and tell while it works."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pydantic import BaseModel

from agentflow import Runtime
from agentflow.tools import Service, ToolContext, ToolError, function, invoke
from agentflow.tools.python import make_tool
from agentflow.tools.tool import CallSignals
from tests.integration.support.runs import chain
from tests.unit.tools.test_invoke import CTX


async def shown(f: Callable[..., Any], **arguments: Any) -> tuple[list[Any], Any]:
    """What a function told while it worked, and its result."""
    values: list[Any] = []
    signals = CallSignals(show=lambda index, value: values.append((index, value)))
    result = await invoke(make_tool("s", f), arguments, msgspec.structs.replace(CTX, signals=signals))
    assert [index for index, _ in values] == list(range(len(values)))
    return [value for _, value in values], result


async def test_generators_tell_progress_and_then_the_result():
    async def asynchronous(n: int) -> AsyncIterator[int]:
        for i in range(n):
            await asyncio.sleep(0)
            yield i

    def plain(n: int) -> Iterator[int]:
        yield from range(n)

    def returning(n: int) -> Any:
        yield from range(n)
        return "done"

    assert await shown(asynchronous, n=3) == ([0, 1, 2], 2)
    assert await shown(plain, n=3) == ([0, 1, 2], 2)
    assert await shown(returning, n=2) == ([0, 1], "done")
    assert await shown(asynchronous, n=0) == ([], None)


async def test_a_generator_that_raises_fails_the_call():
    async def f() -> AsyncIterator[int]:
        yield 1
        raise RuntimeError("no more")

    with pytest.raises(ToolError, match="no more"):
        await shown(f)


async def test_a_cancelled_generator_is_closed():
    closed, begun = asyncio.Event(), asyncio.Event()

    async def f() -> AsyncIterator[int]:
        try:
            begun.set()
            yield 1
            await asyncio.Event().wait()
        finally:
            closed.set()

    call = asyncio.create_task(shown(f))
    await begun.wait()
    await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert closed.is_set()


async def test_results_and_progress_may_be_models():
    class Row(BaseModel):
        path: Path

    def f() -> Any:
        return {"row": Row(path=Path("a")), "at": Path("b")}

    assert await invoke(make_tool("s", f), {}, CTX) == {"row": {"path": "a"}, "at": "b"}


async def test_a_logger_names_run_step_and_call(caplog: pytest.LogCaptureFixture, capsys: Any):
    def f(ctx: ToolContext) -> None:
        ctx.logger.warning("looked", rows=3)

    await invoke(make_tool("s", f), {}, CTX)
    (record,) = [vars(r) for r in caplog.records if r.name == "agentflow.function"]
    assert (record["msg"], record["rows"], record["workflow_id"]) == ("looked", 3, "wf_1")
    assert (record["step_id"], record["call_id"]) == ("a", "call_1")
    assert capsys.readouterr().out == ""


async def begun(runtime: Runtime) -> Any:
    return await runtime.submit(chain("work"), {})


async def test_progress_reaches_the_readers_of_the_run():
    go = threading.Event()

    @function(side_effect="none")
    def work(ctx: ToolContext) -> str:
        assert go.wait(10)
        ctx.progress({"rows": 1})
        ctx.progress({"rows": 2})
        return "ok"

    async with Runtime(services=[Service.of("desk", work)]) as runtime:
        handle = await begun(runtime)
        changed = asyncio.Event()
        with runtime.delta_hub.follow(handle.workflow_id, changed.set) as reader:
            go.set()
            assert (await handle.result()).state == "completed"
            found = reader.take()
    assert [(p.type, p.step, p.data.index, p.data.value) for p in found] == [
        ("tool.progress", "t0", 0, {"rows": 1}),
        ("tool.progress", "t0", 1, {"rows": 2}),
    ]
    assert len({p.data.call_id for p in found}) == 1


async def test_the_progress_of_a_sensitive_function_is_not_shown():
    go = asyncio.Event()

    @function(side_effect="none", sensitive=True)
    async def work(ctx: ToolContext) -> None:
        await go.wait()
        ctx.progress("secret")

    async with Runtime(services=[Service.of("desk", work)]) as runtime:
        handle = await begun(runtime)
        with runtime.delta_hub.follow(handle.workflow_id, lambda: None) as reader:
            go.set()
            await handle.result()
            assert reader.take() == []


@pytest.mark.parametrize("value", [object(), float("nan"), "x" * 70_000], ids=["object", "nan", "large"])
async def test_progress_that_cannot_be_shown_is_an_error_of_the_function(value: Any):
    @function(side_effect="none")
    async def work(ctx: ToolContext) -> None:
        ctx.progress(value)

    async with Runtime(services=[Service.of("desk", work)]) as runtime:
        result = await (await begun(runtime)).result(raise_on_failure=False)
    assert result.error is not None
    assert "progress of desk__work" in result.error.message


async def test_a_slow_reader_gets_the_newest():
    @function(side_effect="none")
    async def work(ctx: ToolContext) -> None:
        for n in range(1_000):
            ctx.progress(n)

    async with Runtime(services=[Service.of("desk", work)]) as runtime:
        handle = await begun(runtime)
        with runtime.delta_hub.follow(handle.workflow_id, lambda: None) as reader:
            await handle.result()
            values = [p.data.value for p in reader.take()]
    assert values == list(range(1_000 - len(values), 1_000))
    assert 0 < len(values) <= 256


async def test_deadline_and_cancellation():
    told: dict[str, Any] = {}
    entered, left = threading.Event(), threading.Event()

    @function(side_effect="none", timeout=5)
    def work(ctx: ToolContext) -> None:
        told["left"] = (ctx.deadline - datetime.now(UTC)).total_seconds()
        told["before"] = ctx.cancelled
        entered.set()
        while not ctx.cancelled:
            threading.Event().wait(0.005)
        left.set()

    async with Runtime(services=[Service.of("desk", work)]) as runtime:
        handle = await begun(runtime)
        assert await asyncio.to_thread(entered.wait, 10)
        await handle.cancel()
        assert await asyncio.to_thread(left.wait, 10)
    assert 0 < told["left"] <= 5
    assert told["before"] is False


def test_without_a_run_there_is_no_deadline_and_progress_goes_nowhere():
    assert CTX.deadline is None
    assert CTX.cancelled is False
    CTX.progress(1)
