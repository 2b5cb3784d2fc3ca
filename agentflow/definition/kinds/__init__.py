"""The kinds of nodes: one module each, and the table of them.

A kind is two halves of one name. Its half in `engine/kinds/` says what it does; its half here says what it
looks like, in a module of these names:

    Spec               its Struct
    ports(spec)        its target fields that are set, in the order of page 003 §4, as (port, target id); a
                       port is the path of the field in the node: "next", "branches/0", "routes/2/next"
    check(spec, at)    reports what is wrong with its own fields
    SHAPE              that of the node in drawings: box, rounded, diamond, oval
    TAKES              fields of NodeBase that have an effect beside those that every kind takes, see `Kind`

and where they apply

    label(spec, port)  the label of an edge in drawings
    routing(spec)      the expressions by which it chooses its way, by name
    structure(spec)    what else of it decides how nodes are joined (page 002 §9, signature)
    STRUCTURAL         names of the fields that stand in ports, routing and structure
    opens(spec)        ports at which child paths begin
    references(spec)   (path of the field, id) of nodes that it names, which are no edges
    bounded(spec)      ports that a token cannot take for ever without a limit, a wait or a person
    returns(spec)      the port whose way should lead back to the node
    inner(spec)        the graph that runs as part of the node; None if it has none
    binds(spec)        what is found outside before a run begins: its agent, functions that it calls, code
                       that is registered by name (`Binds`)
    gathers(spec)      whether all branches that it joins have ended when it goes on
    spreads(spec)      whether its own work is done by an iteration for each of its items
    adapted(spec, options) the fields that options of a run change, with their values
    POLICY_OPTION      the option of a run that has the policy of such nodes
    at_once(spec, options)  how many of these may be at work at once
    starts_run(spec)   whether its work is a run of its own
    RETRY              the policy of a node that states none
    IS_HANDLED         its work is done by a handler, which begins with `workflow.step_started`; `on_error:
                       skip` keeps a failure of it from the run
    IS_START, IS_END, MAY_END, ITERATES (its child paths read `item` and `index`),
    CLOSES_GROUPS (behind a node with branches it reads what those gave)

Nothing else in agentflow asks what kind a node has, but its half in the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, Union

from agentflow.definition import graph
from agentflow.definition.kinds import (
    agent,
    batch,
    cache_read,
    cache_write,
    condition,
    debounce,
    end,
    event_trigger,
    executor,
    filter,
    human_in_the_loop,
    llm,
    loop,
    map,
    merge,
    parallel,
    reduce,
    retry_compensate,
    router,
    start,
    subgraph,
    throttle,
    tool,
    transform,
    wait,
)
from agentflow.definition.node import AgentSpec, Binds, ErrorRoute, NodeBase
from agentflow.definition.policy import RetryPolicy

if TYPE_CHECKING:
    from agentflow.definition.node_report import NodeReport

__all__ = ["KINDS", "Kind", "Ports", "agent_of", "has_handlers", "kind_of", "targets_of", "union_of"]

Ports = tuple[tuple[str, str], ...]


_OPTIONAL = (
    *("label", "takes", "routing", "structure", "structural", "opens", "references", "bounded", "returns"),
    *(
        "inner",
        "binds",
        "gathers",
        "spreads",
        "retry",
        "is_handled",
        "adapted",
        "policy_option",
        "at_once",
        "starts_run",
        "brings_graph",
    ),
    *("is_start", "is_end", "may_end", "iterates", "closes_groups"),
)


def _none(spec: Any) -> tuple[Any, ...]:
    return ()


def _no_label(spec: Any, port: str) -> str | None:
    return None


def _nothing(spec: Any) -> None:
    return None


def _no_needs(spec: Any) -> Binds:
    return Binds()


def _never(spec: Any) -> bool:
    return False


def _always(spec: Any) -> bool:
    return True


def _unchanged(spec: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    return {}


def _max_parallel(spec: NodeBase, options: Any) -> int | None:
    return spec.max_parallel


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """The half of a kind that the definition knows; see the module's docstring for its functions.

    `takes` has `approval`, `budget`, `cache`, `policy`; `dependency` (the node may wait for others by
    `depends_on` and join, with `guard`, `for_each` and `max_parallel`); `calls` (approval of single calls).
    `routing` is None for a kind that always goes on by `next`; such a node may have `edges[]` beside it.
    `may_end`: without an edge on, a path of it ends. A start and an end take no field of NodeBase.
    """

    name: str
    spec: type[NodeBase]
    ports: Callable[[Any], Ports]
    check: Callable[[Any, NodeReport], None]
    shape: str
    label: Callable[[Any, str], str | None] = _no_label
    takes: frozenset[str] = frozenset()
    routing: Callable[[Any], dict[str, str]] | None = None
    structure: Callable[[Any], dict[str, Any]] | None = None
    structural: frozenset[str] = frozenset({"next", "on_error"})
    opens: Callable[[Any], tuple[str, ...]] = _none
    references: Callable[[Any], Ports] = _none
    bounded: Callable[[Any], tuple[str, ...]] = _none
    returns: Callable[[Any], str] | None = None
    inner: Callable[[Any], graph.Workflow | None] = _nothing
    binds: Callable[[Any], Binds] = _no_needs
    gathers: Callable[[Any], bool] = _always
    spreads: Callable[[Any], bool] = _never
    adapted: Callable[[Any, Mapping[str, Any]], dict[str, Any]] = _unchanged
    policy_option: str | None = None
    at_once: Callable[[Any, Any], int | None] = _max_parallel
    starts_run: Callable[[Any], bool] = _never
    brings_graph: Callable[[Any], bool] = _never
    retry: RetryPolicy | None = None
    is_handled: bool = False
    is_start: bool = False
    is_end: bool = False
    may_end: bool = False
    iterates: bool = False
    closes_groups: bool = False

    @property
    def is_border(self) -> bool:
        """True for a start and an end: they move tokens and do no work."""
        return self.is_start or self.is_end

    def takes_slot(self, spec: NodeBase) -> bool:
        """Return whether its work takes one of the `max_parallel` slots: agents, calls and child runs do."""
        binds = self.binds(spec)
        return binds.agent is not None or bool(binds.tools) or self.starts_run(spec)

    @classmethod
    def of(cls, module: ModuleType) -> Kind:
        """Return the kind that a module makes; its name is the tag of its Spec."""
        given = vars(module)
        return cls(
            name=given["Spec"].__struct_config__.tag,
            spec=given["Spec"],
            ports=given["ports"],
            check=given["check"],
            shape=given["SHAPE"],
            **{name: given[key] for name in _OPTIONAL for key in (name, name.upper()) if key in given},
        )


_MODULES = (
    *(start, end, agent, tool, condition, router, loop),
    *(parallel, merge, map, batch, subgraph, wait, executor),
    *(reduce, filter, transform, cache_read, cache_write, debounce, throttle),
    *(event_trigger, human_in_the_loop, llm, retry_compensate),
)

KINDS: dict[str, Kind] = {kind.name: kind for kind in (Kind.of(module) for module in _MODULES)}
"""Kinds by name. A kind that only a test knows is added here and in the table of the engine."""


def union_of(specs: Iterable[type[NodeBase]]) -> Any:
    """Return the union type of several Specs."""
    return Union[tuple(specs)]  # noqa: UP007


graph.AnyNode = union_of(kind.spec for kind in KINDS.values())


def kind_of(node: NodeBase) -> Kind:
    """Return the kind of a node."""
    return KINDS[node.__struct_config__.tag]  # type: ignore[index]


def has_handlers(workflow: graph.Workflow) -> bool:
    """Return whether nodes of a graph are handlers, or workflows that exchange messages with it."""
    nodes = workflow.nodes
    return any(kind_of(node).is_handled or getattr(node, "exchange", None) is not None for node in nodes)


def agent_of(node: NodeBase) -> AgentSpec | None:
    """Return the agent that works in a node, of those kinds that have one."""
    return kind_of(node).binds(node).agent


def targets_of(node: NodeBase) -> Ports:
    """Return the target fields of a node with that of `on_error`, in the order of their edges."""
    ports = kind_of(node).ports(node)
    if isinstance(node.on_error, ErrorRoute):
        ports = (*ports, ("on_error/next", node.on_error.next))
    return ports
