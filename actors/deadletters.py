"""Messages that were not handled: counted, published, logged at a limited rate, never kept."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from actors.errors import MailboxFull
from actors.ref import Ref
from actors.signals import DeadLetter, DeadLetterReason

__all__ = ["DeadLetters"]

log = logging.getLogger("actors")

BURST, PERIOD = 10, 10.0
"""At most so many log records in so many seconds; the next one says how many were left out."""


class DeadLetters:
    """`system.dead_letters`; see the module. `counts` holds how many there were of each reason."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.counts: dict[DeadLetterReason, int] = {}
        self._clock = clock
        self._subscribers: list[Callable[[DeadLetter], object] | Ref[Any]] = []
        self._since = -PERIOD
        self._logged = 0
        self._omitted = 0
        self._publishing = False

    @property
    def total(self) -> int:
        """Dead letters of all reasons."""
        return sum(self.counts.values())

    def subscribe(self, subscriber: Callable[[DeadLetter], object] | Ref[Any]) -> Callable[[], None]:
        """Hand every later dead letter to a plain function, called in place, or tell it to an actor.

        Returns the function that ends the subscription. What a subscriber causes meanwhile is counted only.
        """
        self._subscribers.append(subscriber)

        def unsubscribe() -> None:
            if subscriber in self._subscribers:
                self._subscribers.remove(subscriber)

        return unsubscribe

    def publish(self, letter: DeadLetter) -> None:
        """Count, log and hand on."""
        self.counts[letter.reason] = self.counts.get(letter.reason, 0) + 1
        if self._publishing or isinstance(letter.message, DeadLetter):
            return  # made by a subscriber that is told of one; it must not be told of its own
        self._log(letter)
        self._publishing = True
        try:
            for subscriber in tuple(self._subscribers):
                try:
                    subscriber(letter) if callable(subscriber) else subscriber.tell(letter)
                except MailboxFull:
                    pass
                except Exception:
                    log.exception("a subscriber to dead letters failed")
        finally:
            self._publishing = False

    def _log(self, letter: DeadLetter) -> None:
        now = self._clock()
        if now - self._since >= PERIOD:
            if self._omitted:
                log.warning("dead letters: %d more were not logged", self._omitted)
            self._since, self._logged, self._omitted = now, 0, 0
        if self._logged >= BURST:
            self._omitted += 1
            return
        self._logged += 1
        target = letter.path or (None if letter.target is None else letter.target.path)
        log.warning("dead letter (%s): %s to %s", letter.reason, type(letter.message).__name__, target)
