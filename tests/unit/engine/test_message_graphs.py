"""Random graphs of executors under both policies, with failures, crashes, answers, time and cancels.

Whatever happens: asked twice the engine decides the same (the driver checks it), folded again the log gives
the same state, every run ends, and the log is legal. Under `superstep` nothing depends on the order in which
handlers return.
"""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from agentflow import engine
from agentflow.definition.graph import SharedKey
from agentflow.definition.ir import Approval, Edge, Options, Policy, Workflow
from agentflow.definition.policy import Backoff, RetryPolicy
from agentflow.engine.held_steps import retry_all, settle_held
from agentflow.engine.state import RunState
from agentflow.events import catalogue as ev
from tests.unit.engine.driver import Fault
from tests.unit.engine.handlers import Context, Graph, graph, node
from tests.unit.engine.test_fuzz import check

SEEDS = 150
MANY = 12_000
TYPES = ("int", "str")


def view(state: RunState) -> tuple[Any, ...]:
    """What must be the same however the state came about."""
    places = {
        i: (n.status, n.visits, n.arrived, n.live, [a.key for a in n.turns.waiting] if n.turns else [])
        for i, n in state.nodes.items()
    }
    rounds = [
        (i, held.live, held.charged, held.closed, [(a, m.number) for a, m in held.left()])
        for i, held in state.root.rounds.items()
    ]
    mail = state.mail
    queue = [(q.node.id, q.payload, q.order) for q in mail.queue]
    since = sorted(mail.since_outside.items())
    counters = (mail.superstep, mail.stepping, since, sorted(mail.told), mail.fatal)
    shared = (state.shared.values, state.shared.version, state.shared.private, state.shared.pending)
    handlers = {k: (a.attempt, a.local.base, a.local.due_at) for k, a in mail.open.items()}
    ended = (state.steps_done, sorted(state.requests), list(state.activations), state.root.live)
    return (
        state.status, state.next_offset, ended, places, rounds, queue, counters, shared, handlers,
        [a.key for a in mail.inbox], dict(state.timers), [o.value for o in engine.outputs_of(state)],
        sorted(state.root.due),
    )  # fmt: skip


def random_graph(rng: random.Random, policy: str, *, timers: bool) -> Workflow:
    """Return a small graph: chains, cycles, groups of every kind, joins, error edges, retries, approvals."""
    count = rng.randint(2, 6)
    names = [f"n{i}" for i in range(count)]
    edges: list[Edge] = []
    for kind in rng.choices(
        ["single", "single", "fan_out", "switch", "multi", "fan_in", "error"], k=count + 1
    ):
        edges += _group(rng, kind, names, len(edges))
    if not timers:
        edges = [msgspec.structs.replace(edge, timeout=None) for edge in edges]
    nodes = [_node(rng, name, timers=timers) for name in names]
    keys = {
        "log": SharedKey(reducer="append"),
        "sum": SharedKey(reducer="add", default=0),
        "own": SharedKey(),
    }
    options = Options(
        policy=policy,  # type: ignore[arg-type]
        on_failure=rng.choice(["halt", "continue", "continue", "hold"]),
        on_undelivered=rng.choice(["record", "record", "record", "fail"]),
        max_iterations=rng.choice([None, 8]) if policy == "superstep" else None,
        max_steps=rng.choice([12, 40]),
    )
    return graph(*nodes, edges=edges, options=options, shared=keys)


def _node(rng: random.Random, name: str, *, timers: bool) -> Any:
    more: dict[str, Any] = {}
    if timers and rng.random() < 0.3:
        retry = RetryPolicy(max_attempts=3, backoff=Backoff(initial=0.5), timeout=rng.choice([None, 3.0]))
        more["policy"] = Policy(retry=retry, timeout=rng.choice([None, 9.0]))
    if timers and rng.random() < 0.1:
        more["approval"] = Approval(before="step", timeout=rng.choice([None, 5.0]))
    if rng.random() < 0.15:
        more["on_error"] = "skip"
    if rng.random() < 0.15:
        more["accepts"] = (rng.choice(TYPES), "list")
    return node(name, required=rng.random() < 0.9, **more)


