"""The execution rules of page 001 §5, as data: documents with what their runs do, also after a restart.

Each case runs once as it is, and again from prefixes of its log, as after a crash at that moment.
How a case is written stands in `execution/README.md`.
"""

from __future__ import annotations

import asyncio
import copy
import re
from collections import Counter
from contextlib import suppress
from typing import Any

import msgspec
import pytest

from agentflow import Runtime, Service, ToolContext, function
from agentflow.definition import check_inputs, load_text
from agentflow.definition.failure import ErrorInfo
from agentflow.events.envelope import Event, decode
from agentflow.events.memory import MemoryLog
from agentflow.events.owner import this_process
from agentflow.events.rows import FIRST_EPOCH, Append, RunMeta
from agentflow.models import ModelError, ModelRequest
from agentflow.runtime import RunResult
from agentflow.testing import ScriptedModel
from agentflow.testing.scripted import call
from tests.conformance.cases import read_rows

CASES = [pytest.param(row, id=f"{row['rule']}: {row['title']}") for _, row in read_rows("execution")]
RUN = "wf_case"
PREFIXES = [6, pytest.param(16, marks=pytest.mark.slow)]
"""So many moments of a crash are tried in each case, spread over its log."""
AGENT = "agent: {systemPrompt: '@id', input: x, resultSchema: true, attachedFunctions: none}"


class Stage:
    """What the runs of one case meet: a model that says what the case says, and the service `kit`. It
    outlives the Runtimes of the case, as the world outlives a process."""

    def __init__(self, case: dict[str, Any], *, cut: bool = False) -> None:
        self.case = case
        self.cut = cut
        self.failures: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()  # of kit, by idempotency key
        self.contexts: list[Any] = []
        self.working = 0
        self.most = 0
        self.crowded = asyncio.Event()  # as many have been at work at once as the case says

    async def answer(self, request: ModelRequest) -> Any:
        """The turn of this step. What is said depends on the request alone, so that a restart changes
        nothing; but for failures, of which there are as many as the case says."""
        self.working += 1
        self.most = max(self.most, self.working)
        wanted = self.case.get("at_once", 1)
        if self.working >= wanted:
            self.crowded.set()
        try:
            if not self.cut:  # what is left of a run that was cut may be fewer
                with suppress(TimeoutError):  # then the case fails
                    await asyncio.wait_for(self.crowded.wait(), 10)
            for _ in range(5):  # let more come, who should not
                await asyncio.sleep(0)
            system = next(m.content for m in request.messages if m.role == "system")
            turns = self.case["model"][system.partition(":")[0]]
            said = sum(m.role == "assistant" for m in request.messages)
            return await self._said(turns[said] if isinstance(turns, list) else turns, request, system)
        finally:
            self.working -= 1

    async def _said(self, turn: Any, request: ModelRequest, system: str) -> Any:
        users = [m.content for m in request.messages if m.role == "user"]
        match turn:
            case {"by_input": answers}:
                return await self._said(answers[users[0]], request, system)
            case {"echo": _}:
                return users[0] if users else ""
            case {"fail": category, **more}:
                self.failures[f"{system} {users[:1]}"] += 1
                if self.failures[f"{system} {users[:1]}"] <= more.get("times", 10**9):
                    raise ModelError(ErrorInfo(category=category, code="model_error", message="no"))
                return more["then"]
            case {"call": name, **more}:
                return call(name, **more.get("arguments", {}))
            case {"hang": _}:
                return await asyncio.Event().wait()
            case {"text": text}:
                return text
            case _:
                return turn

    def service(self) -> Service:
        @function(side_effect="read")
        async def read(value: str, ctx: ToolContext) -> dict[str, str]:
            """Reads."""
            self.calls[ctx.idempotency_key] += 1
            self.contexts.append(ctx.context)
            return {"read": value}

        @function(side_effect="write", idempotent=True)
        async def write(value: str, ctx: ToolContext) -> dict[str, str]:
            """Writes."""
            self.calls[ctx.idempotency_key] += 1
            return {"written": value}

        @function(side_effect="read")
        async def fail(value: str) -> None:
            """Always fails."""
            raise RuntimeError(value)

        return Service.of("kit", read, write, fail)

    def runtime(self, log: MemoryLog) -> Runtime:
        return Runtime(log, models=[ScriptedModel(self.answer)], services=[self.service()])


async def rested(runtime: Runtime, case: dict[str, Any]) -> RunResult:
    """Where the run rests for good, when people decide as the case says."""
    while True:
        result = await (await runtime.attach(RUN)).rest()
        if result.state != "waiting":
            return result
        for request in await runtime.requests(RUN):
            decision = case["people"][request.step_id]
            if decision == "wait":  # until it is too late
                async for _ in runtime.events(RUN):
                    pass
            elif decision == "cancel":
                await runtime.cancel(RUN)
            else:
                await runtime.decide(RUN, granted=decision == "grant", request_id=request.request_id)


async def played(case: dict[str, Any], stage: Stage, log: MemoryLog) -> tuple[RunResult, list[Event[Any]]]:
    """The case from its beginning, and from wherever the log has got to already."""
    definition = load_text(written(case["document"]))
    async with stage.runtime(log) as runtime:
        inputs, problems = check_inputs(definition, case.get("inputs"))
        assert not problems
        if (await log.runs()).items:
            await runtime.resume(RUN)
        else:
            earlier = [await runtime.run(definition, inputs) for _ in range(case.get("runs_before", 0))]
            assert all(run.state == "completed" for run in earlier)
            await runtime.submit(definition, inputs, workflow_id=RUN, options=case.get("options"))
        result = await rested(runtime, case)
        events = [decode(row.body) for row in await log.read(RUN, 0, 10_000)]
    return result, events


