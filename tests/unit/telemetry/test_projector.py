"""Spans leave by a stored cursor: none is lost, none is sent twice, whatever the collector does."""

from __future__ import annotations

import asyncio
import random
import threading
import time

import pytest
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from agentflow.errors import LogClosed, StoreError
from agentflow.events.envelope import StoredEvent
from agentflow.events.memory import MemoryLog
from agentflow.events.sqlite import SqliteLog
from agentflow.telemetry.projection import RunSpans, project
from agentflow.telemetry.projector import CONSUMER, PAGE, Projector
from agentflow.telemetry.sender import Sender
from tests.unit.events.support import change_batch
from tests.unit.telemetry.support import (
    GOLDEN,
    LIMITS,
    STARTED,
    append,
    completed,
    golden,
    step_completed,
    step_started,
    stored,
)

FAST = {"poll": (0.005, 0.02), "retry": (0.005, 0.02)}
TRIAGE = next(path for path in GOLDEN if path.stem == "triage")


class Sink:
    """Keeps spans; `trouble` is called with them first and may raise or block."""

    struggling = False

    def __init__(self, trouble=lambda spans: None):
        self.trouble = trouble
        self.sent = []
        self.batches = []
        self.closed = False
        self.arrived = threading.Condition()

    def send(self, spans):
        self.trouble(spans)
        with self.arrived:
            self.batches.append(len(spans))
            self.sent += spans
            self.arrived.notify_all()
        return 0

    def close(self):
        self.closed = True

    async def wait(self, count):
        def enough():
            with self.arrived:
                assert self.arrived.wait_for(lambda: len(self.sent) >= count, 30), len(self.sent)

        await asyncio.to_thread(enough)

    @property
    def ids(self):
        return [(span.trace_id, span.span_id) for span in self.sent]


async def until(ready):
    async with asyncio.timeout(30):
        while not ready():  # noqa: ASYNC110 — what the projector does has no signal of its own
            await asyncio.sleep(0.001)


def run_of(number):
    return golden(TRIAGE, f"wf_{number}")


PER_RUN = len(project("wf_1", run_of(1), LIMITS)[0])


async def opened(log, sink, **more):
    projector = Projector(log, sink, LIMITS, **{**FAST, **more})
    await projector.start()
    return projector


async def test_spans_are_sent_once_and_alike():
    log, sink = MemoryLog(), Sink()
    projector = await opened(log, sink)
    await append(log, "wf_1", run_of(1))
    await sink.wait(PER_RUN)
    await projector.aclose(5)
    assert [span.key() for span in sink.sent] == [s.key() for s in project("wf_1", run_of(1), LIMITS)[0]]
    assert projector.counts.exported == PER_RUN
    assert sink.closed


async def test_what_is_committed_before_the_end_is_sent_by_the_end():
    log, sink = MemoryLog(), Sink()
    projector = await opened(log, sink)
    for number in range(20):
        await append(log, f"wf_{number}", run_of(number))
    await projector.aclose(20)
    assert len(set(sink.ids)) == len(sink.ids) == 20 * PER_RUN


async def test_the_first_start_on_a_store_leaves_the_past_alone():
    log, sink = MemoryLog(), Sink()
    await append(log, "wf_old", run_of("old"))
    projector = await opened(log, sink)
    await append(log, "wf_new", run_of("new"))
    await projector.aclose(5)
    assert {span.attributes["agentflow.run.id"] for span in sink.sent} == {"wf_new"}


@pytest.mark.parametrize("store", ["memory", "sqlite"])
async def test_ended_at_any_moment_and_started_again_nothing_is_missing_or_twice(tmp_path, store):
    log = MemoryLog() if store == "memory" else SqliteLog(tmp_path / "runs.db")
    events, ids, batches = run_of(1), [], 0
    for first in range(0, len(events), 7):
        sink = Sink()
        projector = await opened(log, sink)
        await append(log, "wf_1", events[first : first + 7])
        await projector.aclose(10)
        ids += sink.ids
        batches += len(sink.batches)
    assert len(set(ids)) == len(ids) == PER_RUN
    assert batches > 3
    await log.close()


