"""Making cells: the one way in for children of actors and of the system."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

from actors.behaviour import Behaviour
from actors.errors import ActorStopped, NameTaken, SpecError
from actors.kernel import fate, life, orders
from actors.kernel.cell import Cell
from actors.kernel.scheduler import Scheduler
from actors.kernel.turn import ActorCell
from actors.ref import Ref
from actors.specs import ChildSpec, RestartType, check_name
from actors.states import ENDING, QUEUED, RESTARTING, START

__all__ = ["make_cell", "restart_child", "spawn", "spawn_now", "spawn_soon"]

SHUTDOWN = 5.0
PERMANENT: RestartType = "permanent"


def make_cell(
    scheduler: Scheduler[Cell],
    parent: Cell | None,
    spec: ChildSpec[Any] | Callable[[], Behaviour[Any]],
    name: str | None,
    restart: RestartType = PERMANENT,
) -> Cell:
    """Make a cell that has its name and waits to be started. `restart` is for one without a ChildSpec."""
    kept: ChildSpec[Any] | None = None
    if isinstance(spec, ChildSpec):
        kept = cast("ChildSpec[Any]", spec)
        factory, restart, shutdown = kept.factory, kept.restart, kept.shutdown
        name = name or spec.name
    elif callable(spec):
        factory, shutdown = spec, SHUTDOWN
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
        siblings[name] = cell = ActorCell(scheduler, parent, name, factory, restart, shutdown, kept)
    else:
        cell = ActorCell(scheduler, None, name, factory, restart, shutdown, kept)
    cell.ref = scheduler.make_ref(cell)
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


async def spawn(
    parent: Cell, spec: ChildSpec[Any] | Callable[[], Behaviour[Any]], name: str | None
) -> Ref[Any]:
    """Start a child, wait for its `on_start`; raises what went wrong. Cancelled, it kills the child."""
    cell = make_cell(parent.scheduler, parent, spec, name)
    start = _Start()
    life.launch(cell, start)
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


async def restart_child(parent: Cell, name: str) -> Ref[Any]:
    """Start a child anew by the spec that its parent kept."""
    kept = {} if parent.extras is None else parent.extras.kept
    spec = kept.get(name)
    if spec is None:
        raise SpecError(
            f"{parent.path} keeps no spec of a child {name!r}; spawn it by "
            f"ChildSpec({name!r}, ..., keep=True)"
        )
    ref = await spawn(parent, spec, name)
    kept.pop(name, None)
    return ref


def spawn_now(
    parent: Cell, factory: Callable[[], Behaviour[Any]], name: str, restart: RestartType
) -> Ref[Any]:
    """Start a child in place, as far as its `on_start` does not wait; a failure of its start is the
    supervisor's affair."""
    cell = make_cell(parent.scheduler, parent, factory, name, restart)
    fate.start(cell)
    return cell.ref


def spawn_soon(
    parent: Cell, spec: ChildSpec[Any] | Callable[[], Behaviour[Any]], name: str | None
) -> Ref[Any]:
    """Start a child at the next turn; a failure of its start is the supervisor's affair."""
    cell = make_cell(parent.scheduler, parent, spec, name)
    cell.order |= START
    cell.mode = QUEUED
    scheduler = cell.scheduler
    scheduler.queue.append(cell)
    if not scheduler.armed:
        scheduler.arm()
    return cell.ref
