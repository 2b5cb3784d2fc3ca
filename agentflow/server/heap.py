"""Settings of the daemon's interpreter: garbage collection and the switches between threads.

A full collection visits every container of the heap on the thread that happens to allocate: 0.7 s for the
runs of sixteen large documents, and CPython repeats it whenever the heap has grown by a quarter. JSON values
have no cycles and are freed without it. So the daemon leaves the young generations to CPython (at most
40,000 containers, 10 ms) and makes full collections itself while they are short.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

__all__ = ["Heap", "tuned_interpreter"]

_YOUNG: Final = (10_000, 3)
_NEVER: Final = 2**31 - 1
_SWITCH_INTERVAL_S: Final = 0.001
"""The loop waits so long for the interpreter, each time that it comes back from the kernel, while a thread
computes; CPython's own 5 ms make 80 ms for a round of sixteen connections."""

_CHECK_S: Final = 30.0
_SHORT_BLOCKS: Final = 500_000
"""Allocated blocks beyond which a full collection may take more than some 50 ms."""
_LONGEST_WAIT_S: Final = 3600.0
"""After which a full collection is made however long it takes: cycles of a large heap are freed at last."""


class Heap:
    """Decides when the daemon makes a full collection. For the thread of its event loop."""

    def __init__(self) -> None:
        self.collected_at = time.monotonic()

    async def keep(self) -> None:
        """Collect until cancelled: every 30 s while the heap is small, else once an hour."""
        while True:
            await asyncio.sleep(_CHECK_S)
            self.check(time.monotonic(), sys.getallocatedblocks())

    def check(self, now: float, blocks: int) -> bool:
        """Make a full collection if one is due; return whether it was."""
        if gc.get_count()[2] == 0:  # nothing has become old since the last one
            return False
        if blocks > _SHORT_BLOCKS and now - self.collected_at < _LONGEST_WAIT_S:
            return False
        gc.collect()
        self.collected_at = now
        return True


@contextmanager
def tuned_interpreter() -> Generator[None]:
    """Apply the daemon's settings of the interpreter, which are global, and take them back at the end."""
    thresholds, interval = gc.get_threshold(), sys.getswitchinterval()
    gc.collect()
    gc.freeze()  # modules and classes stay for good: 200,000 containers that no collection has to visit
    gc.set_threshold(*_YOUNG, _NEVER)
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)
        gc.set_threshold(*thresholds)
        gc.unfreeze()
