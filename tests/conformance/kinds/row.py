"""One row of page 003 §4: a node in a document, what the world answers, and what must come of it.

The node under test has the id `n`. Targets that no node of the row has become `transform` nodes that give
their own id, so that the output of the run names the way that was taken.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from agentflow import engine
from agentflow.definition import load_value
from agentflow.definition.conversation import Message, ToolCall
from agentflow.definition.ir import Workflow
from agentflow.events import catalogue as ev
from tests.unit.engine.driver import Fault, tool
from tests.unit.engine.handlers import Graph

__all__ = ["ANY", "ROWS", "Play", "Row", "asks_for", "boom", "row"]

ANY: Any = msgspec.UNSET
"""A value that a row does not state."""
_TIMES = frozenset({"at", "due_at", "fired_at", "waited_ms"})
_TARGETS = (
    *("next", "on_true", "on_false", "default", "body", "on_limit", "on_miss", "on_suppressed"),
    *("on_throttled", "on_compensated", "on_approve", "on_reject", "on_timeout", "on_mismatch"),
)


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A row. Of `ANY` nothing is said; `failed` is the code with which the node fails."""

    kind: str
    name: str
    node: dict[str, Any]
    others: tuple[dict[str, Any], ...] = ()
    top: dict[str, Any] = {}
    input: Any = None
    calls: dict[str, list[Any]] = {}
    """What a function gives at each call, by name; the last one again and again."""
    said: tuple[Any, ...] = ()
    """What the model says, turn by turn."""
    handler: Any = None
    answers: dict[str, Any] = {}
    """What a person answers, by step; a boolean decides an approval."""
    signals: tuple[tuple[str, Any], ...] = ()
    out: Any = ANY
    way: Any = ANY
    """The output of the run: of a row with targets, the way that was taken."""
    failed: str | None = None
    category: str | None = None
    details: Any = ANY
    events: tuple[str, ...] | None = None
    """The types of the events of the node's last activation."""
    view: dict[str, Any] = {}
    """Members of `nodes.n` beside its output."""
    visits: int | None = None
    policies: tuple[str, ...] = ("eager", "superstep")

    def document(self, policy: str) -> dict[str, Any]:
        """Return the document: a start, the node, its targets, an end."""
        node = {"id": "n", "type": self.kind, **self.node}
        given = [] if self.kind in ("start", "end") else [node]
        given += self.others
        known = {one["id"] for one in given} | {"start", "end"}
        for target in _targets(node):
            if target not in known:
                known.add(target)
                given.append({"id": target, "type": "transform", "value": target, "next": "end"})
        first = {"id": "start", "type": "start", "next": "n"}
        if self.kind == "start":
            first |= {"next": "done"} | self.node
        last = {"id": "end", "type": "end", **(self.node if self.kind == "end" else {})}
        if self.kind == "end":
            first["next"] = "before" if any(one["id"] == "before" for one in given) else "end"
        if any(one["id"] == "first" for one in given):
            first["next"] = "first"
        options = {"policy": policy, **self.top.get("options", {})}
        return {"name": "w", **self.top, "options": options, "nodes": [first, *given, last]}

    def workflow(self, policy: str) -> Workflow:
        """Return the graph of the document."""
        return load_value(self.document(policy)).workflow  # type: ignore[return-value]


def _targets(node: dict[str, Any]) -> Iterator[str]:
    for field in _TARGETS:
        if isinstance(node.get(field), str):
            yield node[field]
    for route in node.get("routes", ()):
        yield route["next"]
    yield from node.get("branches", ())


ROWS: list[Row] = []


def row(kind: str, name: str, node: dict[str, Any] | None = None, **more: Any) -> None:
    """Add a row to the table."""
    ROWS.append(Row(kind=kind, name=name, node=node or {}, **more))


def boom(code: str = "boom", category: str = "tool", *, unknown: bool = False) -> Fault:
    """Return a failure of a function or a model that the world makes."""
    return Fault(category, code, unknown=unknown)


def asks_for(name: str = "s__call", arguments: str = "{}", number: int = 1) -> Message:
    """Return an answer of a model that calls functions."""
    calls = tuple(ToolCall(id=f"c{i}", name=name, arguments=arguments) for i in range(number))
    return Message(role="assistant", content="", tool_calls=calls)


