"""Activations: the pieces of work of a run, in one tree, and the paths on which they are made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from agentflow.definition.conversation import NO_USAGE
from agentflow.definition.failure import ErrorInfo

if TYPE_CHECKING:
    from agentflow.engine.agents.progress import AgentProgress, ToolRecord
    from agentflow.engine.graph import Graph, Node
    from agentflow.engine.mail import Taken
    from agentflow.engine.path import Path

__all__ = ["EXPRESSION_STATUS", "NO_USAGE", "Activation", "Phase", "StepStatus"]

Phase = Literal["pending", "asked", "denied", "open", "held"]
StepStatus = Literal["pending", "running", "waiting", "succeeded", "failed", "skipped", "cancelled"]

EXPRESSION_STATUS = {
    "succeeded": "success",
    "failed": "failed",
    "skipped": "skipped",
    "cancelled": "cancelled",
}
"""The words of expressions for how a step ended (page 001 §5.3)."""

_NO_CHILDREN: dict[int, Activation] = {}  # shared and never changed: most activations have none
_NO_TIMERS: dict[str, int] = {}


class Activation:
    """One piece of work: a visit of a node, or one iteration of it (`iteration` is its item's index).

    Its parent is the for_each around its iterations, else the activation that opened its path.
    """

    __slots__ = (
        "agent",
        "attempt",
        "attempt_started",
        "base_key",
        "children",
        "clock",
        "due_at",
        "error",
        "failures",
        "first_failure",
        "first_offset",
        "graph",
        "has_slot",
        "input",
        "interruptions",
        "is_for_each",
        "item",
        "iteration",
        "key",
        "local",
        "node",
        "open_children",
        "outer",
        "output",
        "overdrawn",
        "path",
        "paths",
        "paused_timers",
        "phase",
        "result_ready",
        "snapshot",
        "started",
        "status",
        "superstep",
        "taken",
        "tool",
        "tool_calls",
        "touched",
        "unsafe",
        "usage",
        "verdict",
        "visit",
    )

    def __init__(
        self, node: Node, path: Path, visit: int, outer: Activation | None, iteration: int | None
    ) -> None:
        self.node = node
        self.path = path
        self.visit = visit
        self.base_key = f"{path.key}/{node.id}#{visit}" if outer is None else outer.key
        """The activation key of page 002 §1; all iterations of one for_each have the same."""
        self.key = self.base_key if iteration is None else f"{self.base_key}[{iteration}]"
        """Names the activation inside its run: `/step#visit`, for an iteration `/step#visit[i]`."""
        self.outer = outer
        self.iteration = iteration
        self.is_for_each = iteration is None and node.iterates
        """True for the activation around the iterations of a step."""
        self.phase: Phase = "pending"
        """Where it stands between arrival and end: decides which events are legal (`machine`)."""
        self.status: StepStatus = "pending"
        self.has_slot = False
        """True while it takes a slot of the run, an item also one of its node."""
        self.attempt = 1
        # What it works on, and what came of it.
        self.item: Any = None
        self.input: Any = None
        self.graph: Graph | None = None
        """That of a subgraph which became known with it."""
        self.snapshot: dict[str, Any] | None = None
        """What a person agreed to: evaluated once, used as it is."""
        self.verdict: Any = None
        """Why it may not start: a Skip or an ErrorInfo; None: it may."""
        self.output: Any = None
        self.error: ErrorInfo | None = None
        self.result_ready = False
        """True once the work is done: the end of the step is to be decided."""
        # What its kind keeps of it.
        self.agent: AgentProgress | None = None
        self.tool: ToolRecord | None = None
        self.local: Any = None
        self.paths: dict[int, Path] | None = None
        """The child paths that are open below it, by index."""
        self.taken: Taken | None = None
        """The message or round that it took; None for a bare token."""
        self.superstep = 0
        """The superstep that it belongs to; 0 under policy eager."""
        # Its iterations, by index, and how many of them are not terminal.
        self.children: dict[int, Activation] = _NO_CHILDREN
        self.open_children = 0
        # Times in microseconds, offsets, and the logical clock (page 003 §6).
        self.clock = 0
        self.started = 0
        self.attempt_started = 0
        self.first_offset = 0
        self.touched = 0
        """The offset of its latest event: waiting model calls go in this order."""
        self.due_at: int | None = None
        """The next attempt waits until then."""
        self.paused_timers: dict[str, int] = _NO_TIMERS
        """What was left of its time limits when it began to wait."""
        # Failures and costs.
        self.failures = 0
        self.first_failure: int | None = None
        self.interruptions = 0
        """Deaths of its actor since it last got further."""
        self.tool_calls = 0
        self.unsafe = False
        """True once an unsafe call is recorded: the attempt may not start over."""
        self.overdrawn = False
        """True if a person refused to raise the budget that it needs."""
        self.usage = NO_USAGE
