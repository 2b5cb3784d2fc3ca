"""What `cache_read` and `cache_write` have in common: the key, and where its entry is (page 003 §4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from agentflow.definition.expressions import Expression
from agentflow.definition.failure import ErrorInfo
from agentflow.definition.kinds.caches import CacheNode
from agentflow.engine.activation import Activation
from agentflow.engine.kinds.keys import key_of
from agentflow.engine.kinds.kind import Kind
from agentflow.engine.shared_store import Operation, StoreAccess, access_key, answer_prefix
from agentflow.engine.state import RunState
from agentflow.engine.templates import path_expression, value_template

if TYPE_CHECKING:
    from agentflow.engine.graph import Node

__all__ = ["CacheKind", "CacheProgram", "spec_of"]


class CacheProgram(NamedTuple):
    """The key with the field that it stands in, and the path of the value that is written."""

    key: Any
    field: str
    value: Expression | None = None


def spec_of(node: Node) -> CacheNode:
    """Return the node of the IR."""
    spec = node.spec
    assert isinstance(spec, CacheNode)
    return spec


class CacheKind(Kind):
    """Reads or writes one entry. Those of the run are in its memory, those of wider scopes in the store."""

    is_passive = True
    uses_store = True

    def compile(self, node: Node) -> Any:
        """Return the key."""
        spec = spec_of(node)
        if spec.key_path is not None:
            return CacheProgram(path_expression(spec.key_path), "key_path")
        return CacheProgram(value_template(spec.key), "key")

    def key(self, state: RunState, activation: Activation) -> str | ErrorInfo:
        """Return the key of the entry, or why there is none."""
        program: CacheProgram = activation.node.program
        return key_of(state, activation, program.key, program.field)

    def access(self, state: RunState, activation: Activation) -> StoreAccess | None:
        """Return the access to the entry of a wider scope; None for one of the run, or a key that is none."""
        scope = spec_of(activation.node).scope
        if scope == "run":
            return None
        key = self.key(state, activation)
        operation = None if isinstance(key, ErrorInfo) else self.operation(state, activation)
        if operation is None:
            return None
        name = answer_prefix(activation.key) + "entry"
        return StoreAccess(name, "cache/" + access_key(state, scope, key), operation)

    def operation(self, state: RunState, activation: Activation) -> Operation | None:
        """Return what is done with the entry of a wider scope; None if it cannot be."""
        raise NotImplementedError
