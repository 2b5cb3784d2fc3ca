"""A queue in which groups take turns: a thousand items of one group delay an item of another by one."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

__all__ = ["FairQueue"]

T = TypeVar("T", bound=Hashable)


class FairQueue(Generic[T]):
    """FIFO within a group, round robin between groups; a group that comes back queues behind the others.

    Adding, removing and taking an item cost the same however long the queue is.
    """

    def __init__(self) -> None:
        self._groups: OrderedDict[Hashable, OrderedDict[T, None]] = OrderedDict()
        self._group_of: dict[T, Hashable] = {}
        self.waiting = self._group_of.keys()
        """The items, in no order; a view, for a look at whether there are any that calls no Python."""

    def __len__(self) -> int:
        return len(self._group_of)

    def add(self, item: T, group: Hashable = None) -> None:
        """Append an item that is not in the queue."""
        self._group_of[item] = group
        self._groups.setdefault(group, OrderedDict())[item] = None

    def remove(self, item: T) -> None:
        """Remove an item; does nothing if it is not in the queue."""
        group = self._group_of.pop(item, self)
        if group is self:
            return
        items = self._groups[group]
        del items[item]
        if not items:
            del self._groups[group]

    def peek(self) -> T:
        """Return the item that `pop` takes. Raises StopIteration if there is none."""
        return next(iter(next(iter(self._groups.values()))))

    def pop(self) -> T:
        """Take the next item: the first one of the group whose turn it is."""
        item = self.peek()
        group = self._group_of[item]
        self.remove(item)
        if group in self._groups:
            self._groups.move_to_end(group)
        return item
