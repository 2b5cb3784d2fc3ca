"""A pool: one ref in front of several workers that share its mailbox as their work queue.

Demand-driven: a message leaves the mailbox when a worker is free, so that the mailbox bounds what waits, and
goes to the worker with the least in hand.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Generic

from actors.actor import Actor, M, on
from actors.errors import ActorStopped, SpecError
from actors.question import Reply
from actors.ref import Ref, delegate
from actors.supervision import ChildSpec, Strategy

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
        self._freed: asyncio.Future[None] | None = None
        if supervise is not None:
            self.supervise = supervise

    async def on_start(self) -> None:
        for i in range(self._size):
            self._load[await self.ctx.spawn(ChildSpec(f"worker-{i}", self._worker))] = 0

    @on(object)
    async def work(self, message: Any) -> None:
        """Give the message to a worker as soon as one is free."""
        reply = self.ctx.defer()
        worker = await self._free()
        if reply.abandoned:
            return
        self._load[worker] += 1
        self.ctx.pipe(
            delegate(worker, message, self.ctx.remaining),
            lambda answer: self._done(worker, reply, answer, None),
            lambda error: self._done(worker, reply, None, error),
        )

    async def _free(self) -> Ref[M]:
        while True:
            alive = [worker for worker in self._load if worker.is_alive]
            if not alive:
                raise ActorStopped(f"{self.ctx.self.path}: all workers have stopped")
            worker = min(alive, key=self._load.__getitem__)
            if self._load[worker] < self._limit:
                return worker
            self._freed = asyncio.get_running_loop().create_future()
            await self._freed

    def _done(self, worker: Ref[M], reply: Reply[Any], answer: Any, error: BaseException | None) -> None:
        # Called in the task of the pipe, not as a message: the handler that waits for a free worker blocks
        # the mailbox.
        self._load[worker] -= 1
        if error is not None:
            reply.fail(error)
        else:
            reply.set(answer)
        if self._freed is not None and not self._freed.done():
            self._freed.set_result(None)
