"""The state of one run: what folding its log gives. Only `evolve` changes it.

Everything here is rebuilt from events; nothing is ever saved. The exceptions are `fresh` and `closed`, what
the last events opened and ended, which whoever carries out the work takes away.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from agentflow.definition.conversation import Message, ToolCall, Usage
from agentflow.definition.failure import ErrorInfo
from agentflow.definition.ir import ModelRef
from agentflow.engine.bindings import Bindings, ToolInfo
from agentflow.engine.plan import NodePlan, Plan
from agentflow.events.catalogue import (
    ApprovalRequested,
    InputRequested,
    SignalReceived,
    WorkflowCancelRequested,
    WorkflowStarted,
)

if TYPE_CHECKING:
    from agentflow.engine.caching import CacheHit, Lookup
    from agentflow.engine.forking import BaseEvent
    from agentflow.engine.reservations import Need

__all__ = [
    "AgentProgress",
    "Measured",
    "NodeState",
    "OpenCall",
    "OpenRequest",
    "RunState",
    "RunStatus",
    "StepStatus",
    "Token",
    "ToolRecord",
    "Unit",
    "model_of",
]

RunStatus = Literal["pending", "running", "waiting", "paused", "completed", "failed", "cancelled"]
StepStatus = Literal["pending", "running", "waiting", "succeeded", "failed", "skipped", "cancelled"]

RESUME = "resume"
"""The timer at which a run that a provider's quota paused goes on."""

TERMINAL_STEP = frozenset({"succeeded", "failed", "skipped", "cancelled"})
TERMINAL_RUN = frozenset({"completed", "failed", "cancelled"})
EXPRESSION_STATUS = {
    "succeeded": "success",
    "failed": "failed",
    "skipped": "skipped",
    "cancelled": "cancelled",
}


_NO_USAGE = Usage()


class ToolRecord:
    """One tool call of an agent or of a tool node, from the model's wish to its recorded end."""

    __slots__ = (
        "approval",
        "call",
        "denied",
        "error",
        "executed",
        "info",
        "name",
        "outcome",
        "output",
        "parameters",
        "safe",
        "state",
        "tries",
    )

    def __init__(self, call: ToolCall, name: str) -> None:
        self.call = call
        self.name = name
        self.info: ToolInfo | None = None
        self.parameters: Any = None
        self.state: Literal["planned", "asked", "open", "done", "failed", "unknown"] = "planned"
        self.output: Any = None
        self.error: ErrorInfo | None = None
        self.executed = False
        self.outcome: str | None = None
        self.tries = 0
        self.safe = False  # may be made again when its outcome is unknown
        self.approval: str | None = None  # the request in which a person agreed to it
        self.denied: ErrorInfo | None = None


class Measured(NamedTuple):
    """The most input tokens that `model` has reported for the first `messages` messages of a context."""

    model: str
    messages: int
    tokens: int


class AgentProgress:
    """One attempt of an agent: its conversation, and what it is waiting for."""

    __slots__ = (
        "answer",
        "asked_at",
        "context_id",
        "digest",
        "due_at",
        "failed_calls",
        "finish_reason",
        "first_failure",
        "has_answer",
        "last_error",
        "measured",
        "messages",
        "min_output",
        "model_call",
        "model_index",
        "models",
        "offered",
        "pending",
        "repairs",
        "settled_tools",
        "system_prompt",
        "tools",
        "turn",
        "turn_open",
        "user_input",
    )

    def __init__(self, context_id: str, system_prompt: str, user_input: Any) -> None:
        self.context_id = context_id
        self.system_prompt = system_prompt
        self.user_input = user_input
        self.models: tuple[ModelRef, ...] = ()
        self.model_index = 0
        self.messages: list[Message] = []
        self.pending: list[Message] = []  # what the next model call adds to the conversation
        self.digest = ""
        self.turn = 0
        self.turn_open = False  # begun, and its model call has not been answered
        self.asked_at: int | None = None  # microseconds; since then it wants a model call
        self.offered: frozenset[tuple[str, str]] = frozenset()  # names and schema hashes of its functions
        self.measured: Measured | None = None
        self.min_output = 0  # tokens; an answer was cut at one less because the budget left no more
        self.model_call: str | None = None  # the open one
        self.failed_calls = 0  # consecutive failures of the present model call
        self.first_failure: int | None = None
        self.due_at: int | None = None  # microseconds; a retry waits until then
        self.repairs = 0
        self.settled_tools = 0  # rounds of tool calls that are over
        self.finish_reason = ""
        self.tools: dict[str, ToolRecord] = {}  # of the last assistant message, in call order
        self.answer: str = ""
        self.has_answer = False
        self.last_error: ErrorInfo | None = None


