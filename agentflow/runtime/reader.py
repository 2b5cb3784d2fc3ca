"""What a store tells of its runs: states, results, records, events. Reads only; everything is a projection
of the log."""

from __future__ import annotations

import asyncio
import builtins
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Literal

from agentflow.definition.ir import Workflow, decode_ir
from agentflow.engine import Bindings, Graph, RunState, compile_graph
from agentflow.errors import AgentflowError, CommandRefused, LogCorrupt, OffsetTrimmed
from agentflow.events.catalogue import TERMINAL_TYPES, WorkflowStarted
from agentflow.events.deltas import DeltaHub, ModelDelta
from agentflow.events.envelope import Event, decode, micros
from agentflow.events.hub import Hub
from agentflow.events.log import EventLog, RunRow
from agentflow.events.rows import Order, Page
from agentflow.runtime.damage import warn_of_damage
from agentflow.runtime.folding import fold
from agentflow.runtime.kept import kept_record
from agentflow.runtime.records import RunRecord, RunResult, result_of, run_result

if TYPE_CHECKING:
    from agentflow.runtime.executions import AgentContext, StepRecord
    from agentflow.runtime.view_records import DefinitionView, ExecutionRecord, FoldedState, RunSummary
    from agentflow.runtime.views import RunViews

__all__ = ["RunReader"]

_KEPT_PLANS = 64


