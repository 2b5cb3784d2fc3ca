"""How the events of the request pipeline change the state (page 004)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import msgspec

from agentflow.definition.delegates import DELEGATE_TASK
from agentflow.definition.limits import limits_of
from agentflow.definition.pipeline_nodes import DELEGATE
from agentflow.definition.toolsets import strongest
from agentflow.engine.arrivals import enqueue
from agentflow.engine.bindings import StepBinding, ToolInfo
from agentflow.engine.graph import Graph, Node
from agentflow.engine.illegal import IllegalEvent
from agentflow.engine.path import NodeState
from agentflow.engine.pipeline import EXECUTE, PipelineState, graph_of_plan
from agentflow.engine.state import RunState
from agentflow.events import catalogue as ev

__all__ = ["FOLDS"]


def _of(state: RunState, data: Any) -> PipelineState:
    if state.pipeline is None:
        raise IllegalEvent(data, "the run is no request pipeline")
    return state.pipeline


def _activated(state: RunState, data: ev.PlanActivated, offset: int, ts: int) -> None:
    _of(state, data).activated = data


def _normalized(state: RunState, data: ev.PlanNormalized, offset: int, ts: int) -> None:
    _of(state, data).normalized = data.normalized_request


def _proposed(state: RunState, data: ev.PlanProposed, offset: int, ts: int) -> None:
    pipeline = _of(state, data)
    pipeline.plan, pipeline.digest, pipeline.adjustments = data.plan, data.plan_digest, data.adjustments
    pipeline.proposed = data.plan_digest


def _edited(state: RunState, data: ev.PlanEdited, offset: int, ts: int) -> None:
    pipeline = _of(state, data)
    pipeline.plan, pipeline.digest = data.plan, data.plan_digest


def _accepted(state: RunState, data: ev.PlanAccepted, offset: int, ts: int) -> None:
    pipeline = _of(state, data)
    pipeline.accepted = True


def _rejected(state: RunState, data: ev.PlanRejected, offset: int, ts: int) -> None:
    _of(state, data).rejected = True


def _compiled(state: RunState, data: ev.PlanCompiled, offset: int, ts: int) -> None:
    """Take the steps of the plan in: their nodes, and for each the functions that its toolsets have."""
    pipeline = _of(state, data)
    pipeline.ir_hash = data.ir_hash
    graph = graph_of_plan(data.ir)
    if pipeline.graph is None:
        pipeline.graph = graph
    else:
        _replace_steps(state, pipeline.graph, graph)
    granted = state.bindings.of(EXECUTE)
    steps: dict[str, StepBinding] = {}
    for node_id, node in graph.all_nodes.items():
        if not node.is_silent:
            state.root.nodes.setdefault(node_id, NodeState(node, len(node.dependencies)))
        if limits := limits_of(node.spec.budget):
            state.step_budgets.setdefault(node_id, limits)
        delegate = node.spec.metadata.get(DELEGATE)
        if delegate is not None:
            steps[node_id] = StepBinding(tools=_delegate_of(granted.tools, delegate, node))
        elif node.agent is not None:
            names = {(ref.service, ref.function) for ref in node.agent.functions or ()}
            tools = {n: t for n, t in granted.tools.items() if (t.service, t.function) in names}
            steps[node_id] = StepBinding(models=granted.models, terms=granted.terms, tools=tools)
        elif isinstance(called := getattr(node.spec, "tool", None), str):
            tools = {n: t for n, t in granted.tools.items() if f"{t.service}.{t.function}" == called}
            steps[node_id] = StepBinding(tools=tools)
    state.bindings = msgspec.structs.replace(state.bindings, steps={**state.bindings.steps, **steps})


def _delegate_of(tools: Mapping[str, ToolInfo], service: str, node: Node) -> dict[str, ToolInfo]:
    """Return the function of a foreign delegate as this step calls it: what it may do is what the toolsets of
    the step may do, and from class external up no attempt may be repeated."""
    effect = strongest(("write", node.spec.metadata["class"]))
    return {
        name: msgspec.structs.replace(
            info,
            side_effect=effect,
            idempotent=effect == "write",
            timeout=node.retry.timeout or info.timeout,
        )
        for name, info in tools.items()
        if (info.service, info.function) == (service, DELEGATE_TASK)
    }


def _replace_steps(state: RunState, old: Graph, new: Graph) -> None:
    """Let the steps of an edited plan take the place of those that have not started; a question about one
    whose step has changed is void, and so is a grant that nothing was begun by."""
    assert state.pipeline is not None
    for node_id, node in old.nodes.items():
        found = new.nodes[node_id]
        if found.spec == node.spec:
            continue
        for name in _OF_SPEC:
            setattr(node, name, getattr(found, name))
        for activation in state.activations.values():
            if activation.node is not node:
                continue
            if activation.phase == "asked":
                state.pipeline.stale[activation.key] = activation
            elif activation.phase == "pending" and activation.snapshot is not None:
                place = state.node_of(activation)
                state.ready.remove(activation, place)
                activation.snapshot = None
                enqueue(state, activation, place)


_OF_SPEC = ("spec", "agent", "asks", "has_gate", "retry", "timeout", "program", "approval_message")


def _executed(state: RunState, data: ev.PlanExecuted, offset: int, ts: int) -> None:
    _of(state, data).executor_output = data.executor_output


def _verified(state: RunState, data: ev.VerificationCompleted, offset: int, ts: int) -> None:
    pipeline = _of(state, data)
    pipeline.verifier_output = data.verifier_output
    found = _output_at(state, "verify")
    pipeline.checks, pipeline.unchecked = found.get("checks") or [], found.get("unchecked") or []


def _finalized(state: RunState, data: ev.PlanFinalized, offset: int, ts: int) -> None:
    pipeline = _of(state, data)
    pipeline.final_output = data.final_output
    pipeline.report = _output_at(state, "write").get("report")


def _output_at(state: RunState, stage: str) -> dict[str, Any]:
    """Return what the function of a stage returned whose step is about to end."""
    for one in state.open.values():
        output: Any = one.output
        if one.node.id == stage and isinstance(output, dict):
            return cast("dict[str, Any]", output)
    return {}


FOLDS: dict[type, Any] = {
    ev.PlanActivated: _activated,
    ev.PlanNormalized: _normalized,
    ev.PlanProposed: _proposed,
    ev.PlanEdited: _edited,
    ev.PlanAccepted: _accepted,
    ev.PlanRejected: _rejected,
    ev.PlanCompiled: _compiled,
    ev.PlanExecuted: _executed,
    ev.VerificationCompleted: _verified,
    ev.PlanFinalized: _finalized,
}
