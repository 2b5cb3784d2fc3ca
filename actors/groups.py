"""Publish and subscribe: a named set of actors that all get what is published."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from actors.errors import ActorStopped
from actors.states import DEAD

if TYPE_CHECKING:
    from actors.ref import Ref

__all__ = ["Group"]


class Group:
    """`system.group(name)`. A member leaves by itself when it ends; a restart does not end its membership."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._members: dict[Ref[Any], None] = {}

    @property
    def members(self) -> list[Ref[Any]]:
        """The members in the order in which they joined."""
        return list(self._members)

    def join(self, ref: Ref[Any]) -> None:
        """Add a member; twice is once. Raises `ActorStopped` if it is gone."""
        if ref.cell.phase == DEAD:
            raise ActorStopped(f"{ref.path} has stopped; it cannot join {self.name!r}")
        self._members[ref] = None
        ref.cell.extra().groups[self] = None

    def leave(self, ref: Ref[Any]) -> None:
        """Remove a member; does nothing if it is none."""
        self._members.pop(ref, None)
        if ref.cell.extras is not None:
            ref.cell.extras.groups.pop(self, None)

    def publish(self, message: Any) -> int:
        """Tell every member, in the order in which they joined; returns how many took it.

        One whose mailbox is full, or that is ending, misses it: a dead letter (`full`, `stopped`). Never waits, never raises for a member's
        sake.
        """
        return sum([ref.try_tell(message) for ref in tuple(self._members)])