def model_of(progress: AgentProgress) -> ModelRef:
    """Return the model that serves the next call: the first one, or a fallback."""
    return progress.models[min(progress.model_index, len(progress.models) - 1)]


class Unit:
    """One piece of work: an activation, or one iteration of it (`iteration` is its item's index)."""

    __slots__ = (
        "activation",
        "agent",
        "agent_duration_ms",
        "attempt",
        "attempt_started",
        "clock",
        "due_at",
        "error",
        "failures",
        "first_failure",
        "first_offset",
        "held",
        "hit",
        "input",
        "interruptions",
        "item",
        "iteration",
        "looked_up",
        "node",
        "output",
        "overdrawn",
        "result_ready",
        "snapshot",
        "started",
        "status",
        "tool",
        "tool_calls",
        "touched",
        "unsafe",
        "usage",
        "visit",
    )

    def __init__(self, node: NodePlan, visit: int, iteration: int | None) -> None:
        self.node = node
        self.visit = visit
        self.activation = f"/{node.id}#{visit}"
        self.iteration = iteration
        self.status: StepStatus = "pending"
        self.item: Any = None
        self.input: Any = None
        self.output: Any = None
        self.result_ready = False  # the work is done; the step's own end is to be decided
        self.error: ErrorInfo | None = None
        self.attempt = 1
        self.failures = 0
        self.first_failure: int | None = None
        self.due_at: int | None = None  # microseconds; the next attempt waits until then
        self.started = 0
        self.attempt_started = 0
        self.first_offset = 0
        self.touched = 0  # the offset of its latest event: waiting model calls go in this order
        self.clock = 0
        self.agent: AgentProgress | None = None
        self.tool: ToolRecord | None = None  # of a tool node
        self.agent_duration_ms = 0
        self.tool_calls = 0
        self.interruptions = 0  # deaths of its actor since it last got further
        self.held: dict[str, int] = {}  # what was left of its time limits when it began to wait (µs)
        self.unsafe = False  # an unsafe call is recorded: the attempt may not start over
        self.usage = _NO_USAGE
        self.hit: CacheHit | None = None  # a kept result that serves again
        self.looked_up = False  # whether it is known if there is one
        self.overdrawn = False  # a person refused to raise the budget that it needs
        self.snapshot: dict[str, Any] | None = None  # what a person agreed to: evaluated once, used as it is

    @property
    def key(self) -> str:
        """Names the unit inside its run: `/step#visit`, for an iteration `/step#visit[i]`."""
        return self.activation if self.iteration is None else f"{self.activation}[{self.iteration}]"


class NodeState:
    """A node of the graph during a run. `waiting_for` counts dependencies that are not terminal."""

    __slots__ = (
        "attempt",
        "items",
        "next_attempt",
        "open_items",
        "outer",
        "plan",
        "slots",
        "status",
        "units",
        "usage",
        "visits",
        "waiting_for",
    )

    def __init__(self, plan: NodePlan) -> None:
        self.plan = plan
        self.status: StepStatus = "pending"
        self.visits = 0
        self.attempt = 0  # of the latest activation; 0 before the first
        self.waiting_for = len(plan.deps)
        self.outer: Unit | None = None  # the for_each activation around its iterations
        self.items: list[Any] = []
        self.units: dict[int, Unit] = {}
        self.open_items = 0  # iterations that are not terminal
        self.slots = 0  # iterations at work now
        self.next_attempt = 1  # of the next activation: a held step is tried again in place
        self.usage = _NO_USAGE  # of all its work; kept when a budget asks for it

    def unit(self, visit: int) -> Unit:
        """The activation with this number, not begun yet."""
        unit = Unit(self.plan, visit, None)
        unit.attempt = self.next_attempt
        return unit


