"""Keys of effects: what a recorded result belongs to, and whether it still fits (page 003 §9). Pure."""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple

from agentflow.definition.ir import NodeBase, canonical_json
from agentflow.engine.activation import Activation

__all__ = ["EffectKey", "effect_key", "input_hash"]


class EffectKey(NamedTuple):
    """The `ordinal`th effect of an activation, or of one of its iterations.

    `input_hash` is `sha256:` and hex digits.
    """

    activation: str
    iteration: int | None
    ordinal: int
    input_hash: str


def effect_key(activation: Activation, ordinal: int, request: Any) -> EffectKey:
    """Return the key of an effect. It changes with the resolved request and with the node's configuration."""
    digest = input_hash(activation.node.spec, request)
    return EffectKey(activation.base_key, activation.iteration, ordinal, digest)


def input_hash(spec: NodeBase, request: Any) -> str:
    """Return the hash of a resolved request and the node's configuration."""
    return f"sha256:{hashlib.sha256(canonical_json([spec, request])).hexdigest()}"
