"""The only module of the golden tests that knows the engine's functions, and where actors measure time.

Everything else reads stored events and asks three questions: what state do these events give (`fold`), what
happens next at this time (`decisions`), and how is a run summarised (`summary`). `watched` records, while a
scene runs, which events the engine decided and what it was told beside the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from agentflow import Runtime, engine
from agentflow.definition.ir import ToolNode, Workflow, ir_hash
from agentflow.engine import BaseEvent, Bindings, CacheHit, RunState, StepBinding, ToolInfo
from agentflow.engine.effects import EFFECTFUL
from agentflow.engine.shared_store import CacheRecord
from agentflow.engine.state import OpenCall
from agentflow.events.catalogue import DefinitionInfo, SystemStateSaved, WorkflowStarted
from agentflow.events.envelope import decode, micros

__all__ = [
    "Facts",
    "compile_graph",
    "decisions",
    "drive",
    "fail_agent",
    "fold",
    "summary",
    "take",
    "watched",
]


class Facts(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What a log was made with, beside its events.

    `decided` holds [offset, count, time in µs] of each decision, `rests` [offset, time] of each moment at
    which the engine was asked and had nothing to say. Every event outside `decided` came from outside: a
    command, an answer, a result. `lookups` holds what the cache said, by the unit that asked, `answers` what
    the store said, `graphs` what graphs that became known were bound to, and `shifts` [offset, step in µs] of
    each step of the wall clock. `base` are the lines
    that a fork begins with.
    """

    mechanism: str
    workflow: Workflow
    bindings: dict[str, Any]
    decided: list[list[int]] = []
    rests: list[list[int]] = []
    lookups: dict[str, list[Any] | None] = {}
    answers: dict[str, Any] = {}
    graphs: dict[str, Any] = {}
    shifts: list[list[int]] = []
    base: list[str] = []


def fold(workflow_id: str, facts: Facts, lines: Iterable[bytes]) -> RunState:
    """Return the state that these stored events give."""
    bindings = msgspec.convert(facts.bindings, Bindings)
    state = RunState(workflow_id, engine.compile_graph(facts.workflow), bindings)
    shifts = {entry[0]: entry[1] for entry in facts.shifts}
    for line in lines:
        event = decode(line)
        if isinstance(event.data, SystemStateSaved) and event.data.kind == "fork_base":
            state.base = [_base_event(text) for text in facts.base]
        take(state, event.data, event.offset, micros(event.timestamp))
        if state.next_offset in shifts:
            state.shift_times(shifts.pop(state.next_offset))
    return state


def _base_event(text: str) -> BaseEvent:
    event = decode(text.encode())
    return BaseEvent(event.data, micros(event.timestamp))


def take(state: RunState, data: Any, offset: int, now: int) -> None:
    """Fold one event into the state."""
    engine.evolve(state, data, offset, now)


def decisions(state: RunState, now: int, facts: Facts) -> list[Any]:
    """Return the next decision at the time `now` (µs), and no events if there is none.

    A look into the cache or the store is answered by what the recorded run was told.
    """
    found: dict[str, Any] = {
        key: None if hit is None else CacheHit(*hit) for key, hit in facts.lookups.items()
    }
    for key, answer in facts.answers.items():
        is_record = isinstance(answer, dict)
        found[key] = msgspec.convert(answer, CacheRecord) if is_record else answer
    for key, steps in facts.graphs.items():
        found[key] = engine.BoundGraph(msgspec.convert(steps, dict[str, StepBinding]))
    return engine.decide(state, now, found)


def summary(state: RunState) -> dict[str, Any]:
    """Return what a run has come to."""
    return {
        "status": state.status,
        "offset": state.next_offset,
        "output": state.output,
        "steps": dict(state.steps_done),
        "requests": sorted(state.requests),
        "calls": sorted(state.calls),
        "usage": msgspec.to_builtins(state.usage),
        "statuses": {name: node.status for name, node in state.nodes.items()},
    }


def compile_graph(workflow: Workflow) -> Any:
    """Return the compiled plan of a graph."""
    return engine.compile_graph(workflow)


