"""The names of event types by the numbers that stand for them; a number never changes its name."""

from __future__ import annotations

import sqlite3

from agentflow.events.sqlite.checks import damaged, type_crc

__all__ = ["EventTypes"]


class EventTypes:
    """What the readers of one store know of its types: by number, the name and its checksum."""

    def __init__(self) -> None:
        self.known: dict[int, tuple[str, int]] = {}

    def find(self, db: sqlite3.Connection, number: int) -> tuple[str, int]:
        """Return a type. Raises LogCorrupt if there is none of this number."""
        found = self.known.get(number) or self.load(db).get(number)
        if found is None:
            raise damaged("the type of an event")
        return found

    def load(self, db: sqlite3.Connection) -> dict[int, tuple[str, int]]:
        """Read all types. Raises LogCorrupt."""
        rows = db.execute("SELECT id, name, crc FROM event_type").fetchall()
        for _, name, crc in rows:
            if type_crc(name) != crc:
                raise damaged("the name of an event type")
        self.known = {number: (name, crc) for number, name, crc in rows}
        return self.known
