"""Crashes of runs of executors: at every event of the log, a new Runtime goes on from what is durable there.

A log is cut behind each of its events, as a process leaves it that dies then; a Runtime with the same
workflow takes the run up. Live faults as well: the supervisor, or the actor of an executor, is killed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from agentflow import Runtime
from agentflow.events.log import Append
from agentflow.events.memory import MemoryLog
from agentflow.events.rows import RunMeta, StoredEvent
from agentflow.runtime.executor_actor import ExecutorActor
from agentflow.runtime.run_stepper import RunStepper
from tests.integration.executors.graphs import Built, outputs
from tests.integration.support.runs import must_be_sound

__all__ = ["Outcome", "at_every_event", "cut_log", "drive", "with_actors_killed", "with_supervisors_killed"]

Answers = Callable[[Any], Any]
"""The answer to what was asked (JSON)."""


class Outcome(msgspec.Struct, frozen=True):
    """How a run ended: its state, its outputs and the code of its error."""

    state: str
    outputs: list[Any]
    code: str | None


async def drive(runtime: Runtime, run_id: str, answers: Answers | None = None) -> Outcome:
    """Wait for the end of a run; answer what it asks."""
    while True:
        handle = await runtime.attach(run_id)
        result = await handle.result(raise_on_failure=False)
        if result.state != "waiting" or answers is None:
            break
        asked = await runtime.requests(run_id)
        await runtime.answer_all(run_id, {r.request_id: answers(r.subject) for r in asked})
    found = await outputs(runtime, run_id)
    return Outcome(result.state, found, result.error.code if result.error else None)


async def at_every_event(
    make: Callable[[], Built],
    message: Any,
    *,
    answers: Answers | None = None,
    check: Callable[[list[Any], list[Any]], Awaitable[None] | None] | None = None,
) -> Outcome:
    """Run to the end; then once more from behind each event. Every outcome is that of the whole run.

    `check` gets the events of the prefix and those of the run that went on from it.
    """
    log, built = MemoryLog(), make()
    async with Runtime(log) as runtime:
        handle = await runtime.submit(built, message)
        whole = await drive(runtime, handle.workflow_id, answers)
        rows = await log.read(handle.workflow_id, 0, 10_000)
    for upto in range(1, len(rows)):
        again = make()
        cut = await cut_log(handle.workflow_id, built, rows[:upto])
        async with Runtime(cut) as runtime:
            runtime.register(again)
            await runtime.recover()
            where = f"cut behind {rows[upto - 1].type} at {upto - 1}"
            try:
                async with asyncio.timeout(5):
                    outcome = await drive(runtime, handle.workflow_id, answers)
            except TimeoutError:
                raise AssertionError(f"{where}: the run does not end") from None
            assert outcome == whole, f"{where}: {outcome}"
            log_of_run = await must_be_sound(runtime, handle.workflow_id)
            if check is not None:
                found = check(log_of_run[:upto], log_of_run[upto:])
                if found is not None:
                    await found
    return whole


async def cut_log(run_id: str, built: Built, rows: list[StoredEvent]) -> MemoryLog:
    """Return a store with these first events of a run, as a process leaves it that is killed then."""
    cut, hash = MemoryLog(), built.definition.ir_hash
    await cut.put_definition(hash, msgspec.json.encode(built.definition.workflow))
    meta = RunMeta(name="w", definition_hash=hash, created_at=rows[0].ts, labels={}, owner=None)
    await cut.append(Append(run_id, 1, 0, rows, "running", meta))
    owner = (await cut.run(run_id)).owner
    assert owner is not None
    await cut.release(run_id, owner)
    return cut


async def with_supervisors_killed(
    monkeypatch: Any, make: Callable[[], Built], message: Any, *, answers: Answers | None = None
) -> Outcome:
    """Kill the supervisor when it has decided its n-th batch, which is on its way to the log, for every n."""
    return await _with_kills(monkeypatch, RunStepper, "commit", make, message, answers)


async def with_actors_killed(
    monkeypatch: Any, make: Callable[[], Built], message: Any, *, answers: Answers | None = None
) -> Outcome:
    """Kill the actor of an executor when its n-th handler begins, and when it has returned, for every n."""
    await _with_kills(monkeypatch, ExecutorActor, "_messages_of", make, message, answers)
    return await _with_kills(monkeypatch, ExecutorActor, "_attempt", make, message, answers)


async def _with_kills(
    monkeypatch: Any,
    kind: type,
    method: str,
    make: Callable[[], Built],
    message: Any,
    answers: Answers | None,
) -> Outcome:
    whole: Outcome | None = None
    original = getattr(kind, method)
    for n in range(_MOST_STEPS):
        seen = 0

        def killing(self: Any, *args: Any, n: int = n, **more: Any) -> Any:
            nonlocal seen
            seen += 1
            if seen == n:
                self.ctx.self.kill()
            return original(self, *args, **more)

        with monkeypatch.context() as patch:
            patch.setattr(kind, method, killing)
            async with Runtime(MemoryLog()) as runtime:
                handle = await runtime.submit(make(), message)
                outcome = await drive(runtime, handle.workflow_id, answers)
                await must_be_sound(runtime, handle.workflow_id)
        whole = whole or outcome
        assert outcome == whole, f"killed at {method} {n}: {outcome}"
        assert seen > 3, "the fault is never injected"
        if seen < n:
            return whole
    raise AssertionError(f"the run has more than {_MOST_STEPS} steps")


_MOST_STEPS = 100
