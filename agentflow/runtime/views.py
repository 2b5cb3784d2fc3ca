"""Read-only projections of one event log: records, folded states, histories, contexts, lists (page 000 §8).

Nothing here writes, decides or holds a truth: what is kept between two questions is a fold of the log, which
the next question brings up to date or throws away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from agentflow.definition.ir import Workflow, decode_ir
from agentflow.engine import Bindings, Plan, RunState, compile_plan, evolve
from agentflow.errors import LogCorrupt, OffsetTrimmed
from agentflow.events.catalogue import (
    SystemStateSaved,
    WorkflowStarted,
    WorkflowStepStarted,
)
from agentflow.events.decoding import decode_page
from agentflow.events.endings import final_usage
from agentflow.events.envelope import Event, decode, iso, micros
from agentflow.events.log import EventLog, RunRow
from agentflow.events.rows import Order, Page
from agentflow.runtime.executions import (
    AgentContext,
    Executions,
    StepRecord,
)
from agentflow.runtime.folding import decode_base
from agentflow.runtime.kept import STATE, kept, kept_record, kept_step
from agentflow.runtime.records import RunRecord, Waiting, budget_record, run_record
from agentflow.runtime.requests import RequestRecord, open_requests
from agentflow.runtime.view_records import (
    DefinitionView,
    ExecutionRecord,
    FoldedState,
    FoldedStep,
    RunSummary,
    StepNotFound,
)

__all__ = [
    "DefinitionView",
    "ExecutionRecord",
    "FoldedState",
    "FoldedStep",
    "RunSummary",
    "RunViews",
    "StepNotFound",
]

_PAGE = 512
_KEPT = 64
_KEPT_BYTES = 1 << 20
"""A longer log is folded anew each time: what is kept must stay small whatever the runs are."""


_OWN_LABELS = "agentflow."  # of the index of the store, not of the run


class _Fold:
    """A run folded so far. `take` never suspends, so a reader between two awaits sees whole events."""

    __slots__ = ("children", "state")

    def __init__(self, state: RunState) -> None:
        self.state = state
        self.children: list[str] = []

    def take(self, event: Event[Any]) -> None:
        data = event.data
        evolve(self.state, data, event.offset, micros(event.timestamp))
        self.state.take_fresh()
        self.state.take_closed()
        if isinstance(data, WorkflowStepStarted) and isinstance(data.child, dict):
            child = data.child.get("workflow_id")
            if isinstance(child, str):
                self.children.append(child)


class RunViews:
    """Answers questions about the runs of `log`, for one event loop.

    Every method raises RunNotFound, RunGone, OffsetTrimmed or LogCorrupt as the log does.
    """

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._folds: dict[str, _Fold] = {}
        self._plans: dict[str, Plan] = {}
        self._graphs: dict[str, Workflow] = {}

    async def record(self, workflow_id: str) -> RunRecord:
        """The run record; of a trimmed run that which was kept."""
        try:
            fold, row = await self._fold(workflow_id)
        except OffsetTrimmed:
            record = await kept_record(self._log, workflow_id)
            if record is None:
                raise
            return record
        return run_record(fold.state, earliest_offset=row.earliest_offset, children=tuple(fold.children))

    async def state(self, workflow_id: str, offset: int | None = None) -> FoldedState:
        """The folded state, as of `offset` (inclusive) when given; beyond the end it is the present one.

        Of a trimmed run that at its end alone.
        """
        try:
            if offset is None:
                fold, _ = await self._fold(workflow_id)
            else:
                fold = await self._begin(workflow_id, offset)
                await self._read_on(fold, offset)
        except OffsetTrimmed:
            state = await kept(self._log, workflow_id, STATE, FoldedState)
            if state is None or (offset is not None and offset < state.offset):
                raise
            return state
        return _folded(fold.state)

    async def requests(self, workflow_id: str) -> list[RequestRecord]:
        """Return the open requests of a run, oldest first."""
        fold, _ = await self._fold(workflow_id)
        return open_requests(fold.state)

    async def history(self, workflow_id: str) -> ExecutionRecord:
        """The execution record."""
        record, done = await self.record(workflow_id), await self._executions(workflow_id)
        return ExecutionRecord(
            workflow=record, steps=done.steps, agents=done.agents, models=done.models, tools=done.tools
        )

    async def step(
        self, workflow_id: str, step_id: str, iteration: int | None = None, attempt: int | None = None
    ) -> StepRecord:
        """The state record of a step. StepNotFound when none that fits has begun."""
        try:
            done = await self._executions(workflow_id)
            found = done.record(workflow_id, step_id, iteration, attempt)
        except OffsetTrimmed:
            found = await kept_step(self._log, workflow_id, step_id, iteration, attempt)
        if found is None:
            raise StepNotFound(
                f"{workflow_id} has no {_step_text(step_id, iteration, attempt)} that has begun"
            )
        return found

    async def context(
        self, workflow_id: str, step_id: str, iteration: int | None = None, attempt: int | None = None
    ) -> AgentContext:
        """The context of a step's agent, also of a failed one. StepNotFound."""
        found = (await self._executions(workflow_id)).context(step_id, iteration, attempt)
        if found is None:
            text = _step_text(step_id, iteration, attempt)
            raise StepNotFound(f"{workflow_id} has no {text} whose agent has begun")
        return found

    async def definition(self, workflow_id: str) -> DefinitionView:
        """The definition that the run is pinned to."""
        begin = await self._started(workflow_id)
        return DefinitionView(
            workflow_id=workflow_id,
            definition=begin.definition,
            source=begin.source,
            ir_hash=begin.ir_hash,
            ir=await self._graph(begin.ir_hash),
        )

    async def graph(self, workflow_id: str) -> Workflow:
        """The graph that the run is pinned to."""
        try:
            digest = (await self._started(workflow_id)).ir_hash
        except OffsetTrimmed:
            record = await kept_record(self._log, workflow_id)
            if record is None:
                raise
            digest = record.ir_hash
        return await self._graph(digest)

    async def summaries(
        self,
        *,
        state: str | Sequence[str] | None = None,
        name: str | None = None,
        label: tuple[str, str] | None = None,
        prefix: str | None = None,
        since: int | None = None,
        until: int | None = None,
        limit: int = 50,
        cursor: str | None = None,
        order: Order = "desc",
        usage: bool = False,
    ) -> Page[RunSummary]:
        """Return a page of runs as the store lists them; arguments as of `EventLog.runs`.

        No log is read, but with `usage` the last event of each run that has ended.
        """
        page = await self._log.runs(
            state=state,
            name=name,
            label=label,
            prefix=prefix,
            since=since,
            until=until,
            limit=limit,
            cursor=cursor,
            order=order,
        )
        items = [summary(row) for row in page.items]
        if usage:
            used = [await final_usage(self._log, row) for row in page.items]
            items = [msgspec.structs.replace(item, usage=u) for item, u in zip(items, used, strict=True)]
        return Page(items, page.next_cursor, page.damaged)

    # -- folding

    async def _fold(self, workflow_id: str) -> tuple[_Fold, RunRow]:
        """The present fold: the kept one with what has been appended since."""
        # Several questions may bring one fold up to date at once: each takes only what comes next.
        fold = self._folds.get(workflow_id)
        if fold is None:
            row, fold = await asyncio.gather(self._log.run(workflow_id), self._begin(workflow_id))
        else:
            row = await self._log.run(workflow_id)
        if fold.state.next_offset <= row.last_offset:
            await self._read_on(fold, None)
        self._folds.pop(workflow_id, None)
        if row.bytes <= _KEPT_BYTES:
            self._folds[workflow_id] = fold
            if len(self._folds) > _KEPT:
                del self._folds[next(iter(self._folds))]
        return fold, row

    async def _begin(self, workflow_id: str, last: int | None = None) -> _Fold:
        """A fold of the first page of the log, up to offset `last`: of most runs that is all of it."""
        limit = _PAGE if last is None else min(_PAGE, last + 1)
        rows = await self._log.read(workflow_id, 0, limit)
        events = await decode_page(rows)
        begin = _started_of(workflow_id, events)
        plan = self._plans.pop(begin.ir_hash, None) or compile_plan(await self._graph(begin.ir_hash))
        _keep(self._plans, begin.ir_hash, plan)
        fold = _Fold(RunState(workflow_id, plan, Bindings()))
        await self._take(fold, events)
        return fold

    async def _read_on(self, fold: _Fold, last: int | None) -> None:
        state = fold.state
        while last is None or state.next_offset <= last:
            wanted = state.next_offset
            limit = _PAGE if last is None else min(_PAGE, last - wanted + 1)
            rows = await self._log.read(state.workflow_id, wanted, limit)
            if not rows:
                return
            await self._take(fold, await decode_page(rows))

    async def _take(self, fold: _Fold, events: list[Event[Any]]) -> None:
        """Fold these events, unless another question has done it meanwhile."""
        base = next((b for e in events if (b := fork_base_of(e.data)) is not None), None)
        body = None if base is None else await self._log.get_blob(base)
        if not events or events[0].offset != fold.state.next_offset:
            return
        if base is not None:
            if body is None:
                raise LogCorrupt(f"the base of a fork, {base}, is not in the store")
            fold.state.base = decode_base(body)
        for event in events:
            fold.take(event)

    async def _executions(self, workflow_id: str) -> Executions:
        """What the run did; of a fork also what it kept, at the offsets of the run that did it."""
        done, offset = Executions(), 0
        while rows := await self._log.read(workflow_id, offset, _PAGE):
            for event in await decode_page(rows):
                base = fork_base_of(event.data)
                body = None if base is None else await self._log.get_blob(base)
                for line in (body or b"").split(b"\n"):
                    if line:
                        done.take(decode(line))
                done.take(event)
            offset = rows[-1].offset + 1
        return done

    async def _started(self, workflow_id: str) -> WorkflowStarted:
        rows = await self._log.read(workflow_id, 0, 1)
        return _started_of(workflow_id, await decode_page(rows))

    async def _graph(self, ir_hash: str) -> Workflow:
        graph = self._graphs.pop(ir_hash, None)
        if graph is None:
            body = await self._log.get_definition(ir_hash)
            if body is None:
                raise LogCorrupt(f"the graph {ir_hash} is not in the store")
            graph = decode_ir(body)
        _keep(self._graphs, ir_hash, graph)
        return graph


