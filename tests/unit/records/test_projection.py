"""The read model shows what the engine folds: compared at every offset of golden logs and of random runs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from agentflow.definition.ir import Approval, Budget, EndNode, Options, Policy, StartNode, ToolNode, Workflow
from agentflow.definition.policy import Backoff, RetryPolicy
from agentflow.engine import Bindings, RunState, compile_graph, evolve
from agentflow.engine.approvals import decided
from agentflow.engine.held_steps import settle_held
from agentflow.engine.replay import BaseEvent, base_of, cut_of
from agentflow.engine.run_end import outputs_of
from agentflow.errors import LogCorrupt
from agentflow.events import catalogue as ev
from agentflow.events.envelope import Event, decode, iso, micros
from agentflow.records.projection import RunProjection
from agentflow.records.runs import result_of
from agentflow.runtime.run_results import live_result
from tests.golden.adapter import Facts
from tests.golden.files import log_names, read_facts, read_lines
from tests.unit.engine.driver import Driver, Fault, agent, chain, steps, tool
from tests.unit.engine.kinds.mixed_graphs import Mixed
from tests.unit.engine.kinds.random_graphs import Fate
from tests.unit.engine.test_fuzz import FAMILIES, Family, Fuzz
from tests.unit.engine.test_meetings import two_visits
from tests.unit.engine.test_message_graphs import World

RUN = "wf_1"
Entry = tuple[Any, int, int]  # data, offset, µs


def engine_view(state: RunState) -> dict[str, Any]:
    """Return all that is shown, from the engine. The one place here that reads the fields of its state."""
    steps: dict[str, Any] = {}
    for step_id in state.step_ids():
        node = state.nodes[step_id]
        items = [c.status for c in node.outer.children.values()] if node.outer is not None else None
        steps[step_id] = {
            "state": node.status,
            "attempt": node.attempt,
            "visits": node.visits,
            "output": node.output,
            "error": node.error,
            "items": None if items is None else {name: items.count(name) for name in dict.fromkeys(items)},
        }
    models = [call for call in state.calls.values() if call.kind == "model"]
    reserved = {
        "max_tokens": sum(call.tokens for call in models),
        "max_cost_usd": sum(call.cost or 0.0 for call in models),
        "max_model_calls": len(models),
    }
    usage = state.usage
    used = {
        "max_cost_usd": usage.cost_usd,
        "max_tokens": usage.input_tokens + usage.output_tokens,
        "max_model_calls": usage.model_calls,
        "max_tool_calls": usage.tool_calls,
        "max_steps": state.clock,
    }
    limits = dict(state.budget)
    return {
        "offset": state.next_offset - 1,
        "state": state.status,
        "pause": state.pause,
        "cancel_requested": state.cancel_requested is not None,
        "output": state.output,
        "error": state.error,
        "steps": steps,
        "calls": {call_id: call.kind for call_id, call in state.calls.items()},
        "requests": [
            (r.request_id, r.offset, iso(r.ts), r.activation.node.id) for r in state.requests.values()
        ],
        "timers": {name: iso(due) for name, due in state.timers.items()},
        "usage": usage,
        "limits": limits,
        "used": {name: value for name, value in used.items() if name in limits},
        "reserved": {name: value for name, value in reserved.items() if name in limits},
        "times": (
            iso(state.started_at),
            None if state.dispatched_at is None else iso(state.dispatched_at),
            None if state.ended is None else iso(state.ended),
            iso(state.last_ts),
        ),
        "outputs": [(o.step_id, o.activation, o.kind, o.index, o.value) for o in outputs_of(state)],
        "result": live_result(state, state.last_ts),
        "shared": state.shared.values,
        "private": state.shared.private,
    }


def shown(projection: RunProjection) -> dict[str, Any]:
    """The same of the read model, from the Structs that the API gives."""
    state, record = projection.state(), projection.record()
    asked = projection.requests()
    assert list(state.waiting.requests) == [r.request_id for r in asked]
    assert (state.usage, state.budget, state.pause) == (record.usage, record.budget, record.pause)
    budget = state.budget
    return {
        "offset": state.offset,
        "state": state.state,
        "pause": state.pause,
        "cancel_requested": state.cancel_requested,
        "output": state.output,
        "error": state.error,
        "steps": {step_id: msgspec.to_builtins(step) for step_id, step in state.steps.items()},
        "calls": state.calls,
        "requests": [(r.request_id, r.offset, r.asked_at, r.step_id) for r in asked],
        "timers": state.timers,
        "usage": state.usage,
        "limits": budget.limits,
        "used": budget.used,
        "reserved": budget.reserved,
        "times": (record.created_at, record.started_at, record.ended_at, record.updated_at),
        "outputs": [(o.step_id, o.activation, o.kind, o.index, o.value) for o in state.outputs],
        "result": result_of(record, () if record.ended_at else tuple(asked)),
        "shared": state.shared,
        "private": state.private,
    }


def event_of(entry: Entry) -> Event[Any]:
    data, offset, ts = entry
    return Event(id="", offset=offset, timestamp=iso(ts), type=data.EVENT_TYPE, workflow_id=RUN, data=data)


def compare_at_every_offset(
    workflow: Workflow, log: Iterable[Entry], base: list[Entry] | None = None, bindings: Any = None
) -> RunProjection:
    state = RunState(RUN, compile_graph(workflow), bindings or Bindings())
    projection = RunProjection(RUN, workflow)
    for entry in log:
        data, offset, ts = entry
        forks = isinstance(data, ev.SystemStateSaved) and data.kind == "fork_base"
        if forks and base is not None:
            state.base = [BaseEvent(data, ts) for data, _, ts in base]
        evolve(state, data, offset, ts)
        projection.take(event_of(entry), [event_of(e) for e in base] if forks and base else ())
        expected, found = engine_view(state), shown(projection)
        for name, value in expected.items():
            assert found[name] == value, f"{name} at offset {offset}, {data.EVENT_TYPE}"
        assert list(found["timers"]) == list(expected["timers"])
    return projection


@pytest.mark.parametrize("name", log_names())
def test_golden_logs_are_shown_as_the_engine_folds_them(name: str):
    facts = read_facts(name)
    log, base = ([_entry_of(decode(line)) for line in lines] for lines in (read_lines(name), _base_of(facts)))
    bindings = msgspec.convert(facts.bindings, Bindings)
    compare_at_every_offset(facts.workflow, log, base or None, bindings)


def _base_of(facts: Facts) -> list[bytes]:
    return [line.encode() for line in facts.base]


def _entry_of(event: Event[Any]) -> Entry:
    return event.data, event.offset, micros(event.timestamp)


def family_runs(seeds: int) -> list[Any]:
    return [pytest.param(name, seeds, id=name) for name in FAMILIES]


@pytest.mark.parametrize(("family", "seeds"), family_runs(20))
def test_random_runs_are_shown_as_the_engine_folds_them(family: str, seeds: int):
    for seed in range(seeds):
        driver = Fuzz(seed, FAMILIES[family]).run()
        compare_at_every_offset(driver.workflow, driver.log, bindings=driver.bindings)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("family", "seeds"), family_runs(250))
def test_many_random_runs_are_shown_as_the_engine_folds_them(family: str, seeds: int):
    test_random_runs_are_shown_as_the_engine_folds_them(family, seeds)


@pytest.mark.parametrize("policy", ["superstep", "eager"])
def test_messages_are_shown_as_the_engine_folds_them(policy: str):
    for seed in range(60):
        run = World(seed, policy).go()
        compare_at_every_offset(run.workflow, run.log, bindings=run.bindings)


def test_clocks_that_step_back_are_shown_as_the_engine_folds_them():
    mixed = Family(step_timeout=0.5, run_timeout=0.5, budget=0.7, pause=0.1, approvals=0.3)
    for seed in range(80):
        driver = Fuzz(seed, mixed).run()
        stepped = [(data, offset, ts - 3_000_000 * (offset // 7)) for data, offset, ts in driver.log]
        compare_at_every_offset(driver.workflow, stepped, bindings=driver.bindings)


def test_token_nodes_and_their_visits_are_shown_as_the_engine_folds_them():
    retried = ToolNode(
        id="call",
        tool="s.add",
        policy=Policy(retry=RetryPolicy(max_attempts=3, timeout=9.0, backoff=Backoff(initial=0.5))),
        approval=Approval(before="calls", timeout=60.0),
    )
    failures: list[str] = []

    def call(name: str, parameters: Any) -> Any:
        if len(failures) < 2:
            failures.append(name)
            raise Fault("transient", "connection_failed")
        return {"x": 1}

    graph = chain(agent("first"), retried, agent("last", policy=Policy(timeout=30.0)))
    driver = Driver(graph, {"x": 0}, tools={"call": [tool()]}, call=call)
    driver.run()
    while driver.state.requests:
        request = next(iter(driver.state.requests.values()))
        driver.advance(decided(request, granted=True, by="test", via="api"))
        driver.run()
    assert driver.state.status == "completed"
    projection = compare_at_every_offset(graph, driver.log, bindings=driver.bindings)
    assert projection.record().usage.model_calls == 2


def test_starts_and_ends_of_a_graph_have_events_and_are_not_shown_as_steps():
    nodes = (
        StartNode(id="begin", next="add"),
        ToolNode(id="add", tool="s.add", next="done"),
        EndNode(id="done"),
    )
    driver = Driver(Workflow(name="w", nodes=nodes), {"x": 0}, tools={"add": [tool()]})
    driver.run()
    assert [e.step_id for e in driver.events(ev.WorkflowStepCompleted)] == ["begin", "add", "done"]
    projection = compare_at_every_offset(driver.workflow, driver.log, bindings=driver.bindings)
    assert list(projection.record().steps) == ["add"]


@pytest.mark.parametrize("family", ["ordinary", "approvals", "budgets", "steps with a time limit"])
def test_forks_are_shown_as_the_engine_folds_them(family: str):
    for seed in range(25):
        driver = Fuzz(seed, FAMILIES[family]).run()
        cut = cut_of(driver.plan, driver.plan.step_ids[-1:]) if seed % 2 else frozenset[str]()
        upto = len(driver.log) if seed % 3 == 0 else 1 + seed * 7 % len(driver.log)
        events = [BaseEvent(data, ts) for data, _, ts in driver.log[:upto]]
        base = [driver.log[i] for i in base_of(events, cut)]
        if not base:
            continue
        saved = ev.SystemStateSaved(
            kind="fork_base", covers=len(events) - 1, ref="sha256:0", schema_version=1, size=0, sha256="0"
        )
        later = driver.log[-1][2] + 60_000_000
        fork = [(driver.log[0][0], 0, later), (saved, 1, later + 5)]
        compare_at_every_offset(driver.workflow, fork, base, bindings=driver.bindings)


def test_an_event_of_work_that_is_not_there_is_damage():
    driver = Driver(steps(agent("a")), {})
    driver.run()
    projection = RunProjection(RUN, driver.workflow)
    projection.take(event_of(driver.log[0]))
    ended = next(
        entry for entry in driver.log if isinstance(entry[0], ev.ModelCallFailed | ev.AgentInitialized)
    )
    with pytest.raises(LogCorrupt, match=r"agent\.initialized at offset \d+ of wf_1 names '/a#0'"):
        projection.take(event_of(ended))


def test_a_log_without_its_beginning_is_damage():
    with pytest.raises(LogCorrupt, match=r"does not begin with workflow\.started"):
        RunProjection(RUN, steps(agent("a"))).record()


def test_a_larger_limit_of_an_earlier_answer_stays():
    graph = steps(agent("a"), agent("b"), options=Options(budget=Budget(max_tokens=5, on_exceeded="ask")))
    driver = Driver(graph, {})
    driver.run()
    for request, limit in zip(list(driver.state.requests.values()), (900_000, 800_000), strict=True):
        data = request.data
        scope = {name: getattr(data, name) for name in ("step_id", "iteration", "activation")}
        value = {"choice": "raise", "limit": limit}
        answer = ev.InputReceived(**scope, request_id=request.request_id, value=value, by="test", via="api")
        driver.advance([answer])
    driver.run()
    projection = compare_at_every_offset(graph, driver.log, bindings=driver.bindings)
    assert projection.budget().limits["max_tokens"] == 900_000


@pytest.mark.parametrize("policy", ["superstep", "eager"])
def test_mixed_graphs_are_shown_as_the_engine_folds_them(policy: str):
    for seed in range(60):
        run = Mixed(seed, policy).run()
        compare_at_every_offset(run.workflow, run.log, bindings=run.bindings)


@pytest.mark.parametrize("part", range(4))
def test_random_graphs_of_all_kinds_are_shown_as_the_engine_folds_them(part: int):
    """A step of several child paths is shown as its last event left it."""
    for seed in range(part * 100, part * 100 + 100):
        driver = Fate(seed).run()
        compare_at_every_offset(driver.workflow, driver.log, bindings=driver.bindings)


def test_several_visits_of_one_step_that_are_held_are_shown_as_the_engine_folds_them():
    driver = two_visits()
    for action in ("retry", "skip"):
        driver.advance(settle_held(driver.state, "c", action, driver.now, by="ann"))
    driver.run()
    assert driver.state.status == "completed"
    compare_at_every_offset(driver.workflow, driver.log, driver.bindings)