async def test_a_start_in_another_process_knows_the_beginning_of_a_span(tmp_path):
    log = SqliteLog(tmp_path / "runs.db")
    events = run_of(1)
    first = await opened(log, Sink())
    await append(log, "wf_1", events[:30])
    await first.aclose(5)
    await log.close()
    log, sink = SqliteLog(tmp_path / "runs.db"), Sink()
    projector = await opened(log, sink)
    await append(log, "wf_1", events[30:])
    await projector.aclose(5)
    whole = [span.key() for span in project("wf_1", events, LIMITS)[0]]
    assert [span.key() for span in sink.sent] == whole[-len(sink.sent) :]
    assert sink.sent[-1].name.startswith("invoke_workflow")
    await log.close()


# -- collectors with troubles


class Slow(SpanExporter):
    """Takes its time, fails for a while, and keeps what it took."""

    def __init__(self):
        self.taken = []
        self.calls = 0

    def export(self, spans):
        self.calls += 1
        if 50 <= self.calls < 60:
            raise ConnectionError("down for a while")
        if self.calls % 7 == 0:
            return SpanExportResult.FAILURE
        if self.calls % 5 == 0:
            time.sleep(0.002)
        self.taken += [span.context.span_id for span in spans]
        return SpanExportResult.SUCCESS

    def shutdown(self):
        pass


