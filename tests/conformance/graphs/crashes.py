"""Runs of rows, and the same runs from behind each of their events, as a new process takes them up.

All of it is on the virtual clock: a time-out of two days costs nothing, and ends at the very second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from agentflow import Runtime
from agentflow.engine.run_end import outputs_of
from agentflow.events import catalogue as ev
from agentflow.events.memory import MemoryLog
from agentflow.events.rows import StoredEvent
from tests.conformance.graphs.rows import Run
from tests.integration.executors.crashes import cut_log
from tests.integration.support.runs import must_be_sound
from tests.integration.virtual import LoopClock

__all__ = ["Outcome", "run_whole", "runs_again"]

_PATIENCE = 40_000_000.0
"""Virtual seconds in which a run must come to rest: more than a year."""
RUN = "wf_row"


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """All that a run comes to."""

    state: str
    outputs: list[Any]
    intermediate: list[Any]
    code: str | None
    details: dict[str, Any]
    routes: dict[str, list[str]]
    undelivered: list[tuple[str, str]]
    begun: list[str]
    shared: dict[str, Any]
    private: dict[str, dict[str, Any]]
    not_run: list[str]

    def in_any_order(self) -> Outcome:
        """What does not depend on which of two branches was faster."""
        return msgspec.structs.replace(
            self,
            outputs=sorted(self.outputs, key=repr),
            intermediate=sorted(self.intermediate, key=repr),
            begun=sorted(self.begun),
            routes={sender: sorted(found) for sender, found in self.routes.items()},
        )


async def _outcome(runtime: Runtime, run: Run, ended: bool) -> tuple[Outcome, list[Any]]:
    events = await must_be_sound(runtime, RUN, ended=ended)
    state = await runtime.fold(RUN)
    given = outputs_of(state)
    end: Any = events[-1].data
    error = getattr(end, "error", None)
    routes: dict[str, list[str]] = {}
    for event in events:
        if isinstance(event.data, ev.WorkflowStepCompleted) and event.data.messages is not msgspec.UNSET:
            for message in event.data.messages:
                told = ", ".join(f"{d.target} {d.status}".strip() for d in message.deliveries)
                routes.setdefault(event.data.step_id, []).append(told)
    outcome = Outcome(
        state=state.status,
        outputs=[o.value for o in given if o.kind == "output"],
        intermediate=[o.value for o in given if o.kind != "output"],
        code=error.code if error else None,
        details=dict(error.details or {}) if error else {},
        routes=routes,
        undelivered=sorted(
            (e.data.step_id, e.data.reason) for e in events if e.type == "message.undelivered"
        ),
        begun=sorted(
            {f"{e.data.activation}/{e.data.attempt}" for e in events if e.type == "workflow.step_started"}
        ),
        shared=dict(state.shared.values),
        private={k: dict(v) for k, v in state.shared.private.items()},
        not_run=list(getattr(end, "not_run", None) or ()),
    )
    return (outcome.in_any_order() if run.any_order else outcome), events


async def _drive(runtime: Runtime, run: Run) -> tuple[Outcome, list[Any]]:
    rests = run.rests
    while True:
        handle = await runtime.attach(RUN)
        result = await handle.result(raise_on_failure=False)
        if result.state != "waiting":
            break
        asked = await runtime.requests(RUN)
        given = {r.request_id: run.answers(r.subject) for r in asked} if run.answers else {}
        answers = {request_id: answer for request_id, answer in given.items() if answer is not None}
        if answers:
            await runtime.answer_all(RUN, answers)
        elif rests:
            await asyncio.sleep(rests)
            rests = 0
        else:
            break
    return await _outcome(runtime, run, ended=result.state not in ("waiting", "paused"))


async def run_whole(run: Run) -> tuple[Outcome, list[StoredEvent], list[Any]]:
    """Run a row to its end. Returns what came of it, the stored events, and the decoded ones."""
    run.reset()
    log = MemoryLog()
    async with asyncio.timeout(_PATIENCE), Runtime(log, services=run.services, clock=LoopClock()) as runtime:
        await runtime.submit(run.workflow, run.message, workflow_id=RUN, **run.options)
        outcome, events = await _drive(runtime, run)
        rows = await log.read(RUN, 0, 100_000)
    return outcome, rows, events


async def runs_again(run: Run, whole: Outcome, rows: Sequence[StoredEvent], at: Iterable[int]) -> None:
    """Take the run up from behind these numbers of events: what comes of it is what came of the whole run."""
    for upto in at:
        run.reset()
        clock = LoopClock()
        cut = await cut_log(RUN, run.workflow, list(rows[:upto]))  # type: ignore[arg-type]
        clock.step = rows[upto - 1].ts - clock.now()
        where = f"cut behind {rows[upto - 1].type} at {upto - 1}"
        async with Runtime(cut, services=run.services, clock=clock) as runtime:
            runtime.register(run.workflow)
            await runtime.recover()
            try:
                async with asyncio.timeout(_PATIENCE):
                    outcome, events = await _drive(runtime, run)
            except TimeoutError:
                raise AssertionError(f"{where}: the run does not end") from None
        assert outcome == whole, where
        if run.check is not None:
            run.check(events)
