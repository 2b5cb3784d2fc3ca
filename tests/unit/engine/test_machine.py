"""The declared machine: every transition is walked by a real log, and no other one is folded."""

from __future__ import annotations

import random
import sys
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
import pytest

from agentflow.definition.ir import LlmNode, MapNode, Options, Policy, RetryCompensateNode
from agentflow.definition.policy import RetryPolicy
from agentflow.engine import IllegalEvent, RunState
from agentflow.engine.activation import Phase
from agentflow.engine.approvals import decided
from agentflow.engine.kinds.kind import Kind
from agentflow.engine.machine import LIFECYCLE
from agentflow.errors import LogCorrupt
from agentflow.events import catalogue as ev
from agentflow.events.envelope import decode
from agentflow.events.log import Append, RunMeta, StoredEvent
from agentflow.events.memory import MemoryLog
from agentflow.runtime.log_replay import fold
from tests.golden import adapter
from tests.golden.files import log_names, read_facts, read_lines
from tests.unit.engine.driver import Driver, Fault, call, chain, tool
from tests.unit.engine.kinds.random_graphs import Fate
from tests.unit.engine.kinds.test_gates import arriving, throttle
from tests.unit.engine.kinds.test_llm import asking, wants

PHASES: tuple[Phase, ...] = ("pending", "asked", "denied", "open", "held")


class Walked(NamedTuple):
    """What real logs did: (event, phase before it) of lifecycles, (class of the kind, event) of work."""

    lifecycle: set[tuple[type, str]]
    work: set[tuple[str, type]]


def phase_before(state: RunState, data: Any) -> tuple[str | None, Kind | None]:
    """Return the phase of the activation that an event is about, and its kind."""
    key = getattr(data, "activation", None)
    if key is None:
        return None, None
    if data.iteration is not None:
        key = f"{key}[{data.iteration}]"
    held = state.held_steps.get(data.step_id, [None])[0] if data.iteration is None else None
    if key in state.activations:
        return state.activations[key].phase, state.activations[key].node.kind
    return (None, None) if held is None else (held.phase, held.node.kind)


def ask_people() -> None:
    """Run a tool node and a map over a tool: a person allows each call, and is asked what came of it."""

    def lose(name: str, parameters: Any) -> Any:
        raise Fault("tool", "lost", unknown=True)

    unsafe = msgspec.structs.replace(tool("pay", side_effect="write", idempotent=False), needs_approval=True)
    spread = MapNode(id="pay", tool="s.pay", items_path="input.items")
    for node in (call("pay"), spread):
        driver = Driver(chain(node), {"items": [{}]}, tools={"pay": [unsafe]}, call=lose)
        driver.run()
        (request,) = driver.state.requests.values()
        driver.advance(decided(request, granted=True, by="test", via="api"))
        driver.run()
        assert driver.events(ev.InputRequested)


def cancel_delayed_tokens() -> None:
    """Run out of time while tokens wait at a throttle."""
    driver = arriving(throttle(mode="delay", window=60.0), 1.0, 1.1, 1.2, options=Options(timeout=5.0))
    assert driver.events(ev.TimerCancelled)


def ask_models() -> None:
    """Run model nodes whose call fails, whose answer is healed although it streams, and whose calls are asked
    about: before they are made, and when their outcome is unknown."""
    retry = Policy(retry=RetryPolicy(max_attempts=2, jitter=0.0))
    failing = asking(Fault("transient", "down"), "ok", policy=retry)
    assert failing.run().status == "completed"
    healed = asking("{n: 1,}", output_schema={"type": "object"}, stream=True, heal=True)
    assert healed.run().status == "completed"

    def lose(name: str, parameters: Any) -> Any:
        raise Fault("tool", "lost", unknown=True)

    for node, name in ((LLM, "add"), (COMPENSATE, "book")):
        bare = tool(name, side_effect="write", idempotent=False)
        unsafe = msgspec.structs.replace(bare, needs_approval=True)
        tools = {node.id: [unsafe, tool("undo")]}
        driver = Driver(chain(node), {}, tools=tools, call=lose, model=lambda *_: wants())
        driver.run()
        while driver.state.requests and not driver.events(ev.InputRequested):
            (request,) = driver.state.requests.values()
            driver.advance(decided(request, granted=True, by="test", via="api"))
            driver.run()
        assert driver.events(ev.InputRequested)


LLM = LlmNode(id="ask", model="scripted:m", prompt="Say it", tools=("s.add",))
COMPENSATE = RetryCompensateNode(id="pay", tool="s.book", max_retries=0, compensate_tool="s.undo")


@pytest.fixture(scope="module")
def walked() -> Walked:
    """Fold every golden log and 150 random runs, and note each transition."""
    found = Walked(set(), set())
    folds = sys.modules["agentflow.engine.evolve"]._FOLDS  # the package has a function of this name
    before = dict(folds)

    def noting(fold: Any) -> Any:
        def noted(state: RunState, data: Any, offset: int, ts: int) -> None:
            phase, kind = phase_before(state, data)
            if phase is not None:
                if data.__class__ in LIFECYCLE:
                    found.lifecycle.add((data.__class__, phase))
                if phase == "open" and kind is not None:
                    found.work.add((type(kind).__name__, data.__class__))
            fold(state, data, offset, ts)

        return noted

    folds.update({kind: noting(fold) for kind, fold in before.items()})
    try:
        for name in log_names():
            lines = read_lines(name)
            adapter.fold(decode(lines[0]).workflow_id, read_facts(name), lines)
        ask_people()
        cancel_delayed_tokens()
        ask_models()
        for seed in range(150):
            Fate(seed).run()
    finally:
        folds.update(before)
    return found


