"""The graph around its nodes: edges, inputs, services, options (page 003 §2). See `ir` for its bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec

from agentflow.definition.node import Budget, ModelRef, NodeBase

__all__ = ["Edge", "InputSpec", "Options", "ServiceSpec", "Workflow"]

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
    """An edge beside those of the target fields (page 002 §4); `single` is the only kind so far."""

    source: str
    target: str
    kind: Literal["single"] = "single"


class Options(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Limits and policies of a run. `on_failure`: page 000 §2."""

    policy: Literal["eager"] = "eager"
    on_failure: Literal["halt", "continue", "hold"] = "continue"
    max_parallel: int = 8
    max_steps: int = 1_000
    timeout: float | None = None
    budget: Budget | None = None


class Workflow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The whole graph. `inputs` None = not declared (names are inferred from references)."""

    name: str
    nodes: tuple[AnyNode, ...]
    version: Literal["v0"] = "v0"
    edges: tuple[Edge, ...] = ()
    inputs: dict[str, InputSpec] | None = None
    outputs: dict[str, Any] | None = None
    services: dict[str, ServiceSpec] = {}
    models: dict[str, ModelRef] = {}
    options: Options = Options()
    metadata: dict[str, Any] = {}
