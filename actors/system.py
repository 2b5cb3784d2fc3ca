"""`ActorSystem`: owns every actor and every task, from `async with` to its end.

The root of the tree supervises what is spawned here. Leaving the block runs the shutdown phases, each with a
deadline, shielded from cancellation; nothing outlives it.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any, Self, TypeVar, overload

from actors.behaviour import Behaviour
from actors.deadletters import DeadLetters
from actors.errors import ActorError, ActorStopped, SpecError
from actors.groups import Group, Registry, check_kind
from actors.handle import DebugRef, LocalRef
from actors.interceptor import Interceptor
from actors.introspection import ActorInfo, describe
from actors.kernel import life, spawning
from actors.kernel.cell import Cell
from actors.kernel.scheduler import Scheduler, show_message
from actors.ref import Ref
from actors.shutdown import Callback, Phase, Shutdown
from actors.signals import DeadLetter
from actors.specs import ChildSpec
from actors.states import DEAD, IDLE, RUNNING
from actors.supervision import Strategy
from actors.trace import FRAME, current_trace, owns_task

__all__ = ["ActorSystem"]

C = TypeVar("C", contravariant=True)
T = TypeVar("T")
log = logging.getLogger("actors")


def _shield() -> AbstractContextManager[object]:
    """Return anyio's shield, if the program uses anyio: else no scope of it can surround a system."""
    anyio = sys.modules.get("anyio")
    return nullcontext() if anyio is None else anyio.CancelScope(shield=True)


class _Guardian(Behaviour[Any]):
    """The root of the tree: handles nothing, supervises."""


