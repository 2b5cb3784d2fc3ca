"""Actors found by something other than their path: groups, which all get what is published, and keys."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Generic, overload

from actors.behaviour import Behaviour
from actors.errors import ActorStopped, NameTaken, SpecError
from actors.messages import M
from actors.ref import Ref
from actors.states import DEAD

__all__ = ["Group", "Registry", "check_kind"]


class Group(Generic[M]):
    """`system.group(name)`. A member leaves by itself when it ends; a restart does not end its membership."""

    def __init__(self, name: str, message: type[Any] | None = None) -> None:
        self.name = name
        self.message = message
        self._members: dict[Ref[M], None] = {}

    @property
    def members(self) -> list[Ref[M]]:
        """The members in the order in which they joined."""
        return list(self._members)

    def join(self, ref: Ref[M]) -> None:
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

    def publish(self, message: M) -> int:
        """Tell every member, in the order in which they joined; returns how many took it.

        One whose mailbox is full, or that is ending, misses it: a dead letter (`full`, `stopped`). Never
        waits, never raises because of a member.
        """
        return sum([ref.try_tell(message) for ref in tuple(self._members)])


class Registry:
    """`system.registry`: living actors by key. An actor leaves by itself when it ends; a restart keeps it."""

    def __init__(self) -> None:
        self._refs: dict[Hashable, Ref[Any]] = {}
        self._keys: dict[Ref[Any], dict[Hashable, None]] = {}

    def register(self, key: Hashable, ref: Ref[Any]) -> None:
        """Enter an actor under a key; twice is once.

        Raises `NameTaken` if another living actor has the key, `ActorStopped` if this one is gone.
        """
        if ref.cell.phase == DEAD:
            raise ActorStopped(f"{ref.path} has stopped; it cannot be registered as {key!r}")
        holder = self._refs.setdefault(key, ref)
        if holder is not ref:
            raise NameTaken(f"{holder.path} is registered as {key!r}; unregister it first")
        self._keys.setdefault(ref, {})[key] = None
        ref.cell.extra().groups[self] = None

    def unregister(self, key: Hashable) -> bool:
        """Remove a key; false if no actor has it."""
        ref = self._refs.pop(key, None)
        if ref is None:
            return False
        self._keys[ref].pop(key, None)
        return True

    def leave(self, ref: Ref[Any]) -> None:
        """Remove every key of an actor."""
        for key in self._keys.pop(ref, {}):
            del self._refs[key]
        if ref.cell.extras is not None:
            ref.cell.extras.groups.pop(self, None)

    @overload
    def find(self, key: Hashable) -> Ref[Any] | None: ...
    @overload
    def find(self, key: Hashable, kind: type[Behaviour[M]]) -> Ref[M] | None: ...
    def find(self, key: Hashable, kind: type[Behaviour[Any]] | None = None) -> Ref[Any] | None:
        """Return the living actor of a key, or None.

        With `kind`, an `Actor` class, the ref is typed; raises `SpecError` if the actor is of another class.
        """
        return check_kind(self._refs.get(key), kind)

    def __contains__(self, key: object) -> bool:
        return key in self._refs

    def __len__(self) -> int:
        return len(self._refs)


def check_kind(ref: Ref[Any] | None, kind: type[Behaviour[Any]] | None) -> Ref[Any] | None:
    """Return the ref as it is. Raises `SpecError` if its actor is no `kind`."""
    if ref is None or kind is None:
        return ref
    actor = ref.cell.actor
    if actor is not None and not isinstance(actor, kind):
        raise SpecError(f"{ref.path} is a {type(actor).__name__}, not a {kind.__name__}")
    return ref
