"""What a kind of node does: the interface of its half in the engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from agentflow.definition.failure import ErrorInfo
from agentflow.definition.policy import RetryPolicy

if TYPE_CHECKING:
    from agentflow.engine.activation import Activation
    from agentflow.engine.decisions import Decisions
    from agentflow.engine.graph import Node
    from agentflow.engine.path import Path
    from agentflow.engine.state import RunState

__all__ = ["Kind", "Prepared"]


class Prepared(NamedTuple):
    """What an activation will start with, evaluated once: its input, and the rest of what a person agrees to
    (`subject` names all of it)."""

    input: Any
    subject: dict[str, Any]


class Kind:
    """A kind that does nothing but pass its token on. Kinds override what differs.

    `prepare`, `start`, `next` and `abort` read the state and return events, they change nothing; `compile`
    is called once a graph; `started`, `fold` and `path_ended` are called by the folds and alone change the
    activation.
    """

    name = ""
    is_start = False
    is_end = False
    takes_slot = False
    """True if its work takes one of the `max_parallel` slots of the run."""
    is_passive = False
    """True if an open activation does nothing by itself: it waits for a timer, a signal or child paths."""
    moves_tokens_only = False
    """True for starts and ends, which the front ends add to graphs that have none (ids that begin with `__`):
    those move tokens and leave no trace in the log."""
    sends = False
    """True if a handler does its work, which begins with `workflow.step_started`; its messages are what that
    sent, and not its output."""
    yields = False
    """True if what it gives out while it runs is the output of the run (page 002 §12)."""
    one_at_a_time = False
    """True for an actor: one message at a time, first come first served (page 002 §1)."""
    retry: RetryPolicy | None = None
    """The policy of a node that states none."""

    def stops(self, node: Node) -> bool:
        """Return whether a token that comes to this node ends its path although others are still live."""
        return False

    def compile(self, node: Node) -> Any:
        """Return the node's parsed expressions and templates, kept in `node.program`."""
        return None

    def prepare(self, state: RunState, activation: Activation) -> Prepared | ErrorInfo:
        """Evaluate what the activation starts with, or return why that cannot be done."""
        value = activation.input if activation.snapshot is None else activation.snapshot["input"]
        return Prepared(value, {"input": value})

    def started_fields(self, activation: Activation, prepared: Prepared) -> dict[str, Any]:
        """Return what its `workflow.step_started` says beside the fields of every kind."""
        return {}

    def start(self, state: RunState, activation: Activation, prepared: Prepared, now: int) -> Decisions:
        """Return the events that follow `workflow.step_started` at once, before it is folded."""
        return []

    def started(self, state: RunState, activation: Activation, data: Any, ts: int) -> None:
        """Fold `workflow.step_started`: what only this kind keeps."""

    def fold(self, state: RunState, activation: Activation, data: Any, ts: int) -> None:
        """Fold an event of this activation that no family of events folds by itself (timers)."""

    def next(self, state: RunState, activation: Activation, now: int) -> Decisions:
        """Return what follows for an open activation after an event that concerns it; empty: it waits."""
        return []

    def is_idle(self, activation: Activation) -> bool:
        """Return True if nothing follows until something outside answers: it need not be asked."""
        return False

    def path_ended(self, state: RunState, activation: Activation, path: Path) -> None:
        """Fold the end of a child path that the activation opened."""

    def abort(self, state: RunState, activation: Activation, error: ErrorInfo, now: int) -> Decisions:
        """Return the ends of what is open below the activation; the end of the step itself follows."""
        return []

    def retried(self, state: RunState, activation: Activation, data: Any, ts: int) -> None:
        """Fold `workflow.step_retrying`: what only this kind keeps of the next attempt."""

    def closed(self, state: RunState, activation: Activation) -> None:
        """Fold the end of the activation: let go of what only this kind keeps for it outside."""

    def cache_parts(self, state: RunState, activation: Activation, prepared: Prepared) -> list[Any]:
        """Return what a result depends on when the document names no key for it. Raises EvaluationError."""
        return [activation.node.id, prepared.input]

    def context(self, state: RunState, activation: Activation) -> Any:
        """Return what its functions get beside their arguments; no model sees it and no event holds it."""
        return None

    def retry_of(self, node: Node) -> RetryPolicy:
        """Return the policy by which its attempts are repeated."""
        return node.retry

    def absorbs(self, node: Node) -> bool:
        """Return whether a failure of the node is none of the run: an error edge takes it."""
        return bool(node.targets("error"))

    def accepts(self, node: Node, tags: tuple[str, ...], *, element: bool = False) -> bool:
        """Return whether the node takes a message of these types, or (`element`) a list of such."""
        return True

    def payload(self, activation: Activation) -> Any:
        """Return what its token carries on: its output."""
        return activation.output
