"""A request whose process dies behind every event of its log."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.pipeline.test_crashes import cut_and_go_on


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTFLOW_MODEL", "scripted:m")


@pytest.mark.slow
async def test_behind_every_event_another_process_goes_on_and_repeats_nothing(tmp_path: Any):
    await cut_and_go_on(tmp_path, every=1)
