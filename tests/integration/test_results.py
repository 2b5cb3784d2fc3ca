"""`result()` waits until the run rests, whichever process works on it, and says how it ended (002 §16)."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import msgspec
import pydantic
import pytest

from agentflow import (
    AgentflowError,
    RunHandle,
    Runtime,
    Service,
    SyncClient,
    WorkflowCancelled,
    WorkflowFailed,
    function,
)
from agentflow.errors import ConfigurationError, InvalidOutput
from agentflow.runtime.run_results import follow_to_rest
from agentflow.testing import ScriptedModel
from tests.integration.support.runs import Desk, chain, document, step
from tests.unit.server.kit import serving


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AGENTFLOW_MODEL", "scripted:m")


@contextmanager
def working(module: str, url: str, run: str) -> Generator[subprocess.Popen[str]]:
    """Another process that is at work on the run."""
    child = subprocess.Popen(
        [sys.executable, "-m", f"tests.integration.support.{module}", url, run],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONDONTWRITEBYTECODE": ""},
    )
    assert child.stdin
    assert child.stdout
    try:
        assert child.stdout.readline() == "paying\n"
        yield child
    finally:
        child.kill()
        child.wait()
        child.stdin.close()
        child.stdout.close()


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a store whose process was killed at work on `wf_left`."""
    folder = tmp_path_factory.mktemp("killed")
    with working("slow_run", f"sqlite:{folder / 'runs.db'}", "wf_left"):
        pass
    return folder


@pytest.fixture
def left(killed: Path, tmp_path: Path) -> str:
    """The URL of a copy of that store."""
    shutil.copytree(killed, tmp_path / "left")
    return f"sqlite:{tmp_path / 'left/runs.db'}"


class TestWhoeverWorksOnIt:
    async def test_the_run_of_another_process_is_awaited(self, tmp_path: Path):
        """daily-use 1: it was returned at once, as running and without output."""
        url = f"sqlite:{tmp_path / 'runs.db'}"
        with working("slow_run", url, "wf_theirs") as child:
            async with Runtime(url) as runtime:
                waiting = asyncio.ensure_future((await runtime.attach("wf_theirs")).result())
                other = asyncio.ensure_future(runtime.result("wf_theirs"))
                done, _ = await asyncio.wait({waiting, other}, timeout=1.5)
                assert not done
                assert child.stdin is not None
                child.stdin.write("\n")
                child.stdin.flush()
                result = await waiting
                assert (result.state, result.output) == ("completed", {"done": "look"})
                assert await other == result

    async def test_the_other_process_dies_while_it_is_awaited(self, tmp_path: Path):
        url = f"sqlite:{tmp_path / 'runs.db'}"
        with working("slow_run", url, "wf_theirs") as child:
            async with Runtime(url) as runtime:
                waiting = asyncio.ensure_future(runtime.result("wf_theirs"))
                assert not (await asyncio.wait({waiting}, timeout=0.3))[0]
                child.kill()
                with pytest.raises(AgentflowError, match="no process works on it") as raised:
                    await waiting
                assert "`resume`" in (raised.value.hint or "")

    async def test_another_runtime_of_this_process_is_awaited(self):
        """A store in memory does not tell of foreign writes, so its rows are looked at."""
        from agentflow.events.memory import MemoryLog

        log, desk = MemoryLog(), Desk(look=True)
        async with Runtime(log, services=[desk.service()]) as one, Runtime(log) as two:
            handle = await one.submit(chain("look"), {})
            waiting = asyncio.ensure_future(two.result(handle.workflow_id))
            await desk.entered.wait()
            assert not (await asyncio.wait({waiting}, timeout=0.1))[0]
            desk.gates["look"].set()
            assert (await waiting).output == {"done": "look"}
        await log.close()

    async def test_no_process_works_on_it(self, left: str):
        async with Runtime(left) as runtime:
            with pytest.raises(AgentflowError, match="wf_left is running, but no process works on it"):
                await (await runtime.attach("wf_left")).result()
            with pytest.raises(AgentflowError, match="no process"):
                await follow_to_rest(runtime.log, runtime.hub, "wf_left", runtime.owner)


