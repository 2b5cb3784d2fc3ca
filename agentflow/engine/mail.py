"""Messages on their way: what waits for a turn, a barrier or a round, and which handlers are at work."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from agentflow.definition.failure import ErrorInfo
from agentflow.events.catalogue import MessageRef

if TYPE_CHECKING:
    from agentflow.engine.activation import Activation
    from agentflow.engine.agents.progress import ToolRecord
    from agentflow.engine.graph import Node
    from agentflow.engine.path import NodeState, Path
    from agentflow.engine.rounds import Arrived, Round
    from agentflow.engine.state import OpenRequest
    from agentflow.events.catalogue import MessageUndelivered, Output

__all__ = ["MAX_HANDLERS", "MAX_QUEUED", "MAX_SENT", "Handling", "Mail", "Queued", "Taken", "Turns"]

MAX_HANDLERS = 256
"""Handlers that a run has at work at once (`max_in_flight`, page 002 §8)."""
MAX_QUEUED = 100_000
"""Messages of a run that wait."""
MAX_SENT = 10_000
"""Messages that one activation may send."""


class Taken(NamedTuple):
    """What an activation took: the type of its message, where it came from, and of a round who is missing.

    Of an answer `request_id` names the question and `request` is what was asked. `types` has the types of the
    messages of a round, in the order of `sources`; of an answer the type that was asked for.
    """

    type: str
    sources: tuple[MessageRef, ...] = ()
    missing: tuple[str, ...] = ()
    request_id: str | None = None
    request: Any = None
    types: tuple[str, ...] = ()


class Queued(NamedTuple):
    """A message that waits for the next superstep. `order` decides among those at one target."""

    path: Path
    node: Node
    payload: Any
    taken: Taken | None
    order: tuple[int, ...]
    problem: ErrorInfo | None = None
    sender: Activation | None = None


class Turns:
    """The messages of a node that handles one at a time: the one whose turn it is, and those behind it."""

    __slots__ = ("current", "waiting")

    def __init__(self) -> None:
        self.current: Activation | None = None
        self.waiting: deque[Activation] = deque()


class Handling:
    """A handler at work on its activation. `base` is the version of the shared state that it reads.

    `due_at` (µs) is when the attempt begins, after a backoff; 0 for at once. `calls` are the recorded calls
    of all its attempts, by id, and those of the activation that was held before it; `origin` is the start and
    the key from which their ids are derived.
    """

    __slots__ = ("base", "calls", "due_at", "origin")

    def __init__(self, base: int, started: int, key: str) -> None:
        self.base = base
        self.calls: dict[str, ToolRecord] = {}
        self.due_at = 0
        self.origin = (started, key)


class Mail:
    """The messages of a run."""

    __slots__ = (
        "answered",
        "fatal",
        "inbox",
        "left",
        "next_order",
        "open",
        "outputs",
        "queue",
        "routed",
        "since_outside",
        "stepping",
        "superstep",
        "told",
        "untimed",
        "untold",
    )

    def __init__(self) -> None:
        self.inbox: list[Activation] = []
        """Activations whose turn it is at their node; they wait for one of MAX_HANDLERS."""
        self.open: dict[str, Activation] = {}
        """Activations whose handler is at work, by key."""
        self.routed: dict[str, OpenRequest] = {}
        """Requests of child runs that went along an edge as SubWorkflowRequest, and have no answer yet."""
        self.answered: dict[str, None] = {}
        """Requests of child runs that a response of a node answered."""
        self.queue: list[Queued] = []
        """What waits for the next superstep."""
        self.next_order = 0
        self.superstep = 0
        """The number of the latest superstep, counted from 1."""
        self.stepping = False
        """True between `superstep.started` and `superstep.completed`."""
        self.since_outside: dict[str, int] = {}
        """By path: the supersteps that delivered something there since an answer or a signal came from
        outside. Elements of a map follow one another on paths of their own: a long list is no long way."""
        self.outputs: dict[str, list[tuple[int, int, int, Output]]] = {}
        """By activation: what its latest attempt gave out, each with offset, superstep and visit."""
        self.told: dict[tuple[str, int], None] = {}
        """Messages of which the log says that they stay undelivered, as (activation, index)."""
        self.untold: dict[tuple[str, int], MessageUndelivered] = {}
        """Messages that no edge delivered, of which the log does not say so yet: it ends, or a fork begins,
        behind the completion of their sender."""
        self.left: list[tuple[str, Arrived]] = []
        """By activation: what child paths left in the buffers of their joins when they ended."""
        self.untimed: dict[str, Round] = {}
        """By the name of its timer: rounds that began or closed, which the log is to say of their timers."""
        self.fatal: ErrorInfo | None = None
        """Why the run cannot go on, if a join, a reducer or an undelivered message decided that."""

    def wait_turn(self, activation: Activation, place: NodeState, *, front: bool = False) -> None:
        """Put an activation behind the others of its node."""
        turns = place.turns
        if turns is None:
            turns = place.turns = Turns()
        if turns.current is None and not turns.waiting:
            turns.current = activation
            self.inbox.append(activation)
            return
        if front:
            turns.waiting.appendleft(activation)
        else:
            turns.waiting.append(activation)
        if turns.current is None:
            self._promote(turns)

    def end_turn(self, activation: Activation, place: NodeState) -> None:
        """Let the next message of a node have its turn: this one has ended, or waits."""
        turns = place.turns
        if turns is None:
            return
        if turns.current is activation:
            turns.current = None
            if self.inbox and activation in self.inbox:
                self.inbox.remove(activation)
            if turns.waiting:
                self._promote(turns)
        elif activation in turns.waiting:
            turns.waiting.remove(activation)

    @property
    def is_at_work(self) -> bool:
        """True while a handler is at work that does not wait for a larger budget."""
        return any(activation.status != "waiting" for activation in self.open.values())

    def begin(self, activation: Activation) -> None:
        """Take an activation whose handler begins out of the inbox."""
        if self.inbox and self.inbox[0] is activation:
            del self.inbox[0]
        elif activation in self.inbox:
            self.inbox.remove(activation)

    def _promote(self, turns: Turns) -> None:
        if turns.waiting:
            turns.current = turns.waiting.popleft()
            self.inbox.append(turns.current)