def _keep(kept: dict[str, Any], key: str, value: Any) -> None:
    kept[key] = value
    if len(kept) > _KEPT:
        del kept[next(iter(kept))]


def _started_of(workflow_id: str, events: list[Event[Any]]) -> WorkflowStarted:
    data = events[0].data if events else None
    if not isinstance(data, WorkflowStarted):
        raise LogCorrupt(f"the log of {workflow_id} does not begin with workflow.started")
    return data


def fork_base_of(data: Any) -> str | None:
    """The blob that holds what a forked run begins with, when this event names it."""
    return data.ref if isinstance(data, SystemStateSaved) and data.kind == "fork_base" else None


def summary(row: RunRow) -> RunSummary:
    """What a row of the store says of its run."""
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


def _folded(state: RunState) -> FoldedState:
    begin = state.begin
    return FoldedState(
        workflow_id=state.workflow_id,
        offset=state.next_offset - 1,
        state=state.status,
        input=None if begin is None else begin.input,
        output=state.output,
        error=state.error,
        steps={step_id: _folded_step(state, step_id) for step_id in state.plan.step_ids},
        calls={call_id: call.kind for call_id, call in state.calls.items()},
        waiting=Waiting(requests=tuple(state.requests)),
        timers={name: iso(due) for name, due in state.timers.items()},
        pause=state.pause,
        cancel_requested=state.cancel_requested is not None,
        usage=state.usage,
        budget=budget_record(state),
    )


def _folded_step(state: RunState, step_id: str) -> FoldedStep:
    node = state.nodes[step_id]
    ended: Mapping[str, Any] = state.nodes_view.get(step_id) or {}
    items: dict[str, int] | None = None
    if node.outer is not None:
        items = {}
        for unit in node.units.values():
            items[unit.status] = items.get(unit.status, 0) + 1
    return FoldedStep(
        state=node.status,
        attempt=node.attempt,
        visits=node.visits,
        output=ended.get("output"),
        error=ended.get("error"),
        items=items,
    )