class Token:
    """A message on its way to a node. `source` is the sender's agent name or step id, for metadata."""

    __slots__ = ("payload", "source", "target")

    def __init__(self, target: str, payload: Any, source: str | None) -> None:
        self.target = target
        self.payload = payload
        self.source = source


class OpenCall:
    """A call that the log says was begun and that has no recorded end."""

    __slots__ = (
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
        "unit",
    )

    def __init__(self, kind: Literal["model", "tool"], call_id: str, unit: Unit, offset: int) -> None:
        self.kind: Literal["model", "tool"] = kind
        self.call_id = call_id
        self.unit = unit
        self.offset = offset
        self.tokens = 0  # reserved for it: those read and those written
        self.input_tokens = 0
        self.output_tokens = 0
        self.cost: float | None = None  # US dollars reserved; None if a price is unknown
        self.model = ""  # `provider:model`
        self.charged = True  # False: another run pays for it, of which this one is a fork
        self.parameters: dict[str, Any] = {}  # as they were sent


class OpenRequest:
    """A question to a person: whether work may be done, or what to do about a call whose outcome nobody
    knows. `call_id` is the call in question, "" for a whole step."""

    __slots__ = ("call_id", "data", "offset", "request_id", "ts", "unit")

    def __init__(
        self,
        request_id: str,
        unit: Unit,
        call_id: str,
        data: InputRequested | ApprovalRequested,
        offset: int,
        ts: int,
    ) -> None:
        self.request_id = request_id
        self.unit = unit
        self.call_id = call_id
        self.data = data
        self.offset = offset
        self.ts = ts


