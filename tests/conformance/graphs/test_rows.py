"""Page 002, row by row: under each policy that a row names, and with a crash behind its events.

A row is taken up from behind six of its events, other ones under each policy; in the slow suite from behind
every one.
"""

from __future__ import annotations

import importlib
import pkgutil
import zlib
from typing import Any

import pytest

import tests.conformance.graphs as here
from actors.testing import run as on_virtual_clock
from tests.conformance.graphs.crashes import Outcome, run_whole, runs_again
from tests.conformance.graphs.rows import ROWS, Policy, Row

for module in pkgutil.iter_modules(here.__path__):
    if module.name.startswith("rows_"):
        importlib.import_module(f"{here.__name__}.{module.name}")

_ALL = [
    pytest.param(row, policy, id=f"{row.rule}: {row.title}-{policy}")
    for row in ROWS
    for policy in row.policies
]
_ASKED = (
    "state",
    "outputs",
    "intermediate",
    "code",
    "details",
    "routes",
    "undelivered",
    "begun",
    "shared",
    "private",
)


def must_be_as_stated(run: Any, outcome: Outcome, events: list[Any]) -> None:
    """Compare what the row states with what came."""
    for name in (*_ASKED, "not_run"):
        wanted = getattr(run, name)
        found = getattr(outcome, name)
        if name == "code" or wanted is not None:
            if name == "details":
                found = {key: found.get(key) for key in wanted}
            if run.any_order and name in ("outputs", "intermediate"):
                wanted = sorted(wanted, key=repr)
            if run.any_order and name == "routes":
                wanted = {sender: sorted(told) for sender, told in wanted.items()}
            if name in ("begun", "undelivered"):
                wanted = sorted(wanted)
            assert found == wanted, name
    if run.types is not None:
        told = [e.type for e in events if e.type in run.types]
        assert told == run.types
    if run.check is not None:
        run.check(events)


@pytest.mark.parametrize("crashes", [6, pytest.param(None, marks=pytest.mark.slow)], ids=["some", "all"])
@pytest.mark.parametrize(("row", "policy"), _ALL)
def test_a_row_holds_and_holds_behind_a_crash(row: Row, policy: Policy, crashes: int | None):
    async def main() -> None:
        run = row.make(policy)
        outcome, rows, events = await run_whole(run)
        must_be_as_stated(run, outcome, events)
        most = min(filter(None, (run.at, crashes)), default=len(rows))
        step = max(1, len(rows) // most)
        first = 1 + zlib.crc32(f"{row.title} {policy}".encode()) % step
        await runs_again(run, outcome, rows, range(first, len(rows), step))

    on_virtual_clock(main())
