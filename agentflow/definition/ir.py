"""The canonical graph that every front end compiles to and the one engine runs (page 003 §2).

All Structs are frozen, encode to canonical JSON and back, and hold templates and expressions as text;
`agentflow.engine.graph` compiles them. Durations are seconds. The nodes are those of the table in `kinds`.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Any, cast

import msgspec

from agentflow.definition.graph import Edge, EdgeKind, InputSpec, Options, ServiceSpec, SharedKey, Workflow
from agentflow.definition.kinds import KINDS, agent_of, union_of
from agentflow.definition.kinds.agent import AgentNode
from agentflow.definition.kinds.batch import BatchNode
from agentflow.definition.kinds.cache_read import CacheReadNode
from agentflow.definition.kinds.cache_write import CacheWriteNode
from agentflow.definition.kinds.condition import ConditionNode
from agentflow.definition.kinds.debounce import DebounceNode
from agentflow.definition.kinds.end import EndNode
from agentflow.definition.kinds.event_trigger import EventTriggerNode
from agentflow.definition.kinds.executor import ExecutorNode
from agentflow.definition.kinds.filter import FilterNode
from agentflow.definition.kinds.human_in_the_loop import HumanNode
from agentflow.definition.kinds.llm import LlmNode
from agentflow.definition.kinds.loop import LoopNode
from agentflow.definition.kinds.map import MapNode
from agentflow.definition.kinds.merge import MergeNode
from agentflow.definition.kinds.parallel import ParallelNode
from agentflow.definition.kinds.reduce import ReduceNode
from agentflow.definition.kinds.retry_compensate import RetryCompensateNode
from agentflow.definition.kinds.router import Route, RouterNode
from agentflow.definition.kinds.start import StartNode
from agentflow.definition.kinds.subgraph import SubgraphNode
from agentflow.definition.kinds.throttle import ThrottleNode
from agentflow.definition.kinds.tool import ToolNode
from agentflow.definition.kinds.transform import TransformNode
from agentflow.definition.kinds.wait import WaitNode
from agentflow.definition.node import (
    AgentExample,
    AgentSpec,
    Approval,
    Budget,
    Cache,
    Capabilities,
    ErrorRoute,
    FunctionRef,
    GlobalUpdate,
    Join,
    ModelRef,
    NodeBase,
    Policy,
)

__all__ = [
    "AgentExample",
    "AgentNode",
    "AgentSpec",
    "Approval",
    "BatchNode",
    "Budget",
    "Cache",
    "CacheReadNode",
    "CacheWriteNode",
    "Capabilities",
    "ConditionNode",
    "DebounceNode",
    "Edge",
    "EdgeKind",
    "EndNode",
    "ErrorRoute",
    "EventTriggerNode",
    "ExecutorNode",
    "FilterNode",
    "FunctionRef",
    "GlobalUpdate",
    "HumanNode",
    "InputSpec",
    "Join",
    "LlmNode",
    "LoopNode",
    "MapNode",
    "MergeNode",
    "ModelRef",
    "Node",
    "NodeBase",
    "Options",
    "ParallelNode",
    "Policy",
    "ReduceNode",
    "RetryCompensateNode",
    "Route",
    "RouterNode",
    "ServiceSpec",
    "SharedKey",
    "StartNode",
    "SubgraphNode",
    "ThrottleNode",
    "ToolNode",
    "TransformNode",
    "WaitNode",
    "Workflow",
    "agent_of",
    "canonical_json",
    "decode_ir",
    "ir_hash",
    "wire_type",
]

Node = NodeBase
"""A node of any kind."""

_encoder = msgspec.json.Encoder(order="sorted")


def canonical_json(value: Any) -> bytes:
    """Return JSON in UTF-8, keys by code point, no blanks, integers exact, floats shortest (page 000 §1).

    NaN and Infinity must have been refused before: msgspec would write null.
    """
    return _encoder.encode(value)


def decode_ir(data: bytes) -> Workflow:
    """Return the Workflow that `canonical_json` wrote. Raises msgspec.ValidationError with the path."""
    decoded = _decoder(_specs()).decode(data)
    if type(decoded) is Workflow:
        return decoded
    return Workflow(**{field: getattr(decoded, field) for field in Workflow.__struct_fields__})


def wire_type() -> type[Workflow]:
    """Return the type that a graph of the present table is decoded to, for messages about its fields."""
    return _wire_type(_specs())


def ir_hash(workflow: Workflow) -> str:
    """Return `sha256:` + hex of the canonical JSON of the graph."""
    return "sha256:" + hashlib.sha256(canonical_json(workflow)).hexdigest()


def _specs() -> tuple[type[NodeBase], ...]:
    return tuple(kind.spec for kind in KINDS.values())


_BUILT_IN = _specs()


@lru_cache(maxsize=4)
def _wire_type(specs: tuple[type[NodeBase], ...]) -> type[Workflow]:
    """Return Workflow itself for the built-in kinds, a subclass that knows the others too for more."""
    if specs == _BUILT_IN:
        return Workflow
    nodes = tuple[union_of(specs), ...]
    made = msgspec.defstruct(
        "Workflow", [("nodes", nodes)], bases=(Workflow,), frozen=True, kw_only=True, omit_defaults=True
    )
    return cast("type[Workflow]", made)


@lru_cache(maxsize=4)
def _decoder(specs: tuple[type[NodeBase], ...]) -> msgspec.json.Decoder[Workflow]:
    return msgspec.json.Decoder(_wire_type(specs))
