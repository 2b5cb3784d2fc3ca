"""A request whose process dies behind every event of its log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.integration.pipeline.test_crashes import cut_and_go_on
from tests.integration.pipeline.test_killed_process import Launcher, kill_and_go_on, whole


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTFLOW_MODEL", "scripted:m")


@pytest.mark.slow
async def test_behind_every_event_another_process_goes_on_and_repeats_nothing(tmp_path: Any):
    await cut_and_go_on(tmp_path, every=1)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_process_is_killed_behind_every_event(tmp_path: Path):
    with Launcher() as launcher:
        wanted, types = whole(launcher, tmp_path / "whole")
        for offset in range(len(types) - 1):
            kill_and_go_on(launcher, tmp_path / str(offset), offset, wanted)
