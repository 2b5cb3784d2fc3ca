"""The daemon's event loop is held for at most 100 ms while 16 clients post the worst documents and inputs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.loop_lag import (
    COMMANDS,
    LIMIT_MS,
    SUBMISSIONS,
    VALUES,
    measure,
    measure_command,
    slowness,
    worst_bodies,
)
from tests.faults.worst_schemas import WORST

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.parametrize("name", [*WORST, *VALUES, *SUBMISSIONS])
async def test_sixteen_clients_hold_the_loop_for_no_longer_than_the_limit(name: str, tmp_path: Path):
    factor = slowness()
    held = await measure(worst_bodies(name), tmp_path)
    assert max(held.values()) <= LIMIT_MS * factor, held


@pytest.mark.parametrize("name", COMMANDS)
async def test_sixteen_commands_hold_the_loop_for_no_longer_than_the_limit(name: str, tmp_path: Path):
    factor = slowness()
    assert await measure_command(name, tmp_path) <= LIMIT_MS * factor
