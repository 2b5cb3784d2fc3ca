"""The state of one run: what folding its log gives. Only `evolve` changes it; nothing of it is ever saved."""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from agentflow.definition.conversation import Usage
from agentflow.definition.failure import ErrorInfo
from agentflow.engine.activation import NO_USAGE, Activation
from agentflow.engine.bindings import Bindings
from agentflow.engine.frames import ABSENT, Frame, Root
from agentflow.engine.mail import Mail
from agentflow.engine.path import NodeState, Path
from agentflow.engine.run_memory import RunMemory
from agentflow.engine.shared_state import SharedState
from agentflow.events.catalogue import (
    ApprovalRequested,
    InputRequested,
    SignalReceived,
    TimerScheduled,
    WorkflowCancelRequested,
    WorkflowStarted,
)

if TYPE_CHECKING:
    from agentflow.engine.graph import Graph, Node
    from agentflow.engine.pipeline import PipelineState
    from agentflow.engine.replay import BaseEvent

__all__ = ["RESUME", "OpenCall", "OpenRequest", "RunState", "RunStatus", "Timers"]

RunStatus = Literal["pending", "running", "waiting", "paused", "completed", "failed", "cancelled"]

RESUME = "resume"
"""The timer at which a run that a provider's quota paused goes on."""

TERMINAL_RUN = frozenset({"completed", "failed", "cancelled"})


class OpenCall:
    """A call that the log says was begun and that has no recorded end."""

    __slots__ = (
        "activation",
        "call_id",
        "charged",
        "cost",
        "input_tokens",
        "kind",
        "model",
        "offset",
        "output_tokens",
        "parameters",
        "tokens",
    )

    def __init__(
        self, kind: Literal["model", "tool"], call_id: str, activation: Activation, offset: int
    ) -> None:
        self.kind: Literal["model", "tool"] = kind
        self.call_id = call_id
        self.activation = activation
        self.offset = offset
        self.tokens = 0  # reserved for it: those read and those written
        self.input_tokens = 0
        self.output_tokens = 0
        self.cost: float | None = None  # US dollars reserved; None if a price is unknown
        self.model = ""  # `provider:model`
        self.charged = True  # False: another run pays for it, of which this one is a fork
        self.parameters: dict[str, Any] = {}  # as they were sent


class OpenRequest:
    """A question to a person: whether work may be done, or what to do about a call whose outcome is
    unknown. `call_id` is the call in question, "" for a whole step."""

    __slots__ = ("activation", "call_id", "data", "offset", "request_id", "ts")

    def __init__(
        self,
        request_id: str,
        activation: Activation,
        call_id: str,
        data: InputRequested | ApprovalRequested,
        offset: int,
        ts: int,
    ) -> None:
        self.request_id = request_id
        self.activation = activation
        self.call_id = call_id
        self.data = data
        self.offset = offset
        self.ts = ts


class Timers(dict[str, int]):
    """Deadlines by name, in microseconds since the epoch; `earliest` costs no scan of all.

    `moments` names those that are times of the wall clock and no distances: a step of it does not move them.
    """

    __slots__ = ("_heap", "moments", "paused")

    def __init__(self) -> None:
        super().__init__()
        self._heap: list[tuple[int, str]] = []
        self.moments: dict[str, None] = {}
        self.paused: dict[str, int] = {}
        """What was left of the time limits when the run was paused (µs)."""

    def __setitem__(self, name: str, due: int) -> None:
        super().__setitem__(name, due)
        heapq.heappush(self._heap, (due, name))

    def earliest(self) -> int | None:
        """Return when the next deadline falls due; None if there is none."""
        heap = self._heap
        while heap:
            due, name = heap[0]
            if self.get(name) == due:
                return due
            heapq.heappop(heap)
        return None

    def shift(self, step: int) -> None:
        """Move every deadline but the moments by `step` microseconds."""
        for name, due in list(self.items()):
            if name not in self.moments:
                self[name] = due + step

    def disarm(self, name: str) -> None:
        """Forget a deadline, also while the run is paused: its end must not arm it again."""
        self.pop(name, None)
        self.paused.pop(name, None)

    def hold(self, names: list[str], now: int) -> dict[str, int]:
        """Disarm these deadlines; return what is left of each, in microseconds."""
        left = {name: max(0, self.pop(name) - now) for name in names if name in self}
        return left | {name: self.paused.pop(name) for name in names if name in self.paused}

    def release(self, left: dict[str, int], now: int) -> None:
        """Arm again what `hold` returned."""
        for name, rest in left.items():
            self[name] = now + rest

    def pause(self, names: list[str], now: int) -> None:
        """Let these deadlines stand still until `resume`."""
        self.paused |= self.hold(names, now)

    def resume(self, now: int) -> None:
        """Arm again what stands still."""
        self.release(self.paused, now)
        self.paused = {}


