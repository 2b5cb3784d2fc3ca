"""Results that serve again: what a result is kept under, and what a hit makes of a step (page 001 §5.8).

Pure: whoever drives the engine looks keys up and says what was found.
"""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple

import msgspec

from agentflow.definition.ir import AgentSpec, canonical_json
from agentflow.engine.decisions import Decisions, size_of, step_fields
from agentflow.engine.activation import Activation
from agentflow.engine.state import RunState
from agentflow.events import catalogue as ev
from agentflow.events.families.base import Reference

__all__ = ["CacheHit", "Lookup", "cached_completion", "key_of", "looked_up", "result_key"]


class CacheHit(NamedTuple):
    """A kept result, and the event that it was recorded by."""

    output: Any
    workflow_id: str
    offset: int


class Lookup(NamedTuple):
    """A activation of work that waits for the answer whether its result is known."""

    activation_key: str
    key: str


def key_of(state: RunState, activation: Activation, prompt: str, payload: Any) -> str:
    """What the result of this activation is kept under. Raises EvaluationError."""
    plan = activation.node
    cache = plan.node.cache
    assert cache is not None
    scope = state.scope(activation)
    begin = state.begin
    where = begin.ir_hash if cache.scope == "definition" and begin is not None else "global"
    if begin is not None and begin.options.get("trusted") is False:
        where += "/untrusted"  # whose results must not serve a trusted run, nor the other way round
    if plan.cache_key is not None:
        named = ["key", where, plan.cache_key.evaluate(scope)]
    else:
        assert plan.agent is not None
        binding = state.bindings.of(plan.id)
        context = plan.context.evaluate(scope) if plan.context is not None else None
        agent = msgspec.structs.replace(plan.agent, tags={}, system_prompt="", context=None, model=None)
        models = [[ref.name, ref.parameters] for ref in binding.models]
        grant = [[tool.name, tool.schema_hash] for tool in binding.tools.values()]
        named = ["step", where, _spec(agent), prompt, payload, context, models, grant]
    return "sha256:" + hashlib.sha256(canonical_json(named)).hexdigest()


def _spec(agent: AgentSpec) -> dict[str, Any]:
    return msgspec.to_builtins(agent)


def result_key(state: RunState, activation: Activation) -> str | None:
    """What a result that was just recorded is to be kept under; None when it is not to be."""
    if activation.node.spec.cache is None or activation.agent is None or activation.hit is not None:
        return None
    return key_of(state, activation, activation.agent.system_prompt, activation.input)


def looked_up(state: RunState, activation_key: str, hit: CacheHit | None) -> None:
    """The answer to a Lookup. Nothing is recorded: the step that begins next says what came of it."""
    activation = state.lookups.pop(activation_key, None)
    if activation is not None:
        activation.hit, activation.looked_up = hit, True


def cached_completion(activation: Activation, hit: CacheHit, now: int) -> Decisions:
    """The end of a step that was served from a record: it has no agent event."""
    return [
        ev.WorkflowStepCompleted(
            **step_fields(activation),
            duration_ms=0,
            output=hit.output,
            output_size=size_of(hit.output),
            cached=Reference(workflow_id=hit.workflow_id, offset=hit.offset),
        )
    ]
