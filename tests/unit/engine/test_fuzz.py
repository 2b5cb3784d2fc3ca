"""Random graphs, answers, failures and crashes: whatever happens, a run ends or says what it waits for.

Each seed makes a small graph of steps and drives it until it ends. Calls are answered in random order, by
answers, tool calls, faults and lost outcomes; now and then the process "crashes" behind a batch and the log
is folded anew. The log is then checked against the promises of page 000 §2, §4, §6 and §11.
"""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import msgspec
import pytest

from agentflow import engine
from agentflow.definition.conversation import Message, ToolCall, Usage, add_usage
from agentflow.definition.ir import AgentNode, Approval, Budget, Options, Policy, Workflow
from agentflow.definition.policy import Backoff, RetryPolicy
from agentflow.engine.approvals import decided
from agentflow.engine.held_steps import retry_all, settle_held
from agentflow.engine.state import OpenCall, RunState
from agentflow.events import catalogue as ev
from tests.unit.engine.driver import MODEL, OTHER, Driver, Fault, agent, steps, tool

LOOK = tool("look", side_effect="read")
PAY = tool("pay", side_effect="external", idempotent=False)
INPUT = {
    "list": [0, 1, 2, 3],
    "one": ["a"],
    "empty": [],
    "none": None,
    "nested": {"a": [1, 2], "b": {"c": []}},
}
TERMINAL = {"workflow.completed", "workflow.failed", "workflow.cancelled"}
STARTS = {"model.call_started", "tool.call_started"}
ENDS = {"model.call_completed", "model.call_failed", "tool.call_completed", "tool.call_failed"}
STEP_ENDS = {"workflow.step_completed", "workflow.step_failed", "workflow.step_skipped"}


class Family(NamedTuple):
    """What the graphs and the fates of a family have beside the ordinary."""

    halt: float = 0.0
    step_timeout: float = 0.0
    run_timeout: float = 0.0
    on_unknown_fail: float = 0.0
    narrow: float = 0.0
    cancel: float = 0.0
    lost: float = 0.05
    approvals: float = 0.0
    hold: float = 0.0
    budget: float = 0.0
    pause: float = 0.0
    seeds: int = 250