class ReadyQueue:
    """Activations that wait for a slot. Turns go round the nodes in declared order, so that a wide for_each
    starves no sibling; a turn costs the logarithm of the number of nodes that have one waiting.

    One activation that waits alone, as in a chain, is kept by itself.
    """

    __slots__ = ("_order", "alone", "last_slot", "nodes")

    def __init__(self) -> None:
        self._order: list[tuple[int, str]] = []  # (index, path) of the nodes that may have the next slot
        self.nodes: dict[tuple[int, str], NodeState] = {}
        """Those that have an activation waiting, if it is not alone."""
        self.alone: tuple[Activation, NodeState] | None = None
        self.last_slot = -1
        """Index of the node that got the last slot."""

    def __bool__(self) -> bool:
        return self.alone is not None or bool(self.nodes)

    def add(self, activation: Activation, state: NodeState) -> None:
        """Put an activation behind the others of its node."""
        alone = self.alone
        if alone is not None:
            self.alone = None
            self._list(*alone)
        elif not self.nodes and activation.iteration is None:
            self.alone = activation, state
            return
        self._list(activation, state)

    def _list(self, activation: Activation, state: NodeState) -> None:
        ready = state.ready
        if ready is None:
            ready = state.ready = deque()
        ready.append(activation)
        if len(ready) == 1:
            key = (state.node.index, activation.path.key)
            self.nodes[key] = state
            if activation.iteration is None:
                insort(self._order, key)
            else:
                self.update(key[1], state)

    def remove(self, activation: Activation, state: NodeState) -> None:
        """Take an activation out, if it is here."""
        if self.alone is not None:
            if self.alone[0] is activation:
                self.alone = None
            return
        ready = state.ready
        if ready is None:
            return
        if ready and ready[0] is activation:
            ready.popleft()
        elif activation in ready:
            ready.remove(activation)
        if ready:
            if activation.iteration is not None:
                self.update(activation.path.key, state)
            return
        state.ready = None
        key = (state.node.index, activation.path.key)
        if self.nodes.pop(key, None) is not None:
            self._unlist(key)

    def drop_below(self, outer: Activation, state: NodeState) -> list[Activation]:
        """Take out the iterations of a for_each that never began; return them."""
        dropped = [activation for activation in state.ready or () if activation.outer is outer]
        for activation in dropped:
            self.remove(activation, state)
        return dropped

    def update(self, path: str, state: NodeState) -> None:
        """Take note that the slots or the first activation of a node have changed."""
        key = (state.node.index, path)
        if key not in self.nodes:
            return
        if not _has_slot(state):
            self._unlist(key)
            return
        at = bisect_left(self._order, key)
        if at == len(self._order) or self._order[at] != key:
            self._order.insert(at, key)

    def _unlist(self, key: tuple[int, str]) -> None:
        at = bisect_left(self._order, key)
        if at < len(self._order) and self._order[at] == key:
            del self._order[at]

    def sole(self) -> Activation | None:
        """Return the activation whose turn it is if only one node has one waiting."""
        if self.alone is not None:
            return self.alone[0]
        return self._first(self._order[0]) if len(self._order) == 1 else None

    def _first(self, key: tuple[int, str]) -> Activation:
        ready = self.nodes[key].ready
        assert ready, "a node without a waiting activation is listed"
        return ready[0]

    def in_turn(self) -> Iterator[Activation]:
        """Yield the first activation of each node, that whose turn it is first."""
        if self.alone is not None:
            yield self.alone[0]
            return
        order = self._order
        begin = bisect_left(order, (self.last_slot + 1, ""))
        for i in range(len(order)):
            yield self._first(order[(begin + i) % len(order)])


