"""Answers to questions about the runs of one log: records, states, histories, lists (page 000 §8).

Nothing here writes, decides or holds a truth: what is kept between two questions is a projection of the log,
which the next question brings up to date or throws away. Damage is LogCorrupt, whichever question meets it.
"""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Literal, TypeVar
from weakref import WeakValueDictionary

import msgspec

from agentflow.definition.diagnostics import or_which
from agentflow.definition.ir import Workflow, decode_ir
from agentflow.errors import (
    AgentflowError,
    CommandRefused,
    LogCorrupt,
    OffsetTrimmed,
    OutputNotReady,
    RunGone,
    RunNotFound,
)
from agentflow.events.catalogue import SystemStateSaved, WorkflowStarted
from agentflow.events.decoding import decode_page
from agentflow.events.endings import final_usage
from agentflow.events.envelope import Event, StoredEvent, decode
from agentflow.events.fork_base import expand_base
from agentflow.events.ids import iso, micros
from agentflow.events.log import EventLog, RunRow
from agentflow.events.rows import Order, Page
from agentflow.records.damage import warn_of_damage
from agentflow.records.runs import (
    DefinitionView,
    ExecutionRecord,
    FoldedState,
    RunRecord,
    RunSummary,
    StepNotFound,
)
from agentflow.records.trimmed import STATE, kept, kept_record, kept_step

if TYPE_CHECKING:
    # A list of runs needs none of these folds: each is imported by the first question that needs it.
    from agentflow.records.checkpoints import Checkpoint
    from agentflow.records.closed_requests import ClosedRequest
    from agentflow.records.comparison import Comparison
    from agentflow.records.executions import AgentContext, StepRecord
    from agentflow.records.history import Executions
    from agentflow.records.model_calls import ModelCallView
    from agentflow.records.pipeline import PlanView
    from agentflow.records.projection import RunProjection
    from agentflow.records.requests import RequestRecord
    from agentflow.records.timeline import NodeTimeline
    from agentflow.records.trace import TraceClock, WorkflowTrace

__all__ = ["ReadModel", "base_of_fork", "started_in", "started_of"]

K = TypeVar("K")

_PAGE = 512
_MAX_KEPT = 64
_MAX_KEPT_BYTES = 1 << 20
"""A longer log is projected anew for each question, so that what is kept stays small."""

_MAX_RECORDS = 256
_MAX_RECORDED_EVENTS = 200_000
"""Of the runs whose records are kept: about 80 bytes of record for each."""

_OWN_LABELS = "agentflow."  # of the index of the store, not of the run


