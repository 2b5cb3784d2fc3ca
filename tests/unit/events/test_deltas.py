"""Answers while they are written: readers are positions, and slow ones cost little."""

from __future__ import annotations

import asyncio

import pytest

from agentflow.events import deltas as module
from agentflow.events.deltas import DeltaHub


class Reader:
    """A reader and how often it was woken."""

    def __init__(self, hub: DeltaHub, run: str = "wf_a") -> None:
        self.woken = 0
        self._following = hub.follow(run, self._wake)
        self.deltas = self._following.__enter__()

    def _wake(self) -> None:
        self.woken += 1

    def texts(self, position: int | None = None) -> list[str]:
        return [delta.data.text for delta in self.deltas.take(position)]

    def leave(self) -> None:
        self._following.__exit__(None, None, None)


@pytest.fixture
def hub() -> DeltaHub:
    return DeltaHub()


async def test_a_reader_is_woken_once_for_all_that_came(hub):
    reader = Reader(hub)
    with hub.writing("wf_a", "s", "mcl_1", 3) as sink:
        sink("output", "a")
        sink("output", "b")
        assert reader.woken == 1
        assert reader.texts() == ["ab"]
        sink("output", "c")
        assert reader.woken == 2
    assert reader.texts() == ["c"]
    assert reader.texts() == []


async def test_other_runs_are_not_told(hub):
    reader = Reader(hub, "wf_b")
    with hub.writing("wf_a", "s", "mcl_1", 3) as sink:
        sink("output", "a")
    assert (reader.woken, reader.texts()) == (0, [])


async def test_text_of_calls_that_began_later_is_held_back(hub):
    reader = Reader(hub)
    with hub.writing("wf_a", "s", "mcl_1", 3) as one, hub.writing("wf_a", "t", "mcl_2", 7) as two:
        one("output", "one")
        two("output", "two")
        assert reader.texts(2) == []
        assert reader.deltas.held
        assert reader.texts(3) == ["one"]
        assert reader.deltas.held
        assert reader.texts(7) == ["two"]
        assert not reader.deltas.held


async def test_an_answer_that_has_ended_is_let_go_when_its_events_were_seen(hub):
    reader = Reader(hub)
    with hub.writing("wf_a", "s", "mcl_1", 3) as sink:
        sink("output", "late")
    reader.deltas.forget(2)
    assert reader.texts(3) == ["late"]
    with hub.writing("wf_a", "s", "mcl_2", 5) as sink:
        sink("output", "later")
    reader.deltas.forget(9)
    assert reader.texts() == []


async def test_an_open_answer_is_never_let_go(hub):
    reader = Reader(hub)
    with hub.writing("wf_a", "s", "mcl_1", 3) as sink:
        sink("output", "a")
        reader.deltas.forget(100)
        assert reader.texts() == ["a"]


async def test_a_reader_that_takes_nothing_keeps_few_answers(hub):
    reader = Reader(hub)
    for n in range(10 * module._KEPT_ENDED):
        with hub.writing("wf_a", "s", f"mcl_{n}", n) as sink:
            sink("output", str(n))
    texts = reader.texts()
    assert len(texts) == module._KEPT_ENDED
    assert texts[-1] == str(10 * module._KEPT_ENDED - 1)


@pytest.mark.parametrize("piece", [None, 7, b"bytes", "", ["x"]])
async def test_what_is_no_text_is_passed_over(hub, piece):
    reader = Reader(hub)
    with hub.writing("wf_a", "s", "mcl_1", 3) as sink:
        sink("output", piece)
        assert reader.woken == 0
        sink("whatever", "half \ud800 pair")
    (delta,) = reader.deltas.take()
    assert (delta.data.token_kind, delta.data.text) == ("output", "half ? pair")


async def test_nothing_stays_when_nobody_reads_or_writes(hub):
    reader = Reader(hub)
    with hub.writing("wf_a", "s", "mcl_1", 3) as sink:
        sink("output", "a")
        late = Reader(hub)
        assert late.woken == 1
        late.leave()
    sink("output", "after the end")
    assert reader.texts() == ["a"]
    reader.leave()
    assert (hub._answers, hub._readers) == ({}, {})


async def test_an_adapter_may_write_in_a_thread(hub):
    reader = Reader(hub)
    loop = asyncio.get_running_loop()
    woken_in_loop: list[bool] = []
    with (
        hub.follow("wf_a", lambda: woken_in_loop.append(asyncio.get_running_loop() is loop)),
        hub.writing("wf_a", "s", "mcl_1", 3) as sink,
    ):

        def write() -> None:
            for n in range(100):
                sink("output", f"{n} ")

        await asyncio.to_thread(write)
        assert reader.texts() == ["".join(f"{n} " for n in range(100))]
        assert woken_in_loop == [True]
    await asyncio.to_thread(sink, "output", "after the end")
    await asyncio.sleep(0)
    assert reader.texts() == []
