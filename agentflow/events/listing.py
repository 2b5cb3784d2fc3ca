"""Lists of runs for back ends that hold their run rows in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from agentflow.events.cursors import decode_cursor, encode_cursor
from agentflow.events.rows import Order, Page, RunRow

__all__ = ["RunQuery", "page_of_runs"]


class RunQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of `EventLog.runs`."""

    state: str | Sequence[str] | None = None
    name: str | None = None
    label: tuple[str, str] | None = None
    since: int | None = None
    until: int | None = None
    limit: int = 50
    cursor: str | None = None
    order: Order = "desc"

    def states(self) -> list[str] | None:
        """The wanted states, or None for all."""
        if self.state is None:
            return None
        return [self.state] if isinstance(self.state, str) else list(self.state)

    def after(self) -> tuple[int, str] | None:
        """The place of the last run of the page before; ValueError for a foreign cursor."""
        return None if self.cursor is None else decode_cursor(self.cursor, tuple[int, str])


def page_of_runs(
    keys: Sequence[tuple[int, str]], row_of: Callable[[str], RunRow | None], query: RunQuery
) -> Page[RunRow]:
    """A page of the runs with these (created_at, workflow_id), which are sorted; None: it is gone since."""
    rising = query.order == "asc"
    states, after = query.states(), query.after()
    found: list[RunRow] = []
    for key in keys if rising else reversed(keys):
        created_at, workflow_id = key
        if after is not None and (key <= after if rising else key >= after):
            continue
        if (query.since is not None and created_at < query.since) or (
            query.until is not None and created_at >= query.until
        ):
            continue
        row = row_of(workflow_id)
        if row is None or (
            (states is not None and row.state not in states)
            or (query.name is not None and row.name != query.name)
            or (query.label is not None and row.labels.get(query.label[0]) != query.label[1])
        ):
            continue
        if len(found) == query.limit:
            last = found[-1]
            return Page(found, encode_cursor(last.created_at, last.workflow_id))
        found.append(row)
    return Page(found, None)
