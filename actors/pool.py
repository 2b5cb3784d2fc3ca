"""A pool: one ref in front of several workers that share its mailbox as their work queue.

Demand-driven: a message leaves the mailbox when a worker is free, so that the mailbox bounds what waits, and
goes to the worker with the least in hand.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic

from actors.actor import Actor, on
from actors.errors import ActorStopped, SpecError
from actors.handle import delegate
from actors.messages import M
from actors.ref import Ref
from actors.specs import ChildSpec
from actors.supervision import Strategy

__all__ = ["Pool"]


class Pool(Actor[M], Generic[M]):
    """`size` workers made by `worker`, each with at most `limit` messages in hand or waiting at a time.

    Spawn it by a function: `await system.spawn(lambda: Pool(Worker, 8), "workers")`. Ask or tell it what a
    worker handles; the worker's answer or exception is the answer. A worker stays taken until its handler
    ends, even if the asker no longer waits. `supervise` treats the failures of workers. For another length
    of the queue derive a class: `class Work(Pool, mailbox=50)`.
    """

    def __init__(
        self, worker: Callable[[], Actor[M]], size: int, *, limit: int = 1, supervise: Strategy | None = None
    ) -> None:
        if size < 1 or limit < 1:
            raise SpecError(f"Pool(size={size}, limit={limit}): both must be at least 1")
        self._worker = worker
        self._size = size
        self._limit = limit
        self._load: dict[Ref[M], int] = {}
        if supervise is not None:
            self.supervise = supervise

    async def on_start(self) -> None:
        self._places = self.ctx.limiter(self._size * self._limit)
        for i in range(self._size):
            self._load[await self.ctx.spawn(ChildSpec(f"worker-{i}", self._worker))] = 0

    @on(object)
    async def work(self, message: Any) -> None:
        """Give the message to a worker as soon as one is free."""
        worker = await self._free()
        asked, remaining = self.ctx.asked, self.ctx.remaining

        async def hand_over() -> Any:
            try:
                return await delegate(worker, message, remaining)
            except Exception:
                if asked:
                    raise  # else there is no asker; the strategy has seen to it
            finally:
                self._load[worker] -= 1

        if self._places.submit(hand_over, keep=True):
            self._load[worker] += 1

    async def _free(self) -> Ref[M]:
        """Return the worker with the least to do once it has a place; those that are gone have none."""
        while True:
            alive = [worker for worker in self._load if worker.is_alive]
            if not alive:
                raise ActorStopped(f"{self.ctx.self.path}: all workers have stopped")
            worker = min(alive, key=self._load.__getitem__)
            if self._load[worker] < self._limit:
                return worker
            self._places.limit = len(alive) * self._limit
            await self._places.vacancy()