class TestHowItEnded:
    async def test_a_failed_run_raises_with_all_that_is_known(self):
        @function(side_effect="read")
        async def look() -> None:
            """Look."""
            raise ValueError("it is dark")

        async with Runtime(services=[Service.of("desk", look)]) as runtime:
            handle = await runtime.submit(chain("look"), {})
            for wait in (handle.result, lambda: runtime.result(handle.workflow_id)):
                with pytest.raises(WorkflowFailed) as raised:
                    await wait()
                error = raised.value
                assert error.workflow_id == handle.workflow_id
                assert error.failed_steps == ("t0",)
                assert error.error is not None
                assert "it is dark" in error.error.message
                assert str(error) == error.error.message
                assert error.result is not None
                assert error.result.state == "failed"
            assert (await handle.result(raise_on_failure=False)).state == "failed"
            assert (await handle.rest()).state == "failed"

    async def test_a_cancelled_run_raises(self):
        desk = Desk(look=True)
        async with Runtime(services=[desk.service()]) as runtime:
            handle = await runtime.submit(chain("look"), {})
            await desk.entered.wait()
            await handle.cancel("enough", mode="hard")  # a soft one gives the function 5 s
            with pytest.raises(WorkflowCancelled, match=f"{handle.workflow_id} was cancelled"):
                await handle.result()

    async def test_a_waiting_run_is_returned_with_its_open_requests(self):
        steps = [step("ask", approval={"before": "step", "message": "Really?"})]
        async with Runtime(models=[ScriptedModel(['"done"'])]) as runtime:
            handle = await runtime.submit(document(*steps), {})
            result = await handle.result()
            (request,) = result.pending_requests
            assert (result.state, request.step_id, request.kind) == ("waiting", "ask", "step")
            assert list(result.pending_requests) == await handle.requests()
            await handle.decide(granted=True, request_id=request.request_id)
            done = await handle.result()
            assert (done.state, done.pending_requests) == ("completed", ())

    async def test_the_daemon_tells_the_same(self, tmp_path: Path):
        steps = [step("ask", approval={"before": "step", "message": "Really?"})]
        async with serving(tmp_path, model=ScriptedModel(['"done"'])) as served, served.client() as client:
            handle = await client.submit(document(*steps), {})
            result = await handle.result()
            (request,) = result.pending_requests
            assert (result.state, request.step_id) == ("waiting", "ask")
            await handle.decide(granted=False, request_id=request.request_id, reason="no")
            with pytest.raises(WorkflowFailed) as raised:
                await handle.result()
            assert raised.value.workflow_id == handle.workflow_id
            assert raised.value.failed_steps == ("ask",)

            def blocking() -> None:
                with SyncClient(client.url) as sync:
                    with pytest.raises(WorkflowFailed):
                        sync.result(handle.workflow_id)
                    run = sync.attach(handle.workflow_id)
                    assert run.result(raise_on_failure=False).state == "failed"
                    assert run.record().state == "failed"

            await asyncio.to_thread(blocking)


class Answer(msgspec.Struct):
    done: str


@dataclass
class AnswerData:
    done: str


class AnswerDict(TypedDict):
    done: str


class AnswerModel(pydantic.BaseModel):
    done: str


class Wrong(msgspec.Struct):
    done: list[int]


class WrongModel(pydantic.BaseModel):
    done: list[int]


class NoModel:
    def __init__(self, done: Any) -> None:
        self.done = done


class TestTypedOutput:
    """daily-use, missed: typed output."""

    @pytest.mark.parametrize("kind", [Answer, AnswerData, AnswerDict, AnswerModel])
    async def test_the_output_is_converted(self, kind: Any):
        wanted = kind(done="look")
        async with Runtime(services=[Desk().service()]) as runtime:
            handle: RunHandle[Any] = await runtime.submit(chain("look"), {}, output_type=kind)
            assert (await handle.result()).output == wanted
            assert (await runtime.run(chain("look"), {}, output_type=kind)).output == wanted
            assert (await runtime.result(handle.workflow_id, output_type=kind)).output == wanted
            again: RunHandle[Any] = await runtime.attach(handle.workflow_id, output_type=kind)
            assert (await again.result()).output == wanted
            assert (await again.rest()).output == {"done": "look"}

    @pytest.mark.parametrize("kind", [Wrong, WrongModel, list[Answer]])
    async def test_an_output_that_does_not_fit(self, kind: Any):
        async with Runtime(services=[Desk().service()]) as runtime:
            handle: RunHandle[Any] = await runtime.submit(chain("look"), {}, output_type=kind)
            with pytest.raises(InvalidOutput, match="does not fit") as raised:
                await handle.result()
            assert handle.workflow_id in str(raised.value)
            assert raised.value.result.output == {"done": "look"}

    @pytest.mark.parametrize("kind", [NoModel, list[NoModel], 3])
    async def test_a_type_that_nothing_converts_to_begins_no_run(self, kind: Any):
        async with Runtime(services=[Desk().service()]) as runtime:
            with pytest.raises(ConfigurationError, match="output_type"):
                await runtime.run(chain("look"), {}, output_type=kind)
            assert await runtime.list() == []

    async def test_the_daemon_converts_as_well(self, tmp_path: Path):
        model = ScriptedModel(['{"done": "look"}'])
        async with serving(tmp_path, model=model) as served, served.client() as client:
            result = await client.run(document(step("ask")), {}, output_type=dict[str, Answer])
            assert result.output == {"ask": Answer(done="look")}
            with pytest.raises(InvalidOutput):
                await client.result(result.workflow_id, output_type=dict[str, Wrong])


class TestRecoverAtLaunch:
    async def test_entering_takes_up_what_a_killed_process_left(self, left: str):
        """daily-use 1 and "Missed": embedded durability without a call that no page named."""
        desk = Desk()
        async with Runtime(left, services=[desk.service()], recover=True) as runtime:
            result = await runtime.result("wf_left")
            assert result.state == "waiting"  # its payment may have happened
            (asked,) = result.pending_requests
            await runtime.answer("wf_left", asked.request_id, {"choice": "done", "output": 1})
            assert (await runtime.result("wf_left")).output == {"done": "look"}

    async def test_without_it_nothing_begins(self, left: str):
        desk = Desk()
        async with Runtime(left, services=[desk.service()]) as runtime:
            assert (await runtime.record("wf_left")).state == "running"
        assert desk.calls == 0
