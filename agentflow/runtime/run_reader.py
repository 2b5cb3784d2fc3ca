"""The reading half of a Runtime: the read model of its store, events and the text of model calls as they
come, and the engine's own state of a run."""

from __future__ import annotations

import asyncio
import builtins
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from agentflow.definition.ir import Workflow
from agentflow.errors import OffsetTrimmed
from agentflow.events.catalogue import TERMINAL_TYPES, WorkflowStarted
from agentflow.events.deltas import DeltaHub, ModelDelta
from agentflow.events.envelope import Event, decode
from agentflow.events.hub import Hub
from agentflow.events.log import EventLog, RunRow
from agentflow.records.damage import warn_of_damage
from agentflow.records.read_model import ReadModel, started_of
from agentflow.records.runs import RunResult, result_of

if TYPE_CHECKING:
    from agentflow.engine import Graph, RunState

__all__ = ["RunReader"]

_MAX_CACHED_GRAPHS = 64


class RunReader(ReadModel):
    """The reading half of a Runtime. `hub`, `delta_hub` and `log` are there while it is open."""

    hub: Hub
    delta_hub: DeltaHub

    def __init__(self, log: EventLog | None = None) -> None:
        super().__init__(log)
        self._plans: dict[str, Graph] = {}

    async def fold(self, workflow_id: str, *, at: int | None = None) -> RunState:
        """Return the engine's state of a run: its durable events up to offset `at` (inclusive), folded.

        Raises RunNotFound, RunGone, OffsetTrimmed or LogCorrupt. `state` is the same as data.
        """
        from agentflow.engine import Bindings, RunState
        from agentflow.runtime.log_replay import fold

        begin = await self._begin(workflow_id)
        workflow = await self._graph(begin.ir_hash)
        state = RunState(workflow_id, self._plan(workflow, begin.ir_hash), Bindings())
        await fold(self.log, state, upto=at)
        return state

    async def _standing(self, workflow_id: str) -> RunResult:
        """Return where the run stands in the log; of a trimmed run what was kept."""
        try:
            found = await self._project(workflow_id)  # and not kept: a run that waits costs no memory
            await self._read_on(found, None)
        except OffsetTrimmed:
            return result_of(await self.record(workflow_id))
        record = found.record()
        return result_of(record, tuple(found.requests()) if record.ended_at is None else ())

    async def delete(self, workflow_id: str) -> None:
        """Delete a run that has ended; its id is never used again. Raises RunNotFound, RunGone or
        RunNotTerminal."""
        await self.log.delete(workflow_id, time.time_ns() // 1000)

    async def rows(self, *, limit: int = 50, state: str | None = None) -> builtins.list[RunRow]:
        """Return the newest runs as the store indexes them. One whose record is damaged is left out with a
        warning in the log; `log.runs` names it."""
        page = await self.log.runs(limit=limit, state=state)
        warn_of_damage(page, "list")
        return page.items

    async def events(
        self,
        workflow_id: str,
        after: int | None = None,
        *,
        follow: bool = True,
        types: Sequence[str] | None = None,
        step: str | None = None,
    ) -> AsyncGenerator[Event[Any], None]:
        """Yield the events behind offset `after` (None: all that are left), each once and in order; with
        `follow` until the terminal one. `types` are exact types and families (`tool.*`), `step` an id.

        Raises RunNotFound, RunGone or OffsetTrimmed at the first step.
        """
        stream = self.hub.subscribe(workflow_id, after, follow=follow, types=types)
        async with aclosing(stream) as rows:
            async for row in rows:
                event = decode(row.body)
                if step is None or event.step == step:
                    yield event

    async def deltas(self, workflow_id: str) -> AsyncIterator[ModelDelta]:
        """Yield the text of the run's model calls while this process makes them, from the start of those that
        are open now. Ends when the run has ended.

        Raises RunNotFound at the first step, and StoreError if the store cannot tell whether the run has
        ended.
        """
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
                        if isinstance(delta, ModelDelta):
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
        """Return the first event of a run. Raises RunNotFound, RunGone, OffsetTrimmed or LogCorrupt."""
        return await started_of(self.log, workflow_id)

    def _plan(self, workflow: Workflow, digest: str) -> Graph:
        """Return the compiled graph; the 64 used last are cached."""
        plan = self._plans.pop(digest, None)
        if plan is None:
            from agentflow.engine import compile_graph

            plan = compile_graph(workflow)
        self._plans[digest] = plan
        if len(self._plans) > _MAX_CACHED_GRAPHS:
            del self._plans[next(iter(self._plans))]
        return plan
