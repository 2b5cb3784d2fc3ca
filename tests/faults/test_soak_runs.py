"""Random commands from several tasks to runs of two Runtimes on one store, which die at random.

A Runtime's owner is a process of its own that does nothing: when that is killed, the others take it for dead,
while it still writes (a process that was held up for long) or not any more.
"""

from __future__ import annotations

import asyncio
import random
import subprocess
from collections import Counter
from contextlib import suppress

import pytest

from agentflow import AgentflowError, Runtime
from agentflow.definition.failure import ErrorInfo
from agentflow.events.owner import Owner, _started
from agentflow.models import ModelError
from agentflow.testing import ScriptedModel
from agentflow.testing.scripted import call
from tests.integration.support.runs import Desk, chain, document, must_be_sound, step

OWNERS: list[subprocess.Popen[bytes]] = []


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    monkeypatch.setenv("AGENTFLOW_MODEL", "scripted:m")
    yield
    while OWNERS:
        owner = OWNERS.pop()
        owner.kill()
        owner.wait()


DOCUMENTS = [
    chain("look", "pay", "look"),
    chain("pay", "pay"),
    document(step("a", functions=["pay", "look"]), step("b", depends_on=["a"], functions=["pay"])),
    document(step("a", functions=["pay"], approval=True), step("b"), step("c", depends_on=["a", "b"])),
    document(step("a", functions=["look", "pay"], approval={"before": "side_effects"})),
    document(step("a", for_each="${{ inputs.all }}", input="${{ item }}", functions=["pay"])),
    document(step("a"), step("b", depends_on=["a"]), budget={"max_model_calls": 1}),
]


class Process:
    """A Runtime whose owner can be killed."""

    def __init__(self, url: str, desk: Desk, rng: random.Random) -> None:
        self.child = subprocess.Popen(["sleep", "600"], stdout=subprocess.DEVNULL)
        OWNERS.append(self.child)
        started = _started(self.child.pid)
        assert started is not None
        self.runtime = Runtime(
            url,
            models=[ScriptedModel(lambda request: answer(request, rng))],
            services=[desk.service(max_concurrency=50)],
            max_concurrent_runs=20,
            grace=0.05,
        )
        self.runtime.owner = Owner(self.child.pid, started, f"{self.child.pid}")

    async def die(self, *, zombie: float = 0.0) -> None:
        """At once; or only for others, and for itself after a while."""
        self.child.kill()
        self.child.wait()
        await asyncio.sleep(zombie)
        if not zombie:
            await self.runtime._registry.close()  # the commands in hand are lost with it
            for ref in self.runtime.system.children.values():
                ref.kill()
        await self.runtime.__aexit__(None, None, None)

    async def close(self) -> None:
        await self.runtime.__aexit__(None, None, None)
        self.child.kill()
        self.child.wait()


async def answer(request, rng: random.Random):
    await asyncio.sleep(rng.random() * 0.01)
    if rng.random() < 0.05:
        return ModelError(ErrorInfo(category="agent", code="agent_error", message="broken"))
    if rng.random() < 0.03:
        return ModelError(ErrorInfo(category="quota", code="insufficient_quota", message="no money"))
    if request.tools and all(m.role != "tool" for m in request.messages):
        return [call(tool.name) for tool in request.tools]
    return {"ok": True}