def written(text: str) -> str:
    """The document with its shorthand written out: `@agent` stands somewhere behind `id: NAME,`."""
    return re.sub(r'id: "?(\w+)"?,([^@\n]*)@agent', lambda m: m[0][:-6] + AGENT.replace("@id", m[1]), text)


def must_have(result: RunResult, outcome: dict[str, Any]) -> None:
    assert result.state == outcome["state"], result
    if "output" in outcome:
        assert result.output == outcome["output"]
    if "steps" in outcome:
        assert {name: step.state for name, step in result.steps.items()} == outcome["steps"]
    if "error" in outcome:
        assert result.error is not None
        found = msgspec.to_builtins(result.error)
        assert {key: found.get(key) for key in outcome["error"]} == outcome["error"]


def matches(event: Event[Any], wanted: Any) -> bool:
    """Whether an event is what a line of the case says: `TYPE [STEP][#ITERATION]`, or that with data."""
    line, data = next(iter(wanted.items())) if isinstance(wanted, dict) else (wanted, {})
    kind, _, where = line.partition(" ")
    step, _, iteration = where.partition("#")
    found = msgspec.to_builtins(event.data)
    if event.type != kind or (step and event.step != step):
        return False
    if iteration and found.get("iteration") != int(iteration):
        return False
    if step and not iteration and found.get("iteration") is not None:
        return False
    return all(within(found.get(key), value) for key, value in data.items())


def within(value: Any, wanted: Any) -> bool:
    if isinstance(wanted, dict):
        return isinstance(value, dict) and all(within(value.get(k), v) for k, v in wanted.items())
    if isinstance(wanted, list):
        same = isinstance(value, list | tuple) and len(value) == len(wanted)
        return same and all(within(v, w) for v, w in zip(value, wanted, strict=True))
    return value == wanted


@pytest.mark.parametrize("case", CASES)
async def test_a_run_does_what_the_page_says(case: dict[str, Any], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AGENTFLOW_MODEL", "scripted:m")
    stage = Stage(case)
    result, events = await played(case, stage, MemoryLog())
    listing = "\n".join(f"{e.type} {e.step} {msgspec.json.encode(e.data).decode()[:300]}" for e in events)
    must_have(result, case["outcome"])
    rest = iter(events)
    for wanted in case.get("events", []):
        assert any(matches(event, wanted) for event in rest), f"{wanted} is missing in\n{listing}"
    for unwanted in case.get("never", []):
        assert not any(matches(event, unwanted) for event in events), f"{unwanted} is in\n{listing}"
    if "at_once" in case:
        assert stage.most == case["at_once"]
    if "contexts" in case:
        assert stage.contexts == case["contexts"]
    assert set(stage.calls.values()) <= {1}


@pytest.mark.parametrize("prefixes", PREFIXES)
@pytest.mark.parametrize("case", [c for c in CASES if not c.values[0].get("once")])
async def test_a_run_ends_the_same_after_a_restart_at_any_event(
    case: dict[str, Any], prefixes: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("AGENTFLOW_MODEL", "scripted:m")
    log = MemoryLog()
    _, events = await played(case, Stage(copy.deepcopy(case), cut=True), log)
    rows = await log.read(RUN, 0, 10_000)
    row = await log.run(RUN)
    source = await log.get_definition(events[0].data.ir_hash)
    assert source is not None
    stride = max(1, len(rows) // prefixes)
    for length in range(1 + len(case["title"]) % stride, len(rows), stride):
        stage, cut = Stage(copy.deepcopy(case), cut=True), MemoryLog()
        await cut.put_definition(events[0].data.ir_hash, source)
        meta = RunMeta(name=row.name, definition_hash=row.definition_hash, created_at=row.created_at)
        await cut.append(Append(RUN, FIRST_EPOCH, 0, rows[:length], "running", meta))
        await cut.release(RUN, this_process())
        result, after = await played(case, stage, cut)
        must_have(result, case["outcome"])
        assert [e.offset for e in after] == list(range(len(after)))
        assert [e.id for e in after[:length]] == [e.id for e in events[:length]]
        once = Counter((e.step, e.data.iteration) for e in after if e.type == "workflow.step_completed")
        assert set(once.values()) <= {1}, once


def test_every_rule_has_a_case():
    assert {param.values[0]["rule"] for param in CASES} == RULES


# fmt: off
RULES = {
    "5.1.1 due when all dependencies are terminal", "5.1.1 an error in a template fails the step",
    "5.1.2 the snapshot is durable before any call", "5.1.3 slots go round",
    "5.2 a guard", "5.2 a skip passes on", "5.2 status functions", "5.2 with for_each",
    "5.2 nothing starts after a cancel", "5.3 what expressions see",
    "5.4 not an array", "5.4 an empty array", "5.4 iterations in order", "5.4 a failed iteration",
    "5.4 filtered by if",
    "5.5 input of the model", "5.5 text to value", "5.5 a schema alone governs", "5.5 repair",
    "5.6 names of functions", "5.6 context",
    "5.7 a model call is repeated in place", "5.7 never retried", "5.7 timeout",
    "5.8 approval before the step", "5.8 approval before calls", "5.8 cache",
    "5.9 a required step failed", "5.9 an optional step failed", "5.9 outputs", "5.9 without outputs",
    "5.9 fail_fast",
}
# fmt: on
