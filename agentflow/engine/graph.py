"""The graph of a run, compiled once: nodes, edges by port, joins, parsed expressions and templates.

A Graph is immutable and may serve any number of runs at once. Building one evaluates nothing; it raises
`ExpressionError` only for text that no loader has checked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from agentflow.definition.edge_checks import EDGE_ROOTS
from agentflow.definition.expressions import parse
from agentflow.definition.ir import AgentSpec, NodeBase, Workflow
from agentflow.definition.ir import Edge as EdgeSpec
from agentflow.definition.kinds import KINDS as DEFINITIONS
from agentflow.definition.policy import NO_RETRY, RetryPolicy
from agentflow.engine.joins import JOINS, SETTLED, Fan, Join, fans_of
from agentflow.engine.kinds import KINDS
from agentflow.engine.policies import POLICIES
from agentflow.engine.templates import expression, text_template, value_template, whole_expression

if TYPE_CHECKING:
    from agentflow.definition.expressions import Expression, Template
    from agentflow.engine.kinds.kind import Kind

__all__ = ["Edge", "Graph", "Node", "Route", "compile_graph"]

_SYNTHETIC = "__"


class Edge:
    """A way from a node to another. `index` is its position among the edges of the graph.

    `spec` is the edge of the IR, None for one of a target field; `when` its predicate, `fan` the join that it
    leads to, if it is of kind fan_in.
    """

    __slots__ = ("fan", "index", "name", "port", "source", "spec", "target", "when")

    def __init__(
        self, index: int, source: Node | None, port: str, target: Node, spec: EdgeSpec | None = None
    ) -> None:
        self.index = index
        self.source = source
        self.port = port
        self.target = target
        self.spec = spec
        self.name = f"{source.id if source else ''}->{target.id}"
        self.when: Expression | None = None
        self.fan: Fan | None = None
        if spec is not None:
            self.name = spec.name or self.name
            self.when = None if spec.when is None else parse(spec.when, roots=EDGE_ROOTS)


class Node:
    """One node, ready to run. `spec` is its Struct of the IR, `program` what its kind compiled from it."""

    __slots__ = (
        "agent",
        "approval_message",
        "asks",
        "cache_key",
        "dependencies",
        "fan_watchers",
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
        "routes",
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
        self.fan_watchers: tuple[tuple[int, str], ...] = ()  # (fan, source) that this node can still reach
        self.routes: tuple[Route, ...] = ()
        """How its messages go, if more than along every edge: groups of its `edges[]` in declared order."""
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


class Route(NamedTuple):
    """Edges of one kind that are tested together: one single edge, or one group. `name` is that of the
    selection or of the group."""

    kind: str
    name: str
    edges: tuple[Edge, ...]


class Graph:
    """A compiled workflow. `nodes` is in declared order, the starts and ends behind the steps."""

    def __init__(self, workflow: Workflow) -> None:
        self.workflow = workflow
        self.options = workflow.options
        self.policy = POLICIES[workflow.options.policy]
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
        self.fans: tuple[Fan, ...] = fans_of(
            e for n in self.nodes.values() for p in n.out.values() for e in p
        )
        self.has_watchers = self._watch()
        self._watch_fans()
        self.yields = any(n.kind.yields for n in self.nodes.values())
        """True if outputs that nodes give out while they run are the output of the run."""

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
            port = "error" if edge.kind == "error" else "next"
            self._token_edge(out, self.nodes[edge.source], port, self.nodes[edge.target], edge)
        for node_id, ports in out.items():
            node = self.nodes[node_id]
            node.out = {port: tuple(edges) for port, edges in ports.items()}
            node.routes = _routes(node)

    def _token_edge(
        self,
        out: dict[str, dict[str, list[Edge]]],
        source: Node,
        port: str,
        target: Node,
        spec: EdgeSpec | None = None,
    ) -> None:
        """Tokens neither enter nor leave a node of dependencies: its join says when it runs."""
        if source.is_dependency_node or target.is_dependency_node:
            return
        self._edge(out, source, port, target, spec)
        if source.agent is not None:
            target.previous_agent = source.agent.name

    def _edge(
        self,
        out: dict[str, dict[str, list[Edge]]],
        source: Node,
        port: str,
        target: Node,
        spec: EdgeSpec | None = None,
    ) -> None:
        out[source.id].setdefault(port, []).append(Edge(self._edges, source, port, target, spec))
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

    def _watch_fans(self) -> None:
        """Find for each node the sources of fan-ins that it can reach over edges that lead elsewhere."""
        watched: dict[str, list[tuple[int, str]]] = {}
        for fan in self.fans:
            back = self._backwards(but=fan)
            for source in fan.sources:
                for reaching in _reaching(back, source, avoid=""):
                    watched.setdefault(reaching, []).append((fan.index, source))
        for node_id, pairs in watched.items():
            self.nodes[node_id].fan_watchers = tuple(pairs)

    def _backwards(self, but: Fan | None = None) -> dict[str, list[str]]:
        back: dict[str, list[str]] = {node_id: [] for node_id in self.nodes}
        for node in self.nodes.values():
            for edges in node.out.values():
                for edge in edges:
                    if edge.fan is None or edge.fan is not but:
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


def _routes(node: Node) -> tuple[Route, ...]:
    """Return the groups of a node's edges; nothing if a token simply takes every edge of its port."""
    edges = node.targets("next")
    if not node.kind.sends and all(e.spec is None or _is_plain(e.spec) for e in edges):
        return ()
    groups: dict[tuple[str, str], list[Edge]] = {}
    for edge in edges:
        spec = edge.spec
        kind = "single" if spec is None else spec.kind
        if kind == "single" or spec is None:
            groups[kind, str(edge.index)] = [edge]
        else:
            groups.setdefault((kind, spec.group or spec.selection or ""), []).append(edge)
    return tuple(Route(kind, name, tuple(found)) for (kind, name), found in groups.items())


def _is_plain(spec: EdgeSpec) -> bool:
    return spec.kind in ("single", "fan_out") and spec.when is None


def _kind(spec: NodeBase) -> Kind:
    return KINDS[str(spec.__struct_config__.tag)]


def compile_graph(workflow: Workflow) -> Graph:
    """Return the compiled graph of a workflow that the loader accepted."""
    return Graph(workflow)
