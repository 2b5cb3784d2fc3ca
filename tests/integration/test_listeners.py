"""Listeners get every durable event at least once, from a cursor of their own, and hold up no run."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from agentflow import Listener, Runtime
from agentflow.errors import ConfigurationError
from agentflow.events.memory import MemoryLog
from agentflow.testing import ScriptedModel
from tests.faults.listening import RUN, listener, open_runtime
from tests.integration.support.runs import document, log_of, step

ROOT = Path(__file__).parents[2]


class Heard:
    """What a listener got; `fails` is how often it raises first."""

    def __init__(self, fails: int = 0) -> None:
        self.events: list[tuple[str, int, str]] = []
        self.fails = fails

    async def take(self, workflow_id: str, event: Any) -> None:
        if self.fails:
            self.fails -= 1
            raise ValueError("not now")
        self.events.append((workflow_id, event.offset, event.type))


async def run(log: Any, *listeners: Listener, id: str = "wf_a") -> list[tuple[str, int, str]]:
    made = step("a")
    del made["agent"]["resultSchema"]
    made["agent"]["model"] = "scripted:m"
    async with Runtime(log, models=[ScriptedModel(["done"])], listeners=listeners) as runtime:
        result = await runtime.run(document(made), {}, workflow_id=id)
        assert result.state == "completed"
        return [(id, event.offset, event.type) for event in await log_of(runtime, id)]


async def test_every_event_comes_in_its_order_and_goes_on_where_it_stood() -> None:
    log, heard, late = MemoryLog(), Heard(), Heard()
    first = await run(log, Listener("audit", heard.take))
    assert heard.events == first
    second = await run(log, Listener("audit", heard.take), Listener("late", late.take), id="wf_b")
    assert heard.events == [*first, *second]
    assert late.events == second  # it begins with what is committed from its first start on


async def test_what_was_committed_without_the_listener_comes_at_its_next_start() -> None:
    log, heard = MemoryLog(), Heard()
    first = await run(log, Listener("audit", heard.take))
    second = await run(log, id="wf_b")
    third = await run(log, Listener("audit", heard.take), id="wf_c")
    assert heard.events == [*first, *second, *third]


async def test_types_and_families_of_types_are_chosen() -> None:
    heard = Heard()
    whole = await run(MemoryLog(), Listener("audit", heard.take, ("model.*", "workflow.completed")))
    assert heard.events == [e for e in whole if e[2].startswith("model.") or e[2] == "workflow.completed"]
    assert len(heard.events) == 3


async def test_a_plain_function_runs_beside_the_event_loop() -> None:
    threads: list[bool] = []

    def take(workflow_id: str, event: Any) -> None:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            threads.append(True)

    whole = await run(MemoryLog(), Listener("audit", take))
    assert len(threads) == len(whole)


async def test_one_that_fails_is_a_warning_and_gets_the_event_again(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentflow.runtime.listeners._RETRY_S", (0.0, 0.0))
    caplog.set_level(logging.WARNING, "agentflow")
    log, heard = MemoryLog(), Heard(fails=2)
    whole = await run(log, Listener("audit", heard.take))
    if heard.fails:  # the Runtime was closed before it came to that: it comes at the next start
        whole += await run(log, Listener("audit", heard.take), id="wf_b")
    assert any("not now" in str(vars(record)) for record in caplog.records)
    whole += await run(log, Listener("audit", heard.take), id="wf_c")
    assert heard.events == whole


async def test_one_that_always_fails_holds_up_no_run_and_loses_nothing() -> None:
    log, broken, heard = MemoryLog(), Heard(fails=10_000), Heard()
    whole = await run(log, Listener("audit", broken.take), Listener("other", heard.take))
    assert (broken.events, heard.events) == ([], whole)
    broken.fails = 0
    whole += await run(log, Listener("audit", broken.take), id="wf_b")
    assert broken.events == whole


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (3, "3 is no Listener"),
        (Listener(3, print), "is no name"),  # type: ignore[arg-type]
        (Listener("a", None), "handle of the listener"),  # type: ignore[arg-type]
        (Listener("a", print, "model.*"), "types of the listener"),  # type: ignore[arg-type]
    ],
)
async def test_what_is_no_listener_is_refused_and_not_deaf(given: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        await run(MemoryLog(), given)


@pytest.mark.parametrize(
    ("names", "said"),
    [(["Audit"], "is no name"), ([""], "is no name"), (["a", "a"], 'two listeners have the name "a"')],
)
async def test_names_that_are_none_are_refused(names: list[str], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        await run(MemoryLog(), *(Listener(name, Heard().take) for name in names))


async def test_a_name_is_served_by_one_runtime_of_a_store_at_a_time(tmp_path: Path) -> None:
    store, first, second = f"sqlite:{tmp_path}/runs.db", Heard(), Heard()
    writers = sum(thread.name == "agentflow-log-writer" for thread in threading.enumerate())
    async with Runtime(store, listeners=[Listener("audit", first.take)]):
        with pytest.raises(ConfigurationError, match='of this process serves the listener "audit"'):
            async with Runtime(
                store, listeners=[Listener("other", second.take), Listener("audit", second.take)]
            ):
                raise AssertionError("it was opened")
        async with Runtime(store, listeners=[Listener("other", second.take)]):
            pass  # the name that was refused beside "audit" is free
        assert sum(thread.name == "agentflow-log-writer" for thread in threading.enumerate()) == writers + 1
    whole = await run(store, Listener("audit", second.take))
    assert (first.events, second.events) == ([], whole)


async def test_a_name_is_free_once_the_process_that_served_it_has_ended(tmp_path: Path) -> None:
    store = f"sqlite:{tmp_path}/runs.db"
    program = (
        "import asyncio, sys\nfrom agentflow import Listener, Runtime\n"
        "async def main():\n"
        "    async with Runtime(sys.argv[1], listeners=[Listener('audit', print)]):\n"
        "        print('open', flush=True)\n"
        "        await asyncio.Event().wait()\n"
        "asyncio.run(main())\n"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, store, stdout=asyncio.subprocess.PIPE, cwd=ROOT
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"open\n"
    heard = Heard()
    with pytest.raises(ConfigurationError, match=f"in process {process.pid} serves"):
        await run(store, Listener("audit", heard.take))
    process.kill()
    await process.wait()
    whole = await run(store, Listener("audit", heard.take))
    assert heard.events == whole


@pytest.mark.skipif(sys.platform == "win32", reason="needs signals")
@pytest.mark.parametrize("offset", [0, 3, 7, pytest.param(11, marks=pytest.mark.slow)])
async def test_each_event_comes_at_least_once_across_a_kill(offset: int, tmp_path: Path) -> None:
    store, file = f"sqlite:{tmp_path / 'runs.db'}", tmp_path / "heard"
    command = [sys.executable, "-m", "tests.faults.listening", str(offset), store, str(file)]
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT)
    assert await process.wait() == -signal.SIGKILL
    async with open_runtime(store, listener(file)) as runtime:
        await runtime.recover()
        await runtime.rest(RUN)
        events = await log_of(runtime, RUN)
    heard = [tuple(line.split()) for line in file.read_text().splitlines()]
    wanted = [(RUN, str(event.offset), event.type) for event in events]
    assert set(heard) == set(wanted)
    assert list(dict.fromkeys(heard)) == wanted  # in their order
