"""What the nodes of a graph hold: ranges, policies, schemas, expressions and what these read (page 003)."""

from __future__ import annotations

import math

from agentflow.definition.connections import Connections
from agentflow.definition.expression_checks import ExpressionChecks
from agentflow.definition.inputs import breach
from agentflow.definition.ir import Budget, ErrorRoute, GlobalUpdate, Node, Policy, Workflow
from agentflow.definition.ir_report import IrReport
from agentflow.definition.kinds import kind_of
from agentflow.definition.node_report import NodeReport
from agentflow.definition.policy import MAX_SECONDS
from agentflow.definition.report import shown
from agentflow.definition.way_checks import Regions

__all__ = ["check_values"]

_MOST = {"max_cost_usd": math.inf, "max_duration_s": MAX_SECONDS}
_COUNTS = (
    "max_parallel",
    "max_steps",
    "max_iterations",
    "max_map_items",
    "max_filter_items",
    "max_batch_items",
    "max_parallel_branches",
    "scheduler_max_in_flight",
    "max_expression_scope_bytes",
)
_SERVICES = ("http", "mcp", "openapi", "python", "workflow")


def check_values(
    workflow: Workflow, found: Connections, regions: Regions, report: IrReport
) -> ExpressionChecks:
    """Check all that stands inside the nodes and beside them; return what their expressions read."""
    expressions = ExpressionChecks(workflow, found, report)
    for i, node in enumerate(workflow.nodes):
        at = NodeReport(node, f"/nodes/{i}", regions, expressions, report)
        if node.for_each is not None:
            at.for_each(node.for_each)
        if node.guard is not None:
            at.guard(node.guard)
        kind_of(node).check(node, at)
        _check_common(node, at)
    _check_whole(workflow, NodeReport(None, "", regions, expressions, report))
    return expressions


def _check_common(node: Node, at: NodeReport) -> None:
    """Check the fields that every kind has."""
    at.at_least_one(node, "", "max_parallel")
    if node.policy is not None:
        _check_policy(node.policy, at)
    if node.cache is not None:
        at.range("cache/ttl", node.cache.ttl, above=0, most=MAX_SECONDS)
        at.template("cache/key", node.cache.key)
    if node.budget is not None:
        _check_budget(node.budget, "budget", at)
        if node.budget.max_steps is not None and not kind_of(node).starts_run(node):
            message = f'"{node.id}" begins no steps of its own'
            at.conflict("budget/max_steps", message, "set it in the budget of the run, or of its child run")
    if node.approval is not None:
        if node.approval.timeout is not None:
            at.range("approval/timeout", node.approval.timeout, above=0, most=MAX_SECONDS)
        at.template("approval/message", node.approval.message, item=False)
    if isinstance(node.on_error, ErrorRoute):
        for i, code in enumerate(node.on_error.codes):
            at.not_blank(f"on_error/codes/{i}", code)
    for key, path in node.set_globals.items():
        _check_key(key, "set_globals", at)
        at.path(f"set_globals/{_escape(key)}", path)
    for key, update in node.update_globals.items():
        _check_key(key, "update_globals", at)
        _check_update(update, f"update_globals/{_escape(key)}", at)


def _check_key(key: str, field: str, at: NodeReport) -> None:
    if not key.strip():
        at.error("E_EMPTY_FIELD", f"a key of {field} is blank", f"{field}/{_escape(key)}")


def _check_update(update: GlobalUpdate, field: str, at: NodeReport) -> None:
    if update.source is not None:
        at.path(f"{field}/from", update.source)
        if update.op == "increment" and update.by != 1:
            at.conflict(f"{field}/by", "increment adds what from names", "keep from or by")
    elif update.op != "increment":
        at.error("E_EMPTY_FIELD", f"{update.op} has no from", f"{field}/from", "name the path of its operand")
    if update.op != "increment" and update.by != 1:
        at.conflict(f"{field}/by", f"op is {update.op}", 'it is for op "increment"')


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
    """Check what stands beside the nodes."""
    options = workflow.options
    at.at_least_one(options, "options/", *_COUNTS)
    if options.policy == "eager" and options.max_iterations is not None:
        at.conflict("options/max_iterations", "policy eager has no supersteps", "write max_steps")
    if options.timeout is not None:
        at.range("options/timeout", options.timeout, above=0, most=MAX_SECONDS)
    if options.budget is not None:
        _check_budget(options.budget, "options/budget", at)
    if workflow.input_schema is not None:
        at.schema("input_schema", workflow.input_schema)
    at.template("outputs", workflow.outputs)
    for name, spec in (workflow.inputs or {}).items():
        path = f"inputs/{_escape(name)}"
        sound = at.schema(f"{path}/schema", spec.schema, "E_INPUT_SCHEMA")
        problem = (
            breach(spec.schema, spec.default)
            if sound and spec.has_default and at.is_written(f"{path}/default")
            else None
        )
        if problem is not None:
            inside = f", at {shown(problem[0])}" if problem[0] else ""
            message = f'default of input "{shown(name)}": {shown(problem[1], 200)}{inside}'
            at.error("E_INPUT_INVALID", message, f"{path}/default{problem[0]}")
    for field in ("globals", "shared", "graphs"):
        for key in getattr(workflow, field):
            _check_key(key, field, at)
    for name, graph in workflow.graphs.items():
        at.graph(f"graphs/{_escape(name)}", graph)
    for key, shared in workflow.shared.items():
        if shared.reducer is not None:
            at.not_blank(f"shared/{_escape(key)}/reducer", shared.reducer)
    for name, service in workflow.services.items():
        path = f"services/{_escape(name)}"
        if service.type not in _SERVICES:
            message = f'service type "{shown(service.type)}" is not allowed'
            at.error("E_VALUE", message, f"{path}/type", f"one of {', '.join(_SERVICES)}")
        at.at_least_one(service, f"{path}/", "max_concurrency")
        at.range(f"{path}/timeout", service.timeout, above=0, most=MAX_SECONDS)


def _escape(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")
