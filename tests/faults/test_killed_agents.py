"""SIGKILL behind every event of an agent: what is recorded is not repeated, what is unknown is asked."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from agentflow.events import catalogue as ev
from agentflow.events.envelope import decode
from tests.faults.agent_child import RUN, open_runtime

ROOT = Path(__file__).parents[2]
EVENTS = 30
"""At least as many as the run has."""


async def log_of(runtime: Any) -> list[Any]:
    return [decode(stored.body) for stored in await runtime.log.read(RUN)]


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def executions(file: Path) -> Counter[str]:
    return Counter(line["key"] for line in lines(file) if "key" in line)


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("offset", range(EVENTS))
async def test_killed_behind_an_event(offset: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    effects, store = tmp_path / "effects", f"sqlite:{tmp_path / 'runs.db'}"
    monkeypatch.setenv("EFFECTS", str(effects))
    command = [sys.executable, "-m", "tests.faults.agent_child", str(offset), store]
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT)
    ended = await process.wait()
    assert ended in (0, -signal.SIGKILL)
    before = executions(effects)
    async with open_runtime(store) as runtime:
        recorded = await log_of(runtime)
        settled = {e.data.tool_call_id for e in recorded if isinstance(e.data, ev.ToolCallCompleted)}
        if ended == 0:
            assert offset > recorded[-1].offset  # every event had its turn
        await runtime.recover()
        result = await runtime.rest(RUN)
        asked = result.pending_requests
        if asked:
            (request,) = asked
            await runtime.answer(RUN, request.request_id, {"choice": "done", "output": "paid"})
            result = await runtime.rest(RUN)
        events = await log_of(runtime)
    assert (result.state, result.output) == ("completed", "done")
    assert [e.offset for e in events] == list(range(len(events)))
    after = executions(effects)
    for key, count in after.items():
        call_id = key.rpartition("/")[2]
        if call_id in settled:
            assert count == before[key], f"{key} has a result, and was executed again"
    paid = [line["key"] for line in lines(effects) if line.get("function") == "pay"]
    assert len(paid) <= 1
    unknown = [e for e in events if isinstance(e.data, ev.ToolCallFailed) and e.data.outcome == "unknown"]
    assert len(unknown) == len(asked)
    charged = [e.data.usage for e in events if isinstance(e.data, ev.ModelCallCompleted)]
    failed = [e.data.usage for e in events if isinstance(e.data, ev.ModelCallFailed) and e.data.usage]
    assert result.usage.model_calls == sum(u.model_calls for u in (*charged, *failed))
    assert len(charged) == 3
    assert result.usage.tool_calls == 5
    for request in lines(effects):
        if "model" in request:
            assert request["reasoning"] == [[{"signature": n}] for n in range(request["model"])]
