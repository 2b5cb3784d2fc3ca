"""Seeded random graphs in which everything meets: executors and fan-ins, agents, child runs, openers of child
paths, people and timers, under both policies."""

from __future__ import annotations

import random
from typing import Any

import msgspec

from agentflow import engine
from agentflow.definition.conversation import Message, ToolCall
from agentflow.definition.ir import (
    AgentNode,
    AgentSpec,
    Approval,
    Edge,
    ExecutorNode,
    HumanNode,
    Options,
    Policy,
    SharedKey,
    SubgraphNode,
    Workflow,
)
from agentflow.definition.policy import Backoff, RetryPolicy
from agentflow.engine.child_runs import ChildReport, child_id_of
from agentflow.events import catalogue as ev
from tests.unit.engine.driver import MODEL, Fault, call, graph, tool
from tests.unit.engine.handlers import Context, Graph
from tests.unit.engine.kinds.random_graphs import INPUT, Fate, Maker, whole

__all__ = ["PAY", "Mixed", "agents_of", "mixed_graph"]

KINDS = ("executor", "executor", "fan", "agent", "agent", "child", "child", "person")


PAY = msgspec.structs.replace(tool("pay", side_effect="external", idempotent=False), declared=True)


class MixedMaker(Maker):
    """Makes blocks of the kinds whose work is done outside, too, and asks for consent here and there."""

    def block(self, after: str | None, depth: int) -> str:
        if self.rng.random() < 0.4:
            kind = self.rng.choice(KINDS)
            if kind != "person" or after is not None:
                return getattr(self, f"_{kind}")(after, depth)
        return super().block(after, depth)

    def _asked(self) -> dict[str, Any]:
        """Return the consent that a node needs, if it does."""
        if self.rng.random() > 0.15:
            return {}
        return {"approval": Approval(before="step", timeout=self.rng.choice([None, 5.0]))}

    def _leads(self, source: str, after: str | None, **more: Any) -> None:
        if after is not None:
            self.edges.append(Edge(source=source, target=after, **more))

    def _handled(self) -> str:
        more: dict[str, Any] = self._asked()
        if self.rng.random() < 0.3:
            retry = RetryPolicy(
                max_attempts=2, backoff=Backoff(initial=0.5), timeout=self.rng.choice([None, 3.0])
            )
            more["policy"] = Policy(retry=retry, timeout=self.rng.choice([None, 9.0]))
        if self.rng.random() < 0.2:
            more["on_error"] = "skip"
        name = self.name("executor")
        return self.add(ExecutorNode(id=name, executor=name, **more))

    def _executor(self, after: str | None, depth: int) -> str:
        name = self._handled()
        self._leads(name, after)
        return name

    def _fan(self, after: str | None, depth: int) -> str:
        """A fan-out to executors and the fan-in behind them."""
        rng, first, last = self.rng, self._handled(), self._handled()
        middle = [self._handled() for _ in range(rng.randint(2, 3))]
        group = f"fan {first}"
        joined: dict[str, Any] = {
            "on_missing": rng.choice(["partial", "partial", "wait", "fail"]),
            "quorum": rng.choice([None, None, 1, 2]),
            "timeout": rng.choice([None, 4.0]),
        }
        for name in middle:
            self.edges.append(Edge(source=first, target=name))
            self.edges.append(Edge(source=name, target=last, kind="fan_in", group=group, **joined))
        self._leads(last, after)
        return first

    def _agent(self, after: str | None, depth: int) -> str:
        rng, name, more = self.rng, self.name("agent"), self._asked()
        if rng.random() < 0.5:
            more = {"approval": Approval(before="calls")}
        if rng.random() < 0.3:
            retry = RetryPolicy(max_attempts=2, backoff=Backoff(initial=0.5))
            more["policy"] = Policy(retry=retry, timeout=rng.choice([None, 2.0]))
        spec = AgentSpec(name=name, system_prompt="p", model=MODEL, plain_result="object")
        return self.add(AgentNode(id=name, agent=spec, next=after, input=1, **more))

    def _child(self, after: str | None, depth: int) -> str:
        inner = graph(call("x", "__end"))
        more = {**self._asked(), **self._common()}
        node = SubgraphNode(
            id=self.name("child"), inline=inner, isolation="run", next=after, input=INPUT, **more
        )
        return self.add(node)

    def _person(self, after: str, depth: int) -> str:
        """A question that only an answer or its time ends."""
        more: dict[str, Any] = {"input_type": "text", "next": after}
        if self.rng.random() < 0.5:
            more = {"on_approve": after, "on_reject": after}
        if self.rng.random() < 0.3:
            more |= {"timeout": 6.0, "on_timeout": after}
        return self.add(HumanNode(id=self.name("person"), **more))


def mixed_graph(rng: random.Random, policy: Any) -> Workflow:
    """Return a graph with two ways from its start, so that its paths meet."""
    maker = MixedMaker(rng)
    start = maker.chain("__end", 2, rng.randint(2, 3))
    maker.edges.append(Edge(source="__start", target=maker.chain("__end", 1, rng.randint(1, 2))))
    options = Options(
        policy=policy,
        max_parallel=rng.choice([1, 1, 2, 8]),
        on_failure=rng.choice(["continue", "continue", "halt", "hold"]),
        max_steps=rng.choice([40, 1_000, 1_000]),
        timeout=rng.choice([None, None, None, 30.0]),
    )
    keys = {"log": SharedKey(reducer="append"), "own": SharedKey()}
    edges = tuple(maker.edges)
    return whole(maker.nodes, start, drain=rng.random() < 0.7, edges=edges, options=options, shared=keys)