def drive(plan: Any, workflow: Workflow, input: Any, execute: Callable[[Any], Any]) -> RunState:
    """Run a graph of function nodes in the engine alone, without bytes; return the state at the end.

    `execute` gives the result of a call from its parameters; each call is answered at once.
    """
    bound = StepBinding(tools={_FUNCTION.name: _FUNCTION})
    steps = {node.id: bound for node in workflow.nodes if isinstance(node, ToolNode)}
    state = RunState("wf_golden", plan, Bindings(steps=steps))
    now = 1_000_000
    begun: list[str] = []

    def advance(moves: list[Any]) -> None:
        while moves:
            for data in moves:
                engine.evolve(state, data, state.next_offset, now)
                if data.__class__ in EFFECTFUL:
                    effect = engine.effect_of(data)
                    if isinstance(effect, engine.StartCall):
                        begun.append(effect.call_id)
            moves = engine.decide(state, now)

    advance([_started(workflow, input)])
    while begun:
        calls, begun[:] = list(begun), []
        for call_id in calls:
            now += 1
            parameters = _parameters_of(state.calls[call_id])
            advance(engine.tool_completed(state, call_id, execute(parameters), 1))
    return state


def _parameters_of(call: OpenCall) -> Any:
    record = call.activation.tool
    assert record is not None
    return record.parameters


_FUNCTION = ToolInfo(
    name="bench__add",
    service="bench",
    function="add",
    description="",
    input_schema={"type": "object"},
    schema_hash="h",
    side_effect="none",
    idempotent=True,
    timeout=60,
    self_checked=True,
)


def _started(workflow: Workflow, input: Any) -> WorkflowStarted:
    return WorkflowStarted(
        definition=DefinitionInfo(id="d", name="w", version=None, format="ir/v0", hash="h"),
        ir_hash=ir_hash(workflow),
        source="",
        input=input,
        options={},
        labels={},
        schema_version=1,
        runtime_version="0",
        by="test",
    )


@contextmanager
def watched(mechanism: str, found: dict[str, Facts]) -> Iterator[None]:
    """Record the decisions of every run that goes on meanwhile in `found`, by run."""
    before = engine.decide, RunState.shift_times

    def facts_of(state: RunState) -> Facts:
        facts = found.get(state.workflow_id)
        if facts is None:
            bindings = msgspec.to_builtins(state.bindings)
            facts = Facts(mechanism=mechanism, workflow=state.graph.workflow, bindings=bindings)
            found[state.workflow_id] = facts
        return facts

    def decide(state: RunState, now: int, answers: engine.Found) -> list[Any]:
        offset = state.next_offset
        moves = before[0](state, now, answers)
        facts = facts_of(state)
        for key, hit in answers.items():
            if hit == "asked":
                continue
            if isinstance(hit, engine.BoundGraph):
                facts.graphs[key] = hit.to_value()
            elif "?" in key:  # an access to the store that runs share
                facts.answers[key] = msgspec.to_builtins(hit)
            else:
                facts.lookups[key] = None if hit is None else list(hit)
        if moves and isinstance(moves[0], engine.Lookup | engine.StoreAccess | engine.BindGraph):
            return moves
        # A process that died may have decided what never reached the log.
        facts.decided = [entry for entry in facts.decided if entry[0] < offset]
        facts.rests = [entry for entry in facts.rests if entry[0] <= offset]
        if moves:
            facts.decided.append([offset, len(moves), now])
        elif "asked" not in answers.values() and [offset, now] not in facts.rests:
            facts.rests.append([offset, now])
        return moves

    def shift_times(state: RunState, step: int) -> None:
        offset = state.next_offset
        if offset:
            facts = facts_of(state)
            facts.rests = [entry for entry in facts.rests if entry[0] < offset]  # by the clock as it was
            if [offset, step] not in facts.shifts:
                facts.shifts.append([offset, step])
        before[1](state, step)

    engine.decide = decide
    RunState.shift_times = shift_times  # type: ignore[method-assign]
    try:
        yield
    finally:
        engine.decide = before[0]
        RunState.shift_times = before[1]  # type: ignore[method-assign]


def fail_agent(runtime: Runtime, run: str, name: str) -> None:
    """Let the actor that works on a step fail as by a bug; `name` is `STEP#VISIT@ATTEMPT`."""
    ref = runtime.system.find(f"/runs/{run}/{name}")
    assert ref is not None
    ref.cell.signal_failure(RuntimeError("an injected bug"))
