"""The graph, compiled once for running: adjacency, parsed expressions and templates.

A Plan is immutable and may serve any number of runs at once. Building one never evaluates anything;
it raises `ExpressionError` only for text that no loader has checked.
"""

from __future__ import annotations

import msgspec

from agentflow.definition.expressions import Expression, Template, compile_template, parse, parse_whole
from agentflow.definition.ir import (
    AgentNode,
    AgentSpec,
    ConditionNode,
    EndNode,
    Node,
    StartNode,
    ToolNode,
    Workflow,
)
from agentflow.definition.policy import NO_RETRY, RetryPolicy

__all__ = ["ROOTS", "NodePlan", "Plan", "compile_plan"]

ROOTS = frozenset({"steps", "inputs", "item", "index", "input", "nodes"})
_BRACES = ("${{", "{{")


class NodePlan:
    """One node, ready to run. `dependents` are the nodes that wait for it by dependency; `next` the
    targets that its token goes to (for a condition: by port, see `ports`)."""

    __slots__ = (
        "agent",
        "ancestors",
        "asks",
        "cache_key",
        "context",
        "dependents",
        "deps",
        "for_each",
        "guard",
        "guard_per_item",
        "id",
        "index",
        "input",
        "join_any",
        "kind",
        "max_parallel",
        "message",
        "next",
        "node",
        "ports",
        "predicate",
        "previous_agent",
        "required",
        "retry",
        "system_prompt",
        "tags",
        "timeout",
    )

    def __init__(self, node: Node, index: int) -> None:
        self.node = node
        self.id = node.id
        self.index = index
        self.kind: str = node.__struct_config__.tag  # type: ignore[assignment]
        self.deps: tuple[str, ...] = ()
        self.dependents: list[str] = []
        self.ancestors: frozenset[str] = frozenset()
        self.next: list[str] = []
        self.ports: dict[str, str] = {}
        self.join_any = node.join == "any"
        self.required = node.required
        self.max_parallel = node.max_parallel
        self.agent: AgentSpec | None = node.agent if isinstance(node, AgentNode) else None
        self.previous_agent: str | None = None

        policy = node.policy
        default = RetryPolicy() if self.agent is not None else NO_RETRY
        self.retry = (policy.retry if policy else None) or default
        self.timeout = policy.timeout if policy else None

        self.guard: Expression | None = (
            parse_whole(node.guard, bare=True, roots=ROOTS) if node.guard else None
        )
        self.guard_per_item = self.guard is not None and bool(self.guard.roots & {"item", "index"})
        self.for_each: Expression | None = (
            parse_whole(node.for_each, bare=False, roots=ROOTS) if node.for_each else None
        )
        approval = node.approval
        self.asks = approval is not None and approval.before == "step"
        self.message = (
            compile_template(approval.message, braces=_BRACES, text=True, roots=ROOTS)
            if approval is not None and approval.message is not None
            else None
        )
        self.cache_key = (
            compile_template(node.cache.key, braces=_BRACES, text=True, roots=ROOTS)
            if node.cache is not None and node.cache.key is not None
            else None
        )
        self.predicate: Expression | None = None
        if isinstance(node, ConditionNode):
            self.predicate = parse(node.expression, roots=ROOTS)
            self.ports = {"on_true": node.on_true, "on_false": node.on_false}

        self.input: Template | None = None
        if isinstance(node, AgentNode | ToolNode) and node.input is not msgspec.UNSET:
            self.input = compile_template(node.input, braces=_BRACES, roots=ROOTS)
        spec = self.agent
        self.system_prompt = (
            compile_template(spec.system_prompt, braces=_BRACES, text=True, roots=ROOTS) if spec else None
        )
        self.tags = (
            compile_template(spec.tags, braces=_BRACES, text=True, roots=ROOTS)
            if spec and spec.tags
            else None
        )
        self.context = (
            compile_template(spec.context, braces=_BRACES, roots=ROOTS)
            if spec and spec.context is not None
            else None
        )


class Plan:
    """A compiled workflow. `nodes` is in declared order, without the start and end nodes' events:
    those two move tokens and leave no trace in the log."""

    def __init__(self, workflow: Workflow) -> None:
        self.workflow = workflow
        self.options = workflow.options
        self.max_steps = max(workflow.options.max_steps, len(workflow.nodes))
        ordered = sorted(workflow.nodes, key=lambda n: (n.index, n.id))
        steps = [n for n in ordered if not isinstance(n, StartNode | EndNode)]
        ends = [n for n in ordered if isinstance(n, EndNode)]
        self.starts = [n for n in ordered if isinstance(n, StartNode)]
        self.nodes: dict[str, NodePlan] = {n.id: NodePlan(n, i) for i, n in enumerate(steps)}
        for end in ends:
            self.nodes[end.id] = NodePlan(end, len(self.nodes))
        self.step_ids = [n.id for n in steps]
        self.entry: list[str] = []
        self._connect()
        self.graph_steps = [n for n in (self.nodes[i] for i in self.step_ids) if not n.join_any]
        self.leaves = [n.id for n in self.graph_steps if not n.dependents]
        self.outputs: dict[str, Template] | None = None
        if workflow.outputs is not None:
            self.outputs = {
                k: compile_template(v, braces=_BRACES, roots=ROOTS) for k, v in workflow.outputs.items()
            }
        self.end_output: dict[str, Template] = {
            e.id: compile_template(e.output, braces=_BRACES, roots=ROOTS)
            for e in ends
            if e.output is not msgspec.UNSET
        }

    def _connect(self) -> None:
        nodes = self.nodes
        start_ids = {s.id for s in self.starts}
        for plan in nodes.values():
            if not plan.join_any:
                deps = [d for d in plan.node.depends_on if d not in start_ids]
                plan.deps = tuple(dict.fromkeys(deps))
                for dep in plan.deps:
                    nodes[dep].dependents.append(plan.id)
        for start in self.starts:
            if start.next:
                self._edge(start.id, start.next)
        for plan in nodes.values():
            following = getattr(plan.node, "next", None)
            if following:
                self._edge(plan.id, following)
        for edge in self.workflow.edges:
            self._edge(edge.source, edge.target)
        for plan in nodes.values():
            plan.ancestors = self._ancestors(plan)

    def _edge(self, source: str, target: str) -> None:
        node = self.nodes[target]
        if not node.join_any:
            return  # a node of a dependency graph is activated by its join rule, not by tokens
        if source not in self.nodes:
            self.entry.append(target)
            return
        self.nodes[source].next.append(target)
        previous = self.nodes[source]
        if previous.agent is not None:
            node.previous_agent = previous.agent.name

    def _ancestors(self, plan: NodePlan) -> frozenset[str]:
        seen: set[str] = set()
        todo = list(plan.deps)
        while todo:
            dep = todo.pop()
            if dep not in seen:
                seen.add(dep)
                todo.extend(self.nodes[dep].deps)
        return frozenset(seen)


def compile_plan(workflow: Workflow) -> Plan:
    """The plan of a workflow that the loader accepted."""
    return Plan(workflow)
