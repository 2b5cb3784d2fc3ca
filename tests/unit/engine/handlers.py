"""Drives graphs of executors without actors: handlers are functions of the test.

A handler gets a Context, records what it sends, writes and asks there, and may raise. Which open handler
returns next is the test's to choose.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from agentflow import engine
from agentflow.definition.failure import ErrorInfo
from agentflow.definition.ir import Edge, EndNode, ExecutorNode, Options, StartNode, Workflow
from agentflow.engine import Outgoing, Question, StartHandler
from agentflow.engine.messages import type_of
from agentflow.engine.state import RunState
from agentflow.events import catalogue as ev
from agentflow.events.envelope import micros
from tests.unit.engine.driver import Driver, Fault

__all__ = ["Context", "Graph", "completed", "graph", "node"]


class Context:
    """What a handler sees, and where it says what came of it."""

    def __init__(self, run: Graph, key: str, attempt: int) -> None:
        state = run.state
        self.run = run
        self.key = key
        self.attempt = attempt
        self.activation = state.mail.open[key]
        self.node = self.activation.node.id
        self.input = self.activation.input
        self.taken = self.activation.taken
        self.shared = engine.shared_of(state, key)
        self.private = dict(state.shared.private.get(self.node, {}))
        self.messages: list[Outgoing] = []
        self.writes: list[tuple[str, Any]] = []
        self.kept: dict[str, Any] = {}
        self.requests: list[Question] = []
        self.result: Any = None

    @property
    def missing(self) -> tuple[str, ...]:
        return self.taken.missing if self.taken else ()

    @property
    def is_answer(self) -> bool:
        return self.taken is not None and self.taken.request_id is not None

    def send(self, payload: Any, target: str | None = None, type: str | None = None, **more: Any) -> None:
        tag = type or type_of(payload)
        self.messages.append(Outgoing(type=tag, payload=payload, target=target, **more))

    def write(self, key: str, value: Any) -> None:
        self.writes.append((key, value))

    def give(self, value: Any, kind: Any = "output") -> None:
        state = self.run.state
        moves = engine.handler_output(
            state, self.key, self.attempt, type=type_of(value), value=value, kind=kind
        )
        self.run.advance(moves)

    def ask(self, request: Any, **more: Any) -> str:
        self.requests.append(Question(request=request, response_type="str", **more))
        return engine.request_id_of(self.run.state, self.activation, len(self.requests) - 1)


Handler = Callable[[Context], Any]


def completed(state: RunState, context: Context, now: int) -> list[Any]:
    """Return the end of a handler that returned."""
    return engine.handler_completed(
        state,
        context.key,
        context.attempt,
        now=now,
        messages=context.messages,
        private=context.kept,
        shared=context.writes,
        requests=context.requests,
        output=context.result,
    )


def node(id: str, **more: Any) -> ExecutorNode:
    return ExecutorNode(id=id, executor=id, **more)


def graph(*nodes: Any, edges: Sequence[Any], start: str | None = None, **more: Any) -> Workflow:
    """A graph whose input goes to the first node. Edges are Edge values or (source, target)."""
    placed = [msgspec.structs.replace(n, index=i) for i, n in enumerate(nodes)]
    made = tuple(e if isinstance(e, Edge) else Edge(source=e[0], target=e[1]) for e in edges)
    begin = StartNode(id="__start", next=start or placed[0].id)
    end = EndNode(id="__end", index=len(placed), drain=True)
    options = more.pop("options", {})
    if isinstance(options, dict):
        options = Options(**{"policy": "superstep", "on_failure": "halt", **options})
    return Workflow(name="w", nodes=(begin, *placed, end), edges=made, options=options, **more)


class Graph(Driver):
    """One run of executors; `handlers` are by node id, one that is absent sends its input on."""

    def __init__(self, workflow: Workflow, input: Any = None, *, handlers: dict[str, Handler], **more: Any):
        self.handlers = handlers
        self.begun: list[StartHandler] = []
        self.seen: list[tuple[str, Any]] = []
        super().__init__(workflow, input, **more)

    def take(self, moves: list[Any]) -> None:
        batches = [*self.batches, len(self.log)] if moves else self.batches
        for data in moves:
            super().take([data])
            effect = engine.effect_of(data)
            if isinstance(effect, StartHandler):
                self._begin(effect)
        self.batches = batches

    def _begin(self, effect: StartHandler) -> None:
        if (effect.activation_key, effect.attempt) not in {(b.activation_key, b.attempt) for b in self.begun}:
            self.begun.append(effect)

    def open_handlers(self) -> list[StartHandler]:
        """Return the handlers that have begun and have not returned, whose backoff is over."""
        at_work = self.state.mail.open
        self.begun = [
            b
            for b in self.begun
            if b.activation_key in at_work and at_work[b.activation_key].attempt == b.attempt
        ]
        return [b for b in self.begun if b.due_at is None or micros(b.due_at) <= self.now]

    def work(self, effect: StartHandler, draw: float = 0.0) -> None:
        """Run one handler and fold what came of it."""
        self.begun.remove(effect)
        self.now += 1000
        key, attempt = effect.activation_key, effect.attempt
        context = Context(self, key, attempt)
        self.seen.append((key, context.input))
        handler = self.handlers.get(context.node, lambda ctx: ctx.send(ctx.input))
        try:
            context.result = handler(context)
        except Fault as fault:
            self.advance(engine.handler_failed(self.state, key, attempt, fault.info, now=self.now, draw=draw))
            return
        self.complete(context)

    def complete(self, context: Context) -> None:
        """Fold the end of a handler that returned."""
        self.advance(completed(self.state, context, self.now))

    def go(self, choose: Callable[[list[StartHandler]], StartHandler] = lambda found: found[0]) -> Graph:
        """Until nothing moves any more; time jumps when only a timer is left."""
        for _ in range(5_000):
            if found := self.open_handlers():
                self.work(choose(found))
            elif self.waiting:
                self.answer(self.waiting[0])
            elif not self.wait_for_backoff():
                return self
        raise AssertionError("the run does not end")

    def wait_for_backoff(self) -> bool:
        """Let time jump to the next backoff's end; False if none is under way.

        A deadline that falls due before may end the run or pause it.
        """
        due = [micros(b.due_at) for b in self.begun if b.due_at is not None]
        if not due or self.state.terminal or self.state.status == "paused":
            return False
        self.now = max(self.now, min(due))
        self.advance([])
        return True

    def pass_time(self, seconds: float) -> None:
        self.now += round(seconds * 1e6)
        self.advance([])

    def reply(self, value: Any, request_id: str | None = None) -> None:
        """Answer an open request, the oldest if none is named."""
        wanted = request_id or next(iter(self.state.requests))
        self.advance(engine.commands.answer(self.state, {wanted: value}, by="test"))

    def crash(self, upto: int | None = None) -> None:
        """As a new process: fold the log, close what was interrupted, and run open handlers again."""
        self.begun = []
        super().crash(upto)
        for effect in engine.open_handlers(self.state):
            self._begin(effect)

    # -- what a test asks for

    def order(self) -> list[str]:
        return [data.activation for data in self.events(ev.WorkflowStepStarted)]

    def inputs(self, node_id: str) -> list[Any]:
        return [d.input for d in self.events(ev.WorkflowStepStarted) if d.step_id == node_id]

    def undelivered(self) -> list[tuple[str, str]]:
        return [(d.activation, d.reason) for d in self.events(ev.MessageUndelivered)]

    def outputs(self) -> list[Any]:
        return [o.value for o in engine.outputs_of(self.state)]

    def error(self) -> ErrorInfo:
        assert self.state.error is not None
        return self.state.error
