"""A request whose process dies behind every event of its log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.integration.pipeline.test_crashes import cut_and_go_on
from tests.integration.pipeline.test_killed_process import kill_and_go_on, whole

_PARTS = 8
"""Offsets are shared out, so that each part ends well within its time on a busy machine."""


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTFLOW_MODEL", "scripted:m")


@pytest.mark.slow
async def test_behind_every_event_another_process_goes_on_and_repeats_nothing(tmp_path: Any):
    await cut_and_go_on(tmp_path, every=1)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("first", range(_PARTS))
def test_a_process_is_killed_behind_every_event(first: int, tmp_path: Path):
    wanted, types = whole(tmp_path / "whole")
    for offset in range(first, len(types) - 1, _PARTS):
        kill_and_go_on(tmp_path / str(offset), offset, wanted)
