"""Model calls that wait for room in a budget: their order, who waits for whom, and the fold of their log."""

from __future__ import annotations

import random

import pytest

from agentflow import engine
from agentflow.definition.ir import Budget, ModelRef, Options
from agentflow.engine.call_queue import need_of_next, next_calls
from agentflow.events import catalogue as ev
from tests.unit.engine.driver import Driver, Fault, agent, steps


def sized(tokens: int) -> tuple[ModelRef, ...]:
    """A model that is asked for so many tokens; a call reserves 25 more for its input."""
    return (ModelRef(provider="scripted", model="m", parameters={"max_tokens": tokens}),)


def driver_of(sizes: dict[str, int], limit: int, *, own: dict[str, int] | None = None, **more) -> Driver:
    nodes = [
        agent(id, budget=Budget(max_tokens=(own or {})[id]) if id in (own or {}) else None) for id in sizes
    ]
    options = Options(max_parallel=99, budget=Budget(max_tokens=limit))
    models = {id: sized(tokens) for id, tokens in sizes.items()}
    return Driver(steps(*nodes, options=options), models=models, **more)


def started(driver: Driver) -> list[str]:
    return [start.step_id for start in driver.events(ev.ModelCallStarted)]


def test_a_small_call_does_not_overtake_a_large_one():
    """Beside `a` there is room for `small`, but `large` came first."""
    driver = driver_of({"a": 500, "large": 900, "small": 10}, 1_000)
    assert started(driver) == ["a"]
    assert driver.run().status == "completed"
    assert started(driver) == ["a", "large", "small"]


def test_the_budget_of_a_step_blocks_no_other_step():
    driver = driver_of({"a": 500, "b": 100}, 10_000, own={"a": 530})
    again = Driver(
        steps(
            agent("a", for_each="${{ inputs.all }}", budget=Budget(max_tokens=530)),
            agent("b"),
            options=Options(max_parallel=99, budget=Budget(max_tokens=10_000)),
        ),
        {"all": [1, 2]},
        models={"a": sized(450), "b": sized(100)},
    )
    assert started(driver) == ["a", "b"]
    assert started(again) == ["a", "b"]  # the second item of `a` waits for the first
    assert again.run().status == "completed"


def test_a_call_that_ends_lets_as_many_go_as_there_is_room_for():
    driver = driver_of({"a": 900, "b": 300, "c": 300, "d": 300}, 1_000)
    assert started(driver) == ["a"]
    driver.answer(driver.waiting[0])
    assert started(driver) == ["a", "b", "c", "d"]


def test_a_call_that_fails_without_charge_gives_its_room_back():
    faults = [Fault("rate_limited", "rate_limited", retry_after=5)]

    def model(unit, call):
        if faults:
            raise faults.pop()
        return "{}"

    driver = driver_of({"a": 900, "b": 900}, 1_000, model=model)
    driver.answer(driver.waiting[0])
    assert started(driver) == ["a", "b"]
    assert driver.run().status == "completed"
    assert started(driver) == ["a", "b", "a"]


@pytest.mark.parametrize("seed", range(20))
def test_folding_the_log_gives_the_same_queue_order_and_deadlines(seed):
    rng = random.Random(seed)

    def model(unit, call):
        if rng.random() < 0.3:
            raise Fault("transient", "network_error")
        return "{}" if rng.random() < 0.7 else "no json"

    driver = driver_of({f"s{i}": rng.choice((50, 200, 700)) for i in range(16)}, 2_000, model=model)
    waited = 0
    while driver.waiting:
        live, folded = driver.state, driver.refold()
        assert engine.decide(folded, driver.now) == []
        assert _order(folded) == _order(live)
        assert folded.timers == live.timers
        assert engine.next_due(folded) == engine.next_due(live)
        assert list(next_calls(folded, driver.now)) == list(next_calls(live, driver.now)) == []
        waited += bool(live.call_queue)
        driver.answer(rng.choice(driver.waiting))
    assert waited > 2
    assert driver.run().status in ("paused", "completed", "failed")


def _order(state: engine.RunState) -> list[tuple[str, object]]:
    waiting = sorted(state.call_queue.values(), key=lambda activation: activation.touched)
    return [(activation.key, need_of_next(state, activation)) for activation in waiting]
