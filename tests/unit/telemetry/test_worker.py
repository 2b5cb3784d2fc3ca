"""The thread beside the loop: calls in order, odd ends, and giving way."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from agentflow.telemetry.worker import Pacer, Worker, WorkerFailed


async def test_calls_run_in_order_in_one_thread():
    worker = Worker("test")
    seen = []

    def note(value):
        seen.append((value, threading.get_ident()))
        return value

    assert await asyncio.gather(*(worker.call(note, i) for i in range(20))) == list(range(20))
    assert [value for value, _ in seen] == list(range(20))
    assert {ident for _, ident in seen} == {worker.ident}
    worker.close()


async def test_what_a_call_raises_is_raised_here_and_the_thread_goes_on():
    worker = Worker("test")

    def fail(error):
        raise error

    with pytest.raises(ZeroDivisionError):
        await worker.call(fail, ZeroDivisionError())
    for error in (SystemExit(1), KeyboardInterrupt(), asyncio.CancelledError()):
        with pytest.raises(WorkerFailed, match=type(error).__name__):
            await worker.call(fail, error)
    assert await worker.call(lambda: 7) == 7
    worker.close()


async def test_a_caller_that_is_cancelled_leaves_the_call_alone():
    worker, gate, done = Worker("test"), threading.Event(), threading.Event()

    def slow():
        gate.wait(10)
        done.set()

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await worker.call(slow)
    gate.set()
    assert await worker.call(done.is_set)
    worker.close()


async def test_a_closed_worker_takes_no_calls():
    worker = Worker("test")
    worker.close()
    with pytest.raises(RuntimeError, match="closed"):
        await worker.call(print)


def test_a_loop_that_is_gone_is_not_missed():
    worker, gate = Worker("test"), threading.Event()

    async def leave():
        task = asyncio.ensure_future(worker.call(gate.wait, 10))
        await asyncio.sleep(0)
        task.cancel()

    asyncio.run(leave())
    gate.set()
    assert asyncio.run(worker.call(lambda: 1)) == 1
    worker.close()
    worker._thread.join(5)
    assert not worker._thread.is_alive()


def test_a_thread_gives_way_while_the_process_is_busy():
    stop = threading.Event()

    def burn():
        while not stop.is_set():
            sum(range(1_000))

    other = threading.Thread(target=burn)
    other.start()
    pacer = Pacer()
    began, own = time.perf_counter(), time.thread_time()
    pacer.start()
    while time.perf_counter() - began < 0.4:
        until = time.thread_time() + 0.001
        while time.thread_time() < until:
            pass
        pacer.pause()
    stop.set()
    other.join()
    assert (time.thread_time() - own) / (time.perf_counter() - began) < 0.4
