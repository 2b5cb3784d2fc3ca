"""What the nodes of a graph hold: ranges, policies, schemas, expressions and what these read (page 003)."""

from __future__ import annotations

import math

from agentflow.definition.inputs import breach
from agentflow.definition.ir import Budget, Node, Policy, Workflow
from agentflow.definition.kinds import kind_of
from agentflow.definition.node_report import Links, NodeReport, Scopes
from agentflow.definition.policy import MAX_SECONDS
from agentflow.definition.report import Report, shown

__all__ = ["check_values"]

_MOST = {"max_cost_usd": math.inf, "max_duration_s": MAX_SECONDS}
_SERVICES = ("http", "mcp", "openapi", "python")


def check_values(workflow: Workflow, waits: Links, report: Report) -> None:
    """Checks all that stands inside the nodes and beside them. `waits`: for each node its dependencies."""
    scopes = Scopes(workflow, waits)
    for i, node in enumerate(workflow.nodes):
        at = NodeReport(node, f"/nodes/{i}", scopes, report)
        _check_common(node, at)
        kind_of(node).check(node, at)
    _check_whole(workflow, NodeReport(None, "", scopes, report))


def _check_common(node: Node, at: NodeReport) -> None:
    """Checks the fields that every kind has."""
    at.at_least_one(node, "", "max_parallel")
    if node.policy is not None:
        _check_policy(node.policy, at)
    if node.cache is not None:
        at.range("cache/ttl", node.cache.ttl, above=0, most=MAX_SECONDS)
        at.template("cache/key", node.cache.key)
    if node.budget is not None:
        _check_budget(node.budget, "budget", at)
    if node.approval is not None:
        if node.approval.timeout is not None:
            at.range("approval/timeout", node.approval.timeout, above=0, most=MAX_SECONDS)
        at.template("approval/message", node.approval.message, item=False)
    if node.guard is not None:
        at.gate("guard", node.guard, bare=True)
    if node.for_each is not None:
        at.gate("for_each", node.for_each, bare=False)


def _check_policy(policy: Policy, at: NodeReport) -> None:
    if policy.timeout is not None:
        at.range("policy/timeout", policy.timeout, above=0, most=MAX_SECONDS)
    retry = policy.retry
    if retry is None:
        return
    code, within = "E_RETRY_POLICY", "policy/retry"
    at.range(f"{within}/max_attempts", retry.max_attempts, least=1, code=code)
    at.range(f"{within}/jitter", retry.jitter, least=0, most=1, code=code)
    at.range(f"{within}/max_elapsed", retry.max_elapsed, above=0, most=MAX_SECONDS, code=code)
    if retry.timeout is not None:
        at.range(f"{within}/timeout", retry.timeout, above=0, most=MAX_SECONDS, code=code)
    at.range(f"{within}/backoff/initial", retry.backoff.initial, above=0, most=MAX_SECONDS, code=code)
    at.range(f"{within}/backoff/multiplier", retry.backoff.multiplier, least=1, code=code)
    at.range(f"{within}/backoff/max", retry.backoff.max, above=0, most=MAX_SECONDS, code=code)


def _check_budget(budget: Budget, within: str, at: NodeReport) -> None:
    counts = ("max_tokens", "max_model_calls", "max_tool_calls", "max_steps", "max_depth")
    at.at_least_one(budget, f"{within}/", *counts)
    for key in ("max_cost_usd", "max_duration_s"):
        amount = getattr(budget, key)
        if amount is not None:
            at.range(f"{within}/{key}", amount, least=0, most=_MOST[key])


def _check_whole(workflow: Workflow, at: NodeReport) -> None:
    """Checks what stands beside the nodes."""
    options = workflow.options
    at.at_least_one(options, "options/", "max_parallel", "max_steps")
    if options.timeout is not None:
        at.range("options/timeout", options.timeout, above=0, most=MAX_SECONDS)
    if options.budget is not None:
        _check_budget(options.budget, "options/budget", at)
    at.template("outputs", workflow.outputs)
    for name, spec in (workflow.inputs or {}).items():
        path = f"inputs/{_escape(name)}"
        sound = at.schema(f"{path}/schema", spec.schema, "E_INPUT_SCHEMA")
        problem = breach(spec.schema, spec.default) if spec.has_default and sound else None
        if problem is not None:
            message = f'default of input "{shown(name)}": {shown(problem[1], 200)}'
            at.error("E_INPUT_INVALID", message, f"{path}/default{problem[0]}")
    for name, service in workflow.services.items():
        path = f"services/{_escape(name)}"
        if service.type not in _SERVICES:
            message = f'service type "{shown(service.type)}" is not allowed'
            at.error("E_VALUE", message, f"{path}/type", f"one of {', '.join(_SERVICES)}")
        at.at_least_one(service, f"{path}/", "max_concurrency")
        at.range(f"{path}/timeout", service.timeout, above=0, most=MAX_SECONDS)


def _escape(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")
