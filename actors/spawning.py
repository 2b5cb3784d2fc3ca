"""Making cells: the one way in for children of actors and of the system."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from actors import lifecycle, orders
from actors.cell import Cell
from actors.errors import ActorStopped, NameTaken
from actors.states import ENDING, QUEUED, RESTARTING, START
from actors.supervision import ChildSpec, RestartType, check_name

if TYPE_CHECKING:
    from actors.actor import Actor
    from actors.dispatch import Scheduler
    from actors.ref import Ref

__all__ = ["make_cell", "spawn", "spawn_soon"]

SHUTDOWN = 5.0
PERMANENT: RestartType = "permanent"


def make_cell(
    scheduler: Scheduler,
    parent: Cell | None,
    spec: ChildSpec[Any] | Callable[[], Actor[Any]],
    name: str | None,
) -> Cell:
    """A cell that has its name and waits to be started."""
    if isinstance(spec, ChildSpec):
        factory, restart, shutdown, kept = spec.factory, spec.restart, spec.shutdown, spec
        name = name or spec.name
    elif callable(spec):
        factory, restart, shutdown, kept = spec, PERMANENT, SHUTDOWN, None
    else:
        ChildSpec(name, spec)  # says what is wrong
        raise AssertionError
    if name is None:
        name = f"{getattr(factory, '__name__', 'actor').lower()}-{scheduler.uid + 1}"
    else:
        check_name(name)
    if parent is not None:
        if parent.phase > RESTARTING or parent.order & ENDING:
            raise ActorStopped(f"{parent.path} is stopping; it starts no more children")
        siblings = parent.children
        if siblings is None:
            siblings = parent.children = {}
        elif name in siblings:
            raise NameTaken(
                f"{siblings[name].path} is alive; wait for its `terminated()` or choose another name"
            )
        siblings[name] = cell = Cell(scheduler, parent, name, factory, restart, shutdown, kept)
    else:
        cell = Cell(scheduler, None, name, factory, restart, shutdown, kept)
    cell.ref = scheduler.ref_type(cell)
    cell.context = scheduler.context_type(cell)
    return cell


class _Start:
    """Receives the outcome of a start, at once or later."""

    __slots__ = ("fault", "known", "waiter")

    def __init__(self) -> None:
        self.known = False
        self.fault: BaseException | None = None
        self.waiter: asyncio.Future[None] | None = None

    def __call__(self, fault: BaseException | None) -> None:
        self.known, self.fault = True, fault
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)


async def spawn(parent: Cell, spec: ChildSpec[Any] | Callable[[], Actor[Any]], name: str | None) -> Ref[Any]:
    """Start a child, wait for its `on_start`; raises what went wrong. Cancelled, it kills the child."""
    cell = make_cell(parent.scheduler, parent, spec, name)
    start = _Start()
    lifecycle.launch(cell, start)
    if not start.known:
        start.waiter = parent.scheduler.loop.create_future()
        try:
            await start.waiter
        except asyncio.CancelledError:
            orders.kill(cell)
            raise
    if start.fault is not None:
        raise start.fault
    return cell.ref


def spawn_soon(parent: Cell, spec: ChildSpec[Any] | Callable[[], Actor[Any]], name: str | None) -> Ref[Any]:
    """Start a child at the next turn; a failure of its start is the supervisor's affair."""
    cell = make_cell(parent.scheduler, parent, spec, name)
    cell.order |= START
    cell.mode = QUEUED
    scheduler = cell.scheduler
    scheduler.queue.append(cell)
    if not scheduler.armed:
        scheduler.arm()
    return cell.ref
