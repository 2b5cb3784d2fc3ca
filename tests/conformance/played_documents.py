"""Plays the documents of `random_documents` on the product, on virtual time, and reads off its log what has
become of each step: from the events that readers get, so that it knows nothing of the engine."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from typing import Any
from unittest.mock import patch

import msgspec

from actors import testing
from agentflow import Runtime
from agentflow.definition.failure import ErrorInfo
from agentflow.errors import AgentflowError
from agentflow.events.envelope import Event
from agentflow.models import ModelError, ModelRequest
from agentflow.runtime import circuit_breaker
from agentflow.testing import ScriptedModel
from tests.conformance.random_documents import Case
from tests.conformance.reference_interpreter import Answer, Error, Outcome, Script, StepEnd, Unit
from tests.integration.virtual import LoopClock

__all__ = ["play", "read_outcome"]

_STATUSES = {"succeeded": "success", "failed": "failed", "skipped": "skipped", "cancelled": "cancelled"}


class _Model:
    """Answers by the script of the run that is being played."""

    def __init__(self) -> None:
        self.script = Script()
        self.used: Counter[str] = Counter()

    async def answer(self, request: ModelRequest) -> Any:
        prompt = next(m.content for m in request.messages if m.role == "system")
        name, _, index = prompt.partition(" ")
        turns = self.script.turns.get((name, int(index) if index else None), [])
        number, self.used[prompt] = self.used[prompt], self.used[prompt] + 1
        turn = turns[number] if number < len(turns) else self.script.last
        await asyncio.sleep(turn.seconds)
        if isinstance(turn.result, Answer):
            return turn.result.value
        category: Any = turn.result.category
        raise ModelError(ErrorInfo(category=category, code=f"{category}_error", message="scripted"))


async def _decide(runtime: Runtime, run: str, request_id: str, seconds: float, granted: bool) -> None:
    await asyncio.sleep(seconds)
    with suppress(AgentflowError):  # it has expired, or the run has ended
        await runtime.decide(run, granted=granted, request_id=request_id)


async def _play_one(runtime: Runtime, model: _Model, case: Case, run: str) -> Outcome:
    model.script, model.used = case.script, Counter()
    await runtime.submit(case.document, case.inputs, workflow_id=run)
    people: list[asyncio.Task[None]] = []
    events: list[Event[Any]] = []
    async for event in runtime.events(run):
        events.append(event)
        if event.type == "approval.requested":
            decision = case.script.decisions[event.data.step_id]
            work = _decide(runtime, run, event.data.request_id, decision.seconds, decision.granted)
            people.append(asyncio.ensure_future(work))
    for person in people:
        person.cancel()
    await asyncio.gather(*people, return_exceptions=True)
    return read_outcome(events)


def play(cases: Iterable[Case]) -> list[Outcome]:
    """Play the cases one after another in one Runtime.

    The circuit of a provider [000 §9] stays closed: failures of one run must not open it for another.
    """

    async def main() -> list[Outcome]:
        model = _Model()
        scripted = ScriptedModel(model.answer, max_concurrency=1_000)
        async with Runtime(models=[scripted], clock=LoopClock()) as runtime:
            return [await _play_one(runtime, model, case, f"wf_{i}") for i, case in enumerate(cases)]

    with patch.multiple(circuit_breaker, _FAILURES_TO_OPEN=10**9, _MAX_IN_DOUBT=10**9):
        return testing.run(main())


def read_outcome(events: Iterable[Event[Any]]) -> Outcome:
    """Return what these events say about the run and its steps."""
    found = Outcome()
    items: dict[Unit, StepEnd] = {}
    for event in events:
        data, kind = event.data, event.type
        if kind == "agent.initialized" and (data.step_id, data.iteration) not in found.started:
            found.started.append((data.step_id, data.iteration))
        elif kind in ("workflow.step_completed", "workflow.step_failed", "workflow.step_skipped"):
            end = _end_of(kind, data)
            if data.iteration is None:
                found.steps[data.step_id] = _with_items(end, data, items)
            else:
                items[data.step_id, data.iteration] = end
        elif kind == "workflow.completed":
            found.state, found.output, found.skipped = "completed", data.output, list(data.skipped)
        elif kind == "workflow.failed":
            found.state, found.failed_steps = "failed", list(data.failed_steps)
            found.error = Error(data.error.category, data.error.code)
    return found


def _end_of(kind: str, data: Any) -> StepEnd:
    if kind == "workflow.step_completed":
        return StepEnd("success", result=data.output)
    if kind == "workflow.step_skipped":
        return StepEnd("skipped", reason=data.reason, caused_by=tuple(data.caused_by))
    error = Error(data.error.category, data.error.code)
    return StepEnd("cancelled" if error.category == "cancelled" else "failed", error=error)


def _with_items(end: StepEnd, data: Any, items: dict[Unit, StepEnd]) -> StepEnd:
    results = getattr(data, "items", msgspec.UNSET)
    if results is msgspec.UNSET:
        return end
    made: list[StepEnd] = []
    for item in results:
        own = items.get((data.step_id, item.index), StepEnd(""))
        error = None if item.error is msgspec.UNSET else Error(item.error.category, item.error.code)
        made.append(StepEnd(_STATUSES[item.status], own.result, error, own.reason, own.caused_by))
    return StepEnd(end.status, end.result, end.error, items=tuple(made))