class RunState:
    """The fold. `frontier` holds nodes whose dependencies are settled and `tokens` messages that no node
    has taken; `due` iterations that wait for a slot; `open` units that have started and not ended; `parked`
    steps that wait for consent before they start, `refused` those that did not get it."""

    __slots__ = (
        "base",
        "begin",
        "bindings",
        "budget",
        "call_queue",
        "calls",
        "cancel_requested",
        "clock",
        "closed",
        "decided",
        "dispatched_at",
        "draining",
        "due",
        "end_payload",
        "ended",
        "error",
        "failed_steps",
        "fresh",
        "frontier",
        "granted",
        "has_failed",
        "held",
        "holding",
        "input",
        "last_approval",
        "last_ts",
        "lookups",
        "name",
        "next_offset",
        "nodes",
        "nodes_view",
        "on_failure",
        "on_unknown",
        "open",
        "output",
        "parked",
        "pause",
        "paused_for",
        "plan",
        "refused",
        "requests",
        "running",
        "settled",
        "signals",
        "skipped",
        "started_at",
        "status",
        "step_budgets",
        "steps_done",
        "steps_view",
        "stirred",
        "timers",
        "tokens",
        "usage",
        "wanted",
        "withdrawn",
        "workflow_id",
    )

    def __init__(self, workflow_id: str, plan: Plan, bindings: Bindings) -> None:
        self.workflow_id = workflow_id
        self.plan = plan
        self.bindings = bindings
        self.status: RunStatus = "pending"
        self.next_offset = 0
        self.input: Any = None
        self.name = plan.workflow.name
        self.begin: WorkflowStarted | None = None
        self.on_failure = plan.options.on_failure
        self.on_unknown: Literal["ask", "fail"] = "ask"
        self.started_at = 0
        self.dispatched_at: int | None = None
        self.ended: int | None = None
        self.clock = 0
        self.nodes: dict[str, NodeState] = {i: NodeState(p) for i, p in plan.nodes.items()}
        self.steps_view: dict[str, Any] = {}  # the root `steps` of expressions: terminal steps only
        self.nodes_view: dict[str, Any] = {}  # the root `nodes`
        self.frontier: deque[str] = deque()
        self.tokens: deque[Token] = deque()
        self.due: dict[str, deque[Unit]] = {}
        self.granted = -1  # index of the step that got the last slot: slots go round
        self.open: dict[str, Unit] = {}
        self.settled: dict[str, Unit] = {}  # work done, the end of the step not yet decided
        self.stirred: dict[str, Unit] = {}  # something changed: the next move is to be decided
        self.running = 0  # slots taken
        self.calls: dict[str, OpenCall] = {}
        self.call_queue: dict[str, tuple[Unit, Need]] = {}  # model calls that wait for room in a budget
        self.requests: dict[str, OpenRequest] = {}
        self.decided: dict[str, Any] = {}  # how closed requests were answered: `granted`, `denied`, a value
        self.last_approval: dict[str, str] = {}  # by step: its last approval that was decided
        self.withdrawn: set[str] = set()  # requests that were closed without an answer
        self.parked: dict[str, Unit] = {}
        self.refused: dict[str, Unit] = {}
        self.timers: dict[str, int] = {}
        self.held: dict[str, int] = {}  # what was left of the time limits when the run was paused (µs)
        self.last_ts = 0
        self.fresh: list[OpenCall] = []
        self.closed: list[str] = []  # keys of units that ended since `take_closed`
        self.failed_steps: list[str] = []
        self.has_failed = False
        self.skipped: list[str] = []
        self.steps_done = {"succeeded": 0, "failed": 0, "skipped": 0, "cancelled": 0}
        self.end_payload: Any = None
        self.output: Any = None
        self.error: ErrorInfo | None = None
        self.usage = _NO_USAGE
        self.lookups: dict[str, Unit] = {}  # units of which nobody has said yet whether their result is kept
        self.wanted: list[Lookup] = []
        self.pause: str | None = None
        self.paused_for: dict[str, Any] | None = None  # the figures of a pause for a budget
        self.signals: dict[str, SignalReceived] = {}
        self.base: list[BaseEvent] = []  # what a fork begins with; put here by whoever folds the log
        self.draining = False  # paused, but what has begun comes to its end
        self.holding: dict[str, Unit] = {}  # failed steps about which a person decides
        self.budget: dict[str, Any] = {}  # limits of the run
        self.step_budgets: dict[str, dict[str, Any]] = {}
        self.cancel_requested: WorkflowCancelRequested | None = None

    @property
    def terminal(self) -> bool:
        """Whether the log holds the run's last event."""
        return self.status in TERMINAL_RUN

    def take_fresh(self) -> list[OpenCall]:
        """The calls opened since this was last asked, oldest first."""
        fresh, self.fresh = self.fresh, []
        return fresh

    def take_wanted(self) -> list[Lookup]:
        """The results to look for, since this was last asked."""
        wanted, self.wanted = self.wanted, []
        return wanted

    def take_closed(self) -> list[str]:
        """The keys of units that were open and ended since this was last asked."""
        closed, self.closed = self.closed, []
        return closed

    def hold(self, keys: list[str], now: int) -> dict[str, int]:
        """Stop these clocks: what is left of each."""
        return {key: max(0, self.timers.pop(key) - now) for key in keys if key in self.timers}

    def shift_times(self, step: int) -> None:
        """Move every time by a step of the wall clock (µs), so that delays and durations go on as they were.

        What events recorded stays, and so does what is left of clocks that stand still.
        """
        self.timers = {key: due + step for key, due in self.timers.items()}
        self.started_at += step
        self.last_ts += step
        if self.dispatched_at is not None:
            self.dispatched_at += step
        for unit in {*self.open.values(), *self.parked.values(), *self.holding.values()}:
            if unit.started:
                unit.started += step
                unit.attempt_started += step
            for clocks in (unit, unit.agent):
                if clocks is not None and clocks.first_failure is not None:
                    clocks.first_failure += step
                if clocks is not None and clocks.due_at is not None:
                    clocks.due_at += step
            if unit.agent is not None and unit.agent.asked_at is not None:
                unit.agent.asked_at += step

    def scope(self, unit: Unit | None = None) -> dict[str, Any]:
        """What expressions see (page 001 §5.3, page 003 §3)."""
        scope: dict[str, Any] = {
            "steps": self.steps_view,
            "nodes": self.nodes_view,
            "inputs": self.input,
            "input": self.input,
        }
        if unit is not None and unit.iteration is not None:
            scope["item"] = unit.item
            scope["index"] = unit.iteration
        return scope
