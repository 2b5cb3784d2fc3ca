"""Results of steps that serve again, across runs and restarts (page 001 §5.8)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from agentflow import Runtime, Service, function
from agentflow.errors import DefinitionError
from agentflow.runtime.result_cache import ResultCache
from agentflow.testing import ScriptedModel


def document(**cache: Any) -> dict[str, Any]:
    step = {
        "type": "run",
        "id": "a",
        "cache": {"ttl": "1h", **cache},
        "agent": {"systemPrompt": "p", "input": "${{ inputs.x }}", "attachedFunctions": "none"},
    }
    return {"version": "1.0", "models": {"default": "scripted:m"}, "workflow": {"steps": [step]}}


class Model:
    """Counts how often it is asked."""

    def __init__(self) -> None:
        self.calls = 0

    def answer(self, request: Any) -> str:
        self.calls += 1
        return f'{{"call": {self.calls}}}'

    def provider(self) -> ScriptedModel:
        return ScriptedModel(self.answer)


async def kept(runtime: Runtime, workflow_id: str) -> None:
    """Until a result of this run is kept, which happens behind its end."""
    while not any(workflow_id in place for place in (await runtime.log.cursors("result/")).values()):
        pass  # reading the store lets others go on


@pytest.mark.parametrize("scheme", ["sqlite", "file"])
async def test_a_result_serves_another_run_of_another_process(tmp_path: Path, scheme: str):
    model, store = Model(), f"{scheme}:{tmp_path / 'runs'}"
    async with Runtime(store, models=[model.provider()]) as runtime:
        first = await runtime.run(document(), {"x": 1}, workflow_id="wf_a")
        await kept(runtime, "wf_a")
    async with Runtime(store, models=[model.provider()]) as runtime:
        second = await runtime.run(document(), {"x": 1}, workflow_id="wf_b")
        other = await runtime.run(document(), {"x": 2})
        events = {e.type: e.data async for e in runtime.events("wf_b", follow=False)}
        recorded = [e async for e in runtime.events("wf_a", follow=False)]
    assert first.output == second.output == {"a": {"call": 1}}
    assert other.output == {"a": {"call": 2}}
    assert model.calls == 2
    cached = events["workflow.step_completed"].cached
    assert (cached.workflow_id, recorded[cached.offset].type) == ("wf_a", "workflow.step_completed")
    assert second.usage.model_calls == 0


async def test_a_result_that_has_expired_or_whose_run_is_gone_serves_no_more(tmp_path: Path):
    model = Model()
    async with Runtime(f"sqlite:{tmp_path / 'runs'}", models=[model.provider()]) as runtime:
        await runtime.run(document(ttl=1e-6), {"x": 1}, workflow_id="wf_a")
        await kept(runtime, "wf_a")
        await runtime.run(document(ttl=1e-6), {"x": 1}, workflow_id="wf_b")
        assert model.calls == 2
        await runtime.run(document(), {"x": 1}, workflow_id="wf_c")
        await kept(runtime, "wf_c")
        await runtime.run(document(), {"x": 1})
        assert model.calls == 3
        await runtime.log.delete("wf_c", runtime.clock.now())
        await runtime.run(document(), {"x": 1}, workflow_id="wf_d")
        assert model.calls == 4
        assert await ResultCache(runtime.log, runtime.clock).sweep() == 1


def test_a_step_that_may_change_something_cannot_be_cached():
    @function(side_effect="write")
    def pay(n: int) -> int:
        """Pays."""
        return n

    async def refuse() -> list[str]:
        asked = document()
        asked["workflow"]["steps"][0]["agent"]["attachedFunctions"] = [{"service": "s", "function": "pay"}]
        async with Runtime(models=[Model().provider()], services=[Service.of("s", pay)]) as runtime:
            with pytest.raises(DefinitionError) as refused:
                await runtime.submit(asked, {"x": 1})
            return [
                f"{d.code} {d.message} {d.path}" for d in refused.value.diagnostics if d.severity == "error"
            ]

    assert asyncio.run(refuse()) == [
        'E_CACHE_SIDE_EFFECT step "a" may write (s.pay) and cannot be cached /workflow/steps/0/cache'
    ]