def _has_slot(state: NodeState) -> bool:
    limit = state.node.max_parallel
    return limit is None or state.slots < limit or not state.ready or state.ready[0].iteration is None


@dataclass(slots=True, eq=False, repr=False)
class RunState:
    """The fold of a run's log: what is known of it, in the order in which work passes.

    Sets that are mostly empty are the keys of a dict, which takes a third of an empty set.
    """

    workflow_id: str
    graph: Graph
    bindings: Bindings
    bound: Bindings = field(init=False)
    """Without those of steps that became known in the run."""
    pipeline: PipelineState | None = field(default=None, init=False)
    """Of a run of format `pipeline`."""

    # The run as a whole.
    status: RunStatus = field(default="pending", init=False)
    begin: WorkflowStarted | None = field(default=None, init=False)
    """The first event."""
    name: str = field(init=False)
    input: Any = field(default=None, init=False)
    output: Any = field(default=None, init=False)
    error: ErrorInfo | None = field(default=None, init=False)
    next_offset: int = field(default=0, init=False)
    """That of the next event: how many are folded."""
    last_ts: int = field(default=0, init=False)
    """The time of the latest event (µs since the epoch), as are the next three."""
    started_at: int = field(default=0, init=False)
    dispatched_at: int | None = field(default=None, init=False)
    """When the run first began to move; None before."""
    ended: int | None = field(default=None, init=False)
    clock: int = field(default=0, init=False)
    """Activations that began: the logical clock of page 003 §6."""
    on_failure: Literal["halt", "continue", "hold"] = field(init=False)
    """What a failed step does to the run."""
    on_unknown: Literal["ask", "fail"] = field(default="ask", init=False)
    """What becomes of a call that may have happened and has no recorded end."""
    cancel_requested: WorkflowCancelRequested | None = field(default=None, init=False)
    pause: str | None = field(default=None, init=False)
    """Why the run is paused."""
    definition_hash: str | None = field(default=None, init=False)
    """Of the definition whose code the run goes on with."""
    paused_for: dict[str, Any] | None = field(default=None, init=False)
    """The figures of a pause for a budget."""
    draining: bool = field(default=False, init=False)
    """True if the run is paused, but what has begun comes to its end."""

    # Paths and activations, in the order in which work passes.
    root: Path = field(init=False)
    paths: dict[str, Path] = field(init=False)
    """The open paths, by key."""
    activations: dict[str, Activation] = field(init=False)
    """All that are not terminal, by key."""
    arrived: list[Activation] = field(init=False)
    """To be decided at once: they need no slot, or must not start."""
    awaiting_approval: dict[str, Activation] = field(init=False)
    """Steps about which a person was asked before they start, by key."""
    denied: dict[str, Activation] = field(init=False)
    """Of those that await an approval: it was denied, and the end of the step is to be decided."""
    ready: ReadyQueue = field(init=False)
    """Those that wait for a slot."""
    open: dict[str, Activation] = field(init=False)
    """Started and not ended."""
    max_parallel: int = field(init=False)
    """Slots of the run."""
    running: int = field(default=0, init=False)
    """Slots taken."""
    returning: dict[str, Activation] = field(init=False)
    """Open ones that have waited and wait for a slot to go on, first come first served."""
    changed: dict[str, Activation] = field(init=False)
    """Open ones whose next decision may be due."""
    settled: dict[str, Activation] = field(init=False)
    """Open ones whose work is done: the end of the step is to be decided."""
    held_steps: dict[str, list[Activation]] = field(init=False)
    """Failed steps about which a person decides, by step id: each visit that failed, the oldest first."""

    # What is under way outside.
    calls: dict[str, OpenCall] = field(init=False)
    """The open calls of models and functions, by id."""
    mail: Mail = field(init=False)
    """Messages on their way, and the handlers that are at work."""
    has_mail: bool = field(init=False)
    """False if no message can wait: `decide` need not look."""
    shared: SharedState = field(init=False)
    """The shared state of page 002, with the writes that a barrier has yet to commit."""
    memory: RunMemory = field(init=False)
    """What kinds keep for the whole run: windows, caches, the times of rate gates."""
    call_queue: dict[str, Activation] = field(init=False)
    """Agents whose next model call waits for room in a budget."""
    requests: dict[str, OpenRequest] = field(init=False)
    """The open questions to people, by id."""
    decided: dict[str, Any] = field(init=False)
    """How closed requests were answered: `granted`, `denied`, or a value."""
    withdrawn: dict[str, None] = field(init=False)
    """Requests that were closed without an answer."""
    last_approval: dict[str, str] = field(init=False)
    """By step: its last approval that was decided."""
    signals: dict[str, SignalReceived] = field(init=False)
    """All that came, by id."""
    used_signals: dict[str, None] = field(init=False)
    """The signals that a step has taken, by id."""
    awaited: dict[str, str] = field(init=False)
    """By activation key: what it waits for outside, as `signal NAME` or `child WORKFLOW_ID`."""
    timers: Timers = field(init=False)
    """The deadlines that are armed."""
    scheduled: dict[str, TimerScheduled] = field(init=False)
    """The timers that steps armed for themselves, by their name in `timers`."""

    # Budgets, counts and ends.
    budget: dict[str, Any] = field(init=False)
    """The limits of the run by name, as raised by resumes."""
    step_budgets: dict[str, dict[str, Any]] = field(init=False)
    """The same of steps, by step."""
    usage: Usage = field(default=NO_USAGE, init=False)
    """Of the whole run."""
    step_usage: dict[str, Usage] = field(init=False)
    """By step: of all its work; kept for steps with a budget."""
    has_failed: bool = field(default=False, init=False)
    failed_steps: list[str] = field(init=False)
    """Ids of the steps that failed, in the order of their failures; `skipped` likewise."""
    first_failure: tuple[str, ErrorInfo] | None = field(default=None, init=False)
    """Key and error of the activation that failed first; its node may succeed on a later message."""
    skipped: list[str] = field(init=False)
    steps_done: dict[str, int] = field(init=False)
    """How many steps ended, by their status."""
    base: list[BaseEvent] = field(init=False)
    """What a fork begins with; put here by the component that folds the log."""

    def __post_init__(self) -> None:
        graph = self.graph
        self.bound = self.bindings
        self.name = graph.workflow.name
        self.on_failure = graph.options.on_failure
        self.max_parallel = graph.options.max_parallel
        self.root = Path(graph)
        self.root.nodes = {i: NodeState(n) for i, n in graph.all_nodes.items() if not n.is_silent}
        self.paths = {"": self.root}
        self.has_mail = graph.has_mail
        self.shared = SharedState(graph)
        self.steps_done = {"succeeded": 0, "failed": 0, "skipped": 0, "cancelled": 0}
        # Not by factories: one that is written with its type, as `dict[str, int]`, costs three times as much.
        self.activations = {}
        self.arrived = []
        self.awaiting_approval = {}
        self.denied = {}
        self.ready = ReadyQueue()
        self.open = {}
        self.returning = {}
        self.changed = {}
        self.settled = {}
        self.held_steps = {}
        self.calls = {}
        self.mail = Mail()
        self.memory = RunMemory()
        self.call_queue = {}
        self.requests = {}
        self.decided = {}
        self.withdrawn = {}
        self.last_approval = {}
        self.signals = {}
        self.used_signals = {}
        self.awaited = {}
        self.timers = Timers()
        self.scheduled = {}
        self.budget = {}
        self.step_budgets = {}
        self.step_usage = {}
        self.failed_steps = []
        self.skipped = []
        self.base = []

    def forget_iterations(self) -> None:
        """Let go of the iterations of a run that has ended, which know the activation around them: together
        they would be garbage for the collector."""
        for place in self.nodes.values():
            if place.outer is not None:
                place.outer.children, place.outer = {}, None

    @property
    def terminal(self) -> bool:
        """True once the log holds the run's last event."""
        return self.status in TERMINAL_RUN

    def step_ids(self) -> list[str]:
        """Return the steps that a run shows: those of its graph, then those that became known in the run. The
        steps of the plan of a request are shown by the request."""
        known = self.graph.all_nodes
        if self.pipeline is not None:
            return self.graph.step_ids
        more = {i: place.node.kind for i, place in self.nodes.items() if i not in known}
        return [*self.graph.step_ids, *(i for i, kind in more.items() if not (kind.is_start or kind.is_end))]

    @property
    def nodes(self) -> dict[str, NodeState]:
        """The nodes of the root path."""
        return self.root.nodes

    @property
    def nodes_view(self) -> dict[str, Any]:
        """The root `nodes` of expressions, on the root path."""
        return self.root.nodes_view

    def node_of(self, activation: Activation) -> NodeState:
        """Return the state of the node of an activation, on its path."""
        return activation.path.nodes[activation.node.id]

    def scope(
        self, activation: Activation | None = None, path: Path | None = None, node: Node | None = None
    ) -> dict[str, Any]:
        """Return what expressions see (page 001 §5.3, page 003 §3).

        On a child path that is what the expressions of the node read, and no more; without an activation
        `path` and `node` say whose they are.
        """
        if path is None:
            path = self.root if activation is None else activation.path
        frame = path.frame
        if activation is not None:
            node = activation.node
        if frame.parent is None:
            scope: dict[str, Any] = {"steps": frame.steps, "nodes": frame.nodes}
        else:
            reads = None if node is None else node.reads
            scope = {
                "steps": _seen(frame, "steps", None if reads is None else reads.steps),
                "nodes": _seen(frame, "nodes", None if reads is None else reads.nodes),
            }
        scope["inputs"] = scope["input"] = path.input
        if path.item_path is not None:
            scope["item"], scope["index"] = path.item_path.item, path.item_path.index
        if activation is not None and activation.iteration is not None:
            scope["item"] = activation.item
            scope["index"] = activation.iteration
        if node is None:
            if self.graph.workflow.globals or frame.globals:
                scope["globals"] = frame.all("globals")
        elif node.rare_roots:
            _add_rare(scope, frame, node, self.shared)
        return scope

    def shift_times(self, step: int) -> None:
        """Move every time by a step of the wall clock (µs), so that delays and durations go on as they were.

        What events recorded stays, and so does what is left of clocks that stand still.
        """
        self.timers.shift(step)
        self.memory.shift(step)
        self.started_at += step
        self.last_ts += step
        if self.dispatched_at is not None:
            self.dispatched_at += step
        for activation in {
            *self.open.values(),
            *self.awaiting_approval.values(),
            *(held for visits in self.held_steps.values() for held in visits),
        }:
            if activation.started:
                activation.started += step
                activation.attempt_started += step
            for clocks in (activation, activation.agent):
                if clocks is not None and clocks.first_failure is not None:
                    clocks.first_failure += step
                if clocks is not None and clocks.due_at is not None:
                    clocks.due_at += step
            if activation.agent is not None and activation.agent.asked_at is not None:
                activation.agent.asked_at += step


def _seen(frame: Frame, root: Root, names: frozenset[str] | None) -> dict[str, Any]:
    if names is None:
        return frame.all(root)
    return {name: value for name in names if (value := frame.get(root, name)) is not ABSENT}


def _add_rare(scope: dict[str, Any], frame: Frame, node: Node, shared: SharedState) -> None:
    """Add the roots that few nodes read."""
    for root in node.rare_roots:
        if root == "globals":
            scope[root] = _seen(frame, root, node.reads.globals)
        elif root == "state":
            scope[root] = dict(shared.values)
        elif root == "map_item":
            scope[root] = scope.get("item")
        elif root in ("map_index", "item_index"):
            scope[root] = scope.get("index")
        else:
            value = frame.get("last", root)
            scope[root] = None if value is ABSENT else value