class ReadModel:
    """Answers questions about the runs of `log`, for one event loop; it keeps its last 64 projections.

    Every method about one run raises RunNotFound, RunGone, OffsetTrimmed or LogCorrupt as the log does.
    """

    def __init__(self, log: EventLog | None = None) -> None:
        self._log: EventLog | None = log
        self._projections: dict[str, RunProjection] = {}
        self._records: dict[str, tuple[tuple[int, int], RunRecord]] = {}
        self._recorded_events = 0
        self._graphs: dict[str, Workflow] = {}
        self._graph_locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @property
    def log(self) -> EventLog:
        """The open store."""
        if self._log is None:
            raise AgentflowError("no store is open")
        return self._log

    def _forget(self) -> None:
        """Drop what is kept, because another store was opened."""
        self._projections.clear()
        self._records.clear()
        self._recorded_events = 0
        self._graphs.clear()

    # -- one run --------------------------------------------------------------------------------

    async def record(self, workflow_id: str) -> RunRecord:
        """Return the run record; of a trimmed run the one that was kept. Raises RunNotFound, RunGone.

        The record of a run that has ended is made once: it depends on its last and its earliest offset alone.
        """
        return await self._record_of(await self.log.run(workflow_id))

    async def _record_of(self, row: RunRow) -> RunRecord:
        """Return the record of a run that the store lists so; reads no more if it was made before."""
        workflow_id, key = row.workflow_id, (row.last_offset, row.earliest_offset)
        made = self._records.get(workflow_id)
        if made is not None and made[0] == key:
            return made[1]
        record = await self._record(workflow_id)
        if await self.log.is_archived(workflow_id):
            record = msgspec.structs.replace(record, archived=True)
        if row.ended:
            self._keep_record(workflow_id, key, record)
        return record

    def _keep_record(self, workflow_id: str, key: tuple[int, int], record: RunRecord) -> None:
        """Keep a record; a longer run has a larger one, so the oldest go by the length of their logs."""
        old = self._records.pop(workflow_id, None)
        self._recorded_events -= 0 if old is None else old[0][0]
        self._records[workflow_id] = (key, record)
        self._recorded_events += key[0]
        while self._recorded_events > _MAX_RECORDED_EVENTS or len(self._records) > _MAX_RECORDS:
            (last, _), _ = self._records.pop(next(iter(self._records)))
            self._recorded_events -= last

    async def _record(self, workflow_id: str) -> RunRecord:
        try:
            found, row = await self._projection(workflow_id)
        except OffsetTrimmed:
            record = await kept_record(self.log, workflow_id)
            if record is None:
                raise
            return record
        return found.record(earliest_offset=row.earliest_offset)

    async def state(self, workflow_id: str, offset: int | None = None) -> FoldedState:
        """Return the folded state, as of `offset` (inclusive) when given; beyond the end the present one.

        Of a trimmed run only that at its end is left. Raises RunNotFound, RunGone or OffsetTrimmed.
        """
        try:
            if offset is None:
                found, _ = await self._projection(workflow_id)
            else:
                found = await self._project(workflow_id, offset)
                await self._read_on(found, offset)
        except OffsetTrimmed:
            state = await kept(self.log, workflow_id, STATE, FoldedState)
            if state is None or (offset is not None and offset < state.offset):
                raise
            return state
        return found.state()

    async def plan(self, workflow_id: str) -> PlanView:
        """Return the plan of a request as it stands. Raises CommandRefused (`no_plan`) without one."""
        found, _ = await self._projection(workflow_id)
        plan = None if found.pipeline is None else found.pipeline.plan_view()
        if plan is None:
            raise CommandRefused(f"{workflow_id} has no plan", code="no_plan")
        return plan

    async def compact(self, workflow_id: str) -> dict[str, Any]:
        """Return what a request came to so far, without internal traces. Raises CommandRefused
        (`invalid_transition`) for a run that is no request."""
        found, _ = await self._projection(workflow_id)
        compact = found.compact()
        if compact is None:
            raise CommandRefused(f"{workflow_id} is no request", code="invalid_transition")
        return compact

    async def final(self, workflow_id: str) -> dict[str, Any]:
        """Return the final output of a request. Raises OutputNotReady before there is one."""
        found, _ = await self._projection(workflow_id)
        final = None if found.pipeline is None else found.pipeline.final_output
        if final is None:
            raise OutputNotReady(f"{workflow_id} has no final output yet")
        return final

    async def requests(
        self, workflow_id: str | None = None, *, kind: str | None = None
    ) -> builtins.list[RequestRecord]:
        """Return the open questions of a run, or of all runs that have any, oldest first.

        `kind`: `step`, `tool` or `input`.
        """
        ids = [workflow_id] if workflow_id is not None else await self._ids_in("waiting", "running", "paused")
        found: list[RequestRecord] = []
        for run_id in ids:
            try:
                found += (await self._projection(run_id))[0].requests()
            except (RunNotFound, RunGone):
                if workflow_id is not None:
                    raise
        found.sort(key=lambda request: request.asked_at)
        return [request for request in found if kind is None or request.kind == kind]

    async def closed_requests(self, workflow_id: str) -> builtins.list[ClosedRequest]:
        """Return the closed questions of a run, in the order in which they were closed. Raises as `trace`."""
        from agentflow.records.closed_requests import ClosedRequestFold

        fold = ClosedRequestFold()
        await self._feed(workflow_id, fold.take)
        return fold.closed

    async def model_call(self, workflow_id: str, model_call_id: str) -> ModelCallView:
        """Return a model call with all messages that were sent. Raises CallNotFound, and as `trace`."""
        from agentflow.records.model_calls import CallNotFound, ModelCallFold

        fold = ModelCallFold(model_call_id)
        await self._feed(workflow_id, fold.take)
        if fold.view is None:
            raise CallNotFound(f"{workflow_id} has no model call {model_call_id}")
        return fold.view

    async def history(self, workflow_id: str) -> ExecutionRecord:
        """Return the execution record: steps, agents, model calls and tool calls. Raises as `state`."""
        record, done = await self.record(workflow_id), await self._executions(workflow_id)
        return ExecutionRecord(
            workflow=record, steps=done.steps, agents=done.agents, models=done.models, tools=done.tools
        )

    async def step(
        self, workflow_id: str, step_id: str, iteration: int | None = None, attempt: int | None = None
    ) -> StepRecord:
        """Return the state record of a step. Raises StepNotFound if none that fits has begun."""
        done: Executions | None = None
        try:
            done = await self._executions(workflow_id)
            found = done.record(workflow_id, step_id, iteration, attempt)
        except OffsetTrimmed:
            found = await kept_step(self.log, workflow_id, step_id, iteration, attempt)
        if found is None:
            text = _step_text(step_id, iteration, attempt)
            raise StepNotFound(f"{workflow_id} has no {text} that has begun{_known(done, step_id)}")
        return found

    async def context(
        self, workflow_id: str, step_id: str, iteration: int | None = None, attempt: int | None = None
    ) -> AgentContext:
        """Return the context of a step's agent, also of a failed one. Raises StepNotFound."""
        done = await self._executions(workflow_id)
        found = done.context(step_id, iteration, attempt)
        if found is None:
            text = _step_text(step_id, iteration, attempt)
            raise StepNotFound(f"{workflow_id} has no {text} whose agent has begun{_known(done, step_id)}")
        return found

    async def compare(self, workflow_id: str, other: str) -> Comparison:
        """Return where this run and the run `other` part. Raises RunNotFound, RunGone or OffsetTrimmed."""
        from agentflow.records.comparison import compare

        return compare(await self.history(workflow_id), await self.history(other))

    async def trace(self, workflow_id: str, clock: TraceClock = "wall") -> WorkflowTrace:
        """Return the trace of a run up to now. Raises RunNotFound, RunGone, OffsetTrimmed or LogCorrupt."""
        from agentflow.records.trace import TraceFold

        fold = TraceFold(clock)
        await self._feed(workflow_id, fold.take)
        return fold.trace()

    async def timeline(self, workflow_id: str) -> NodeTimeline:
        """Return what happened to the nodes of a run up to now. Raises as `trace`."""
        from agentflow.records.timeline import TimelineFold

        fold = TimelineFold()
        await self._feed(workflow_id, fold.take)
        return fold.timeline()

    async def checkpoints(self, workflow_id: str) -> builtins.list[Checkpoint]:
        """Return the checkpoints of a run up to now, in the order of its log. Raises as `trace`."""
        from agentflow.records.checkpoints import checkpoints_of

        events: builtins.list[Event[Any]] = []
        await self._feed(workflow_id, events.append)
        return checkpoints_of(events, await self.graph(workflow_id))

    async def definition(self, workflow_id: str) -> DefinitionView:
        """Return the definition that the run is pinned to. Raises RunNotFound, RunGone."""
        begin = await started_of(self.log, workflow_id)
        return DefinitionView(
            workflow_id=workflow_id,
            definition=begin.definition,
            source=begin.source,
            ir_hash=begin.ir_hash,
            ir=await self._graph(begin.ir_hash),
        )

    async def graph(self, workflow_id: str) -> Workflow:
        """Return the graph that the run is pinned to. Raises RunNotFound, RunGone."""
        try:
            digest = (await started_of(self.log, workflow_id)).ir_hash
        except OffsetTrimmed:
            record = await kept_record(self.log, workflow_id)
            if record is None:
                raise
            digest = record.ir_hash
        return await self._graph(digest)

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
        from agentflow.records.export import export_pieces

        async with aclosing(export_pieces(self.log, workflow_id)) as pieces:
            async for piece in pieces:
                yield piece

    async def blob(self, name: str) -> bytes | None:
        """Return the bytes of a value that an event names, or None."""
        return await self.log.get_blob(name if name.startswith("sha256:") else f"sha256:{name}")

    # -- many runs ------------------------------------------------------------------------------

    async def list(self, *, limit: int = 50, state: str | None = None) -> builtins.list[RunRecord]:
        """Return the records of the newest runs, newest first."""
        return (await self.records(limit=limit, state=state)).items

    async def records(self, *, limit: int = 50, state: str | None = None) -> Page[RunRecord]:
        """Return the same, with the ids of runs that cannot be shown because the store is damaged."""
        page = await self.log.runs(limit=limit, state=state)
        damaged, items = set(page.damaged), list[RunRecord]()
        for row in page.items:
            try:
                items.append(await self._record_of(row))
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
        """Return a page of runs as the store lists them; times are RFC 3339, `until` excluded.

        `prefix` is the beginning of their ids. No log is read, but with `usage` the last event of each run
        that has ended, which says what it used. Raises CommandRefused (`invalid_parameter`) if a time is none
        or the cursor is not one of this list.
        """
        times = _time(since, "since"), _time(until, "until")
        try:
            page = await self.log.runs(
                state=state,
                name=name,
                label=label,
                prefix=prefix,
                since=times[0],
                until=times[1],
                limit=limit,
                cursor=cursor,
                order=order,
            )
        except ValueError:
            raise CommandRefused("the cursor is not one of this list", code="invalid_parameter") from None
        items = [_summary(row) for row in page.items]
        if usage:
            used = [await final_usage(self.log, row) for row in page.items]
            items = [msgspec.structs.replace(item, usage=u) for item, u in zip(items, used, strict=True)]
        return Page(items, page.next_cursor, page.damaged)

    async def _ids_in(self, *states: str) -> builtins.list[str]:
        return [row.workflow_id for row in await self._rows_in(*states)]

    async def _rows_in(self, *states: str) -> builtins.list[RunRow]:
        return [row async for rows in self._pages_in(*states) for row in rows]

    async def _pages_in(self, *states: str) -> AsyncGenerator[builtins.list[RunRow]]:
        cursor: str | None = None
        while True:
            page = await self.log.runs(state=states, limit=500, cursor=cursor, order="asc")
            warn_of_damage(page, "recovery")
            yield page.items
            cursor = page.next_cursor
            if cursor is None:
                return

    # -- projecting -----------------------------------------------------------------------------

    async def _projection(self, workflow_id: str) -> tuple[RunProjection, RunRow]:
        """Return the present projection: the kept one with what has been appended since."""
        # Several questions may bring one projection up to date at once: each takes only what comes next.
        found = self._projections.get(workflow_id)
        if found is None:
            row, found = await asyncio.gather(self.log.run(workflow_id), self._project(workflow_id))
        else:
            row = await self.log.run(workflow_id)
        if found.next_offset <= row.last_offset:
            await self._read_on(found, None)
        self._projections.pop(workflow_id, None)
        if row.bytes <= _MAX_KEPT_BYTES:
            _keep(self._projections, workflow_id, found)
        return found, row

    async def _project(self, workflow_id: str, last: int | None = None) -> RunProjection:
        """Return a projection of the first page of the log, up to offset `last`: of most runs that is all."""
        from agentflow.records.projection import RunProjection

        limit = _PAGE if last is None else min(_PAGE, last + 1)
        rows = await self.log.read(workflow_id, 0, limit)
        events = await decode_page(rows)
        found = RunProjection(workflow_id, await self._graph(_started(workflow_id, events).ir_hash))
        await self._take(found, events)
        return found

    async def new_projection(self, workflow_id: str) -> RunProjection:
        """Return a projection of a run that has taken no event yet."""
        rows = await self.log.read(workflow_id, 0, 1)
        begin = _started(workflow_id, await decode_page(rows))
        from agentflow.records.projection import RunProjection

        return RunProjection(workflow_id, await self._graph(begin.ir_hash))

    async def project(self, found: RunProjection, event: Event[Any]) -> None:
        """Let a projection take the next event."""
        await self._take(found, [event])

    async def _read_on(self, found: RunProjection, last: int | None) -> None:
        while last is None or found.next_offset <= last:
            wanted = found.next_offset
            limit = _PAGE if last is None else min(_PAGE, last - wanted + 1)
            rows = await self.log.read(found.workflow_id, wanted, limit)
            if not rows:
                return
            await self._take(found, await decode_page(rows))

    async def _take(self, found: RunProjection, events: builtins.list[Event[Any]]) -> None:
        """Fold these events into a projection, unless another question has done it meanwhile."""
        bases = {e.offset: await self._base(e) for e in events if _names_base(e)}
        if not events or events[0].offset != found.next_offset:
            return
        for event in events:
            found.take(event, bases.get(event.offset, ()))

    async def _executions(self, workflow_id: str) -> Executions:
        """Return what the run did; of a fork also what it kept, at the offsets of the run that did it."""
        from agentflow.records.history import Executions

        done, offset = Executions(), 0
        while rows := await self.log.read(workflow_id, offset, _PAGE):
            for event in await decode_page(rows):
                for earlier in await self._base(event) if _names_base(event) else ():
                    done.take(earlier)
                done.take(event)
            offset = rows[-1].offset + 1
        return done

    async def _feed(self, workflow_id: str, take: Callable[[Event[Any]], None]) -> None:
        """Give all events of a run up to now to `take`, page by page."""
        row = await self.log.run(workflow_id)
        offset = 0
        while rows := await self.log.read(workflow_id, offset, min(_PAGE, row.last_offset + 1 - offset)):
            for event in await decode_page(rows):
                take(event)
            offset = rows[-1].offset + 1
            if offset > row.last_offset:
                return

    async def _base(self, event: Event[Any]) -> builtins.list[Event[Any]]:
        """Return the events that a fork begins with, which this event of it names."""
        body = await base_of_fork(self.log, event.data.ref)
        return [decode(line) for line in body.split(b"\n") if line]

    async def _graph(self, ir_hash: str) -> Workflow:
        if ir_hash not in self._graphs:
            # A thousand runs of one definition that are taken up together read and decode it once.
            lock = self._graph_locks.setdefault(ir_hash, asyncio.Lock())
            async with lock:
                if ir_hash not in self._graphs:
                    body = await self.log.get_definition(ir_hash)
                    if body is None:
                        raise LogCorrupt(f"the graph {ir_hash} is not in the store")
                    _keep(self._graphs, ir_hash, decode_ir(body))
        graph = self._graphs.pop(ir_hash)
        _keep(self._graphs, ir_hash, graph)
        return graph


