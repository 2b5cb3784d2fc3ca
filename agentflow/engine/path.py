"""Paths: where tokens move. A run has a root path; a spawning activation opens child paths below it."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

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


_NO_SOURCES: dict[str, int] = {}  # shared and never changed: few joins watch their sources


_NOWHERE: frozenset[str] = frozenset()


class NodeState:
    """A node of a graph on one path."""

    __slots__ = (
        "arrived",
        "attempt",
        "awaited",
        "count",
        "ended",
        "error",
        "excused",
        "kept",
        "live",
        "next_attempt",
        "node",
        "outer",
        "output",
        "ready",
        "slots",
        "sources",
        "status",
        "turns",
        "upstream_cancelled",
        "upstream_failed",
        "visits",
        "windows",
    )

    def __init__(self, node: Node) -> None:
        self.node = node
        self.status: StepStatus = "pending"
        """Of the latest activation."""
        self.arrived = 0
        """How many activations were made: the visit of the next one."""
        self.visits = 0
        """How many of them began or were skipped."""
        self.attempt = 0
        """Of the latest activation; 0 before the first."""
        self.next_attempt = 1
        """Of the next activation: a held step is tried again in place."""
        self.live = 0
        """Activations that are not terminal."""
        self.ready: deque[Activation] | None = None
        """Activations that wait for a slot, first come first served, as far as `ReadyQueue` lists them."""
        self.slots = 0
        """Slots that its iterations hold now."""
        self.turns: Turns | None = None
        """Of a node that handles one message at a time."""
        self.outer: Activation | None = None
        """The latest activation around iterations."""
        self.awaited = len(node.dependencies)
        """Dependencies that are not settled."""
        self.sources = _NO_SOURCES
        """For each watched source of its join, the live nodes that can reach it; absent once settled."""
        self.upstream_failed = False
        self.upstream_cancelled = False
        """Whether a dependency, near or far, failed or was cancelled (page 001 §5.2)."""
        self.excused = False
        """True if its failure counts as an end without output (`on_error`)."""
        self.output: Any = None
        self.error: Any = None
        """How the latest activation ended that has ended; on the root path also those of child paths."""
        self.ended = -1
        """The offset at which it did."""
        self.count = 0
        """How often a loop sent its token round."""
        self.kept: dict[int, Path] | None = None
        """The child paths that finished before the attempt failed that is held."""
        self.windows: dict[str, Activation] | None = None
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
            found = self.nodes[node.id] = NodeState(node)
        return found
