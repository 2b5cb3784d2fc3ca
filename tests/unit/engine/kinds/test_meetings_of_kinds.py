"""All kinds of waiting work meet all places and fates: every run ends, and its log is legal."""

from __future__ import annotations

import pytest

from tests.unit.engine.kinds.met_graphs import FATES, PLACES, WORK, Met, takes_dependencies
from tests.unit.engine.kinds.test_random_graphs import BROKEN

PAIRS = [
    *((work, place) for work in WORK for place in PLACES),
    *((work, place) for work in WORK if takes_dependencies(work) for place in ("step", "for_each")),
]


def run(meetings: list[tuple[int, str, str, str]]) -> None:
    found: dict[tuple[int, str, str, str], BaseException] = {}
    for meeting in meetings:
        try:
            Met(*meeting).run()
        except BROKEN as error:
            found[meeting] = error
    assert not found, f"{len(found)} of {len(meetings)} runs fail; {next(iter(found.items()))!r}"


def test_every_run_in_which_work_meets_a_place_ends_with_a_legal_log():
    """One fate for each pair, in turn."""
    run([(0, *pair, FATES[i % len(FATES)]) for i, pair in enumerate(PAIRS)])


@pytest.mark.slow
@pytest.mark.parametrize("fate", FATES)
def test_every_run_of_many_meetings_ends_with_a_legal_log(fate: str):
    run([(seed, *pair, fate) for seed in range(1, 6) for pair in PAIRS])
