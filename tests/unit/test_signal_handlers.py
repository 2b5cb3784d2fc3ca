"""A signal is handled at once, whatever the event loop does."""

from __future__ import annotations

import asyncio
import os
import selectors
import signal
import threading

import pytest

from agentflow.server.daemon import loop_factory
from agentflow.signal_handlers import SignalHandlers

PATIENCE = 10.0
"""Seconds after which the loop would wake up by itself."""


class Announcing(selectors.DefaultSelector):
    """Sets `waiting` just before it waits for I/O with nothing to do for long."""

    waiting: threading.Event

    def select(self, timeout=None):
        if timeout is not None and timeout > PATIENCE / 2:
            self.waiting.set()
        return super().select(timeout)


def run_and_signal(send, loop_factory):
    """Return the seconds until an idle loop saw the signal that `send` sends from another thread."""

    async def main():
        loop, taken = asyncio.get_running_loop(), asyncio.Event()
        with SignalHandlers((signal.SIGUSR1,), lambda *_: loop.call_soon_threadsafe(taken.set)):
            began = loop.time()
            async with asyncio.timeout(PATIENCE):
                await taken.wait()
            return loop.time() - began

    sender = threading.Thread(target=send)
    sender.start()
    try:
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            return runner.run(main())
    finally:
        sender.join()


def test_a_signal_that_another_thread_took_wakes_a_loop_that_waits():
    waiting = threading.Event()

    def make_loop():
        selector = Announcing()
        selector.waiting = waiting
        return asyncio.SelectorEventLoop(selector)

    def send():
        waiting.wait(PATIENCE)
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)

    assert run_and_signal(send, make_loop) < PATIENCE


def test_the_loop_of_the_daemon_hears_a_signal_of_another_thread():
    """With uvloop, which wakes itself, as with that of asyncio."""
    made = threading.Event()
    loops = []

    def make_loop():
        loops.append((loop_factory() or asyncio.new_event_loop)())
        loops[0].call_later(0.05, made.set)
        return loops[0]

    def send():
        made.wait(PATIENCE)
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)

    assert run_and_signal(send, make_loop) < PATIENCE


def test_a_busy_loop_is_interrupted_and_all_is_as_before_at_the_end():
    before = signal.getsignal(signal.SIGUSR1)
    descriptors = set(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else None

    class Out(Exception):
        pass

    def leave(number, frame):
        raise Out

    async def main():
        with SignalHandlers((signal.SIGUSR1,), leave):
            os.kill(os.getpid(), signal.SIGUSR1)
            while True:
                pass

    with pytest.raises(Out):
        asyncio.run(main())
    assert signal.getsignal(signal.SIGUSR1) is before
    assert signal.set_wakeup_fd(-1) == -1
    if descriptors is not None:
        assert set(os.listdir("/proc/self/fd")) == descriptors