class Fuzz:
    """One seed: a graph, a driver, and the dice."""

    def __init__(self, seed: int, family: Family) -> None:
        self.rng = random.Random(seed)
        self.family = family
        self.calls = 0
        self.marks: list[int] = []
        graph = self.graph()
        agents = [n.id for n in graph.nodes if isinstance(n, AgentNode)]
        self.driver = Driver(
            graph,
            INPUT,
            tools={i: [LOOK, PAY] for i in agents},
            models={i: (MODEL, OTHER) for i in agents if self.chance(0.3)},
            options={"on_unknown": "fail"} if self.chance(family.on_unknown_fail) else {},
            model=lambda unit, call: self.say(),
            call=lambda name, parameters: self.execute(),
        )

    def chance(self, p: float) -> bool:
        return self.rng.random() < p

    # -- the graph

    def graph(self) -> Workflow:
        nodes = [self.step(i) for i in range(self.rng.randint(1, 5))]
        return steps(
            *nodes,
            options=Options(
                max_parallel=self.rng.choice([1, 2, 8]),
                on_failure=self.on_failure(),
                budget=self.budget(),
                timeout=self.rng.choice([2.0, 20.0]) if self.chance(self.family.run_timeout) else None,
            ),
        )

    def on_failure(self) -> Any:
        if self.chance(self.family.hold):
            return "hold"
        return "halt" if self.chance(self.family.halt) else "continue"

    def budget(self) -> Budget | None:
        if not self.chance(self.family.budget):
            return None
        limits = {
            "max_tokens": self.rng.choice([5, 60, 300, 9_000]),
            "max_model_calls": self.rng.choice([1, 3, 6]),
            "max_tool_calls": self.rng.choice([1, 2]),
            "max_steps": self.rng.choice([1, 3]),
            "max_duration_s": self.rng.choice([2, 20]),
        }
        chosen = self.rng.sample(sorted(limits), 2)
        how = self.rng.choice(["pause", "ask", "fail"])
        return Budget(**{key: limits[key] for key in chosen}, on_exceeded=how)

    def step(self, i: int) -> AgentNode:
        rng = self.rng
        more: dict[str, Any] = {"depends_on": tuple(f"n{j}" for j in range(i) if self.chance(0.4))}
        if self.chance(0.35):
            items = rng.choice(["list", "list", "one", "empty", "none", "nested.*"])
            more["for_each"] = f"${{{{ inputs.{items} }}}}"
            if self.chance(max(0.3, self.family.narrow)):
                more["max_parallel"] = 1 if self.chance(self.family.narrow) else rng.randint(2, 3)
            if self.chance(0.3):
                more["guard"] = rng.choice(["item != 2", "index < 2", "item > 'x'", "always() && index != 0"])
        elif self.chance(0.3):
            more["guard"] = rng.choice(
                ["true", "false", "always()", "failure()", "success()", "cancelled()", "inputs.none > 3"]
            )
        retry = RetryPolicy(
            max_attempts=rng.randint(1, 3),
            timeout=rng.choice([None, 3.0, 300.0]),
            backoff=Backoff(initial=0.5),
            retry_on=rng.choice([("transient", "timeout", "rate_limited"), ("transient",), ()]),
        )
        if self.chance(self.family.approvals):
            more["approval"] = Approval(
                before=rng.choice(["step", "step", "calls", "side_effects", "never"]),
                timeout=rng.choice([None, 5.0]),
                on_denied=rng.choice(["fail", "skip"]),
                message=rng.choice([None, "${{ inputs.one }}", "${{ fromJSON('x') }}"]),
            )
        limit = rng.choice([2.0, 10.0]) if self.chance(self.family.step_timeout) else None
        spec: dict[str, Any] = {
            "max_turns": rng.choice([2, 10]),
            "max_tool_calls": rng.choice([1, 3, 50]),
            "parallel_tool_calls": self.chance(0.7),
        }
        if self.chance(0.2):
            spec["output_schema"] = {"type": "object", "required": ["ok"]}
        if self.chance(0.05):
            spec["system_prompt"] = "${{ fromJSON('x') }}"
        return agent(
            f"n{i}",
            spec=spec,
            policy=Policy(retry=retry, timeout=limit),
            required=self.chance(0.85),
            budget=self.budget(),
            **more,
        )

    # -- the world

    def say(self) -> Message | str:
        dice = self.rng.random()
        for p, category in ((0.06, "transient"), (0.08, "auth"), (0.10, "quota")):
            if dice < p:
                raise Fault(category, category)
        if dice < 0.13:
            raise Fault("rate_limited", "rate_limited", retry_after=self.rng.choice([None, 1, 100]))
        if dice > 0.5:
            return self.rng.choice(['{"ok": 1}', '{"ok": 1}', "text", "", "[1]"])
        wanted = [self.wish() for _ in range(self.rng.randint(1, 4))]
        return Message(role="assistant", content=self.rng.choice(["", "text"]), tool_calls=tuple(wanted))

    def wish(self) -> ToolCall:
        self.calls += 1
        name = self.rng.choice(["s__look", "s__pay", "s__pay", "s__missing"])
        return ToolCall(id=f"call_{self.calls}", name=name, arguments=self.rng.choice(["{}", "", "[]", "{x"]))

    def execute(self) -> Any:
        dice = self.rng.random()
        if dice < 0.1:
            raise Fault("tool", "tool_execution_failed")
        if dice < 0.1 + self.family.lost:
            raise Fault("timeout", "tool_timeout", unknown=True)
        if dice < 0.1 + 2 * self.family.lost:
            raise Fault("interrupted", "interrupted", unknown=True)
        return self.rng.choice([None, 1, {"x": [1]}])

    # -- the run

    def run(self) -> Driver:
        for turn in range(2_000):
            if turn % 16 == 0:
                check(self.driver)
            if self.driver.state.terminal:
                check(self.driver)
                assert view(self.driver.state) == view(self.driver.refold())
                return self.driver
            self.move()
            self.marks.append(len(self.driver.log))
        raise AssertionError("the run does not end")

    def move(self) -> None:
        driver, state = self.driver, self.driver.state
        driver.waiting = [c for c in driver.waiting if c.call_id in state.calls]
        if state.status == "paused" and state.draining and driver.waiting and self.chance(0.8):
            driver.answer(self.rng.choice(driver.waiting))
        elif state.status == "paused":
            self.resume()
        elif self.chance(self.family.pause):
            how = self.rng.choice(["drain", "suspend"])
            driver.advance([ev.WorkflowPaused(reason="operator", detail=None, by="test", in_flight=how)])
        elif state.requests and (state.status == "waiting" or self.chance(0.2)):
            self.reply()
        elif self.chance(self.family.cancel):
            driver.advance([ev.WorkflowCancelRequested(mode="soft", grace_ms=0, reason=None, by="test")])
            driver.advance(engine.cancel_finished(driver.state, driver.now, forced=False))
        elif self.marks and self.chance(0.05):
            self.crash()
        elif driver.waiting and self.chance(0.95):
            driver.answer(self.rng.choice(driver.waiting))
        else:
            self.let_time_pass(driver.waiting)

    def resume(self) -> None:
        """As an operator would: what failed is decided about, what is used up is raised."""
        driver, state = self.driver, self.driver.state
        driver.now += 1_000
        if state.held_steps and self.chance(0.6):
            action = self.rng.choice(["retry", "retry", "skip", "done", "fail"])
            step = self.rng.choice(sorted(state.held_steps))
            driver.advance(settle_held(state, step, action, driver.now, by="test", output=1))
            return
        raised: dict[str, Any] = {key: 10_000_000 for key in state.budget if key.startswith("max")}
        raised["steps"] = {
            step: {key: 10_000_000 for key in limits if key.startswith("max")}
            for step, limits in state.step_budgets.items()
        }
        resumed = ev.WorkflowResumed(reason="resume", by="test", budget=raised)
        moves = [*retry_all(state, driver.now, by="test"), resumed]
        if self.chance(0.5):
            self.begin_anew(moves)
        else:
            driver.advance(moves)

    def reply(self) -> None:
        request = self.rng.choice(list(self.driver.state.requests.values()))
        data = request.data
        self.driver.now += 1_000
        if isinstance(data, ev.ApprovalRequested):
            self.driver.advance(decided(request, granted=self.chance(0.7), by="test", via="api"))
            return
        if self.chance(0.15):
            moves = engine.commands.withdraw(self.driver.state, request.request_id, reason="no", by="test")
            self.driver.advance(moves)
            return
        value: dict[str, Any] = {"choice": self.rng.choice(["retry", "done", "fail"])}
        if data.request_type == "budget":
            value = {"choice": "fail"} if self.chance(0.3) else {"choice": "raise", "limit": 10_000_000}
        self.driver.advance(
            [
                ev.InputReceived(
                    step_id=data.step_id,
                    iteration=data.iteration,
                    activation=data.activation,
                    request_id=request.request_id,
                    value=value,
                    by="test",
                    via="api",
                )
            ]
        )

    def crash(self) -> None:
        """The process ends behind one of the last batches; what it was told since then is lost."""
        cut = self.rng.choice(self.marks[-3:])
        if self.driver.log[cut - 1][0].EVENT_TYPE != "workflow.paused":
            self.marks = [m for m in self.marks if m <= cut]
            self.driver.crash(cut)

    def begin_anew(self, moves: list[Any]) -> None:
        """As a supervisor that takes the run up again: fold, close what was interrupted, go on."""
        driver = self.driver
        driver.state = driver.refold()
        driver.waiting = []
        driver.advance(moves + engine.interrupted(driver.state, driver.now))

    def let_time_pass(self, waiting: list[OpenCall]) -> None:
        driver, state = self.driver, self.driver.state
        due = engine.next_due(state, driver.now)
        retries = any(key.startswith("retry") for key in state.timers)
        if not waiting and not retries:
            assert not state.requests, "only a person can move the run on, and it does not say so"
        assert waiting or due is not None, f"stuck: {state.status}, open {sorted(state.open)}"
        driver.now = driver.now + 700_000 if waiting or due is None else max(driver.now, due)
        driver.advance([])