class Play(Graph):
    """The run of a row. What the world gives depends on the log alone: it is the same after a crash."""

    def __init__(self, row: Row, policy: str, workflow: Workflow | None = None) -> None:
        self.row = row
        self.policy = policy
        self.bounds: list[int] = []
        """The lengths of the log before each batch, which a store keeps whole or not at all."""
        workflow = workflow or row.workflow(policy)
        tools: dict[str, Any] = {}
        for node in workflow.nodes:
            names = [one for one in getattr(node, "tools", ()) or () if isinstance(one, str)]
            spec = getattr(node, "agent", None)
            if not names and spec is not None and hasattr(spec, "functions"):
                names = [f"{ref.service}.{ref.function}" for ref in spec.functions or ()]
            if names:
                tools[node.id] = [tool(one.rpartition(".")[2], schema={"type": "object"}) for one in names]
        super().__init__(
            workflow,
            row.input,
            handlers={"n": row.handler} if row.handler is not None else {},
            tools=tools,
            model=self._say,
            call=self._call,
        )

    def advance(self, moves: list[Any]) -> None:
        """Fold and decide; of several open calls that of the first activation is answered next."""
        super().advance(moves)
        self.waiting.sort(key=lambda call: (call.activation.key, call.activation.iteration or 0))

    def take(self, moves: list[Any]) -> None:
        """Fold a batch."""
        self.bounds.append(len(self.log))
        super().take(moves)

    def _call(self, name: str, parameters: Any) -> Any:
        given = self.row.calls.get(name.removeprefix("s__"))
        if given is None:
            return parameters
        ended = [d for d, _, _ in self.log if isinstance(d, ev.ToolCallCompleted | ev.ToolCallFailed)]
        made = sum(1 for d in ended if self._is_of(d, name))
        found = given[min(made, len(given) - 1)]
        if isinstance(found, Fault):
            raise found
        return found(parameters) if callable(found) else found

    def _is_of(self, data: Any, name: str) -> bool:
        if isinstance(data, ev.ToolCallFailed) and data.error.code == "interrupted":
            return False
        return data.tool_name == name

    def _say(self, activation: Any, call: Any) -> Any:
        ended = self.events(ev.ModelCallCompleted) + self.events(ev.ModelCallFailed)
        own = [d for d in ended if d.step_id == activation.node.id]
        made = sum(
            1 for d in own if not (isinstance(d, ev.ModelCallFailed) and d.error.code == "interrupted")
        )
        found = self.row.said[min(made, len(self.row.said) - 1)]
        if isinstance(found, Fault):
            raise found
        return found

    def play(self) -> Play:
        """Go on until the run ends: answer, signal, let time pass."""
        for _ in range(2_000):
            self.go()
            state = self.state
            if state.terminal:
                return self
            if self._answer() or self._signal():
                continue
            due = engine.next_due(state, self.now)
            assert due is not None, f"the run stands still: {state.status}"
            self.now = max(self.now, due)
            self.advance([])
        raise AssertionError("the run does not end")

    def _answer(self) -> bool:
        for request in self.state.requests.values():
            step = request.activation.node.id
            if step not in self.row.answers:
                continue
            value = self.row.answers[step]
            self.now += 1_000
            if isinstance(value, bool):
                decide = engine.commands.decide_request
                self.advance(decide(self.state, request_id=request.request_id, granted=value, by="ada"))
            else:
                self.advance(engine.commands.answer(self.state, {request.request_id: value}, by="ada"))
            return True
        return False

    def _signal(self) -> bool:
        sent = len(self.events(ev.SignalReceived))
        if sent >= len(self.row.signals):
            return False
        name, data = self.row.signals[sent]
        self.now += 1_000
        self.advance(engine.commands.signal(self.state, f"sig_{sent}", name, data))
        return True

    def after_crash(self, cut: int) -> Play:
        """Return a process that finds the first `cut` events of this run, at the time of the last of them."""
        other = Play(self.row, self.policy, self.workflow)
        other.log, other.accesses, other.asked_at = self.log[:cut], self.accesses[:], self.asked_at[:]
        other.bounds = [one for one in self.bounds if one < cut]
        other.forget_accesses(cut)
        other.now = other.log[-1][2]
        other.crash(cut)
        return other

    # -- what came of it

    def ends(self) -> list[Any]:
        """Return the ends of the node's activations."""
        kinds = (ev.WorkflowStepCompleted, ev.WorkflowStepFailed)
        return [d for d, _, _ in self.log if isinstance(d, kinds) and d.step_id == "n"]

    def outcome(self) -> dict[str, Any]:
        """Return what must be the same however often the process died."""
        ended = [(d.step_id, d.iteration) for d in self.events(ev.WorkflowStepCompleted)]
        failed = [(d.step_id, d.error.code) for d in self.events(ev.WorkflowStepFailed)]
        return {
            "status": self.state.status,
            "output": timeless(self.state.output),
            "error": None if self.state.error is None else self.state.error.code,
            "completed": sorted(ended, key=repr),
            "failed": sorted(failed),
            "way": [getattr(d, "next", None) for d in self.ends()],
            "out": [timeless(d.output) for d in self.ends() if isinstance(d, ev.WorkflowStepCompleted)],
        }


def timeless(value: Any) -> Any:
    """Return a value without the times in it."""
    if isinstance(value, dict):
        return {k: timeless(v) for k, v in value.items() if k not in _TIMES}
    return [timeless(one) for one in value] if isinstance(value, list) else value
