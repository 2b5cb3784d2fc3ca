"""Slots of a run, folded from its events: the engine's `folds/slots.py` in the read model.

Work that waits has none. When its last request is closed it goes on, or queues for a slot, first come first
served; no event says when it gets one, because that follows from the event that set the slot free.
"""

from __future__ import annotations

from collections.abc import Iterator

__all__ = ["Slots"]


class Slots:
    """The slots of a run, `limit` of them. Work is named by its key, items of one node by their `group`."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._groups: dict[str, tuple[str, int | None]] = {}
        """Of work with a slot: its group and the limit of that, "" outside of any."""
        self._at_work: dict[str, int] = {}
        """By group: how many of its items have a slot."""
        self._returning: dict[str, tuple[str, int | None]] = {}

    def take(self, key: str, group: str = "", limit: int | None = None) -> None:
        """Note that work has a slot; work that is queued leaves the queue."""
        self._returning.pop(key, None)
        if key not in self._groups:
            self._groups[key] = group, limit
            self._at_work[group] = self._at_work.get(group, 0) + 1

    def give_back(self, key: str) -> Iterator[str]:
        """Set the slot of work free that has ended or waits; yield the keys of work that goes on by it."""
        self._returning.pop(key, None)
        found = self._groups.pop(key, None)
        if found is None:
            return
        self._at_work[found[0]] -= 1
        for waiting, (group, limit) in list(self._returning.items()):
            if self._is_free(group, limit):
                self.take(waiting, group, limit)
                yield waiting

    def take_again(self, key: str, group: str = "", limit: int | None = None) -> bool:
        """Return whether work that has waited goes on at once; else it is queued."""
        if self._is_free(group, limit):
            self.take(key, group, limit)
            return True
        self._returning[key] = group, limit
        return False

    def is_queued(self, key: str) -> bool:
        """Return whether work waits for a slot to go on."""
        return key in self._returning

    def _is_free(self, group: str, limit: int | None) -> bool:
        if len(self._groups) >= self.limit:
            return False
        return not group or limit is None or self._at_work.get(group, 0) < limit
