"""What a store tells of its runs: states, results, records, events. Reads only; everything is a projection
of the log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

from agentflow.definition.ir import Workflow, decode_ir
from agentflow.engine import Bindings, Plan, RunState, compile_plan
from agentflow.errors import AgentflowError, LogCorrupt, OffsetTrimmed
from agentflow.events.catalogue import TERMINAL_TYPES, WorkflowStarted
from agentflow.events.deltas import DeltaHub, ModelDelta
from agentflow.events.envelope import Event, decode
from agentflow.events.hub import Hub
from agentflow.events.log import EventLog, RunRow
from agentflow.runtime.damage import warn_of_damage
from agentflow.runtime.folding import fold
from agentflow.runtime.kept import kept_record
from agentflow.runtime.records import RunRecord, RunResult, result_of, run_record, run_result

__all__ = ["RunReader"]

_KEPT_PLANS = 64


class RunReader:
    """The reading half of a Runtime. `hub`, `delta_hub` and `log` are there while it is open."""

    hub: Hub
    delta_hub: DeltaHub

    def __init__(self) -> None:
        self._plans: dict[str, Plan] = {}

    @property
    def log(self) -> EventLog:
        """The open store."""
        raise NotImplementedError

    async def state(self, workflow_id: str, *, at: int | None = None) -> RunState:
        """The fold of a run's durable events, those after offset `at` left out. Raises RunNotFound."""
        begin = await self._begin(workflow_id)
        workflow = await self._graph(begin)
        state = RunState(workflow_id, self._plan(workflow, begin.ir_hash), Bindings())
        await fold(self.log, state, upto=at)
        return state

    async def result(self, workflow_id: str) -> RunResult:
        """Where the run stands in the log; of a trimmed run what was kept."""
        try:
            state = await self.state(workflow_id)
        except OffsetTrimmed:
            record = await kept_record(self.log, workflow_id)
            if record is None:
                raise
            return result_of(record)
        row = await self.log.run(workflow_id)
        return run_result(state, row.updated_at)

    async def record(self, workflow_id: str) -> RunRecord:
        """The run record; of a trimmed run that which was kept. Raises RunNotFound, RunGone."""
        try:
            state = await self.state(workflow_id)
        except OffsetTrimmed:
            record = await kept_record(self.log, workflow_id)
            if record is None:
                raise
            return record
        return run_record(state)

    async def graph(self, workflow_id: str) -> Workflow:
        """The graph that the run is pinned to. Raises RunNotFound, RunGone."""
        try:
            digest = (await self._begin(workflow_id)).ir_hash
        except OffsetTrimmed:
            record = await kept_record(self.log, workflow_id)
            if record is None:
                raise
            digest = record.ir_hash
        return await self._graph_of(digest)

    async def rows(self, *, limit: int = 50, state: str | None = None) -> list[RunRow]:
        """The newest runs as the store indexes them. One whose record is damaged is left out with a warning
        in the log; `log.runs` names it."""
        page = await self.log.runs(limit=limit, state=state)
        warn_of_damage(page, "list")
        return page.items

    async def list(self, *, limit: int = 50, state: str | None = None) -> list[RunRecord]:
        """The records of the newest runs, newest first."""
        return [await self.record(row.workflow_id) for row in await self.rows(limit=limit, state=state)]

    async def events(
        self, workflow_id: str, after: int | None = None, *, follow: bool = True
    ) -> AsyncIterator[Event[Any]]:
        """Events behind offset `after` (None: all that are left), each once and in order. Raises RunNotFound
        at the first step."""
        async for row in self.hub.subscribe(workflow_id, after, follow=follow):
            yield decode(row.body)

    async def deltas(self, workflow_id: str) -> AsyncIterator[ModelDelta]:
        """The text of the run's model calls while this process makes them: first what there is of those that
        are open now, then what comes. Ends when the run has ended; raises RunNotFound at the first step, and
        StoreError if it cannot be learnt whether the run has ended."""
        if (await self.log.run(workflow_id)).ended:
            return
        changed = asyncio.Event()
        with self.delta_hub.follow(workflow_id, changed.set) as reader:
            over = asyncio.ensure_future(self._over(workflow_id))
            over.add_done_callback(lambda _: changed.set())
            try:
                while True:
                    last = over.done()
                    for delta in reader.take():
                        yield delta
                    if last:
                        over.result()
                        break
                    await changed.wait()
                    changed.clear()
            finally:
                over.cancel()
                await asyncio.gather(over, return_exceptions=True)

    async def _over(self, workflow_id: str) -> None:
        after = await self.log.last(workflow_id)
        async with aclosing(self.hub.batches(workflow_id, after, types=TERMINAL_TYPES)) as batches:
            async for _ in batches:
                pass

    async def _begin(self, workflow_id: str) -> WorkflowStarted:
        rows = await self.log.read(workflow_id, 0, 1)
        begin = decode(rows[0].body).data
        if not isinstance(begin, WorkflowStarted):
            raise AgentflowError(f"the log of {workflow_id} does not begin with workflow.started")
        return begin

    async def _graph(self, begin: WorkflowStarted) -> Workflow:
        return await self._graph_of(begin.ir_hash)

    async def _graph_of(self, digest: str) -> Workflow:
        body = await self.log.get_definition(digest)
        if body is None:
            raise LogCorrupt(f"the graph {digest} is not in the store")
        return decode_ir(body)

    def _plan(self, workflow: Workflow, digest: str) -> Plan:
        """The compiled graph; kept for the definitions that were used last."""
        plan = self._plans.pop(digest, None) or compile_plan(workflow)
        self._plans[digest] = plan
        if len(self._plans) > _KEPT_PLANS:
            del self._plans[next(iter(self._plans))]
        return plan