class Mixed(Fate):
    """One seed: a graph, what its handlers, models, people and child runs do, and what befalls the run."""

    driver: Graph

    def __init__(self, seed: int, policy: str) -> None:
        self.rng = random.Random(f"{seed} {policy}")
        self.cancel = 0.01 if self.rng.random() < 0.1 else 0.0
        self.seed = seed
        workflow = mixed_graph(self.rng, policy)
        self.driver = Graph(
            workflow,
            INPUT,
            handlers={},
            model=self.say,
            call=lambda name, parameters: self.execute(),
            tools={name: [PAY] for name in agents_of(workflow)},
        )
        self.driver.handlers.update(dict.fromkeys(self.driver.plan.all_nodes, self.handle))

    def handle(self, ctx: Context) -> Any:
        """Send, write, ask or fail, as follows from the seed, the activation and the attempt."""
        dice = random.Random(f"{self.seed} {ctx.key} {ctx.attempt}")
        if dice.random() < 0.1:
            raise Fault("agent", "executor_failed")
        for _ in range(dice.choice([0, 1, 1, 1, 2])):
            ctx.send(dice.choice([1, 2, "x"]))
        if dice.random() < 0.3:
            ctx.write("log", ctx.key)
        if dice.random() < 0.05:
            ctx.write("own", dice.choice([1, ctx.node]))
        if dice.random() < 0.15 and not ctx.is_answer:
            ctx.ask("?", **dice.choice([{}, {"timeout": 6.0}, {"timeout": 6.0, "on_timeout": "late"}]))
        return 1

    def say(self, activation: Any, open_call: Any) -> Any:
        """Answer, ask for calls or fail."""
        dice = self.rng.random()
        if dice < 0.1:
            raise Fault("transient", "connection_failed")
        if dice < 0.5:
            return "{}"
        made = [
            ToolCall(id=f"{open_call.call_id}{i}", name="s__pay", arguments="{}")
            for i in range(self.rng.choice([1, 1, 2]))
        ]
        return Message(role="assistant", content="", tool_calls=tuple(made))

    def move(self) -> None:
        driver, state, rng = self.driver, self.driver.state, self.rng
        if self.befall():
            return
        found = driver.open_handlers()
        children = engine.open_children(state)
        choices = [
            *(["handler"] * 3 if found else []),
            *(["call"] * 3 if driver.waiting else []),
            *(["child"] * 2 if children else []),
            *(["person"] if self.own_requests() else []),
        ]
        match rng.choice(choices) if choices else "time":
            case "handler":
                driver.work(rng.choice(found))
            case "call":
                driver.answer(rng.choice(driver.waiting))
            case "child":
                self.report(rng.choice(sorted(children)))
            case "person":
                self.reply()
            case _:
                self.let_time_pass()

    def own_requests(self) -> list[Any]:
        """Return what the run itself asks; a child run closes what it asks."""
        asked = self.driver.state.requests.values()
        return [r for r in asked if not (r.activation.node.kind.starts_run and r.activation.phase == "open")]

    def let_time_pass(self) -> None:
        driver, state = self.driver, self.driver.state
        if driver.wait_for_backoff():
            return
        due = engine.next_due(state, driver.now)
        assert due is not None, f"stuck: {state.status}, open {sorted(state.open)}"
        driver.now = max(driver.now, due)
        driver.advance([])

    def report(self, key: str) -> None:
        """Let a child run work, ask, be answered, rest or end."""
        driver, state, rng = self.driver, self.driver.state, self.rng
        activation = state.open[key]
        asked = [r for r in state.requests.values() if r.activation is activation]
        status = rng.choice(["running", "waiting", "waiting", "paused", "completed", "completed", "failed"])
        requests = [r.data for r in asked if rng.random() < 0.5]
        decided = {r.request_id: "granted" for r in asked if r.data not in requests}
        if status == "waiting":
            requests.append(_question(key, state.next_offset))
        over = status in ("completed", "failed")
        driver.now += 1_000
        report = ChildReport(
            workflow_id=child_id_of(state, activation),
            key=key,
            status=status,
            output={"output": 1} if status == "completed" else None,
            requests=() if over else tuple(requests),
            decided=decided,
        )
        driver.advance(engine.reported(state, report, driver.now))

    def reply(self) -> None:
        """Decide, answer or withdraw one question."""
        driver, state, rng = self.driver, self.driver.state, self.rng
        request = rng.choice(self.own_requests())
        driver.now += 1_000
        if isinstance(request.data, ev.ApprovalRequested):
            granted = rng.random() < 0.8
            moves = engine.commands.decide_request(
                state, request_id=request.request_id, granted=granted, by="test"
            )
        elif rng.random() < 0.1:
            moves = engine.commands.withdraw(state, request.request_id, reason="no", by="test")
        else:
            outcome = {"choice": rng.choice(["retry", "done", "fail"])}
            value: Any = "yes" if not request.call_id else outcome
            moves = engine.commands.answer(state, {request.request_id: value}, by="test")
        driver.advance(moves)


def _question(key: str, number: int) -> ev.ApprovalRequested:
    return ev.ApprovalRequested(
        step_id="x",
        iteration=None,
        activation="/x#0",
        request_id=f"req_{key}_{number}",
        kind="tool",
        subject={},
        digest="sha256:0",
    )


def agents_of(workflow: Workflow, prefix: str = "") -> list[str]:
    """Return the ids of the agents, those of inline graphs too."""
    found: list[str] = []
    for node in workflow.nodes:
        if isinstance(node, AgentNode):
            found.append(prefix + node.id)
        elif isinstance(node, SubgraphNode) and node.inline is not None:
            found += agents_of(node.inline, f"{prefix}{node.id}/")
    return found