class RunReader:
    """The reading half of a Runtime. `hub`, `delta_hub` and `log` are there while it is open."""

    hub: Hub
    delta_hub: DeltaHub

    def __init__(self) -> None:
        self._plans: dict[str, Graph] = {}
        self._views_of: tuple[EventLog, RunViews] | None = None

    @property
    def log(self) -> EventLog:
        """The open store."""
        raise NotImplementedError

    @property
    def _views(self) -> RunViews:
        """The projections of the store that is open now; it keeps its last 64 folds."""
        from agentflow.runtime.views import RunViews  # for questions, which a run does not ask

        if self._views_of is None or self._views_of[0] is not self.log:
            self._views_of = self.log, RunViews(self.log)
        return self._views_of[1]

    async def fold(self, workflow_id: str, *, at: int | None = None) -> RunState:
        """Return the engine's state of a run: its durable events up to offset `at` (inclusive), folded.

        Raises RunNotFound, RunGone or OffsetTrimmed. `state` is the same as data.
        """
        begin = await self._begin(workflow_id)
        workflow = await self._graph(begin)
        state = RunState(workflow_id, self._plan(workflow, begin.ir_hash), Bindings())
        await fold(self.log, state, upto=at)
        return state

    async def _standing(self, workflow_id: str) -> RunResult:
        """Return where the run stands in the log; of a trimmed run what was kept."""
        try:
            state = await self.fold(workflow_id)
        except OffsetTrimmed:
            record = await kept_record(self.log, workflow_id)
            if record is None:
                raise
            return result_of(record)
        row = await self.log.run(workflow_id)
        return run_result(state, row.updated_at)

    async def record(self, workflow_id: str) -> RunRecord:
        """Return the run record; of a trimmed run the one that was kept. Raises RunNotFound, RunGone."""
        return await self._views.record(workflow_id)

    async def state(self, workflow_id: str, offset: int | None = None) -> FoldedState:
        """Return the folded state, as of `offset` (inclusive) when given. Raises RunNotFound, RunGone or
        OffsetTrimmed."""
        return await self._views.state(workflow_id, offset)

    async def history(self, workflow_id: str) -> ExecutionRecord:
        """Return the execution record: steps, agents, model calls and tool calls. Raises as `state`."""
        return await self._views.history(workflow_id)

    async def step(
        self, workflow_id: str, step_id: str, iteration: int | None = None, attempt: int | None = None
    ) -> StepRecord:
        """Return the state record of a step. Raises StepNotFound if none that fits has begun."""
        return await self._views.step(workflow_id, step_id, iteration, attempt)

    async def context(
        self, workflow_id: str, step_id: str, iteration: int | None = None, attempt: int | None = None
    ) -> AgentContext:
        """Return the context of a step's agent, also of a failed one. Raises StepNotFound."""
        return await self._views.context(workflow_id, step_id, iteration, attempt)

    async def definition(self, workflow_id: str) -> DefinitionView:
        """Return the definition that the run is pinned to. Raises RunNotFound, RunGone."""
        return await self._views.definition(workflow_id)

    async def graph(self, workflow_id: str) -> Workflow:
        """Return the graph that the run is pinned to. Raises RunNotFound, RunGone."""
        return await self._views.graph(workflow_id)

    async def drawing(self, workflow_id: str, format: Literal["mermaid", "dot"] = "mermaid") -> str:
        """Return the graph as text of Mermaid or Graphviz. Raises RunNotFound, RunGone."""
        workflow = await self.graph(workflow_id)
        if format == "dot":
            from agentflow.definition.dot import to_dot

            return to_dot(workflow)
        from agentflow.definition.mermaid import to_mermaid

        return to_mermaid(workflow)

    async def export(self, workflow_id: str) -> AsyncGenerator[bytes]:
        """Yield the file that `agentflow log` writes and `agentflow open` reads, in pieces: the stored events
        up to now, one a line, and what they name. Raises RunNotFound, RunGone or LogCorrupt."""
        from agentflow.runtime.export import export_pieces

        async with aclosing(export_pieces(self.log, workflow_id)) as pieces:
            async for piece in pieces:
                yield piece

    async def blob(self, name: str) -> bytes | None:
        """Return the bytes of a value that an event names, or None."""
        return await self.log.get_blob(name if name.startswith("sha256:") else f"sha256:{name}")

    async def delete(self, workflow_id: str) -> None:
        """Delete a run that has ended; its id is never used again. Raises RunNotFound, RunGone or
        RunNotTerminal."""
        await self.log.delete(workflow_id, time.time_ns() // 1000)

    async def rows(self, *, limit: int = 50, state: str | None = None) -> builtins.list[RunRow]:
        """The newest runs as the store indexes them. One whose record is damaged is left out with a warning
        in the log; `log.runs` names it."""
        page = await self.log.runs(limit=limit, state=state)
        warn_of_damage(page, "list")
        return page.items

    async def list(self, *, limit: int = 50, state: str | None = None) -> builtins.list[RunRecord]:
        """Return the records of the newest runs, newest first."""
        return (await self.records(limit=limit, state=state)).items

    async def records(self, *, limit: int = 50, state: str | None = None) -> Page[RunRecord]:
        """Return the same, with the ids of runs that cannot be shown because the store is damaged."""
        page = await self.log.runs(limit=limit, state=state)
        damaged, items = set(page.damaged), list[RunRecord]()
        for row in page.items:
            try:
                items.append(await self.record(row.workflow_id))
            except LogCorrupt:  # the others can be shown
                damaged.add(row.workflow_id)
        return Page(items, page.next_cursor, tuple(sorted(damaged)))

    async def summaries(
        self,
        *,
        state: str | Sequence[str] | None = None,
        name: str | None = None,
        label: tuple[str, str] | None = None,
        prefix: str | None = None,
        since: str | None = None,
        until: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
        order: Order = "desc",
        usage: bool = False,
    ) -> Page[RunSummary]:
        """Return a page of runs as the store lists them; times are RFC 3339, `until` excluded. With `usage`,
        what each run that has ended has used; `prefix` is the beginning of their ids. Raises
        CommandRefused (`invalid_parameter`) if a time or the cursor is none."""
        try:
            return await self._views.summaries(
                state=state,
                name=name,
                label=label,
                prefix=prefix,
                since=_time(since, "since"),
                until=_time(until, "until"),
                limit=limit,
                cursor=cursor,
                order=order,
                usage=usage,
            )
        except ValueError:
            raise CommandRefused("the cursor is not one of this list", code="invalid_parameter") from None

    async def events(
        self,
        workflow_id: str,
        after: int | None = None,
        *,
        follow: bool = True,
        types: Sequence[str] | None = None,
        step: str | None = None,
    ) -> AsyncIterator[Event[Any]]:
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

    def _plan(self, workflow: Workflow, digest: str) -> Graph:
        """The compiled graph; kept for the definitions that were used last."""
        plan = self._plans.pop(digest, None) or compile_graph(workflow)
        self._plans[digest] = plan
        if len(self._plans) > _KEPT_PLANS:
            del self._plans[next(iter(self._plans))]
        return plan


def _time(text: str | None, name: str) -> int | None:
    """Return an RFC 3339 time in µs since the epoch."""
    try:
        return None if text is None else micros(text)
    except ValueError:
        message = f"{name} is a time such as 2026-01-31T12:00:00Z, not {text!r:.50}"
        raise CommandRefused(message, code="invalid_parameter") from None
