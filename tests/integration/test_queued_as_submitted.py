"""Runs that get their turn without a look at their log: what they go on with is what the log holds."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from agentflow import Runtime, Service, function
from agentflow.definition.ir import EndNode, StartNode, ToolNode, Workflow
from agentflow.errors import Fenced
from agentflow.events.catalogue import WorkflowPaused
from agentflow.events.ids import Ids
from agentflow.events.log import Append
from agentflow.events.memory import MemoryLog
from agentflow.events.owner import this_process
from agentflow.events.sealing import UnsealedBatch
from tests.integration.support.runs import log_of


class Bank:
    """A service whose first call waits at a gate."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.paid: list[Any] = []

    def service(self) -> Service:
        @function(side_effect="external")
        async def pay(amount: dict[str, int]) -> dict[str, int]:
            """Pays."""
            self.paid.append(amount)
            await self.gate.wait()
            return amount

        return Service.of("bank", pay)


def pay() -> Workflow:
    """A graph that pays with its input."""
    tool = ToolNode(id="t", tool="bank.pay", next="end")
    return Workflow(name="pay", nodes=(StartNode(id="start", next="t"), tool, EndNode(id="end", drain=True)))


async def queued_run(runtime: Runtime, amount: Any) -> Any:
    """Submit a run behind another one, and wait until no process holds it."""
    run = await runtime.submit(pay(), {"amount": amount})
    while (await runtime.log.run(run.workflow_id)).owner is not None:
        await asyncio.sleep(0)
    return run


async def test_a_caller_that_changes_its_input_changes_nothing_of_the_run():
    bank = Bank()
    async with Runtime(services=[bank.service()], max_concurrent_runs=1) as runtime:
        await runtime.submit(pay(), {"amount": {"n": 1}})
        amount = {"n": 2}
        second = await queued_run(runtime, amount)
        amount["n"] = 3
        bank.gate.set()
        await second.result()
        assert bank.paid == [{"n": 1}, {"n": 2}]
        inputs = [e.data.input for e in await log_of(runtime, second.workflow_id) if hasattr(e.data, "input")]
        assert inputs
        assert all(found == {"amount": {"n": 2}} for found in inputs[:3])


async def test_what_another_process_did_meanwhile_is_read():
    """It took the run over, paused it and let it go."""
    bank, log = Bank(), MemoryLog()
    async with Runtime(log, services=[bank.service()], max_concurrent_runs=1) as runtime:
        first = await runtime.submit(pay(), {"amount": {"n": 1}})
        second = await queued_run(runtime, {"n": 2})
        run_id = second.workflow_id
        other = msgspec.structs.replace(this_process(), token="other")
        epoch, last = await log.claim(run_id, other), await log.last(run_id)
        paused = WorkflowPaused(reason="command", by="other", detail="d")
        ts = (await log.read(run_id, last, 1))[0].ts
        batch = UnsealedBatch((paused,), run_id, last + 1, ts, Ids(), None)
        await log.append(Append(run_id, epoch, last + 1, batch, "paused", None, False))
        await log.release(run_id, other)
        bank.gate.set()
        await first.result()
        assert (await second.rest()).state == "paused"
        assert bank.paid == [{"n": 1}]


async def test_a_run_that_another_process_holds_is_left_to_it():
    bank, log = Bank(), MemoryLog()
    async with Runtime(log, services=[bank.service()], max_concurrent_runs=1) as runtime:
        first = await runtime.submit(pay(), {"amount": {"n": 1}})
        second = await queued_run(runtime, {"n": 2})
        other = msgspec.structs.replace(this_process(), token="other")
        await log.claim(second.workflow_id, other)
        bank.gate.set()
        await first.result()
        third = await runtime.submit(pay(), {"amount": {"n": 3}})
        await third.result()
        assert bank.paid == [{"n": 1}, {"n": 3}]
        with pytest.raises(Fenced):
            await runtime.cancel(second.workflow_id)
