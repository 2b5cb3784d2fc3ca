"""Paths: where tokens move. A run has a root path; a spawning activation opens child paths below it."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import msgspec

from agentflow.definition.failure import ErrorInfo
from agentflow.engine.activation import Activation, StepStatus
from agentflow.engine.frames import Frame

if TYPE_CHECKING:
    from agentflow.engine.globals import GlobalWrite
    from agentflow.engine.graph import Graph, Node
    from agentflow.engine.mail import Turns
    from agentflow.engine.rounds import Round
    from agentflow.engine.run_memory import Gates

__all__ = ["NodeState", "Path"]


_NOWHERE: frozenset[str] = frozenset()


class NodeState(msgspec.Struct, eq=False):
    """A node of a graph on one path. A Struct, because a run makes one for each node when it begins."""

    node: Node
    awaited: int
    """Dependencies that are not settled: at first all of them."""
    status: StepStatus = "pending"
    """Of the latest activation."""
    arrived: int = 0
    """How many activations were made: the visit of the next one."""
    visits: int = 0
    """How many of them began or were skipped."""
    attempt: int = 0
    """Of the latest activation; 0 before the first."""
    next_attempt: int = 1
    """Of the next activation: a held step is tried again in place."""
    live: int = 0
    """Activations that are not terminal."""
    ready: deque[Activation] | None = None
    """Activations that wait for a slot, first come first served, as far as `ReadyQueue` lists them."""
    slots: int = 0
    """Slots that its iterations hold now."""
    turns: Turns | None = None
    """Of a node that handles one message at a time."""
    outer: Activation | None = None
    """The latest activation around iterations."""
    sources: dict[str, int] | None = None
    """For each watched source of its join, the live nodes that can reach it; absent once settled."""
    upstream_failed: bool = False
    upstream_cancelled: bool = False
    """Whether a dependency, near or far, failed or was cancelled (page 001 §5.2)."""
    excused: bool = False
    """True if its failure counts as an end without output (`on_error`)."""
    output: Any = None
    error: Any = None
    """How the latest activation ended that has ended; on the root path also those of child paths."""
    ended: int = -1
    """The offset at which it did."""
    count: int = 0
    """How often a loop sent its token round."""
    kept: dict[int, Path] | None = None
    """The child paths that finished before the attempt failed that is held."""
    windows: dict[str, Activation] | None = None
    """By key: the activations that gather tokens."""


class Path:
    """A place where tokens move, with a frame of its own: what its nodes gave, seen by expressions.

    `key` is empty for the root, else that of the activation that opened the path and the index of the branch.
    `item` and `error` belong to one child path, `graph` and `input` are those of its parent unless it is the
    path of a subgraph.
    """

    __slots__ = (
        "depth",
        "due",
        "ended",
        "error",
        "frame",
        "gates",
        "graph",
        "index",
        "input",
        "item",
        "item_path",
        "key",
        "live",
        "nodes",
        "opener",
        "output",
        "output_type",
        "parent",
        "rounds",
        "steps",
        "stop_at",
        "stopped",
        "terminal",
        "work",
        "writes",
    )

    def __init__(self, graph: Graph, key: str = "", opener: Activation | None = None, index: int = 0) -> None:
        self.graph = graph
        self.key = key
        self.opener = opener
        self.parent: Path | None = None if opener is None else opener.path
        self.index = index
        self.depth = 0 if self.parent is None else self.parent.depth
        """How many subgraphs are around it."""
        self.input: Any = None if self.parent is None else self.parent.input
        """The root `input` of expressions."""
        self.item: Any = None
        self.item_path: Path | None = None if self.parent is None else self.parent.item_path
        """The path, this one or one above it, whose `item` and `index` expressions read."""
        self.nodes: dict[str, NodeState] = {}
        self.live = 0
        """Activations on this path that are not terminal."""
        self.work: dict[str, Activation] = {}
        """Those of a child path, by key."""
        self.output: Any = None
        self.output_type = "None"
        """The type tag of `output`, if a message of an executor is."""
        """The last token that came to an end of this path."""
        self.terminal: Node | None = None
        """The end that it came to, or the node behind which the path ends."""
        self.error: ErrorInfo | None = None
        """The failure that ended this child path."""
        self.ended = False
        self.stopped = False
        """True once a token came to an end that does not wait for the others, or the path is given up."""
        self.stop_at = _NOWHERE
        """The nodes at which a token leaves this child path: those behind its opener."""
        self.rounds: dict[int, Round] = {}
        """The buffers of the fan-ins, by the index of the fan-in."""
        self.due: dict[int, None] = {}
        """Fan-ins that may be complete."""
        self.steps = 0
        """How many steps have begun on this path: windows of steps are counted by it."""
        self.gates: Gates = {}
        """What the gates whose windows are steps remember."""
        self.frame = Frame()
        self.writes: dict[str, list[GlobalWrite]] = {}
        """The global values that were written on this child path, in order."""

    @property
    def is_branch(self) -> bool:
        """True for a child path that moves tokens of its parent's graph: dependencies are settled on that."""
        return self.parent is not None and self.parent.graph is self.graph

    @property
    def nodes_view(self) -> dict[str, Any]:
        """The root `nodes` of expressions: what ended on this path."""
        return self.frame.nodes

    def node(self, node: Node) -> NodeState:
        """Return the state of a node on this path; made at its first use."""
        found = self.nodes.get(node.id)
        if found is None:
            found = self.nodes[node.id] = NodeState(node, len(node.dependencies))
        return found