def test_real_logs_walk_every_transition_of_a_lifecycle(walked: Walked):
    declared = {(event, phase) for event, phases in LIFECYCLE.items() for phase in phases}
    assert {(e.__name__, p) for e, p in declared - walked.lifecycle} == set()


def test_real_logs_walk_no_transition_that_is_not_declared(walked: Walked):
    declared = {(event, phase) for event, phases in LIFECYCLE.items() for phase in phases}
    asked_of_calls = {(ev.ApprovalRequested, "open")}  # declared as work of the kinds that make calls
    assert {(e.__name__, p) for e, p in walked.lifecycle - declared - asked_of_calls} == set()


def kinds_below(kind: type[Kind]) -> Iterator[type[Kind]]:
    yield kind
    for below in kind.__subclasses__():
        yield from kinds_below(below)


def test_real_logs_walk_all_work_that_a_kind_declares(walked: Walked):
    made = {name for name, _ in walked.work}
    declared = {
        (kind.__name__, event) for kind in kinds_below(Kind) if kind.__name__ in made for event in kind.events
    }
    assert {(kind, event.__name__) for kind, event in declared - walked.work} == set()


# -- illegal events ---------------------------------------------------------------------------------


class Sample(NamedTuple):
    """A prefix of a golden log behind which an activation is in a phase, and an event of its own."""

    name: str
    length: int
    key: dict[str, Any]


@pytest.fixture(scope="module")
def samples() -> dict[str, list[Sample]]:
    """For each phase: up to 8 places in golden logs, of different runs."""
    found: dict[str, list[Sample]] = defaultdict(list)
    for name in (
        "approval_denied",
        "approval_granted",
        "chain",
        "held_fail",
        "held_skip",
        "map_body",
        "for_each",
    ):
        lines, facts = read_lines(name), read_facts(name)
        run = decode(lines[0]).workflow_id
        for length in range(1, len(lines)):
            state = adapter.fold(run, facts, lines[:length])
            held = [activation for visits in state.held_steps.values() for activation in visits]
            for activation in [*state.activations.values(), *held]:
                if len(found[activation.phase]) < 8:
                    key = {
                        "step_id": activation.node.id,
                        "activation": activation.base_key,
                        "iteration": activation.iteration,
                        "path": activation.path.key,
                    }
                    found[activation.phase].append(Sample(name, length, key))
    return found


def examples() -> dict[type, Any]:
    """Return one event of each type of a lifecycle, from golden logs."""
    found: dict[type, Any] = {}
    for name in log_names():
        for line in read_lines(name):
            data: Any = decode(line).data
            if data.__class__ in LIFECYCLE and data.__class__ not in found:
                found[data.__class__] = data
        if len(found) == len(LIFECYCLE):
            break
    return found


@pytest.mark.parametrize("phase", PHASES)
def test_an_event_that_its_phase_does_not_allow_is_an_error(phase: Phase, samples: dict[str, list[Sample]]):
    assert samples[phase], "no golden log has an activation in this phase"
    tried = 0
    for event, example in examples().items():
        if phase in LIFECYCLE[event] or (event is ev.ApprovalRequested and phase == "open"):
            continue
        for sample in random.Random(1).sample(samples[phase], min(3, len(samples[phase]))):
            lines = read_lines(sample.name)
            run = decode(lines[0]).workflow_id
            state = adapter.fold(run, read_facts(sample.name), lines[: sample.length])
            fields = {name: value for name, value in sample.key.items() if name in example.__struct_fields__}
            data = msgspec.structs.replace(example, **fields)
            if phase == "held" and event is ev.WorkflowStepRetrying:
                continue  # a person has it tried again
            with pytest.raises(IllegalEvent):
                adapter.take(state, data, state.next_offset, state.last_ts)
            tried += 1
    assert tried > 0


async def test_a_stored_log_with_an_illegal_event_is_damaged(samples: dict[str, list[Sample]]):
    """The component that reads a log names run and offset."""
    sample = samples["open"][0]
    lines = read_lines(sample.name)[: sample.length]
    run = decode(lines[0]).workflow_id
    facts = read_facts(sample.name)
    again = next(line for line in reversed(lines) if decode(line).type == "workflow.step_started")
    state = adapter.fold(run, facts, lines)
    illegal = StoredEvent(state.next_offset, state.last_ts, "workflow.step_started", again)
    log = MemoryLog()
    stored = [StoredEvent(i, state.last_ts, decode(line).type, line) for i, line in enumerate(lines)]
    meta = RunMeta(name=None, definition_hash="d", created_at=state.last_ts)
    await log.append(Append(run, 1, 0, [*stored, illegal], "running", meta))
    fresh = RunState(run, state.graph, state.bindings)
    with pytest.raises(LogCorrupt) as caught:
        await fold(log, fresh)
    assert run in str(caught.value)
    assert "workflow.step_started" in str(caught.value)
