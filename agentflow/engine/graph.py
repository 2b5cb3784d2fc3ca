"""The graph of a run, compiled once: nodes, edges by port, joins, parsed expressions and templates.

A Graph is immutable and may serve any number of runs at once. Building one evaluates nothing; it raises
`ExpressionError` only for text that no loader has checked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from agentflow.definition.expression_checks import EDGE_ROOTS
from agentflow.definition.expressions import parse
from agentflow.definition.ir import AgentSpec, NodeBase, Workflow, canonical_json, decode_ir
from agentflow.definition.ir import Edge as EdgeSpec
from agentflow.definition.kinds import has_handlers, kind_of, targets_of
from agentflow.definition.policy import NO_RETRY, RetryPolicy
from agentflow.engine.globals import GlobalWrites, compile_writes
from agentflow.engine.joins import JOINS, SETTLED, Fan, Join, fans_of
from agentflow.engine.kinds import KINDS
from agentflow.engine.policies import POLICIES
from agentflow.engine.references import NO_ROOTS, Reads, expressions_in, rare_roots, reads_of
from agentflow.engine.templates import expression, text_template, value_template, whole_expression

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agentflow.definition.expressions import Expression, Template
    from agentflow.definition.ir import Options
    from agentflow.engine.bindings import StepBinding
    from agentflow.engine.kinds.kind import Kind
    from agentflow.engine.messages import Way

__all__ = ["Edge", "Graph", "Node", "Route", "compile_graph"]

_SYNTHETIC = "__"
_NO_EDGES: dict[str, tuple[Edge, ...]] = {}  # shared and never changed: many nodes have none


class Edge:
    """A way from a node to another. `index` is its position among the edges of the graph.

    `terms` says what is more than a plain way: a name, a predicate, a group. Most edges have none, and the
    plan of a run stays small.
    """

    __slots__ = ("index", "port", "source", "target", "terms")

    def __init__(
        self,
        index: int,
        source: Node | None,
        port: str,
        target: Node,
        spec: EdgeSpec | None = None,
        room: int | None = None,
    ) -> None:
        self.index = index
        self.source = source
        self.port = port
        self.target = target
        self.terms = None if spec is None or _is_bare(spec) else Terms(spec, room)

    @property
    def name(self) -> str:
        """Its name, or its ends where it has none."""
        stated = None if self.terms is None else self.terms.spec.name
        return stated or f"{self.source.id if self.source else ''}->{self.target.id}"

    @property
    def spec(self) -> EdgeSpec | None:
        """The edge of the IR; None for a plain one, and one of a target field."""
        return None if self.terms is None else self.terms.spec

    @property
    def when(self) -> Expression | None:
        """Its predicate."""
        return None if self.terms is None else self.terms.when

    @property
    def predicate(self) -> str | None:
        """The name of its predicate, if that is Python code: the verdict comes with the message."""
        return None if self.terms is None else self.terms.spec.predicate

    @property
    def fan(self) -> Fan | None:
        """The join that it leads to, if it is of kind fan_in."""
        return None if self.terms is None else self.terms.fan


class Terms:
    """What an edge says beside its ends: the edge of the IR, its predicate compiled, and its join."""

    __slots__ = ("fan", "spec", "when")

    def __init__(self, spec: EdgeSpec, room: int | None) -> None:
        self.spec = spec
        when = None if spec.when is None else parse(spec.when, roots=EDGE_ROOTS)
        self.when: Expression | None = None if when is None else when.within(room)
        self.fan: Fan | None = None


class Node:
    """One node, ready to run. `spec` is its Struct of the IR, `program` what its kind compiled from it.

    `id` names it in the run; inside a subgraph `name` is the id in its own graph, which expressions use.
    """

    __slots__ = (
        "_reads",
        "agent",
        "approval_message",
        "asks",
        "binding",
        "cache_key",
        "dependencies",
        "dependents",
        "expression_room",
        "fan_watchers",
        "for_each",
        "guard",
        "has_gate",
        "id",
        "index",
        "is_silent",
        "iterates",
        "join",
        "kind",
        "max_parallel",
        "name",
        "on_error",
        "only_queues",
        "out",
        "plain_call",
        "previous_agent",
        "program",
        "rare_roots",
        "retry",
        "routes",
        "spec",
        "timeout",
        "watchers",
        "ways",
        "writes",
    )

    def __init__(self, spec: NodeBase, index: int, prefix: str = "", room: int | None = None) -> None:
        self.spec = spec
        self.expression_room = room
        """What each of its expressions may read, in bytes of JSON; None: any number."""
        self.id = prefix + spec.id
        self.name = spec.id
        self.index = index
        self.kind: Kind = _kind(spec).form_of(spec)
        self.join: Join = self.kind.join or JOINS[spec.join]
        self.binding: StepBinding | None = None
        """What it is bound to, if its graph became known in the run; else the run knows."""
        self.out: dict[str, tuple[Edge, ...]] = _NO_EDGES
        """The edges of tokens, by port."""
        self.dependents: tuple[Edge, ...] = ()
        """The edges to the nodes that wait for this one."""
        self.dependencies: tuple[str, ...] = ()
        self.watchers: tuple[tuple[str, str], ...] = ()  # (join, source) that this node can still reach
        self.fan_watchers: tuple[tuple[int, str], ...] = ()  # (fan, source) that this node can still reach
        self.routes: tuple[Route, ...] = ()
        """How its messages go, if more than along every edge: groups of its `edges[]` in declared order."""
        self.ways: dict[tuple[str, tuple[str, ...], str | None], Way] | None = None
        """Where its messages went, by type, bases and target; None if its edges ask more of a message."""
        self.previous_agent: str | None = None
        self.max_parallel = spec.max_parallel
        self.is_silent = self.kind.moves_tokens_only and spec.id.startswith(_SYNTHETIC)
        self.agent: AgentSpec | None = None
        policy = spec.policy
        self.retry: RetryPolicy = (policy.retry if policy else None) or kind_of(spec).retry or NO_RETRY
        self.timeout = policy.timeout if policy else None
        self.guard: Expression | None = expression(spec.guard, room) if spec.guard else None
        self.for_each: Expression | None = whole_expression(spec.for_each) if spec.for_each else None
        approval = spec.approval
        self.asks = approval is not None and approval.before == "step"
        message = approval.message if approval is not None else None
        self.approval_message: Template | None = None if message is None else text_template(message)
        key = spec.cache.key if spec.cache is not None else None
        self.cache_key: Template | None = None if key is None else text_template(key)
        self.has_gate = self.asks or self.for_each is not None or self.guard is not None
        self.iterates = self.for_each is not None or self.kind.iterates
        self.only_queues = self.kind.takes_slot and not (self.asks or self.iterates)
        """True if an activation that may start has nothing to do but wait for a slot."""
        self.on_error = None if spec.on_error == "fail" else spec.on_error
        self.writes: GlobalWrites | None = compile_writes(spec)
        self.program: Any = self.kind.compile(self)
        self.plain_call = False
        """True if `plain_calls` or `plain_handlers` may fold it; set once its edges are known."""
        self.rare_roots = rare_roots(self._compiled())
        self._reads: Reads | None = None

    @property
    def required(self) -> bool:
        """True if the run fails with the node."""
        return self.spec.required

    @property
    def guard_per_item(self) -> bool:
        """True if its guard reads the item, so that it is evaluated for each iteration."""
        return self.guard is not None and bool(self.guard.roots & {"item", "index"})

    @property
    def agent_name(self) -> str | None:
        """The name of its agent, which its events have; None if its turns are those of a plain model call."""
        return None if self.agent is None or not self.kind.has_agent_events else self.agent.name

    @property
    def reads(self) -> Reads:
        """What its expressions read, found when it is first asked for: on child paths alone."""
        if self._reads is None:
            self._reads = reads_of(self._compiled())
        return self._reads

    def counts_read(self) -> frozenset[str]:
        """Return the nodes of which it reads `count` or `visits`."""
        texts = " ".join(expression.source for expression in expressions_in(self._compiled()))
        return self.reads.counted if "count" in texts or "visits" in texts else NO_ROOTS

    def _compiled(self) -> tuple[Any, ...]:
        return (
            self.guard,
            self.for_each,
            self.approval_message,
            self.cache_key,
            self.writes,
            self.program,
        )

    @property
    def is_dependency_node(self) -> bool:
        """True if the node is activated once, by its join, and not once a token."""
        return not self.join.takes_tokens

    @property
    def opening_ports(self) -> tuple[str, ...]:
        """The ports at which its child paths begin."""
        return kind_of(self.spec).opens(self.spec)

    def edges(self) -> Iterator[Edge]:
        """Yield every edge that leaves the node, those to its dependents too."""
        for edges in self.out.values():
            yield from edges
        yield from self.dependents

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
    """A compiled workflow. `nodes` is in declared order, the starts and ends behind the steps.

    `all_nodes` and `step_ids` have those of its inline subgraphs too, behind its own; their ids begin with
    `prefix`, which is that of the subgraph's node with a slash.
    """

    def __init__(self, workflow: Workflow, prefix: str = "", options: Options | None = None) -> None:
        self.workflow = workflow
        self.options = workflow.options if options is None else options
        self.policy = POLICIES[self.options.policy]
        self.max_steps = max(workflow.options.max_steps, len(workflow.nodes))
        ordered = sorted(workflow.nodes, key=lambda n: (n.index, n.id))
        borders = [n for n in ordered if _kind(n).is_start or _kind(n).is_end]
        steps = [n for n in ordered if not (_kind(n).is_start or _kind(n).is_end)]
        room = self.options.max_expression_scope_bytes
        made = [Node(n, i, prefix, room) for i, n in enumerate([*steps, *borders])]
        self.nodes: dict[str, Node] = {n.id: n for n in made}
        self.step_ids = [n.id for n in made[: len(steps)]]
        self.starts = [n for n in self.nodes.values() if n.kind.is_start]
        self.ends = [n for n in self.nodes.values() if n.kind.is_end]
        self._edges = 0
        self._connect(prefix)
        self.dependency_nodes = tuple(n for n in self.nodes.values() if n.is_dependency_node)
        self.roots = [n for n in self.dependency_nodes if not n.dependencies]
        self.leaves = [n.id for n in self.dependency_nodes if not n.dependents]
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
        self.has_mail = self.policy.keeps_messages or any(n.kind.sends or n.routes for n in made)
        """True if messages may wait, or end the run: for a turn, for a superstep, for a round."""
        self.all_nodes = dict(self.nodes)
        self.uses_last = False
        self.counted: set[str] = set()
        for node in made:
            node.kind.link(self, node)
            node.plain_call = node.kind.makes_plain_call(node)
            self._count_uses(node)
        self.keeps_results = any(
            n.spec.cache or n.kind.uses_store or n.kind.brings_graph for n in self.all_nodes.values()
        )
        """True if results are looked up outside the run, or kept there."""
        self.has_handlers = has_handlers(workflow)

    def inline(self, node: Node, workflow: Workflow) -> Graph:
        """Return the compiled graph of an inline subgraph, and take its nodes in."""
        inner = Graph(workflow, node.id + "/", self.options)
        self.all_nodes |= inner.all_nodes
        self.step_ids += inner.step_ids
        self.uses_last |= inner.uses_last
        self.has_mail |= inner.has_mail
        return inner

    def _count_uses(self, node: Node) -> None:
        """Find what must be kept or shown beside the ends of nodes."""
        self.uses_last |= "last_llm_output" in node.rare_roots or "last_tool_output" in node.rare_roots
        self.counted |= node.counts_read()

    def _connect(self, prefix: str) -> None:
        out: dict[str, dict[str, list[Edge]]] = {node_id: {} for node_id in self.nodes}
        for node in self.nodes.values():
            if node.is_dependency_node:
                named = (prefix + d for d in node.spec.depends_on)
                found = tuple(dict.fromkeys(d for d in named if not self.nodes[d].kind.is_start))
                node.dependencies = node.spec.depends_on if found == node.spec.depends_on else found
                for dependency in node.dependencies:
                    self._edge(out, self.nodes[dependency], SETTLED, node)
        for node in [*self.starts, *(n for n in self.nodes.values() if not n.kind.is_start)]:
            for port, target in targets_of(node.spec):
                self._token_edge(out, node, port, self.nodes[prefix + target])
        for edge in self.workflow.edges:
            source, target = self.nodes[prefix + edge.source], self.nodes[prefix + edge.target]
            self._token_edge(out, source, "error" if edge.kind == "error" else "next", target, edge)
        for node_id, ports in out.items():
            node = self.nodes[node_id]
            node.dependents = tuple(ports.pop(SETTLED, ()))
            if ports:
                node.out = {port: tuple(edges) for port, edges in ports.items()}
            node.routes = _routes(node)
            if node.kind.sends and not any(_asks_more(route) for route in node.routes):
                node.ways = {}

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
        if source.agent_name is not None:
            target.previous_agent = source.agent_name

    def _edge(
        self,
        out: dict[str, dict[str, list[Edge]]],
        source: Node,
        port: str,
        target: Node,
        spec: EdgeSpec | None = None,
    ) -> None:
        room = self.options.max_expression_scope_bytes
        out[source.id].setdefault(port, []).append(Edge(self._edges, source, port, target, spec, room))
        self._edges += 1

    def _watch(self) -> bool:
        """Find for each node the joins whose sources it can still reach.

        A source of a join may still arrive while a live node can reach it over edges that avoid the join
        (page 002 §5). Only dependencies on nodes that take tokens are watched: the others always end.
        """
        watched: dict[str, list[tuple[str, str]]] = {}
        self.watching: list[Node] = []
        back: dict[str, list[str]] | None = None
        for join in self.nodes.values():
            sources = join.join.watched_sources(self, join)
            if sources:
                self.watching.append(join)
            for source in sources:
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
            for edge in node.edges():
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
    if not node.kind.is_typed(node.spec) and all(e.spec is None or _is_plain(e.spec) for e in edges):
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


def _asks_more(route: Route) -> bool:
    """Return whether the edges of a route ask more of a message than its type and target."""
    kinds = ("single", "fan_out", "fan_in")
    return route.kind not in kinds or any(e.when is not None or e.predicate is not None for e in route.edges)


def _is_bare(spec: EdgeSpec) -> bool:
    return spec.kind == "single" and spec.when is None and spec.predicate is None and not spec.name


def _is_plain(spec: EdgeSpec) -> bool:
    return spec.kind in ("single", "fan_out") and spec.when is None and spec.predicate is None


def _kind(spec: NodeBase) -> Kind:
    return KINDS[str(spec.__struct_config__.tag)]


def compile_inner(value: Any, prefix: str, outer: Graph) -> Graph:
    """Return the compiled graph of a JSON value that the checks accepted: it runs in the log of `outer`, with
    its options. The room of expressions is that of the format of the value."""
    workflow = decode_ir(canonical_json(value))
    room = workflow.options.max_expression_scope_bytes
    options = msgspec.structs.replace(outer.options, max_expression_scope_bytes=room)
    return Graph(workflow, prefix, options)


def compile_graph(workflow: Workflow) -> Graph:
    """Return the compiled graph of a workflow that the loader accepted."""
    return Graph(workflow)
