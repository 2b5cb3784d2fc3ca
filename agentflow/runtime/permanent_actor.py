"""Addresses of the two actors that every run needs: EventBus and RunsSupervisor.

Supervision restarts an actor that fails, but a kill is final. The address starts another actor by the same
spec, so that a kill costs the queued messages and nothing that is durable.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from actors import ActorStopped, ActorSystem, ChildSpec, Ref

__all__ = ["PermanentActor"]

_log = logging.getLogger("agentflow.runtime")


class PermanentActor:
    """Address of one actor, started anew whenever it has ended, until its system is closed.

    Messages that wait at its end are dead letters; questions fail with ActorStopped. A sender that needs an
    acknowledgement watches for it.
    """

    def __init__(self, system: ActorSystem, spec: ChildSpec[Any]) -> None:
        self._system = system
        self._spec = spec
        self._ref: Ref[Any] | None = None
        self._watch: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the actor; raises what its start raised."""
        self._ref = await self._system.spawn(self._spec)
        self._watch = asyncio.get_running_loop().create_task(self._start_again())

    async def close(self) -> None:
        """Stop starting it again."""
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.wait((self._watch,))

    @property
    def ref(self) -> Ref[Any]:
        """Current actor. Send through the address instead: this one may end."""
        assert self._ref is not None, "start() comes first"
        return self._ref

    def tell(self, message: Any) -> None:
        """Send to the present actor. Raises MailboxFull."""
        self.ref.tell(message)

    def tell_now(self, message: Any) -> None:
        """Send to the present actor; an idle one handles it before this returns. Raises MailboxFull."""
        assert self._ref is not None, "start() comes first"
        self._ref.tell_now(message)

    async def ask(self, message: Any, timeout: float) -> Any:
        """Ask the present actor; `timeout` in seconds. Raises ActorStopped if it ends first."""
        return await self.ref.ask(message, timeout=timeout)

    async def _start_again(self) -> None:
        while True:
            ref = self.ref
            await ref.terminated()
            try:
                self._ref = self._system.spawn_soon(self._spec)
            except ActorStopped:  # the system is being closed
                return
            _log.error("%s has ended and is started anew", ref.path)