def view(state: RunState) -> tuple[Any, ...]:
    """What must be the same however the state came about."""
    nodes = {
        i: (n.status, n.visits, n.arrived, n.live, n.slots, [a.key for a in n.ready or ()])
        for i, n in state.nodes.items()
    }
    queues = (list(state.activations), [a.key for a in state.arrived], list(state.call_queue), state.running)
    queues += (list(state.returning),)
    ended = (state.steps_done, state.usage, sorted(state.requests))
    at_work = [a for a in state.open.values() if a.has_slot and a.node.kind.takes_slot]
    assert len(at_work) == state.running, "a slot was lost, or given twice"
    limits = [name.partition(" ") for name in (*state.timers, *state.timers.paused)]
    left = [key for kind, _, key in limits if kind in ("deadline", "attempt", "retry")]
    assert set(left) <= set(state.open), "a time limit outlives its activation"
    return (state.status, state.next_offset, *ended, nodes, queues, dict(state.timers))


def check(driver: Driver) -> None:
    """The promises about a log that can be read off it."""
    assert [offset for _, offset, _ in driver.log] == list(range(len(driver.log)))
    opened: dict[str, tuple[str, int | None]] = {}
    completed: set[str] = set()
    begun: set[tuple[str, int | None]] = set()
    ended: set[tuple[str, int | None]] = set()
    costs: dict[tuple[str, int | None], Usage] = {}
    for data, offset, _ in driver.log:
        kind = data.EVENT_TYPE
        where = (getattr(data, "activation", None), getattr(data, "iteration", None))
        if kind.startswith("model.call_") and getattr(data, "usage", None):
            costs[where] = add_usage(costs.get(where, Usage()), data.usage)
        elif kind in ("agent.completed", "agent.failed"):
            paid = msgspec.structs.replace(data.usage, tool_calls=0)
            assert paid == costs.get(where, Usage()), f"{kind} of {where} counts other calls than its own"
        call = getattr(data, "model_call_id", None) or getattr(data, "tool_call_id", None)
        if where[1] is not None:
            assert (where[0], None) not in ended, f"{kind} of an iteration behind the end of its step"
        if kind in STARTS:
            assert call not in opened, f"{call} was begun twice"
            assert call not in completed, f"{call} has a result and was begun again"
            opened[call] = where
        elif kind in ENDS:
            del opened[call]
            if kind.endswith("completed"):
                completed.add(call)
        elif kind == "workflow.step_started":
            assert where not in begun | ended, f"{where} was started twice"
            begun.add(where)
        elif kind in STEP_ENDS:
            if where[1] is None:
                begun.add(where)
            assert where not in ended, f"{where} ended twice"
            assert where not in opened.values(), f"{where} ended with an open call"
            ended.add(where)
        elif kind in TERMINAL:
            assert offset == len(driver.log) - 1, "the terminal event is not the last"
            assert not opened, "the run ended with open calls"
            assert begun <= ended, "the run ended with open steps"


