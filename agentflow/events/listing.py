"""Lists of runs for back ends that hold their run rows in memory."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence, Set

import msgspec

from agentflow.events.cursors import decode_cursor, encode_cursor
from agentflow.events.rows import Order, Page, RunRow

__all__ = ["RunQuery", "page_of_runs"]


class RunQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of `EventLog.runs`."""

    state: str | Sequence[str] | None = None
    name: str | None = None
    label: tuple[str, str] | None = None
    prefix: str | None = None
    since: int | None = None
    until: int | None = None
    limit: int = 50
    cursor: str | None = None
    order: Order = "desc"

    def states(self) -> list[str] | None:
        """Return the wanted states, or None for all."""
        if self.state is None:
            return None
        return [self.state] if isinstance(self.state, str) else list(self.state)

    def after(self) -> tuple[int, str] | None:
        """Return the place of the last run of the page before. Raises ValueError if the cursor is invalid."""
        return None if self.cursor is None else decode_cursor(self.cursor, tuple[int, str])


def page_of_runs(
    keys: Sequence[tuple[int, str]],
    row_of: Callable[[str], RunRow | None],
    query: RunQuery,
    damaged: Set[str] = frozenset(),
) -> Page[RunRow]:
    """Return a page of the runs with these (created_at, workflow_id), which are sorted.

    `row_of` returns None for a run that is gone or not wanted. Those of `damaged` between the page's ends are
    named in it, since what they hold, and whether they are wanted, is not known.
    """
    rising = query.order == "asc"
    states, found, passed = query.states(), list[RunRow](), set[str]()
    first, end = _range(keys, query)
    for at in range(first, end) if rising else range(end - 1, first - 1, -1):
        workflow_id = keys[at][1]
        row = row_of(workflow_id)
        wanted = row is not None and (
            (states is None or row.state in states)
            and (query.name is None or row.name == query.name)
            and (query.prefix is None or workflow_id.startswith(query.prefix))
            and (query.label is None or row.labels.get(query.label[0]) == query.label[1])
        )
        if row is not None and wanted:
            if len(found) == query.limit:
                last = found[-1]
                cursor = encode_cursor(last.created_at, last.workflow_id)
                return Page(found, cursor, tuple(sorted(passed)))
            found.append(row)
        if workflow_id in damaged:
            passed.add(workflow_id)
    return Page(found, None, tuple(sorted(passed)))


def _range(keys: Sequence[tuple[int, str]], query: RunQuery) -> tuple[int, int]:
    """Return the part of `keys` that the times and the cursor of `query` leave."""
    first, end, after = 0, len(keys), query.after()
    if query.since is not None:
        first = bisect_left(keys, (query.since, ""))
    if query.until is not None:
        end = bisect_left(keys, (query.until, ""))
    if after is not None and query.order == "asc":
        first = max(first, bisect_right(keys, after))
    elif after is not None:
        end = min(end, bisect_left(keys, after))
    return first, end