class ActorSystem:
    """`async with ActorSystem(name="shop") as system:` — see the module.

    `supervise`: what happens when an actor spawned here fails; a failure that it escalates, or one too many,
    ends the block with that very exception. `shutdown`: seconds for the actors to end before they are
    killed. `debug`: refuse other threads. `slow_handler`: seconds after which a handler at work is reported
    in the log. `show_message`: what the report of a crash says of the message that the handler failed on, its
    `repr` of at most 200 characters unless you say otherwise; show less where messages hold secrets.
    """

    def __init__(
        self,
        name: str = "system",
        *,
        supervise: Strategy | None = None,
        shutdown: float = 30.0,
        debug: bool = False,
        slow_handler: float | None = None,
        interceptor: Interceptor | None = None,
        show_message: Callable[[Any], str] = show_message,
    ) -> None:
        self.name = name
        self.error: BaseException | None = None
        self._supervise = supervise
        self._end = Shutdown(name, shutdown)
        self._debug = debug
        self._slow_handler = slow_handler
        self._interceptor = interceptor
        self._show_message = show_message
        self._groups: dict[str, Group[Any]] = {}
        self.registry = Registry()
        self._host: asyncio.Task[Any] | None = None
        self._cancelled_host = False
        self._closing: asyncio.Task[None] | None = None
        self._root: Cell | None = None

    async def __aenter__(self) -> Self:
        if self._root is not None:
            raise ActorError("an ActorSystem is used once; make a new one")
        loop = asyncio.get_running_loop()
        self._host = asyncio.current_task()
        self.dead_letters = DeadLetters(loop.time)
        make = getattr(loop, "actors_scheduler", Scheduler)  # the loop of `actors.testing` brings its own
        scheduler: Scheduler[Cell] = make(loop, self.dead_letters, self._crash)
        scheduler.interceptor = self._interceptor
        scheduler.show = self._show_message
        if self._slow_handler is not None:
            scheduler.watch(self._slow_handler)
        scheduler.system = self
        scheduler.make_ref = DebugRef if self._debug else LocalRef
        self.scheduler = scheduler
        root = self._root = spawning.make_cell(scheduler, None, _Guardian, "root")
        guardian = _Guardian()
        if self._supervise is not None:
            guardian.supervise = self._supervise
        life.adopt(root, guardian)
        root.phase, root.mode = RUNNING, IDLE
        return self

    @property
    def ending(self) -> bool:
        """True if the system is being closed, or will be: the task that entered it is cancelled or done, as
        at the end of its event loop."""
        host = self._host
        return self._closing is not None or host is None or host.done() or host.cancelling() > 0

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        cancelled: asyncio.CancelledError | None = None
        frame = FRAME.get()
        actor = None if frame is None or not frame[4] or not owns_task(frame) else frame[0]
        mine = actor is not None and actor.scheduler is self.scheduler
        if actor is not None and mine and actor.task in (None, asyncio.current_task()):
            raise ActorError(f"{actor.path}: an actor cannot wait for the end of its system")
        if self._closing is not None:  # closed by hand, or by its own failure, and again
            await asyncio.wait((self._closing,))
            if self.error is not None and exc is None:
                raise self.error
            return
        self._begin_end()
        assert self._closing is not None
        with _shield():
            while not self._closing.done():
                try:
                    await asyncio.wait((self._closing,))
                except asyncio.CancelledError as again:  # a native cancellation pierces the shield
                    if cancelled is not None or isinstance(exc, asyncio.CancelledError):
                        self._end.hurry.set()  # the second time: at once
                    cancelled = again
        ours = self._cancelled_host and self._host is not None and self._host.uncancel() == 0
        if self.error is not None and (exc is None or (ours and isinstance(exc, asyncio.CancelledError))):
            raise self.error
        self._closing.result()
        if self._end.failure is not None and exc is None:
            raise self._end.failure
        if cancelled is not None and exc is None:
            raise cancelled

    # Actors

    def _guardian(self) -> Cell:
        root = self._root
        if root is None or root.phase == DEAD or self._closing is not None:
            raise ActorStopped(f"the actor system {self.name!r} is not open")
        return root

    async def spawn(self, spec: ChildSpec[C] | Callable[[], Behaviour[C]], name: str | None = None) -> Ref[C]:
        """Start an actor; returns when its `on_start` is done.

        Raises what its constructor or `on_start` raised, `NameTaken`, `SpecError`, or `ActorStopped` when
        the system is not open. Later failures are supervised by `supervise`.
        """
        return await spawning.spawn(self._guardian(), spec, name)

    def spawn_soon(self, spec: ChildSpec[C] | Callable[[], Behaviour[C]], name: str | None = None) -> Ref[C]:
        """Start an actor at the next turn; returns at once. A failure of its start is supervised."""
        return spawning.spawn_soon(self._guardian(), spec, name)

    async def restart_child(self, name: str) -> Ref[Any]:
        """Start an actor that was spawned here and has ended anew, by its kept spec (`ChildSpec(keep=True)`).

        Raises `SpecError` if no spec of this name is kept, or as `spawn` does.
        """
        return await spawning.restart_child(self._guardian(), name)

    @property
    def children(self) -> dict[str, Ref[Any]]:
        """The living actors spawned here, by name, in start order."""
        root = self._root
        return {} if root is None else {name: cell.ref for name, cell in (root.children or {}).items()}

    @overload
    def find(self, path: str) -> Ref[Any] | None: ...
    @overload
    def find(self, path: str, kind: type[Behaviour[C]]) -> Ref[C] | None: ...
    def find(self, path: str, kind: type[Behaviour[Any]] | None = None) -> Ref[Any] | None:
        """Return the living actor of a path like `/desk/r0`, or None.

        With `kind`, an `Actor` class, the ref is typed; raises `SpecError` if the actor is of another class.
        """
        cell = self._root
        for name in path.strip("/").split("/"):
            if cell is None:
                return None
            cell = (cell.children or {}).get(name)
        return None if cell is None else check_kind(cell.ref, kind)

    def tell(self, path: str, message: Any) -> None:
        """Tell the actor of a path; a dead letter (`unknown`) if there is none. Raises `MailboxFull`."""
        ref = self.find(path)
        if ref is None:
            self.dead_letters.publish(DeadLetter("unknown", message, None, None, current_trace(), path))
        else:
            ref.tell(message)

    @overload
    def group(self, name: str) -> Group[Any]: ...
    @overload
    def group(self, name: str, message: type[T]) -> Group[T]: ...
    def group(self, name: str, message: type[Any] | None = None) -> Group[Any]:
        """Return the publish/subscribe group of this name, made on first use.

        `message` is the type that is published there. Raises `SpecError` if the group has another one.
        """
        group = self._groups.get(name)
        if group is None:
            group = self._groups[name] = Group(name, message)
        elif message is not None and group.message is None:
            group.message = message
        elif message is not None and group.message is not message:
            raise SpecError(f"the group {name!r} is of {group.message}, not of {message}")
        return group

    def tree(self) -> ActorInfo:
        """Return a snapshot of all actors, from the root."""
        if self._root is None:
            raise ActorStopped(f"the actor system {self.name!r} is not open")
        return describe(self._root)

    # The end

    def on_shutdown(
        self, phase: Phase, callback: Callback, timeout: float = 5.0, *, raises: bool = False
    ) -> None:
        """Call `callback` in this phase of the shutdown, in order of registration.

        It has `timeout` seconds; after that, or when it raises, the shutdown goes on and says so in the log.
        With `raises` its exception (`ShutdownTimeout` if it took too long) also leaves the block, the first
        of them, after everything else is done, unless the block ended by another. A second cancellation of
        the task that leaves the block cuts the phases short up to the end of the actors, not the later ones.
        """
        self._end.add(phase, callback, timeout, raises)

    def _crash(self, error: BaseException) -> None:
        """Leave the block with this error, because the system itself fails."""
        if self.error is None:
            self.error = error
            log.critical("the actor system %r fails", self.name, exc_info=error)
            if self._closing is not None:
                return
            if self._host is not None and not self._host.done():
                self._cancelled_host = True
                self._host.cancel()
            else:  # no block will be left: end the actors now, so that no ask waits for its deadline
                self._begin_end()

    def _begin_end(self) -> asyncio.Task[None]:
        """Begin the shutdown in a task of its own."""
        assert self._root is not None
        self._closing = self.scheduler.task(
            self._end.run(self.scheduler, self._root), f"{self.name}-shutdown"
        )
        return self._closing