class Soak:
    def __init__(self, url: str, seed: int, runs: int) -> None:
        self.rng = random.Random(seed)
        self.url = url
        self.left = runs
        self.desk = Desk()
        self.desk.pace = lambda: self.rng.random() * 0.03
        self.ids: list[str] = []
        self.processes: list[Process] = []
        self.outcomes: Counter[str] = Counter()
        self.dying: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        process = Process(self.url, self.desk, self.rng)
        await process.runtime.__aenter__()
        self.processes.append(process)

    async def torment(self) -> None:
        """One of several tasks that command runs until there are no more to be begun."""
        rng = self.rng
        while self.left > 0:
            runtime = rng.choice(self.processes).runtime
            try:
                async with asyncio.timeout(30):
                    await self.command(runtime)
                self.outcomes["done"] += 1
            except AgentflowError as error:
                self.outcomes[error.code] += 1
            await asyncio.sleep(rng.random() * 0.01)

    async def command(self, runtime: Runtime) -> None:
        rng = self.rng
        if not self.ids or rng.random() < 0.25:
            self.left -= 1
            more = {"options": {"on_failure": rng.choice(["halt", "continue", "hold"])}}
            if rng.random() < 0.3:
                more["idempotency_key"] = f"k{rng.randrange(20)}"
            handle = await runtime.submit(rng.choice(DOCUMENTS), {"all": [1, 2, 3]}, **more)
            self.ids.append(handle.workflow_id)
            return
        id = rng.choice(self.ids[-30:])
        match rng.randrange(11):
            case 0:
                await runtime.pause(id, in_flight=rng.choice(["drain", "suspend"]))
            case 1 | 2:
                await runtime.resume(id, budget={"max_model_calls": 50} if rng.random() < 0.5 else None)
            case 3:
                if rng.random() < 0.3:
                    await runtime.cancel(id, mode=rng.choice(["soft", "hard"]), grace=rng.random() / 10)
            case 4 | 5 | 6:
                await self.settle(runtime, id)
            case 7:
                await runtime.signal(id, "s", signal_id=f"sig_{rng.randrange(3)}")
            case 8:
                await runtime.retry(id, rng.choice("ab"), rng.choice(["retry", "skip", "done", "fail"]))
            case 9:
                asking = asyncio.ensure_future(runtime.resume(id))
                await asyncio.sleep(rng.random() * 0.005)
                asking.cancel()
                with suppress(asyncio.CancelledError):
                    await asking
            case 10:
                self.ids.append((await runtime.fork(id)).workflow_id)

    async def settle(self, runtime: Runtime, id: str) -> None:
        for asked in await runtime.requests(id):
            if asked.kind == "input":
                choice = self.rng.choice(["done", "fail"])
                await runtime.answer(id, asked.request_id, {"choice": choice})
            else:
                granted = self.rng.random() < 0.8
                await runtime.decide(id, granted=granted, request_id=asked.request_id)

    async def kill(self) -> None:
        rng = self.rng
        while self.left > 0:
            await asyncio.sleep(0.1 + rng.random() * 0.5)
            victim = self.processes.pop(rng.randrange(len(self.processes)))
            death = victim.die(zombie=rng.choice([0.0, 0.0, 0.3]))
            task = asyncio.create_task(death)
            self.dying.add(task)
            await self.start()
            await self.processes[-1].runtime.recover()

    async def finish(self) -> None:
        """One Runtime is left, and brings every run to its end."""
        await asyncio.gather(*self.dying)
        for process in self.processes:
            await process.die()
        self.processes.clear()
        await self.start()
        runtime = self.processes[0].runtime
        await runtime.recover()
        for id in dict.fromkeys(self.ids):
            for _ in range(60):
                result = await (await runtime.attach(id)).rest()
                if result.state in ("completed", "failed", "cancelled"):
                    break
                if result.state == "paused":
                    await runtime.resume(id, budget={"max_model_calls": 1000})
                await self.settle(runtime, id)
            else:
                raise AssertionError(f"{id} does not end: {result}")


async def soak(url: str, seed: int, runs: int) -> Soak:
    before = asyncio.all_tasks()
    this = Soak(url, seed, runs)
    for _ in range(2):
        await this.start()
    killing = asyncio.create_task(this.kill())
    await asyncio.gather(*(this.torment() for _ in range(6)))
    await killing
    await this.finish()
    (last,) = this.processes
    payments: Counter[str] = Counter()
    for id in dict.fromkeys(this.ids):
        for event in await must_be_sound(last.runtime, id):
            if event.type == "tool.call_started" and event.data.side_effect == "external":
                payments[event.data.idempotency_key] = this.desk.executions[event.data.idempotency_key]
    twice = {key: n for key, n in payments.items() if n > 1}
    assert not twice, twice
    await last.close()
    for _ in range(5):
        await asyncio.sleep(0)
    left = asyncio.all_tasks() - before
    assert not left, left
    return this


@pytest.mark.parametrize("seed", [1, 2])
async def test_short(tmp_path, seed):
    done = await soak(f"sqlite:{tmp_path / 'runs.db'}", seed, 40)
    assert done.outcomes["done"] > 40


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(10, 20))
async def test_long(tmp_path, seed):
    done = await soak(f"sqlite:{tmp_path / 'runs.db'}", seed, 300)
    print(len(set(done.ids)), "runs", done.desk.calls, "executions", dict(done.outcomes))
