"""Paths: where tokens move. A run has a root path; a spawning activation opens child paths below it."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from agentflow.engine.activation import Activation, StepStatus

if TYPE_CHECKING:
    from agentflow.engine.graph import Graph, Node
    from agentflow.engine.mail import Turns
    from agentflow.engine.rounds import Round

__all__ = ["NodeState", "Path"]


class NodeState:
    """A node of a graph on one path."""

    __slots__ = (
        "arrived",
        "attempt",
        "awaited",
        "live",
        "next_attempt",
        "node",
        "outer",
        "ready",
        "slots",
        "sources",
        "status",
        "turns",
        "upstream_cancelled",
        "upstream_failed",
        "visits",
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
        self.ready: deque[Activation] = deque()
        """Activations that wait for a slot, first come first served."""
        self.slots = 0
        """Slots that its iterations hold now."""
        self.turns: Turns | None = None
        """Of a node that handles one message at a time."""
        self.outer: Activation | None = None
        """The latest activation around iterations."""
        self.awaited = len(node.dependencies)
        """Dependencies that are not settled."""
        self.sources: dict[str, int] = {}
        """For each watched source of its join, the live nodes that can reach it; absent once settled."""
        self.upstream_failed = False
        self.upstream_cancelled = False
        """Whether a dependency, near or far, failed or was cancelled (page 001 §5.2)."""


class Path:
    """A place where tokens move, with a frame of its own: what its nodes gave, seen by expressions.

    `key` is empty for the root, else that of the activation that opened the path and the index of the branch.
    """

    __slots__ = (
        "due",
        "ended",
        "error",
        "graph",
        "index",
        "item",
        "key",
        "live",
        "nodes",
        "nodes_view",
        "opener",
        "output",
        "parent",
        "rounds",
        "steps_view",
        "stopped",
    )

    def __init__(self, graph: Graph, key: str = "", opener: Activation | None = None, index: int = 0) -> None:
        self.graph = graph
        self.key = key
        self.opener = opener
        self.parent: Path | None = None if opener is None else opener.path
        self.index = index
        self.item: Any = None
        self.nodes: dict[str, NodeState] = {}
        self.live = 0
        """Activations on this path that are not terminal."""
        self.output: Any = None
        """The last token that came to an end of this path."""
        self.error: Any = None
        self.ended = False
        self.stopped = False
        """True once a token came to an end that does not wait for the others."""
        self.rounds: dict[int, Round] = {}
        """The buffers of the fan-ins, by the index of the fan-in."""
        self.due: set[int] = set()
        """Fan-ins that may be complete."""
        self.nodes_view: dict[str, Any] = {}
        """The root `nodes` of expressions: what ended on this path."""
        self.steps_view: dict[str, Any] = {}
        """The root `steps`: the terminal steps of a graph of dependencies."""

    def node(self, node: Node) -> NodeState:
        """Return the state of a node on this path; made at its first use."""
        found = self.nodes.get(node.id)
        if found is None:
            found = self.nodes[node.id] = NodeState(node)
        return found
