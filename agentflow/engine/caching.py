"""Results that serve again: what a result is kept under, and what a hit makes of a step (page 001 §5.8).

Pure: the caller of the engine looks keys up and says what was found.
"""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple

from agentflow.definition.ir import canonical_json
from agentflow.engine.activation import Activation
from agentflow.engine.decisions import Decisions, step_completed
from agentflow.engine.kinds.kind import Prepared
from agentflow.engine.state import RunState
from agentflow.events.families.base import Reference

__all__ = ["CacheHit", "Lookup", "cached_completion", "key_of", "result_key"]


class CacheHit(NamedTuple):
    """A kept result, and the event that it was recorded by."""

    output: Any
    workflow_id: str
    offset: int


class Lookup(NamedTuple):
    """A activation of work that waits for the answer whether its result is known."""

    activation_key: str
    key: str
    step_id: str
    input: Any


def key_of(state: RunState, activation: Activation, prepared: Prepared) -> str:
    """Return what the result of this activation is kept under. Raises EvaluationError."""
    node = activation.node
    cache = node.spec.cache
    assert cache is not None
    begin = state.begin
    where = begin.ir_hash if cache.scope == "definition" and begin is not None else "global"
    if begin is not None and begin.options.get("trusted") is False:
        where += "/untrusted"  # whose results must not serve a trusted run, nor the other way round
    if node.cache_key is not None:
        named = ["key", where, node.cache_key.evaluate(state.scope(activation))]
    else:
        named = ["step", where, *node.kind.cache_parts(state, activation, prepared)]
    return "sha256:" + hashlib.sha256(canonical_json(named)).hexdigest()


def result_key(state: RunState, activation: Activation) -> str | None:
    """Return what the result of an open activation is to be kept under; None when it is not to be kept."""
    if activation.node.spec.cache is None or activation.is_for_each:
        return None
    prompt = activation.agent.system_prompt if activation.agent is not None else ""
    return key_of(state, activation, Prepared(activation.input, {"system_prompt": prompt}))


def cached_completion(
    state: RunState, activation: Activation, hit: CacheHit, now: int, clock: int | None
) -> Decisions:
    """Return the end of a step that was served from a record: it has no event of its work."""
    served = Reference(workflow_id=hit.workflow_id, offset=hit.offset)
    return step_completed(state, activation, now, output=hit.output, cached=served, clock=clock)