@pytest.mark.timeout(150)
@pytest.mark.parametrize("spans", [10_000, pytest.param(50_000, marks=pytest.mark.slow)])
async def test_a_slow_and_failing_exporter_drops_no_span(spans: int):
    log, exporter = MemoryLog(), Slow()
    projector = await opened(log, Sender(exporter), retry=(0.0001, 0.001))
    runs = -(-spans // PER_RUN)
    for number in range(runs):
        await append(log, f"wf_{number}", run_of(number))
        if number % 50 == 0:
            await asyncio.sleep(0)
    await projector.aclose(120)
    assert len(exporter.taken) == runs * PER_RUN >= spans
    assert len(set(exporter.taken)) == len(exporter.taken)
    assert projector.counts.failures > 10


class Fatal(BaseException):
    pass


@pytest.mark.parametrize(
    "error",
    [OSError("no"), SystemExit(2), KeyboardInterrupt(), asyncio.CancelledError(), GeneratorExit(), Fatal()],
    ids=lambda e: type(e).__name__,
)
async def test_whatever_an_exporter_raises_the_spans_are_sent_later(error):
    failed = []

    def trouble(spans):
        if len(failed) < 3:
            failed.append(len(spans))
            raise error

    log, sink = MemoryLog(), Sink(trouble)
    projector = await opened(log, sink)
    await append(log, "wf_1", run_of(1))
    await sink.wait(PER_RUN)
    await projector.aclose(5)
    assert len(sink.ids) == len(set(sink.ids)) == PER_RUN
    assert failed == [failed[0]] * 3


async def test_a_dead_collector_bounds_neither_memory_nor_time(tmp_path):
    def dead(spans):
        raise ConnectionRefusedError("nobody there")

    log = SqliteLog(tmp_path / "runs.db")
    projector = await opened(log, Sink(dead), retry=(0.005, 30))
    for number in range(100):
        await append(log, f"wf_{number}", run_of(number))
    await until(lambda: projector.counts.failures >= 3)
    assert len(projector._folds) <= PAGE
    began = time.monotonic()
    await projector.aclose(30)
    assert time.monotonic() - began < 5, "it had failed already, so one attempt is enough"

    sink = Sink()
    projector = await opened(log, sink)
    await projector.aclose(20)
    assert len(set(sink.ids)) == len(sink.ids) == 100 * PER_RUN
    await log.close()


async def test_a_collector_that_struggles_gets_its_time_only_where_spans_would_be_lost(tmp_path):
    for durable, log in ((True, SqliteLog(tmp_path / "runs.db")), (False, MemoryLog())):
        gate = threading.Event()
        sink = Sink(lambda spans, gate=gate: gate.wait(10))
        sink.struggling = True
        projector = await opened(log, sink)
        await append(log, "wf_1", run_of(1))
        asyncio.get_running_loop().call_later(1.3, gate.set)
        await projector.aclose(5)
        assert bool(sink.sent) is not durable
        await log.close()


async def test_a_collector_that_never_answers_does_not_hold_up_the_end(caplog):
    forever = threading.Event()
    log, sink = MemoryLog(), Sink(lambda spans: forever.wait(30))
    projector = await opened(log, sink)
    await append(log, "wf_1", run_of(1))
    began = time.monotonic()
    await projector.aclose(0.2)
    assert time.monotonic() - began < 5
    assert "spans_left" in caplog.text
    forever.set()
    sink = Sink()
    projector = await opened(log, sink)
    await projector.aclose(5)
    assert len(sink.ids) == PER_RUN


async def test_a_failure_is_said_once_and_its_end_too(caplog):
    fails = iter([True] * 5)

    def trouble(spans):
        if next(fails, False):
            raise OSError("down")

    log, sink = MemoryLog(), Sink(trouble)
    caplog.set_level("INFO", logger="agentflow")
    projector = await opened(log, sink)
    await append(log, "wf_1", run_of(1))
    await sink.wait(PER_RUN)
    await projector.aclose(5)
    assert [r.message for r in caplog.records if r.name == "agentflow.telemetry"] == [
        "spans_not_sent",
        "spans_sent_again",
    ]


async def test_ending_twice_or_before_the_beginning_does_nothing():
    projector = Projector(MemoryLog(), Sink(), LIMITS, **FAST)
    await projector.aclose(1)
    await projector.start()
    await projector.aclose(1)
    await projector.aclose(1)


# -- stores and logs with troubles


class Failing(MemoryLog):
    """Fails now and then, as a store that is busy or full does."""

    fails: frozenset[str] = frozenset()
    chance = random.Random(7)

    async def _perhaps(self, name):
        if name in self.fails and self.chance.random() < 0.5:
            raise StoreError("not now")

    async def query(self, *args, **more):
        await self._perhaps("query")
        return await super().query(*args, **more)

    async def read(self, *args, **more):
        await self._perhaps("read")
        return await super().read(*args, **more)

    async def save_cursor(self, *args):
        await self._perhaps("save_cursor")
        return await super().save_cursor(*args)


@pytest.mark.parametrize("fails", ["query", "read", "save_cursor"])
async def test_a_store_that_fails_now_and_then_costs_nothing_but_time(fails, caplog):
    log, sink = Failing(), Sink()
    projector = await opened(log, sink)
    events = [run_of(number) for number in range(30)]
    for number in range(30):  # each run in two parts, and forgotten in between
        await append(log, f"wf_{number}", events[number][:20])
    await sink.wait(1)
    log.fails = frozenset({fails})
    for number in range(30):
        projector._folds.clear()
        await append(log, f"wf_{number}", events[number][20:])
        await asyncio.sleep(0)
    await sink.wait(30 * PER_RUN)
    log.fails = frozenset()
    await projector.aclose(10)
    assert len(set(sink.ids)) == len(sink.ids) == 30 * PER_RUN


async def test_a_closed_log_ends_it():
    log, sink = MemoryLog(), Sink()
    projector = await opened(log, sink)
    await log.close()
    with pytest.raises(LogClosed):
        await log.latest_cursor()
    await projector.aclose(5)


async def test_an_event_that_cannot_be_read_holds_nobody_up():
    log, sink = MemoryLog(), Sink()
    projector = await opened(log, sink)
    bad = run_of("bad")
    bad[7] = StoredEvent(7, bad[7].ts, bad[7].type, b"{")
    await append(log, "wf_bad", bad)
    await append(log, "wf_good", run_of("good"))
    await projector.aclose(5)
    found = [span.attributes["agentflow.run.id"] for span in sink.sent]
    assert found.count("wf_good") == PER_RUN
    assert "wf_bad" in found


async def test_runs_that_rest_for_long_are_forgotten_and_found_again(monkeypatch):
    import agentflow.telemetry.projector as module

    monkeypatch.setattr(module, "_IDLE", 0.0)
    log, sink = MemoryLog(), Sink()
    projector = await opened(log, sink)
    events = run_of(1)
    for first in range(0, len(events), 10):
        await append(log, "wf_1", events[first : first + 10])
        await append(log, f"wf_other{first}", run_of(f"other{first}"))
        await asyncio.sleep(0.03)
    await projector.aclose(5)
    assert len(projector._folds) <= 1
    mine = [span.key() for span in sink.sent if span.attributes["agentflow.run.id"] == "wf_1"]
    assert mine == [span.key() for span in project("wf_1", events, LIMITS)[0]]


async def test_a_fork_links_to_its_origin():
    import msgspec

    from agentflow.events import catalogue as ev

    given = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    origin = msgspec.structs.replace(STARTED, options={"traceparent": given})
    fork = msgspec.structs.replace(STARTED, forked_from=ev.ForkOrigin(workflow_id="wf_0", offset=1))
    lost = msgspec.structs.replace(STARTED, forked_from=ev.ForkOrigin(workflow_id="wf_gone", offset=1))
    log, sink = MemoryLog(), Sink()
    await append(log, "wf_0", stored("wf_0", [(origin, 1)]))
    projector = await opened(log, sink)
    for name, first in (("wf_1", fork), ("wf_2", lost)):
        await append(log, name, stored(name, [(first, 1), (completed(), 2)]))
    await projector.aclose(5)
    linked = [r.trace_id for span in sink.sent for r in span.relations]
    assert linked[0] == "0af7651916cd43dd8448eb211c80319c"
    assert [len(span.relations) for span in sink.sent] == [1, 1]


async def test_a_run_that_is_not_sampled_is_not_sent():
    log, sink = MemoryLog(), Sink()
    projector = await opened(log, sink, sampled=lambda trace_id, parent: parent is not None)
    await append(log, "wf_1", run_of(1))
    await projector.aclose(5)
    assert sink.sent == []


# -- several processes


async def test_of_those_who_share_a_store_one_sends_and_the_next_takes_over(tmp_path):
    logs = [SqliteLog(tmp_path / "runs.db") for _ in range(2)]
    sinks = [Sink(), Sink()]
    first, second = [await opened(log, sink) for log, sink in zip(logs, sinks, strict=True)]
    for number in range(10):
        await append(logs[number % 2], f"wf_{number}", run_of(number))
    await sinks[0].wait(10 * PER_RUN)
    assert sinks[1].sent == []
    await first.aclose(5)
    await append(logs[0], "wf_more", run_of("more"))
    await sinks[1].wait(PER_RUN)
    await second.aclose(5)
    ids = sinks[0].ids + sinks[1].ids
    assert len(set(ids)) == len(ids) == 11 * PER_RUN
    for log in logs:
        await log.close()


async def test_two_who_share_a_log_in_one_process_send_once():
    log, sinks = MemoryLog(), [Sink(), Sink()]
    first, second = [await opened(log, sink) for sink in sinks]
    await append(log, "wf_1", run_of(1))
    await sinks[0].wait(PER_RUN)
    await first.aclose(5)
    await append(log, "wf_2", run_of(2))
    await sinks[1].wait(PER_RUN)
    await second.aclose(5)
    assert [len(sink.sent) for sink in sinks] == [PER_RUN, PER_RUN]


async def test_a_store_beside_which_nothing_can_be_written_is_sent_all_the_same(tmp_path):
    log, sink = SqliteLog(tmp_path / "runs.db"), Sink()
    (tmp_path / "runs.db.spans.lock").mkdir()
    projector = await opened(log, sink)
    await append(log, "wf_1", run_of(1))
    await projector.aclose(5)
    assert len(sink.sent) == PER_RUN
    await log.close()


async def test_a_run_whose_front_was_trimmed_or_that_is_gone_is_no_obstacle():
    log, sink = MemoryLog(), Sink()
    projector = await opened(log, sink)
    events = run_of(1)
    await append(log, "wf_1", events)
    await append(log, "wf_2", run_of(2))
    await sink.wait(2 * PER_RUN)
    await log.trim("wf_1", len(events) - 5)
    fold = RunSpans("wf_1", LIMITS)
    await projector._refold(fold, len(events) - 1)
    assert fold.next_offset == len(events) - 1
    await log.delete("wf_2", 1)
    fold = RunSpans("wf_2", LIMITS)
    await projector._refold(fold, 5)
    assert fold.next_offset == 0
    await append(log, "wf_3", run_of(3))
    await projector.aclose(5)
    assert len(sink.sent) == 3 * PER_RUN


async def test_a_store_that_is_busy_at_the_start_is_waited_for():
    log, sink = Failing(), Sink()
    log.fails = frozenset({"save_cursor"})
    projectors = []
    for _ in range(5):
        projectors.append(projector := await opened(log, sink))
        await projector.aclose(5)
    assert len(projectors) == 5


async def test_the_cursor_is_behind_what_was_sent_and_not_before():
    gate, entered = threading.Event(), threading.Event()

    def trouble(spans):
        entered.set()
        gate.wait(10)

    log, sink = MemoryLog(), Sink(trouble)
    projector = await opened(log, sink)
    before = await log.load_cursor(CONSUMER)
    await append(log, "wf_1", run_of(1))
    await asyncio.to_thread(entered.wait, 10)
    assert await log.load_cursor(CONSUMER) == before
    gate.set()
    await projector.aclose(5)
    assert await log.load_cursor(CONSUMER) == await log.latest_cursor()


async def test_a_page_without_spans_is_not_read_again_and_again():
    log, sink = MemoryLog(), Sink()
    projector = await opened(log, sink)
    await append(log, "wf_1", stored("wf_1", [(STARTED, 1), (step_started(), 2)]))
    latest = await log.latest_cursor()
    await until(lambda: projector._stored == latest)
    await append(log, "wf_1", stored("wf_1", [(step_completed(), 3), (completed(), 4)], first=2))
    await projector.aclose(5)
    assert [span.name for span in sink.sent] == ["process a", "invoke_workflow flow"]


async def test_a_damaged_event_is_told_and_the_spans_of_other_runs_are_sent(tmp_path):
    """durability 6: the exporter neither stops there for ever nor passes it by in silence."""
    path = tmp_path / "log.db"
    log = SqliteLog(path)
    beginning = (await log.query()).next_cursor
    for number in (1, 2, 3):
        await append(log, f"wf_{number}", run_of(number))
    await log.save_cursor(CONSUMER, beginning)
    await log.close()
    change_batch(path, 2, 3)
    log, sink = SqliteLog(path), Sink()
    projector = await opened(log, sink)
    await sink.wait(2 * PER_RUN)
    await projector.aclose(5)
    assert projector._reported == {"wf_2"}  # each of them is a warning in the log
    for number in (1, 3):
        wanted = project(f"wf_{number}", run_of(number), LIMITS)[0]
        assert {(span.trace_id, span.span_id) for span in wanted} <= set(sink.ids)
    assert await log.load_cursor(CONSUMER) == await log.latest_cursor()
    await log.close()