async def started_of(log: EventLog, workflow_id: str) -> WorkflowStarted:
    """Return the first event of a run. Raises LogCorrupt if it is another one, and as `read` does."""
    return await started_in(workflow_id, await log.read(workflow_id, 0, 1))


async def started_in(workflow_id: str, page: Sequence[StoredEvent]) -> WorkflowStarted:
    """Return the first of these events of a run. Raises LogCorrupt if it is another one."""
    return _started(workflow_id, await decode_page(page[:1]))


def _started(workflow_id: str, events: Sequence[Event[Any]]) -> WorkflowStarted:
    data = events[0].data if events else None
    if not isinstance(data, WorkflowStarted):
        raise LogCorrupt(f"the log of {workflow_id} does not begin with workflow.started")
    return data


def _names_base(event: Event[Any]) -> bool:
    return isinstance(event.data, SystemStateSaved) and event.data.kind == "fork_base"


async def base_of_fork(log: EventLog, ref: str) -> bytes:
    """Return the events that a fork begins with, as they stood in the old log, one a line.

    Raises LogCorrupt if they are not in the store.
    """
    body = await log.get_blob(ref)
    whole = None if body is None else await expand_base(body, log.get_blob)
    if whole is None:
        raise LogCorrupt(f"the base of a fork, {ref}, is not in the store")
    return whole


