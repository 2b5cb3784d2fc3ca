"""Snapshot of the tree of a running system."""

from __future__ import annotations

from dataclasses import dataclass

from actors.behaviour import UNBOUNDED
from actors.kernel.cell import Cell
from actors.states import PHASES

__all__ = ["ActorInfo", "describe"]


@dataclass(frozen=True, slots=True)
class ActorInfo:
    """One actor of `system.tree()`; `dataclasses.asdict` makes JSON of it."""

    path: str
    incarnation: int
    type: str
    phase: str
    """starting, running, restarting, failed (waits for its supervisor's fate), stopping"""
    depth: int
    """Messages that wait."""
    capacity: int | None
    """Slots of the mailbox; None is unbounded."""
    busy: str | None
    """The type of the message whose handler is at work."""
    busy_for: float | None
    """Seconds that the handler has been at work."""
    restarts: int
    children: list[ActorInfo]

    def __str__(self) -> str:
        lines: list[str] = []
        pending: list[tuple[ActorInfo, int]] = [(self, 0)]  # a loop: trees can be deeper than the stack
        while pending:
            info, level = pending.pop()
            busy = "" if info.busy is None else f" busy={info.busy}"
            lines.append(
                f"{'  ' * level}{info.path} {info.type} {info.phase} depth={info.depth} "
                f"restarts={info.restarts}{busy}"
            )
            pending.extend((child, level + 1) for child in reversed(info.children))
        return "\n".join(lines)


def describe(cell: Cell) -> ActorInfo:
    """Return the actor and everything below it."""
    root = _one(cell)
    pending = [(cell, root)]
    while pending:
        parent, info = pending.pop()
        for child in (parent.children or {}).values():
            info.children.append(_one(child))
            pending.append((child, info.children[-1]))
    return root


def _one(cell: Cell) -> ActorInfo:
    busy, busy_for = cell.busy()
    streak = None if cell.extras is None else cell.extras.streak
    return ActorInfo(
        path=cell.path,
        incarnation=cell.uid,
        type="" if cell.actor is None else type(cell.actor).__name__,
        phase=PHASES[cell.phase],
        depth=0 if cell.box is None else len(cell.box),
        capacity=None if cell.capacity == UNBOUNDED else cell.capacity,
        busy=busy,
        busy_for=busy_for,
        restarts=0 if streak is None else streak.restarts,
        children=[],
    )
