"""Fifty agents on one budget, on the virtual clock (agents-models-tools D2): six seeds of what
`tests/faults` plays a thousand times."""

from __future__ import annotations

import pytest

from actors.testing import virtual
from tests.integration.support.fleet import play, play_one_after_another


@virtual
@pytest.mark.parametrize("seed", range(6))
async def test_a_scarce_budget_is_never_exceeded(seed):
    await play(seed)


@virtual
@pytest.mark.parametrize("seed", range(6))
async def test_calls_that_fit_one_after_another_never_pause(seed):
    await play_one_after_another(seed)