def _group(rng: random.Random, kind: Any, names: list[str], number: int) -> list[Edge]:
    a, b = rng.choice(names), rng.choice(names)
    when = rng.choice([None, "message != 2", "state.sum < 5", "message > 'x'"])
    if kind in ("single", "error") or len(names) < 3:
        kind = kind if kind in ("single", "error") else "single"
        return [
            Edge(source=a, target=b, kind=kind, name=f"e{number}", when=when if kind == "single" else None)
        ]
    ends = rng.sample(names, rng.randint(2, min(3, len(names))))
    group = f"g{number}"
    if kind == "fan_in":
        more: dict[str, Any] = {"on_missing": rng.choice(["partial", "partial", "wait", "fail"])}
        more |= {"quorum": rng.choice([None, None, 1, 2]), "timeout": rng.choice([None, None, 4.0])}
        return [
            Edge(source=s, target=b, kind="fan_in", group=group, name=f"e{number}{s}", **more) for s in ends
        ]
    found = [Edge(source=a, target=t, kind=kind, group=group, name=f"e{number}{t}") for t in ends]
    if kind == "switch":
        case = when or "message == 1"
        return [*(msgspec.structs.replace(edge, when=case) for edge in found[:-1]), found[-1]]
    if kind == "multi":
        return [
            Edge(source=a, target=e.target, kind=kind, group=group, name=e.name, selection="pick")
            for e in found
        ]
    return found


class World:
    """One seed: a graph, what its handlers do (by activation and attempt alone), and what befalls the run."""

    driver = Graph

    def __init__(self, seed: int, policy: str, *, calm: bool = False, order: int = 0) -> None:
        self.seed = seed
        self.rng = random.Random(f"{seed} {policy}")
        workflow = random_graph(self.rng, policy, timers=not calm)
        self.order = random.Random(order)
        self.calm = calm
        self.run = self.driver(workflow, 1, handlers={n.id: self.handle for n in workflow.nodes})
        self.marks: list[int] = []
        self.is_cancelling = False

    def handle(self, ctx: Context) -> Any:
        """Do what follows from the seed and the activation, whenever it is done."""
        dice = random.Random(f"{self.seed} {ctx.key} {ctx.attempt} {ctx.input}")
        for i in range(dice.choice([0, 0, 1])):
            ctx.give(f"{ctx.key}.{i}")
        if dice.random() < 0.12:
            raise Fault("agent", "executor_failed")
        for _ in range(dice.choice([0, 1, 1, 1, 2])):
            payload = dice.choice([1, 2, 3, "x"])
            picked = {e.target.id for r in ctx.activation.node.routes if r.kind == "multi" for e in r.edges}
            ctx.send(payload, verdicts={}, selections=self.pick(ctx, dice, payload, sorted(picked)))
        for key in dice.choice([(), (), ("log",), ("sum", "log")]):
            ctx.write(key, ctx.key if key == "log" else 1)
        if dice.random() < 0.05:
            ctx.write("own", dice.choice([1, ctx.node]))
        ctx.kept = {"seen": ctx.private.get("seen", 0) + 1}
        if dice.random() < 0.1 and not self.calm and not ctx.is_answer:
            more = {"timeout": 6.0} if dice.random() < 0.5 else {}
            if more and dice.random() < 0.5:
                more["on_timeout"] = "late"
            ctx.ask("?", **more)
        return ctx.shared.get("sum")

    def pick(self, ctx: Context, dice: random.Random, payload: Any, targets: list[str]) -> dict[str, Any]:
        if not targets:
            return {}
        offer = engine.offered(
            ctx.activation.node, engine.Outgoing(type=type(payload).__name__, payload=payload)
        )
        return {"pick": [t for t in offer["pick"] if dice.random() < 0.7]}

    def go(self) -> Graph:
        run = self.run
        for turn in range(2_000):
            if turn % 8 == 0:
                assert view(run.state) == view(run.refold())
            if run.state.terminal:
                check(run)
                assert view(run.state) == view(run.refold())
                return run
            self.move()
            self.marks.append(len(run.log))
        raise AssertionError("the run does not end")

    def move(self) -> None:
        run, state = self.run, self.run.state
        if self.is_cancelling:
            moves = engine.cancel_finished(state, run.now, forced=False)
            self.run.begun = []
            run.advance(moves)
            return
        if not self.calm and self.befall():
            return
        if state.status == "paused":
            self.settle()
        elif found := run.open_handlers():
            run.work(self.order.choice(found))
        elif run.wait_for_backoff():
            pass
        elif state.requests and (self.calm or self.rng.random() < 0.6):
            self.answer()
        elif (due := engine.next_due(state, run.now)) is not None:
            run.now = max(run.now, due)
            run.advance([])
        elif state.requests:
            self.answer()
        else:
            raise AssertionError(f"stuck: {state.status}, open {sorted(state.open)}")

    def befall(self) -> bool:
        """Let a crash, a cancel or time come between; False if nothing does."""
        run, dice = self.run, self.rng.random()
        if dice < 0.06 and self.marks:
            cut = self.rng.choice(self.marks[-3:])
            if run.log[cut - 1][0].EVENT_TYPE != "workflow.paused":
                self.marks = [m for m in self.marks if m <= cut]
                run.crash(cut)
                return True
        if dice > 0.995:
            request = ev.WorkflowCancelRequested(mode="soft", reason="enough", by="test", grace_ms=0)
            run.advance([request])
            self.is_cancelling = True
            return True
        if 0.9 < dice < 0.95:
            run.pass_time(self.rng.choice([0.2, 2.0]))
            return True
        return False

    def settle(self) -> None:
        run, state = self.run, self.run.state
        if not state.held_steps:
            run.advance([ev.WorkflowResumed(reason="operator", by="test")])
            return
        if not self.calm and self.rng.random() < 0.3:
            run.advance(
                [*retry_all(state, run.now, by="test"), ev.WorkflowResumed(reason="retry", by="test")]
            )
            return
        action = "fail" if self.calm else self.rng.choice(["retry", "skip", "done", "fail", "fail"])
        step = self.rng.choice(list(state.held_steps))
        run.advance(settle_held(state, step, action, run.now, by="test", output=1))  # type: ignore[arg-type]

    def answer(self) -> None:
        run, state = self.run, self.run.state
        request = next(iter(state.requests.values()))
        if isinstance(request.data, ev.ApprovalRequested):
            granted = self.calm or self.rng.random() < 0.8
            request_id = request.request_id
            run.advance(engine.commands.decide_request(state, request_id=request_id, granted=granted, by="t"))
        elif self.calm or self.rng.random() < 0.8:
            run.reply("yes", request.request_id)
        else:
            run.advance(engine.commands.withdraw(state, request.request_id, reason="no", by="test"))


