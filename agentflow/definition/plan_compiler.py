"""Compiles an accepted plan to the graph that its steps are (page 004 §4). Pure: same plan and registry, same
`ir_hash`. Text of a plan is data: no template and no expression of the graph holds any of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import msgspec
from msgspec import UNSET

from agentflow.definition.graph import Options, Workflow
from agentflow.definition.ir import AgentNode, HumanNode, ToolNode
from agentflow.definition.node import AgentSpec, Approval, Budget, FunctionRef, NodeBase, Policy
from agentflow.definition.pipeline_nodes import DELEGATE, PLAN_STEP
from agentflow.definition.plan_checks import approval_of
from agentflow.definition.policy import RetryPolicy
from agentflow.definition.stage_schemas import STEP_RESULT, Plan, Step, to_value
from agentflow.definition.toolsets import Toolsets, policy_of

__all__ = ["APPROVAL_TIMEOUT_S", "HUMAN", "STEP_TIMEOUT_S", "compile_plan", "parallel_of"]

APPROVAL_TIMEOUT_S = 7 * 86_400.0
STEP_TIMEOUT_S = 600.0
MAX_PARALLEL = 4
HUMAN = "human"
"""The owner of a step that a person does."""


def compile_plan(plan: Plan, settings: Mapping[str, Any]) -> Workflow:
    """Return the graph of a plan that passed its checks. `settings` are those of the fixed graph."""
    toolsets = Toolsets.of_value(settings.get("toolsets") or [])
    nodes = tuple(_node(index, step, toolsets, settings) for index, step in enumerate(plan.steps))
    return Workflow(name="plan", nodes=nodes, options=Options(max_parallel=parallel_of(settings)))


def parallel_of(settings: Mapping[str, Any]) -> int:
    """Return how many steps of a plan run at once."""
    return settings.get("max_parallel") or MAX_PARALLEL


def _node(index: int, step: Step, toolsets: Toolsets, settings: Mapping[str, Any]) -> NodeBase:
    tools = toolsets.tools_of(step.toolsets)
    side_effect = toolsets.class_of(step.toolsets)
    rule = approval_of(
        step,
        toolsets,
        policy_of(settings.get("policy")),
        approval_class=settings.get("approval_class") or "external",
        template=settings.get("template"),
    )
    metadata: dict[str, Any] = {
        PLAN_STEP: to_value(step),
        "toolsets": list(step.toolsets),
        "tools": list(tools),
        "class": side_effect,
    }
    if rule is not None:
        metadata["rule"] = rule
    common: dict[str, Any] = {
        "id": step.id,
        "name": step.title or None,
        "index": index,
        "depends_on": step.depends_on,
        "join": "all_succeeded",
        "metadata": metadata,
    }
    if rule is not None:
        common["approval"] = Approval(before="step", timeout=APPROVAL_TIMEOUT_S, on_denied="skip")
    if step.owner == HUMAN:
        return HumanNode(input_type="form", form_schema=STEP_RESULT, **common)
    if step.call is not UNSET:
        return ToolNode(tool=step.call.tool, **common)
    options: Mapping[str, Any] = settings.get("options") or {}
    policy = msgspec.convert(options.get("policy") or {}, Policy)
    budget = None if options.get("budget") is None else msgspec.convert(options["budget"], Budget)
    retry = policy.retry or RetryPolicy(timeout=STEP_TIMEOUT_S)
    delegate = settings.get("delegate") or "built-in"
    if delegate not in ("built-in", "none"):
        metadata[DELEGATE] = delegate
    agent = AgentSpec(
        name="delegate" if DELEGATE not in metadata else delegate,
        system_prompt=cast("str", settings.get("delegate_prompt") or "Do the task."),
        output_schema=STEP_RESULT,
        functions=tuple(FunctionRef(*_parts(tool)) for tool in tools),
    )
    return AgentNode(
        agent=agent,
        policy=Policy(retry=retry, timeout=policy.timeout),
        budget=budget,
        **common,
    )


def _parts(tool: str) -> tuple[str, str]:
    service, _, function = tool.rpartition(".")
    return service, function
