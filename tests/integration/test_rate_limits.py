"""One limiter for each provider key (page 000 §9): requests counted under 30 agents, fair between runs."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import msgspec
import pytest

from actors.testing import virtual
from agentflow import Runtime
from agentflow.definition.failure import ErrorInfo
from agentflow.events import catalogue as ev
from agentflow.events.memory import MemoryLog
from agentflow.models import ModelError
from agentflow.models.base import RateLimits, ReportedLimit
from agentflow.testing import ScriptedModel
from tests.integration.support.runs import document, log_of, must_be_sound, step
from tests.integration.virtual import LoopClock, seconds


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTFLOW_MODEL", "scripted:m")


class Provider(ScriptedModel):
    """Refuses with 429 until a time of the loop; remembers when it was asked, and for which step."""

    rate_limits: RateLimits | None = None

    def __init__(self, until: float = 0.0, *, says: bool = True, takes: float = 0.5, **more: Any) -> None:
        self.times: list[float] = []
        self.asked: list[str] = []

        async def answer(request: Any) -> Any:
            self.times.append(seconds())
            self.asked.append(request.messages[0].content)
            left = until - seconds()
            await asyncio.sleep(takes)
            if left <= 0:
                return {"ok": True}
            info = ErrorInfo(category="rate_limited", code="rate_limited", message="429", retryable=True)
            return ModelError(info, retry_after=left if says else None)

        super().__init__(answer, **more)

    def most_in_a_minute(self) -> int:
        return max(sum(t <= time < t + 60 for time in self.times) for t in self.times)


async def thirty_runs(log: MemoryLog, provider: Provider) -> list[str]:
    """Start 30 runs of one agent; return their ids when all are at rest."""
    async with Runtime(log, models=[provider], clock=LoopClock()) as runtime:
        handles = [await runtime.submit(document(step("a")), {}) for _ in range(30)]
        for handle in handles:
            await handle.result()
    return [handle.workflow_id for handle in handles]


async def events_of(log: MemoryLog, runs: list[str], kind: type[Any]) -> list[Any]:
    return [e.data for run in runs for e in await log_of(log, run) if isinstance(e.data, kind)]


@virtual
async def test_a_short_refusal_is_waited_for_by_all_and_failed_by_those_that_were_refused() -> None:
    provider, log = Provider(20.0), MemoryLog()
    runs = await thirty_runs(log, provider)
    assert len(provider.times) == 8 + 30  # 8 at once before the first refusal came, then each run once
    assert not [t for t in provider.times if 0.5 < t < 20]
    assert len(await events_of(log, runs, ev.ModelCallFailed)) == 8
    assert len(await events_of(log, runs, ev.WorkflowCompleted)) == 30


@virtual
async def test_a_refusal_of_90_seconds_pauses_all_runs_by_the_requests_of_a_few() -> None:
    provider, log = Provider(90.0), MemoryLog()
    runs = await thirty_runs(log, provider)
    assert len(provider.times) == 8
    pauses = await events_of(log, runs, ev.WorkflowPaused)
    assert [p.reason for p in pauses] == ["quota"] * 30
    assert len({p.resume_after for p in pauses}) == 1
    async with Runtime(log, models=[provider], clock=LoopClock()) as runtime:  # also after a restart
        await runtime.recover()
        for run in runs:
            assert [e.type async for e in runtime.events(run)][-1] == "workflow.completed"
            await must_be_sound(log, run)
    assert len(provider.times) == 8 + 30
    assert min(provider.times[8:]) >= 90


@virtual
async def test_a_refusal_without_a_time_is_tried_by_one_call_and_then_pauses_all() -> None:
    provider, log = Provider(float("inf"), says=False), MemoryLog()
    runs = await thirty_runs(log, provider)
    assert sum(t < 30 for t in provider.times) <= 12
    assert len(provider.times) <= 14
    pauses = await events_of(log, runs, ev.WorkflowPaused)
    assert [p.reason for p in pauses] == ["quota"] * 30
    assert {str(p.resume_after) for p in pauses} == {"UNSET"}


@virtual
async def test_calls_go_on_once_the_probe_was_answered() -> None:
    provider, log = Provider(10.0, says=False), MemoryLog()
    runs = await thirty_runs(log, provider)
    assert len(await events_of(log, runs, ev.WorkflowCompleted)) == 30
    assert len(provider.times) <= 30 + 8 + 4


@virtual
async def test_a_person_who_resumes_a_run_is_not_kept_waiting_by_the_refusal_of_another() -> None:
    provider, log = Provider(3_600.0), MemoryLog()
    async with Runtime(log, models=[provider], clock=LoopClock()) as runtime:
        first = await runtime.submit(document(step("a")), {})
        await first.result()
        second = await runtime.submit(document(step("a")), {})
        assert (await second.result()).pause == "quota"
        assert len(provider.times) == 1
        await runtime.resume(second.workflow_id)
        assert (await second.result()).pause == "quota"
        assert len(provider.times) == 2


@virtual
async def test_configured_requests_of_any_minute_are_kept_over_all_runs() -> None:
    provider = Provider(takes=0.0)
    provider.rate_limits = RateLimits(requests_per_minute=10)
    await thirty_runs(MemoryLog(), provider)
    assert provider.most_in_a_minute() == 10
    assert len(provider.times) == 30


@virtual
async def test_what_a_provider_reports_is_kept_to_without_one_refusal() -> None:
    """A server that takes 5 requests in any 10 s, and says so."""
    served: list[float] = []

    class Reporting(Provider):
        async def complete(self, request: Any, **more: Any) -> Any:
            now = seconds()
            served[:] = [t for t in served if t > now - 10]
            assert len(served) < 5
            served.append(now)
            reply = await super().complete(request, **more)
            left = 5 - len([t for t in served if t > seconds() - 10])
            resets = served[-1] + 10 - seconds()  # until the limit is full again
            reported = (ReportedLimit(kind="requests", remaining=left, resets_after=resets),)
            return msgspec.structs.replace(reply, limits=reported)

    provider = Reporting(takes=0.1, max_concurrency=1)
    log = MemoryLog()
    runs = await thirty_runs(log, provider)
    assert len(await events_of(log, runs, ev.WorkflowCompleted)) == 30
    assert await events_of(log, runs, ev.ModelCallFailed) == []
    assert max(provider.times) >= 50


@virtual
async def test_a_run_with_many_agents_does_not_keep_another_run_waiting() -> None:
    provider = Provider(takes=1.0, max_concurrency=2)
    async with Runtime(MemoryLog(), models=[provider], clock=LoopClock()) as runtime:
        many = document(*(step(f"s{i}") for i in range(40)), max_parallel=40)
        big = await runtime.submit(many, {})
        await asyncio.sleep(0.5)
        small = await runtime.submit(document(step("small")), {})
        await small.result()
        assert seconds() <= 4
        await big.result()
    assert Counter(provider.asked)["small"] == 1


@virtual
async def test_a_cancelled_call_gives_its_place_in_the_limits_back() -> None:
    provider = Provider(5.0, says=False, takes=1_000.0, max_concurrency=1)
    async with Runtime(MemoryLog(), models=[provider], clock=LoopClock()) as runtime:
        first = await runtime.submit(document(step("a")), {})
        await asyncio.sleep(1.0)
        second = await runtime.submit(document(step("a")), {})
        await asyncio.sleep(1.0)
        await first.cancel(mode="hard")
        await asyncio.sleep(1.0)
        assert len(provider.times) == 2
        await second.cancel(mode="hard")
