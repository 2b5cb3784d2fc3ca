"""The consumer of the log that sends spans: its cursor is stored behind what has arrived, never before.

It reads what all runs of the store have committed, folds it to spans in a thread, hands them to the sink,
and only then moves on. A sink that is slow or down costs nothing but time: the events wait in the log, and
memory holds one page. After a restart it goes on at the stored cursor; what it must know of a run that began
before, it folds anew from that run's log. The writer never waits for it and never knows of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Protocol

from agentflow.errors import AgentflowError, LogClosed, LogCorrupt, OffsetTrimmed, RunGone, RunNotFound
from agentflow.events.catalogue import TERMINAL_TYPES, WorkflowStarted
from agentflow.events.envelope import StoredEvent, decode
from agentflow.events.log import EventLog, LoggedEvent
from agentflow.events.rows import VERIFY_HINT
from agentflow.events.tracing import RunTracer, SpanContext, TraceParent
from agentflow.logs import get_logger
from agentflow.telemetry.facts import NO_FACTS, Describe, Facts, facts_of
from agentflow.telemetry.lease import Lease
from agentflow.telemetry.projection import RunSpans, take_or_skip
from agentflow.telemetry.span import Limits, Span
from agentflow.telemetry.worker import Pacer, Worker

__all__ = ["CONSUMER", "Counts", "NotSent", "Projector", "SpanSink", "root_of"]

_log = get_logger("agentflow.telemetry")

CONSUMER = "otel-spans"
"""The name of the stored cursor."""

PAGE = 160
"""Events at a time: about as many as make one request, after which the cursor is stored."""

_DEAD_AFTER = 3
_HOPELESS_WAIT_S = 1.0
_SILENT_WAIT_S = 1.5
_PIECE = 64  # events: about a millisecond
_RUNS = 5_000  # at about 7 kB for each run at work
_IDLE = 600.0
_DEFINITIONS = 64
_IR_HASH = re.compile(rb'"ir_hash":"([^"]+)"')

Sampled = Callable[[str, "TraceParent | None"], bool]


class NotSent(Exception):
    """A sink could not take the spans now. The first `done` of them are settled, of which `refused` were
    refused for good."""

    def __init__(self, reason: str, *, done: int = 0, refused: int = 0) -> None:
        super().__init__(reason)
        self.done = done
        self.refused = refused


class SpanSink(Protocol):
    """Where spans go. Called in the thread of the projector; may block."""

    def send(self, spans: Sequence[Span]) -> int:
        """Deliver, in order; gives the number that was refused for good. NotSent, or anything: try again."""
        ...

    @property
    def struggling(self) -> bool:
        """Whether what is being sent has failed once already. Read from any thread."""
        ...

    def close(self) -> None:
        """Let go; what is being sent is given up. Callable from any thread. Idempotent."""
        ...


class Counts:
    """What became of spans, for metrics."""

    __slots__ = ("exported", "failures", "refused")

    def __init__(self) -> None:
        self.exported = 0
        self.refused = 0
        self.failures = 0


class Projector:
    """Sends the spans of one store. `poll` and `retry` are the shortest and longest waits, in seconds, for
    new events and after a failure. `sampled` says by trace id and submitter whether a run is traced,
    `describe` what the functions of this process are for."""

    def __init__(
        self,
        log: EventLog,
        sink: SpanSink,
        limits: Limits,
        *,
        capture: bool = False,
        sampled: Sampled = lambda trace_id, parent: True,
        poll: tuple[float, float] = (0.1, 1.0),
        retry: tuple[float, float] = (1.0, 30.0),
        describe: Describe | None = None,
    ) -> None:
        self.counts = Counts()
        self._log = log
        self._sink = sink
        self._limits = limits
        self._capture = capture
        self._sampled = sampled
        self._poll = poll
        self._retry = retry
        self._lease = Lease(log)
        self._worker = Worker("agentflow-spans")
        self._pacer = Pacer()
        self._folds: OrderedDict[str, tuple[RunSpans, float]] = OrderedDict()
        self._facts: OrderedDict[str, Facts] = OrderedDict()  # by hash of the definition
        self._describe = describe
        self._cursor: str | None = None
        self._stored: str | None = None
        self._wake = asyncio.Event()
        self._stopping = False
        self._failing = 0
        self._troubled = False
        self._reported: set[str] = set()  # damaged runs
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin; the first time on a store with what is committed from now on."""
        try:
            if self._lease.held():
                await self._find_place()
        except AgentflowError as error:  # found later; telemetry is no reason not to begin
            _log.warning("spans_not_read", error=str(error))
        self._task = asyncio.create_task(self._run(), name="agentflow-spans")

    async def aclose(self, deadline: float) -> None:
        """Send what is committed by now, as far as it can be done in `deadline` seconds, and end.

        What is left is sent by the next start on this store, if it keeps what it has; so a sink that fails
        gets a second at most, which a command at a terminal can bear, and one that takes nothing 1.5 s.
        """
        task, self._task = self._task, None
        if task is None:
            return
        self._stopping = True
        self._wake.set()
        began = moved = time.monotonic()
        exported = self.counts.exported
        while not task.done():
            now = time.monotonic()
            if self.counts.exported != exported:
                exported, moved = self.counts.exported, now
            passed = now - began
            if (
                passed >= (min(deadline, _HOPELESS_WAIT_S) if self._hopeless() else deadline)
                or now - moved >= _SILENT_WAIT_S
            ):
                _log.warning("spans_left", hint="they are sent by the next start on this store")
                task.cancel()
            await asyncio.wait({task}, timeout=max(0.0, min(0.1, deadline - passed)))
        self._sink.close()  # whatever the thread waits for is given up
        self._worker.close()
        self._lease.release()

    def _hopeless(self) -> bool:
        return self._log.durable and (self._failing >= _DEAD_AFTER or self._sink.struggling)

    # -- the loop ---------------------------------------------------------------------------------

    async def _run(self) -> None:
        idle = self._poll[0]
        while True:
            # A turn that began before `aclose` may not have seen what was committed before it.
            last = self._stopping
            try:
                busy = await self._turn()
            except LogClosed:
                return
            except asyncio.CancelledError:
                raise
            except Exception as error:  # the store fails for now, or we have a bug: runs must not notice
                if not self._troubled:
                    known = isinstance(error, AgentflowError)
                    _log.warning("spans_not_read", error=str(error), exc_info=None if known else error)
                self._troubled = True
                busy = False
            else:
                self._troubled = False
            if busy:
                idle = self._poll[0]
                continue
            if last:
                return
            await self._rest(idle)
            idle = min(self._poll[1], idle * 2)

    async def _turn(self) -> bool:
        """Send one page; return whether there was one."""
        if not self._lease.held():
            return False
        if self._cursor is None:
            await self._find_place()
        page = await self._log.query(cursor=self._cursor, limit=PAGE)
        for workflow_id in page.damaged:  # what is intact goes on: waiting would not bring it back
            if workflow_id not in self._reported:
                self._reported.add(workflow_id)
                _log.warning("events_missing", workflow_id=workflow_id, hint=VERIFY_HINT)
        if not page.items:
            await self._store(page.next_cursor)
            return False
        spans = await self._project(page.items)
        if spans:
            await self._send(spans)
            self._cursor = page.next_cursor
            await self._store(page.next_cursor)
        self._cursor = page.next_cursor
        return True

    async def _find_place(self) -> None:
        """Return where to go on. Only with the lease, so that no other process moves the cursor meanwhile."""
        cursor = await self._log.load_cursor(CONSUMER)
        if cursor is None:
            cursor = await self._log.latest_cursor()
            await self._log.save_cursor(CONSUMER, cursor)
        self._cursor = self._stored = cursor

    async def _store(self, cursor: str | None) -> None:
        """Remember durably that everything up to here has arrived."""
        if cursor is not None and cursor != self._stored:
            await self._log.save_cursor(CONSUMER, cursor)
            self._stored = cursor

    async def _rest(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        if not self._stopping:
            self._wake.clear()

    # -- events to spans --------------------------------------------------------------------------

    async def _project(self, items: list[LoggedEvent]) -> list[Span]:
        self._forget()
        await self._recall(items)
        spans = await self._worker.call(self._fold, items)
        for workflow_id, event in items:
            if event.type in TERMINAL_TYPES:
                self._folds.pop(workflow_id, None)
        return spans

    def _forget(self) -> None:
        """Drop what is known of runs that have been silent for long; their log has it all."""
        folds, limit = self._folds, time.monotonic() - _IDLE
        while folds and (len(folds) > _RUNS or next(iter(folds.values()))[1] < limit):
            folds.popitem(last=False)

    async def _recall(self, items: list[LoggedEvent]) -> None:
        """Fold what came before this page of the runs that are not in memory."""
        now = time.monotonic()
        for workflow_id, event in items:
            known = self._folds.get(workflow_id)
            if known is None:
                fold = RunSpans(
                    workflow_id,
                    self._limits,
                    capture=self._capture,
                    origin=await self._origin(event),
                    facts=await self._facts_of(event),
                    describe=self._describe,
                )
                if event.offset > 0:
                    await self._refold(fold, event.offset)
                known = (fold, now)
            self._folds[workflow_id] = (known[0], now)
            self._folds.move_to_end(workflow_id)

    async def _refold(self, fold: RunSpans, end: int) -> None:
        offset = 0
        while offset < end:
            try:
                rows = await self._log.read(fold.workflow_id, offset, min(PAGE, end - offset))
            except OffsetTrimmed as trimmed:
                offset = trimmed.earliest_offset
                continue
            except (RunNotFound, RunGone, LogCorrupt):
                return  # what is left of it has to do
            rows = [row for row in rows if row.offset < end]
            if not rows:
                return
            if offset == 0 and rows[0].offset == 0:
                fold.origin = await self._origin(rows[0])
                fold.facts = await self._facts_of(rows[0])
            await self._worker.call(self._fold_rows, fold, rows)
            offset = rows[-1].offset + 1

    async def _origin(self, event: StoredEvent) -> SpanContext | None:
        """Return the root span of the run that this event's run was forked from, if the event says so."""
        if event.offset > 0 or b'"forked_from"' not in event.text:
            return None
        try:
            data = decode(event.body).data
        except LogCorrupt:
            return None
        return await root_of(self._log, data)

    async def _facts_of(self, event: StoredEvent) -> Facts:
        """Return what the definition of a run says, if this is its first event; those of 64 are kept."""
        found = None if event.offset else _IR_HASH.search(event.body)
        if found is None:
            return NO_FACTS
        key = found[1].decode()
        known = self._facts.get(key)
        if known is None:
            known = self._facts[key] = facts_of(await self._log.get_definition(key))
            if len(self._facts) > _DEFINITIONS:
                self._facts.popitem(last=False)
        return known

    def _fold_rows(self, fold: RunSpans, rows: list[StoredEvent]) -> list[Span]:
        spans: list[Span] = []
        self._pacer.start()
        for i, row in enumerate(rows):
            if i % _PIECE == 0:
                self._pacer.pause()
            spans += take_or_skip(fold, row)
        return spans

    def _fold(self, items: list[LoggedEvent]) -> list[Span]:
        """Return the spans that this page ends; runs in the thread. The same page twice gives the same."""
        spans: list[Span] = []
        self._pacer.start()
        for i, (workflow_id, row) in enumerate(items):
            if i % _PIECE == 0:
                self._pacer.pause()
            fold = self._folds[workflow_id][0]
            if row.offset < fold.next_offset:
                continue  # the page is tried again: its folds are ahead of it
            ended = take_or_skip(fold, row)
            if ended and fold.is_wanted and self._sampled(fold.trace_id, fold.parent):
                spans += ended
        return spans

    # -- spans to the sink ------------------------------------------------------------------------

    async def _send(self, spans: list[Span]) -> None:
        """Send until it is done. The owner of the projector cancels it at its time limit."""
        wait = self._retry[0]
        while True:
            try:
                refused = await self._worker.call(self._hand_over, spans)
            except Exception as error:
                if isinstance(error, NotSent):
                    self._count(error.done, error.refused)
                    spans = spans[error.done :]
                self._failing += 1
                self.counts.failures += 1
                if self._failing == 1:
                    _log.warning(
                        "spans_not_sent", error=str(error), hint="they are sent when it answers again"
                    )
                await self._rest(wait)
                if self._stopping:
                    await asyncio.sleep(min(wait, 1.0))  # `_rest` returns at once then
                wait = min(self._retry[1], wait * 2)
                continue
            if self._failing:
                _log.info("spans_sent_again", failures=self._failing)
                self._failing = 0
            self._count(len(spans), refused)
            return

    def _count(self, settled: int, refused: int) -> None:
        self.counts.exported += settled - refused
        self.counts.refused += refused

    def _hand_over(self, spans: list[Span]) -> int:
        self._pacer.start()
        try:
            return self._sink.send(spans)
        finally:
            self._pacer.pause()


async def root_of(log: EventLog, data: object) -> SpanContext | None:
    """Return the root span of the run that `workflow.started` says it was forked from; None if it is not
    known."""
    if not isinstance(data, WorkflowStarted) or not data.forked_from:
        return None
    origin = data.forked_from.workflow_id
    tracer = RunTracer(origin)
    try:
        rows = await log.read(origin, 0, 1)
        if rows and rows[0].offset == 0:
            tracer.take(decode(rows[0].body).data)
    except (RunNotFound, RunGone, OffsetTrimmed, LogCorrupt):
        pass  # it is gone: its ids follow from its name, unless it was submitted with a trace
    return tracer.root
