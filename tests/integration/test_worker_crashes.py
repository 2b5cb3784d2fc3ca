"""Worker handlers when the process dies at any commit: an effect happens once, or the outcome is unknown."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from actors.testing import run_until_idle
from agentflow import function
from tests.integration.test_child_run_crashes import Lives
from tests.integration.test_workers import document, worker

_MOST_COMMITS = 30


class _Lives(Lives):
    """Lives of a store whose processes have the handler `pay`."""

    def __init__(self, effect: str) -> None:
        super().__init__()
        self.calls: list[tuple[str, str]] = []

        @function(side_effect=effect)  # type: ignore[arg-type]
        async def pay(*, context: Any, payload: Any) -> Any:
            self.calls.append((context["trace"]["node_id"], context["trace"]["idempotency_key"]))
            return payload

        self.handlers = {"pay": pay}

    def _runtime(self, log: Any, **more: Any) -> Any:
        runtime = super()._runtime(log, **more)
        runtime.registry.add_workers(self.handlers)
        return runtime


async def drive(runtime: Any) -> None:
    for _ in range(4):
        await run_until_idle()
        await asyncio.sleep(30)


@pytest.mark.parametrize("acknowledges", [False, True], ids=["lost", "kept"])
@pytest.mark.parametrize("effect", ["external", "read"])
def test_a_crash_at_any_commit_repeats_no_effect(effect: str, acknowledges: bool):
    source = document(worker("pay", 1), worker("pay", "{{ nodes.a.output }}", id="b"))
    for dies_at in range(_MOST_COMMITS):
        stage = _Lives(effect)

        async def first(runtime: Any) -> None:
            await runtime.submit(source, {}, workflow_id="wf_a", options={"on_unknown": "fail"})
            await drive(runtime)

        died = stage.life(first, dies_at=dies_at, acknowledges=acknowledges)
        if died:
            stage.life(drive)
        rows = asyncio.run(stage.store.runs(limit=9)).items
        if not rows:
            assert dies_at == 0
            continue
        (row,) = rows
        assert row.state in (("completed", "failed") if effect == "external" else ("completed",))
        for node in ("a", "b"):
            keys = [key for name, key in stage.calls if name == node]
            assert len(set(keys)) <= 1, "all attempts of a call have one key"
            assert effect == "read" or len(keys) <= 1, "what may have happened is not repeated"
            assert keys or row.state == "failed"
        if not died:
            assert dies_at >= 3
            return
    raise AssertionError(f"more than {_MOST_COMMITS} commits")