def _keep(kept: dict[str, K], key: str, value: K) -> None:
    kept[key] = value
    if len(kept) > _MAX_KEPT:
        del kept[next(iter(kept))]


def _summary(row: RunRow) -> RunSummary:
    """Return what a row of the store says of its run."""
    ended = row.ended_at
    return RunSummary(
        workflow_id=row.workflow_id,
        name=row.name,
        definition_hash=row.definition_hash,
        state=row.state,
        labels={name: value for name, value in row.labels.items() if not name.startswith(_OWN_LABELS)},
        created_at=iso(row.created_at),
        updated_at=iso(row.updated_at),
        ended_at=None if ended is None else iso(ended),
        duration_ms=None if ended is None else max(0, ended - row.created_at) // 1000,
        last_offset=row.last_offset,
        earliest_offset=row.earliest_offset,
        parent=row.parent,
        bytes=row.bytes,
    )


def _step_text(step_id: str, iteration: int | None, attempt: int | None) -> str:
    parts = [f'step "{step_id}"']
    parts += [f"iteration {iteration}"] if iteration is not None else []
    parts += [f"attempt {attempt}"] if attempt is not None else []
    return ", ".join(parts)


def _known(done: Executions | None, step_id: str) -> str:
    """Return the end of a sentence about a step that is not found: the near one, or those there are."""
    names = {} if done is None else dict.fromkeys(step.step_id for step in done.steps)
    return "" if step_id in names else or_which(step_id, names)


def _time(text: str | None, name: str) -> int | None:
    """Return an RFC 3339 time in µs since the epoch."""
    if text is None:
        return None
    try:
        return micros(text)
    except ValueError:
        message = f"{name} is a time such as 2026-01-31T12:00:00Z, not {text[:40]!r}"
        raise CommandRefused(message, code="invalid_parameter") from None