FAMILIES = {
    "ordinary": Family(),
    "cancelled": Family(cancel=0.02),
    "lost outcomes": Family(lost=0.3),
    "lost outcomes of narrow steps": Family(lost=0.3, narrow=1.0),
    "approvals": Family(approvals=0.6, lost=0.1, seeds=500),
    "approvals of a halting run": Family(approvals=0.6, halt=1.0, narrow=0.5, cancel=0.02),
    "approvals with time limits": Family(approvals=0.6, step_timeout=0.5, run_timeout=0.5),
    "holding": Family(hold=0.9, approvals=0.2, lost=0.1),
    "budgets": Family(budget=0.5, approvals=0.1),
    "pauses": Family(pause=0.05, approvals=0.2, hold=0.3, step_timeout=0.3),
    "halting": Family(halt=0.8, narrow=0.5),
    "unknown outcomes that fail": Family(lost=0.3, on_unknown_fail=1.0),
    "steps with a time limit": Family(step_timeout=0.5, narrow=0.5, seeds=500),
    "runs with a time limit": Family(run_timeout=0.5),
}


@pytest.mark.parametrize(
    ("family", "seed"),
    [("pauses", 5000031), ("pauses", 5000703), ("pauses", 5008638), ("budgets", 5005162)],
)
def test_a_deadline_that_decides_nothing_does_not_hold_up_the_next(family: str, seed: int):
    """A backoff that is over and has no slot, or the limit of what ended in a pause, is earlier than what
    moves the run."""
    Fuzz(seed, FAMILIES[family]).run()


@pytest.mark.parametrize("seeds", [80, pytest.param(None, marks=pytest.mark.slow)], ids=["some", "all"])
@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_every_run_ends_and_its_log_keeps_the_promises(family, seeds):
    seeds = seeds or family.seeds
    failures: dict[int, BaseException] = {}
    for seed in range(seeds):
        try:
            Fuzz(seed, family).run()
        except (AssertionError, LookupError, ValueError) as error:
            failures[seed] = error
    first = next(iter(failures.items()), None)
    assert first is None, f"{len(failures)} of {seeds} seeds fail; seed {first[0]}: {first[1]!r}"