def drive_seeds(seeds: range, policy: str) -> None:
    failures: dict[int, BaseException] = {}
    for seed in seeds:
        try:
            World(seed, policy).go()
        except (AssertionError, LookupError, ValueError, engine.IllegalEvent) as error:
            failures[seed] = error
    first = next(iter(failures.items()), None)
    assert first is None, f"{len(failures)} of {len(seeds)} seeds fail; seed {first[0]}: {first[1]!r}"


@pytest.mark.parametrize("policy", ["superstep", "eager"])
def test_every_run_of_messages_ends_and_its_log_keeps_the_promises(policy: str):
    drive_seeds(range(SEEDS), policy)


def test_a_run_that_pauses_in_a_backoff_goes_on():
    World(5013269, "eager").go()


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["superstep", "eager"])
def test_many_runs_of_messages_end(policy: str):
    drive_seeds(range(SEEDS, MANY), policy)


def outcome(run: Graph) -> Any:
    """What must not depend on latencies."""
    ends = [d for d in run.events(ev.WorkflowStepCompleted) if d.messages]
    sent = sorted((d.activation, d.messages, d.state) for d in ends)
    undelivered = sorted(run.undelivered())
    return run.state.status, sent, undelivered, run.state.shared.values, run.outputs(), run.state.output


def compare_orders(seeds: range) -> None:
    for seed in seeds:
        found = [outcome(World(seed, "superstep", calm=True, order=order).go()) for order in range(3)]
        assert found[0] == found[1] == found[2], f"seed {seed}"


def test_supersteps_give_the_same_whatever_the_order_of_the_answers():
    compare_orders(range(100))


@pytest.mark.slow
def test_supersteps_give_the_same_in_many_graphs():
    compare_orders(range(100, 4_000))
