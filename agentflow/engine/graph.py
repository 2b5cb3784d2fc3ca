"""The graph of a run, compiled once: nodes, edges by port, joins, parsed expressions and templates.

A Graph is immutable and may serve any number of runs at once. Building one evaluates nothing; it raises
`ExpressionError` only for text that no loader has checked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentflow.definition.ir import AgentSpec, NodeBase, Workflow
from agentflow.definition.kinds import KINDS as DEFINITIONS
from agentflow.definition.policy import NO_RETRY, RetryPolicy
from agentflow.engine.joins import JOINS, SETTLED, Join
from agentflow.engine.kinds import KINDS
from agentflow.engine.templates import expression, text_template, value_template, whole_expression

if TYPE_CHECKING:
    from agentflow.definition.expressions import Expression, Template
    from agentflow.engine.kinds.kind import Kind

__all__ = ["Edge", "Graph", "Node", "compile_graph"]

_SYNTHETIC = "__"


class Edge:
    """A way from a node to another. `index` is its position among the edges of the graph."""

    __slots__ = ("index", "name", "port", "source", "target")

    def __init__(self, index: int, source: Node | None, port: str, target: Node) -> None:
        self.index = index
        self.source = source
        self.port = port
        self.target = target
        self.name = f"{source.id if source else ''}->{target.id}"


class Node:
    """One node, ready to run. `spec` is its Struct of the IR, `program` what its kind compiled from it."""

    __slots__ = (
        "agent",
        "approval_message",
        "asks",
        "cache_key",
        "dependencies",
        "for_each",
        "guard",
        "guard_per_item",
        "has_gate",
        "id",
        "index",
        "is_silent",
        "join",
        "kind",
        "max_parallel",
        "out",
        "previous_agent",
        "program",
        "required",
        "retry",
        "spec",
        "timeout",
        "watchers",
    )

    def __init__(self, spec: NodeBase, index: int) -> None:
        self.spec = spec
        self.id = spec.id
        self.index = index
        self.kind: Kind = _kind(spec)
        self.join: Join = JOINS[spec.join]
        self.out: dict[str, tuple[Edge, ...]] = {}
        self.dependencies: tuple[str, ...] = ()
        self.watchers: tuple[tuple[str, str], ...] = ()  # (join, source) that this node can still reach
        self.previous_agent: str | None = None
        self.required = spec.required
        self.max_parallel = spec.max_parallel
        self.is_silent = self.kind.moves_tokens_only and spec.id.startswith(_SYNTHETIC)
        self.agent: AgentSpec | None = None
        policy = spec.policy
        self.retry: RetryPolicy = (policy.retry if policy else None) or self.kind.retry or NO_RETRY
        self.timeout = policy.timeout if policy else None
        self.guard: Expression | None = expression(spec.guard) if spec.guard else None
        self.guard_per_item = self.guard is not None and bool(self.guard.roots & {"item", "index"})
        self.for_each: Expression | None = whole_expression(spec.for_each) if spec.for_each else None
        approval = spec.approval
        self.asks = approval is not None and approval.before == "step"
        message = approval.message if approval is not None else None
        self.approval_message: Template | None = None if message is None else text_template(message)
        key = spec.cache.key if spec.cache is not None else None
        self.cache_key: Template | None = None if key is None else text_template(key)
        self.has_gate = self.asks or self.for_each is not None or self.guard is not None
        self.program: Any = self.kind.compile(self)

    @property
    def is_dependency_node(self) -> bool:
        """True if the node is activated once, by its join, and not once a token."""
        return not self.join.takes_tokens

    def targets(self, port: str) -> tuple[Edge, ...]:
        """Return the edges that leave by this port."""
        return self.out.get(port, ())


class Graph:
    """A compiled workflow. `nodes` is in declared order, the starts and ends behind the steps."""

    def __init__(self, workflow: Workflow) -> None:
        self.workflow = workflow
        self.options = workflow.options
        self.max_steps = max(workflow.options.max_steps, len(workflow.nodes))
        ordered = sorted(workflow.nodes, key=lambda n: (n.index, n.id))
        borders = [n for n in ordered if _kind(n).is_start or _kind(n).is_end]
        steps = [n for n in ordered if not (_kind(n).is_start or _kind(n).is_end)]
        self.nodes: dict[str, Node] = {n.id: Node(n, i) for i, n in enumerate([*steps, *borders])}
        self.step_ids = [n.id for n in steps]
        self.starts = [n for n in self.nodes.values() if n.kind.is_start]
        self.ends = [n for n in self.nodes.values() if n.kind.is_end]
        self._edges = 0
        self._connect()
        self.dependency_nodes = [n for n in self.nodes.values() if n.is_dependency_node]
        self.roots = [n for n in self.dependency_nodes if not n.dependencies]
        self.leaves = [n.id for n in self.dependency_nodes if SETTLED not in n.out]
        self.outputs: dict[str, Template] | None = None
        if workflow.outputs is not None:
            self.outputs = {k: value_template(v) for k, v in workflow.outputs.items()}
        self.has_watchers = self._watch()

    def dependents(self, node: Node) -> tuple[Edge, ...]:
        """Return the edges to the nodes that wait for this one."""
        return node.out.get(SETTLED, ())

    def _connect(self) -> None:
        out: dict[str, dict[str, list[Edge]]] = {node_id: {} for node_id in self.nodes}
        for node in self.nodes.values():
            if node.is_dependency_node:
                found = dict.fromkeys(d for d in node.spec.depends_on if not self.nodes[d].kind.is_start)
                node.dependencies = tuple(found)
                for dependency in node.dependencies:
                    self._edge(out, self.nodes[dependency], SETTLED, node)
        for node in [*self.starts, *(n for n in self.nodes.values() if not n.kind.is_start)]:
            for port, target in DEFINITIONS[node.kind.name].ports(node.spec):
                self._token_edge(out, node, port, self.nodes[target])
        for edge in self.workflow.edges:
            self._token_edge(out, self.nodes[edge.source], "next", self.nodes[edge.target])
        for node_id, ports in out.items():
            self.nodes[node_id].out = {port: tuple(edges) for port, edges in ports.items()}

    def _token_edge(
        self, out: dict[str, dict[str, list[Edge]]], source: Node, port: str, target: Node
    ) -> None:
        """Tokens neither enter nor leave a node of dependencies: its join says when it runs."""
        if source.is_dependency_node or target.is_dependency_node:
            return
        self._edge(out, source, port, target)
        if source.agent is not None:
            target.previous_agent = source.agent.name

    def _edge(self, out: dict[str, dict[str, list[Edge]]], source: Node, port: str, target: Node) -> None:
        out[source.id].setdefault(port, []).append(Edge(self._edges, source, port, target))
        self._edges += 1

    def _watch(self) -> bool:
        """Find for each node the joins whose sources it can still reach.

        A source of a join may still arrive while a live node can reach it over edges that avoid the join
        (page 002 §5). Only dependencies on nodes that take tokens are watched: the others always end.
        """
        watched: dict[str, list[tuple[str, str]]] = {}
        back: dict[str, list[str]] | None = None
        for join in self.nodes.values():
            for source in join.join.watched_sources(self, join):
                if back is None:
                    back = self._backwards()
                for reaching in _reaching(back, source, avoid=join.id):
                    watched.setdefault(reaching, []).append((join.id, source))
        for node_id, pairs in watched.items():
            self.nodes[node_id].watchers = tuple(pairs)
        return bool(watched)

    def _backwards(self) -> dict[str, list[str]]:
        back: dict[str, list[str]] = {node_id: [] for node_id in self.nodes}
        for node in self.nodes.values():
            for edges in node.out.values():
                for edge in edges:
                    back[edge.target.id].append(node.id)
        return back


def _reaching(back: dict[str, list[str]], source: str, avoid: str) -> set[str]:
    """Return the nodes from which `source` can be reached without passing `avoid`, itself included."""
    found = {source} - {avoid}
    todo = list(found)
    while todo:
        for before in back[todo.pop()]:
            if before != avoid and before not in found:
                found.add(before)
                todo.append(before)
    return found


def _kind(spec: NodeBase) -> Kind:
    return KINDS[str(spec.__struct_config__.tag)]


def compile_graph(workflow: Workflow) -> Graph:
    """Return the compiled graph of a workflow that the loader accepted."""
    return Graph(workflow)
