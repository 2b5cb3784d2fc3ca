"""The graph around its nodes: edges, inputs, services, options (page 003 §2). See `ir` for its bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec

from agentflow.definition.node import Budget, ModelRef, NodeBase

__all__ = ["Edge", "EdgeKind", "InputSpec", "Options", "ServiceSpec", "SharedKey", "Workflow"]

EdgeKind = Literal["single", "fan_out", "multi", "fan_in", "switch", "error"]

if TYPE_CHECKING:
    AnyNode = NodeBase
"""Any kind of the table; `kinds` sets it for msgspec, which looks it up when it first decodes a Workflow."""


class ServiceSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A declared service (page 001 §1.4). `options` holds the keys of its type (`module` for python)."""

    type: str
    timeout: float = 60.0
    max_concurrency: int = 8
    include: tuple[str, ...] | None = None
    functions: dict[str, dict[str, Any]] = {}
    send_context: bool = True
    options: dict[str, Any] = {}


class InputSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A declared input of the workflow. `default` counts only when `has_default`."""

    schema: dict[str, Any] | bool = True
    required: bool = True
    has_default: bool = False
    default: Any = None
    description: str | None = None


class Edge(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An edge beside those of the target fields (page 002 §4).

    Edges of one kind, source and `group` are one fan-out, one multi-selection (`selection` is the name of
    its function) or one switch: the first case whose `when` is true, else the edge without `when`. Edges of
    kind `fan_in` with one target and `group` are one join: `on_missing`, `quorum` and `timeout` (page 002 §5)
    are the same on each. An `error` edge is followed when the attempts of its source are used up. `when` is
    an expression over `message` and `state`, `predicate` the name of a registered function in its place;
    `name` tells edges between the same nodes apart.
    """

    source: str
    target: str
    kind: EdgeKind = "single"
    name: str | None = None
    group: str | None = None
    when: str | None = None
    predicate: str | None = None
    selection: str | None = None
    on_missing: Literal["partial", "wait", "fail"] = "partial"
    quorum: int | None = None
    timeout: float | None = None


class SharedKey(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A declared key of the shared state (page 002 §7): its initial value, and how writes are folded.

    Without `reducer`, two nodes that write different values conflict. Built in: `append`, `extend`, `add`,
    `max`, `min`, `union`, `merge`, `last`; other names are registered.
    """

    reducer: str | None = None
    default: Any = None


class Options(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Limits and policies of a run. `on_failure`: page 000 §2; `policy`: page 002 §6; `max_…`: page 003 §6.

    `on_undelivered` says what a message that no edge delivers does to the run (page 002 §4).
    `max_iterations` bounds supersteps; `scheduler_max_in_flight` what one parallel or map node has at work;
    `max_expression_scope_bytes` what an expression reads (131,072 in graph documents, else None: no limit).
    """

    policy: Literal["eager", "superstep"] = "eager"
    on_failure: Literal["halt", "continue", "hold"] = "continue"
    on_undelivered: Literal["record", "fail"] = "record"
    max_parallel: int = 8
    max_steps: int = 1_000
    max_iterations: int | None = None
    max_map_items: int = 4_096
    max_filter_items: int = 8_192
    max_batch_items: int = 8_192
    max_parallel_branches: int = 128
    scheduler_max_in_flight: int = 8
    max_expression_scope_bytes: int | None = None
    timeout: float | None = None
    budget: Budget | None = None


class Workflow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The whole graph. `inputs` None = not declared (names are inferred from references).

    `input_schema` is the JSON Schema of the whole input. `globals` are initial values of `globals.<key>`,
    `shared` declares keys of the shared `state`.
    `graphs` are those that subgraphs name; each sees the services, models and graphs of this one, too.
    """

    name: str
    nodes: tuple[AnyNode, ...]
    version: Literal["v0"] = "v0"
    edges: tuple[Edge, ...] = ()
    inputs: dict[str, InputSpec] | None = None
    outputs: dict[str, Any] | None = None
    services: dict[str, ServiceSpec] = {}
    models: dict[str, ModelRef] = {}
    options: Options = Options()
    globals: dict[str, Any] = {}
    shared: dict[str, SharedKey] = {}
    graphs: dict[str, Workflow] = {}
    metadata: dict[str, Any] = {}
    id: str | None = None
    input_schema: dict[str, Any] | bool | None = None
