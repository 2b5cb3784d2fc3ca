"""Fifty agents on one budget for a thousand seeds: models of unknown size, without usage, with streams that
break off, texts whose bytes outnumber their characters, a hundred functions, and processes that end."""

from __future__ import annotations

import pytest

from actors.testing import virtual
from tests.integration.support.fleet import play, play_one_after_another

SEEDS = 1_000
_BATCH = 50

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.parametrize("first", range(0, SEEDS, _BATCH))
def test_a_scarce_budget_is_never_exceeded(first):
    for seed in range(first, first + _BATCH):
        _play(play, seed)


@pytest.mark.parametrize("first", range(0, SEEDS, _BATCH))
def test_calls_that_fit_one_after_another_never_pause(first):
    for seed in range(first, first + _BATCH):
        _play(play_one_after_another, seed)


def _play(game, seed):
    @virtual
    async def played():
        await game(seed)

    try:
        played()
    except AssertionError as error:
        raise AssertionError(f"seed {seed}: {error}") from error
