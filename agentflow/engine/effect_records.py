"""Records of effects: what a run asked of the world outside, and what came of it (page 003 §9).

EffectFold reads the events of a run and pairs each effect with its result. Fed with a recorded run it is the
index from which a replay is served; fed with the events of the replay it says what is asked now. Both
number effects alike, because both see the same kinds of events. Pure.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, cast

import msgspec
from msgspec import UNSET

from agentflow.definition.ir import NodeBase
from agentflow.engine.budgets import is_about_call
from agentflow.engine.effect_keys import EffectKey, OwnNames, input_hash
from agentflow.engine.graph import Graph, Node, compile_inner
from agentflow.engine.pipeline import graph_of_plan
from agentflow.engine.replay import BaseEvent
from agentflow.events import catalogue as ev

__all__ = ["WORK_EVENTS", "Effect", "EffectFold", "Record", "StepRecord"]

EffectKind = Literal["call", "answer", "timer"]
_Scope = tuple[EffectKind, str, "int | None"]
_Place = tuple[str, "int | None"]


class Effect(NamedTuple):
    """An effect that was asked for. `request` is what was resolved, without ids that each run has anew."""

    kind: EffectKind
    key: EffectKey
    request: Any
    spec: Any

    @property
    def place(self) -> tuple[EffectKind, str, int | None, int]:
        """Name of the effect, equal in a run and its replay."""
        return (self.kind, self.key.activation, self.key.iteration, self.key.ordinal)


class Record(NamedTuple):
    """A result: the event that closed the effect. `age` is the time since the run began (µs)."""

    effect: Effect | None
    end: Any
    offset: int
    age: int


class StepRecord:
    """A step as it began and ended; `gates` has what a gate decided after each firing of its timer, `child`
    the graph that became known with it and what that was bound to. `is_cut`: the run itself cancelled it."""

    __slots__ = ("age", "child", "effect", "end", "fired", "gates", "input", "is_cut", "offset", "ts")

    def __init__(self, effect: Effect, data: ev.WorkflowStepStarted, offset: int, age: int, ts: int) -> None:
        self.effect = effect
        self.input = data.input
        self.child = data.child
        self.ts = ts
        self.offset = offset
        self.age = age
        self.end: Record | None = None
        self.fired = 0
        self.is_cut = False
        self.gates: dict[int, Record] = {}


class EffectFold:
    """The effects of a run, in the order of its log."""

    def __init__(
        self,
        graph: Graph,
        run_id: str,
        base: Sequence[BaseEvent] = (),
        recorded: EffectFold | None = None,
    ) -> None:
        self.graph = graph
        self._made = OwnNames(run_id, None if recorded is None else recorded._made)
        self._nodes = dict(graph.all_nodes)
        """By id, with those of the plan of a request."""
        self._brought: dict[str, Mapping[str, Node]] = {}
        """By activation: the nodes of the graph that became known with it."""
        self.base = base
        self._age = 0
        self._last_ts = 0
        self._paused = False
        self._offered: dict[_Place, Any] = {}
        self._said: dict[_Place, tuple[str, list[Any]]] = {}  # a conversation's hash, and what is unsent
        self._sent: dict[str, tuple[_Place, str, list[Any]]] = {}  # by open call, as they were before it
        self._free: dict[_Scope, list[int]] = {}
        self._count: dict[_Scope, int] = {}
        self._last_call: dict[_Place, tuple[EffectKind, str, int | None, int]] = {}
        self.open: dict[str, Effect] = {}
        """By the id of the call or request, or the name of the timer."""
        self.records: dict[Any, Record] = {}
        """By the place of the effect."""
        self.delays: dict[Any, int] = {}
        """By the place of a failed call: the delay before the next attempt (ms)."""
        self.steps: dict[_Place, StepRecord] = {}
        self.refused: dict[_Place, ev.WorkflowStepFailed | ev.WorkflowStepSkipped] = {}
        """By the place of a step that ended before it began."""
        self.signals: list[Record] = []
        self.resumes: list[Record] = []
        self.ages: dict[int, int] = {}
        """By offset; events of the base have those below 0, in their order."""
        self.origins: dict[int, tuple[str, int]] = {}
        """By offset: the run and the offset there of an event of the base."""
        self.work: dict[_Place, list[Record]] = {}
        """By the place of a step whose work is a child run or a handler: what came of it, in its order."""
        self.open_work: dict[_Place, None] = {}

    def take(self, data: Any, offset: int, ts: int) -> None:
        """Take the next event of the run."""
        if isinstance(data, ev.WorkflowStarted):
            self._last_ts = ts
        elif isinstance(data, ev.SystemStateSaved) and data.kind == "fork_base":
            for place, event in enumerate(self.base, -len(self.base)):
                if event.origin is not None:
                    self.origins[place] = event.origin
                    self._made.names.add(event.origin[0])
                self._take(event.data, place, self._age)
        self._made.times.add(ts)
        # Time in which the run was paused, and a clock that was set back, do not age it.
        if not self._paused:
            self._age += max(0, ts - self._last_ts)
        self._last_ts = ts
        self._paused = isinstance(data, ev.WorkflowPaused) or (
            self._paused and not isinstance(data, ev.WorkflowResumed)
        )
        self._take(data, offset, self._age)

    def _take(self, data: Any, offset: int, age: int) -> None:
        self.ages[offset] = age
        self._made.take(data)
        if isinstance(data, WORK_EVENTS):
            self._worked(data, offset, age)
        take = _TAKE.get(data.__class__)
        if take is not None:
            take(self, data, offset, age)

    def node_of(self, activation: str, step_id: str) -> Node:
        """Return the node of an activation; other activations of the same id may be of other graphs."""
        end = activation.rfind(".") if self._brought else -1
        while end > 0:
            nodes = self._brought.get(activation[:end])
            if nodes is not None and step_id in nodes:
                return nodes[step_id]
            end = activation.rfind(".", 0, end)
        return self._nodes[step_id]

    # -- beginning ------------------------------------------------------------------------------

    def _begin(self, kind: EffectKind, name: str, data: Any, request: Any) -> None:
        scope = (kind, data.activation, data.iteration)
        free = self._free.get(scope)
        if free:
            ordinal = heapq.heappop(free)
        else:
            ordinal = self._count.get(scope, 0)
            self._count[scope] = ordinal + 1
        self.open[name] = self._effect(kind, data, ordinal, request)

    def _effect(self, kind: EffectKind, data: Any, ordinal: int, request: Any) -> Effect:
        spec = self.node_of(data.activation, data.step_id).spec
        request = self._made.hidden(request)
        key = EffectKey(data.activation, data.iteration, ordinal, input_hash(spec, request))
        return Effect(kind, key, request, spec)

    def hash_of(self, spec: NodeBase, request: Any) -> str:
        """Return the hash of what a node asks for now."""
        return input_hash(spec, self._made.hidden(request))

    def _initialized(self, data: ev.AgentInitialized, offset: int, age: int) -> None:
        self._offered[data.activation, data.iteration] = msgspec.to_builtins(data.tools)
        self._said.pop((data.activation, data.iteration), None)

    def _model_started(self, data: ev.ModelCallStarted, offset: int, age: int) -> None:
        place = (data.activation, data.iteration)
        before, unsent = self._said.get(place, ("", []))
        messages = [*unsent, *msgspec.to_builtins(data.messages)]
        request = {
            "provider": data.provider,
            "model": data.model,
            "parameters": data.parameters,
            "messages": messages,
            "conversation": before,
            "tools": self._offered.get(place),
        }
        self._sent[data.model_call_id] = (place, before, messages)
        self._begin("call", data.model_call_id, data, request)
        self._said[place] = (self.open[data.model_call_id].key.input_hash, [])

    def _tool_started(self, data: ev.ToolCallStarted, offset: int, age: int) -> None:
        self._begin("call", data.tool_call_id, data, {"tool": data.tool_name, "parameters": data.parameters})

    def _approval_requested(self, data: ev.ApprovalRequested, offset: int, age: int) -> None:
        self._begin("answer", data.request_id, data, _without_ids(data.subject))

    def _input_requested(self, data: ev.InputRequested, offset: int, age: int) -> None:
        if data.activation is not UNSET:
            request = {"request": _without_ids(data.request), "schema": data.response_schema}
            self._begin("answer", data.request_id, data, request)

    def _timer_scheduled(self, data: ev.TimerScheduled, offset: int, age: int) -> None:
        if data.activation is UNSET:
            return
        self._gate(data, offset, age)
        self._begin("timer", _timer(data), data, {"purpose": data.purpose})

    def _step_started(self, data: ev.WorkflowStepStarted, offset: int, age: int) -> None:
        effect = self._effect("call", data, 0, {"input": data.input})
        self.steps[data.activation, data.iteration] = StepRecord(effect, data, offset, age, self._last_ts)
        if data.child is not UNSET and "graph" in data.child and "workflow_id" not in data.child:
            graph = compile_inner(data.child["graph"], f"{data.step_id}/", self.graph)
            self._brought[data.activation] = graph.all_nodes
        kind = self.node_of(data.activation, data.step_id).kind
        if kind.starts_run or kind.sends:
            place = (data.activation, data.iteration)
            self.work[place] = []
            self.open_work[place] = None

    def _plan_compiled(self, data: ev.PlanCompiled, offset: int, age: int) -> None:
        self._nodes |= graph_of_plan(data.ir).all_nodes

    def _worked(self, data: Any, offset: int, age: int) -> None:
        """Keep what a child run or a handler gave; the questions of a child are asked by its step."""
        place = (data.activation, data.iteration)
        if place not in self.open_work or self._waits_for_call(data):
            return
        self.work[place].append(Record(None, data, offset, age))
        if isinstance(data, ev.WorkflowStepCompleted | ev.WorkflowStepFailed):
            del self.open_work[place]

    def _waits_for_call(self, data: Any) -> bool:
        """Return whether a handler waits for a larger budget, or for word of a lost call: a replay makes no
        call."""
        if not self.node_of(data.activation, data.step_id).kind.sends:
            return False
        return isinstance(data, ev.WorkflowStepWaiting) or is_about_call(data)

    # -- results --------------------------------------------------------------------------------

    def _end(self, name: str, data: Any, offset: int, age: int) -> None:
        effect, sent = self.open.pop(name, None), self._sent.pop(name, None)
        if effect is None:
            return
        if getattr(data, "will_retry", False) and data.error.category == "interrupted":
            # It is made again under the same ordinal: this was no complete record.
            scope = (effect.kind, effect.key.activation, effect.key.iteration)
            heapq.heappush(self._free.setdefault(scope, []), effect.key.ordinal)
            if sent is not None:
                self._said[sent[0]] = sent[1:]
            return
        self.records[effect.place] = Record(effect, data, offset, age)
        if effect.kind == "call":
            self._last_call[effect.key.activation, effect.key.iteration] = effect.place

    def _model_ended(self, data: Any, offset: int, age: int) -> None:
        self._end(data.model_call_id, data, offset, age)

    def _tool_ended(self, data: Any, offset: int, age: int) -> None:
        self._end(data.tool_call_id, data, offset, age)

    def _request_ended(self, data: Any, offset: int, age: int) -> None:
        self._end(data.request_id, data, offset, age)

    def _timer_ended(self, data: ev.TimerFired | ev.TimerCancelled, offset: int, age: int) -> None:
        if data.activation is UNSET:
            return
        self._end(_timer(data), data, offset, age)
        iteration = None if data.iteration is UNSET else data.iteration
        step = self.steps.get((data.activation, iteration))
        if step is not None and isinstance(data, ev.TimerFired):
            step.fired += 1

    def _gate(self, data: Any, offset: int, age: int) -> None:
        step = self.steps.get((data.activation, data.iteration))
        if step is not None:
            step.gates.setdefault(step.fired, Record(step.effect, data, offset, age))

    def _step_ended(
        self, data: ev.WorkflowStepFailed | ev.WorkflowStepSkipped, offset: int, age: int
    ) -> None:
        place = (data.activation, data.iteration)
        if place not in self.steps:
            self.refused[place] = data
        elif isinstance(data, ev.WorkflowStepFailed) and data.error.category == "cancelled":
            self.steps[place].is_cut = True

    def _step_completed(self, data: ev.WorkflowStepCompleted, offset: int, age: int) -> None:
        self._gate(data, offset, age)
        step = self.steps.get((data.activation, data.iteration))
        if step is not None:
            step.end = Record(step.effect, data, offset, age)

    def _retrying(self, data: ev.AgentRetrying | ev.WorkflowStepRetrying, offset: int, age: int) -> None:
        place = self._last_call.get((data.activation, data.iteration))
        if place is not None and data.kind in ("model", "tool"):
            self.delays[place] = data.delay_ms

    def _signal(self, data: ev.SignalReceived, offset: int, age: int) -> None:
        self.signals.append(Record(None, data, offset, age))

    def _resumed(self, data: ev.WorkflowResumed, offset: int, age: int) -> None:
        self.resumes.append(Record(None, data, offset, age))


def _timer(data: Any) -> str:
    key = data.activation if data.iteration is None else f"{data.activation}[{data.iteration}]"
    return f"timer {data.timer_id} {key}"


def _without_ids(value: Any) -> Any:
    """Return a question without the ids that differ from run to run."""
    if not isinstance(value, dict):
        return value
    given = cast("dict[str, Any]", value)
    return {name: member for name, member in given.items() if name not in ("tool_call_id", "idempotency_key")}


WORK_EVENTS = (
    ev.ApprovalRequested,
    ev.InputRequested,
    ev.ModelCallStarted,
    ev.ModelCallCompleted,
    ev.ModelCallFailed,
    ev.Output,
    ev.ToolCallStarted,
    ev.ToolCallCompleted,
    ev.ToolCallFailed,
    ev.WorkflowStepWaiting,
    ev.WorkflowStepRetrying,
    ev.WorkflowStepCompleted,
    ev.WorkflowStepFailed,
)
"""What a child run or the handler of an executor gives: of other steps these follow from decisions."""

_TAKE: dict[type, Callable[[EffectFold, Any, int, int], None]] = {
    ev.AgentInitialized: EffectFold._initialized,  # pyright: ignore[reportPrivateUsage]
    ev.ModelCallStarted: EffectFold._model_started,  # pyright: ignore[reportPrivateUsage]
    ev.ModelCallCompleted: EffectFold._model_ended,  # pyright: ignore[reportPrivateUsage]
    ev.ModelCallFailed: EffectFold._model_ended,  # pyright: ignore[reportPrivateUsage]
    ev.ToolCallStarted: EffectFold._tool_started,  # pyright: ignore[reportPrivateUsage]
    ev.ToolCallCompleted: EffectFold._tool_ended,  # pyright: ignore[reportPrivateUsage]
    ev.ToolCallFailed: EffectFold._tool_ended,  # pyright: ignore[reportPrivateUsage]
    ev.ApprovalRequested: EffectFold._approval_requested,  # pyright: ignore[reportPrivateUsage]
    ev.ApprovalGranted: EffectFold._request_ended,  # pyright: ignore[reportPrivateUsage]
    ev.ApprovalDenied: EffectFold._request_ended,  # pyright: ignore[reportPrivateUsage]
    ev.InputRequested: EffectFold._input_requested,  # pyright: ignore[reportPrivateUsage]
    ev.InputReceived: EffectFold._request_ended,  # pyright: ignore[reportPrivateUsage]
    ev.InputCancelled: EffectFold._request_ended,  # pyright: ignore[reportPrivateUsage]
    ev.TimerScheduled: EffectFold._timer_scheduled,  # pyright: ignore[reportPrivateUsage]
    ev.TimerFired: EffectFold._timer_ended,  # pyright: ignore[reportPrivateUsage]
    ev.TimerCancelled: EffectFold._timer_ended,  # pyright: ignore[reportPrivateUsage]
    ev.PlanCompiled: EffectFold._plan_compiled,  # pyright: ignore[reportPrivateUsage]
    ev.WorkflowStepStarted: EffectFold._step_started,  # pyright: ignore[reportPrivateUsage]
    ev.WorkflowStepCompleted: EffectFold._step_completed,  # pyright: ignore[reportPrivateUsage]
    ev.WorkflowStepFailed: EffectFold._step_ended,  # pyright: ignore[reportPrivateUsage]
    ev.WorkflowStepSkipped: EffectFold._step_ended,  # pyright: ignore[reportPrivateUsage]
    ev.AgentRetrying: EffectFold._retrying,  # pyright: ignore[reportPrivateUsage]
    ev.WorkflowStepRetrying: EffectFold._retrying,  # pyright: ignore[reportPrivateUsage]
    ev.SignalReceived: EffectFold._signal,  # pyright: ignore[reportPrivateUsage]
    ev.WorkflowResumed: EffectFold._resumed,  # pyright: ignore[reportPrivateUsage]
}
