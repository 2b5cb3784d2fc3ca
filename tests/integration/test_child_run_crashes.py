"""Child runs when the process dies at any commit: one child for each start, one end, each effect once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from actors.testing import run_until_idle
from agentflow.definition.ir import Approval, SubgraphNode, WaitNode
from tests.faults.simulated.world import LifeLog
from tests.golden.stage import Stage
from tests.integration.support.runs import must_be_sound
from tests.integration.test_child_runs import does, parent, whole

RUN = "wf_parent"
_MOST_COMMITS = 60

INNER = {
    "calls": whole(does("pay")),
    "asks": whole(does("pay", approval=Approval(before="step"))),
    "waits": whole(WaitNode(id="rest", duration=60.0, next="t"), does("pay")),
    "nests": whole(SubgraphNode(id="sub", graph="leaf", next="__end"), graphs={"leaf": whole(does("pay"))}),
}


class Lives(Stage):
    """Lives of one store, of which each may die at a commit."""

    def life(self, act: Any, *, dies_at: int | None = None, acknowledges: bool = False) -> bool:
        """Run one process; return whether it died."""
        died = False

        async def main() -> None:
            nonlocal died
            log = LifeLog(self, dies_at=dies_at, acknowledges=acknowledges)
            runtime = self._runtime(log, recover=True)
            await runtime.__aenter__()
            work = asyncio.ensure_future(act(runtime))
            await asyncio.wait((work, log.died), return_when=asyncio.FIRST_COMPLETED)
            died = log.dead
            if died:
                work.cancel()
                await asyncio.gather(work, return_exceptions=True)
            else:
                await runtime.__aexit__(None, None, None)
                await work

        self.live(main)
        return died


async def drive(runtime: Any) -> None:
    """Submit the parent unless it is there, answer what is asked, and wait for all timers."""
    for _ in range(6):
        await run_until_idle()
        if all(row.ended for row in (await runtime.log.runs(limit=50)).items):
            return
        for asked in await runtime.requests(RUN):
            await runtime.decide(RUN, granted=True, request_id=asked.request_id)
        await asyncio.sleep(30)


async def _check(stage: Stage, form: str, dies_at: int, calls: list[str]) -> None:
    rows = (await stage.store.runs(limit=50)).items
    if not rows:
        assert dies_at == 0  # nothing was begun
        return
    assert all(row.ended for row in rows), [(row.workflow_id, row.state) for row in rows]
    assert len(rows) == (3 if form == "nests" else 2)
    for row in rows:
        await must_be_sound(stage.store, row.workflow_id)  # type: ignore[arg-type]
    assert len({row.state for row in rows}) == 1, "a parent ends as its child does"
    assert sum("/t/" in key for key in calls) <= 1, "the function cannot be repeated safely"
    unknown = any(row.state == "failed" for row in rows)
    assert unknown or [key for key in calls if "/t/" in key]


@pytest.mark.parametrize("acknowledges", [False, True], ids=["lost", "kept"])
@pytest.mark.parametrize("form", list(INNER))
def test_a_crash_at_any_commit_gives_one_child_and_one_end(form, acknowledges):
    for dies_at in range(_MOST_COMMITS):
        stage = Lives()
        calls: list[str] = []

        async def pay(name: str, ctx: Any, calls: list[str] = calls) -> Any:
            calls.append(ctx.idempotency_key)
            return {"done": name}

        stage._execute = pay  # type: ignore[method-assign]

        async def first(runtime: Any) -> None:
            graph = parent(INNER[form])
            await runtime.submit(graph, {}, workflow_id=RUN, options={"on_unknown": "fail"})
            await drive(runtime)

        if not stage.life(first, dies_at=dies_at, acknowledges=acknowledges):
            assert dies_at > 3
            assert len(calls) == 2
            return
        stage.life(drive)

        asyncio.run(_check(stage, form, dies_at, calls))
    raise AssertionError(f"more than {_MOST_COMMITS} commits")
