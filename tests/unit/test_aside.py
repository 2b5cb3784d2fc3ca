"""What computes for long queues for one thread, and the event loop goes on meanwhile."""

from __future__ import annotations

import asyncio
import threading

import pytest

from agentflow.aside import compute_aside, import_aside, is_small


class Gauge:
    """Counts how many threads are in `work` at once; `gate` holds them."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.entered = threading.Semaphore(0)
        self.now = self.most = 0
        self.order: list[int] = []

    def work(self, number: int) -> int:
        self.now += 1
        self.most = max(self.most, self.now)
        self.order.append(number)
        self.entered.release()
        assert self.gate.wait(30)
        self.now -= 1
        return number


async def test_calls_are_made_one_at_a_time_in_their_order():
    gauge = Gauge()
    calls = [asyncio.create_task(compute_aside(gauge.work, n)) for n in range(8)]
    await asyncio.to_thread(gauge.entered.acquire)
    gauge.gate.set()
    assert await asyncio.gather(*calls) == list(range(8))
    assert gauge.order == list(range(8))
    assert gauge.most == 1


async def test_the_next_call_waits_for_the_thread_of_a_cancelled_one():
    gauge = Gauge()
    first = asyncio.create_task(compute_aside(gauge.work, 1))
    await asyncio.to_thread(gauge.entered.acquire)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    second = asyncio.create_task(compute_aside(gauge.work, 2))
    await asyncio.to_thread(lambda: None)  # a thread is free, and the second call is not in it
    assert gauge.order == [1]
    gauge.gate.set()
    assert await second == 2
    assert gauge.most == 1


async def test_a_call_that_is_cancelled_in_the_queue_is_never_made():
    gauge = Gauge()
    first = asyncio.create_task(compute_aside(gauge.work, 1))
    await asyncio.to_thread(gauge.entered.acquire)
    second = asyncio.create_task(compute_aside(gauge.work, 2))
    await asyncio.sleep(0)
    second.cancel()
    third = asyncio.create_task(compute_aside(gauge.work, 3))
    gauge.gate.set()
    assert (await first, await third) == (1, 3)
    assert gauge.order == [1, 3]


async def test_an_error_is_that_of_the_call_and_frees_the_thread():
    def fail() -> None:
        raise ValueError("wrong")

    for _ in range(2):
        with pytest.raises(ValueError, match="wrong"):
            await compute_aside(fail)


async def test_a_module_that_is_missing_is_left_to_the_import_that_needs_it():
    await import_aside("json", "agentflow.no_such_module")


@pytest.mark.parametrize(
    ("value", "small"),
    [
        (None, True),
        ("x" * 60_000, True),
        ("x" * 70_000, False),
        ({"a" * 70_000: 1}, False),
        ([0] * 1_900, True),
        ([0] * 2_100, False),
        ([[0] * 100] * 100, False),
        ({str(n): n for n in range(900)}, True),
        ({str(n): n for n in range(2_100)}, False),
    ],
)
def test_small_values_are_told_from_large_ones(value: object, small: bool):
    assert is_small(value) is small


def test_a_value_that_holds_itself_is_large():
    endless: list[object] = []
    endless.append(endless)
    assert not is_small(endless)
