"""What the nodes of a graph hold: ranges, policies, schemas, expressions and what these read (page 003)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from agentflow.definition.expressions import Expression, ExpressionError, compile_template, parse, parse_whole
from agentflow.definition.inputs import breach
from agentflow.definition.ir import (
    AgentNode,
    AgentSpec,
    Approval,
    Budget,
    Cache,
    ConditionNode,
    EndNode,
    Node,
    Policy,
    StartNode,
    ToolNode,
    Workflow,
)
from agentflow.definition.policy import MAX_SECONDS
from agentflow.definition.report import NOWHERE, Report, shown

__all__ = ["ROOTS", "Links", "check_values", "reachable"]

Links = dict[str, list[str]]
"""Node to nodes."""

ROOTS = frozenset({"steps", "inputs", "item", "index", "input", "nodes"})
"""The names that begin a path in the expressions of a graph (page 003 §3)."""

_BRACES = ("${{", "{{")
_MOST = {"max_cost_usd": math.inf, "max_duration_s": MAX_SECONDS}
_SERVICES = ("http", "mcp", "openapi", "python")


def reachable(begin: Iterable[str], links: Links) -> set[str]:
    """These nodes and all that their links lead to."""
    todo = list(begin)
    found = set(todo)
    while todo:
        for target in links[todo.pop()]:
            if target not in found:
                found.add(target)
                todo.append(target)
    return found


def check_values(workflow: Workflow, waits: Links, report: Report) -> None:
    """Checks all that stands inside the nodes and beside them. `waits`: for each node its dependencies."""
    checks = _Checks(workflow, waits, report)
    for i, node in enumerate(workflow.nodes):
        checks.node(node, f"/nodes/{i}")
    checks.whole()


class _Checks:
    def __init__(self, workflow: Workflow, waits: Links, report: Report) -> None:
        self._workflow = workflow
        self._waits = waits
        self._before: tuple[str, set[str]] | None = None  # of the last node that asked
        self._report = report
        ends = (StartNode, EndNode)
        self._steps = {n.id for n in workflow.nodes if n.join != "any" and not isinstance(n, ends)}
        self._nodes = [n.id for n in workflow.nodes if not isinstance(n, ends)]

    def _error(self, code: str, message: str, path: str, hint: Any = None) -> None:
        self._report.error(code, message, NOWHERE, path, hint)

    # -- the parts of a node --------------------------------------------------------------------

    def node(self, node: Node, path: str) -> None:
        self._at_least(node, path, "max_parallel")
        if node.policy is not None:
            self._policy(node.policy, f"{path}/policy")
        if node.cache is not None:
            self._cache(node, node.cache, f"{path}/cache")
        if node.budget is not None:
            self._budget(node.budget, f"{path}/budget")
        if node.approval is not None:
            self._approval(node, node.approval, f"{path}/approval")
        if node.guard is not None:
            self._whole(node, "guard", node.guard, f"{path}/guard")
        if node.for_each is not None:
            self._whole(node, "for_each", node.for_each, f"{path}/for_each")
        match node:
            case ConditionNode():
                self._whole(node, "expression", node.expression, f"{path}/expression")
            case AgentNode():
                self._template(node, node.input, f"{path}/input")
                self._agent(node, node.agent, f"{path}/agent")
            case ToolNode():
                self._template(node, node.input, f"{path}/input")
                service, dot, function = node.tool.rpartition(".")
                if not dot or not service.strip() or not function.strip():
                    message = f'tool "{shown(node.tool)}" is not written as service.function'
                    self._error("E_VALUE", message, f"{path}/tool")
            case EndNode():
                self._template(node, node.output, f"{path}/output")
            case StartNode():
                pass

    def _agent(self, node: AgentNode, agent: AgentSpec, path: str) -> None:
        for key in ("name", "system_prompt"):
            if not getattr(agent, key).strip():
                self._error("E_EMPTY_FIELD", f'{key} of "{node.id}" is blank', f"{path}/{key}")
        self._at_least(agent, path, "max_turns", "max_tool_calls")
        for key in ("system_prompt", "context", "tags"):
            self._template(node, getattr(agent, key), f"{path}/{key}")
        if agent.output_schema is not None:
            self._schema(agent.output_schema, "E_SCHEMA", f"{path}/output_schema")

    def _policy(self, policy: Policy, path: str) -> None:
        if policy.timeout is not None:
            self._range(policy.timeout, f"{path}/timeout", above=0, most=MAX_SECONDS)
        retry = policy.retry
        if retry is None:
            return
        code, at = "E_RETRY_POLICY", f"{path}/retry"
        self._range(retry.max_attempts, f"{at}/max_attempts", least=1, code=code)
        self._range(retry.jitter, f"{at}/jitter", least=0, most=1, code=code)
        self._range(retry.max_elapsed, f"{at}/max_elapsed", above=0, most=MAX_SECONDS, code=code)
        if retry.timeout is not None:
            self._range(retry.timeout, f"{at}/timeout", above=0, most=MAX_SECONDS, code=code)
        self._range(retry.backoff.initial, f"{at}/backoff/initial", above=0, most=MAX_SECONDS, code=code)
        self._range(retry.backoff.multiplier, f"{at}/backoff/multiplier", least=1, code=code)
        self._range(retry.backoff.max, f"{at}/backoff/max", above=0, most=MAX_SECONDS, code=code)

    def _cache(self, node: Node, cache: Cache, path: str) -> None:
        self._range(cache.ttl, f"{path}/ttl", above=0, most=MAX_SECONDS)
        self._template(node, cache.key, f"{path}/key")

    def _approval(self, node: Node, approval: Approval, path: str) -> None:
        if approval.timeout is not None:
            self._range(approval.timeout, f"{path}/timeout", above=0, most=MAX_SECONDS)
        self._template(node, approval.message, f"{path}/message", item=False)

    def _budget(self, budget: Budget, path: str) -> None:
        self._at_least(
            budget, path, "max_tokens", "max_model_calls", "max_tool_calls", "max_steps", "max_depth"
        )
        for key in ("max_cost_usd", "max_duration_s"):
            amount = getattr(budget, key)
            if amount is not None:
                self._range(amount, f"{path}/{key}", least=0, most=_MOST[key])

    # -- beside the nodes -----------------------------------------------------------------------

    def whole(self) -> None:
        workflow = self._workflow
        options = workflow.options
        self._at_least(options, "/options", "max_parallel", "max_steps")
        if options.timeout is not None:
            self._range(options.timeout, "/options/timeout", above=0, most=MAX_SECONDS)
        if options.budget is not None:
            self._budget(options.budget, "/options/budget")
        self._template(None, workflow.outputs, "/outputs")
        for name, spec in (workflow.inputs or {}).items():
            path = _below("/inputs", name)
            sound = self._schema(spec.schema, "E_INPUT_SCHEMA", f"{path}/schema")
            problem = breach(spec.schema, spec.default) if spec.has_default and sound else None
            if problem is not None:
                message = f'default of input "{shown(name)}": {shown(problem[1], 200)}'
                self._error("E_INPUT_INVALID", message, f"{path}/default{problem[0]}")
        for name, service in workflow.services.items():
            path = _below("/services", name)
            if service.type not in _SERVICES:
                message = f'service type "{shown(service.type)}" is not allowed'
                self._error("E_VALUE", message, f"{path}/type", f"one of {', '.join(_SERVICES)}")
            self._at_least(service, path, "max_concurrency")
            self._range(service.timeout, f"{path}/timeout", above=0, most=MAX_SECONDS)

    # -- values ---------------------------------------------------------------------------------

    def _at_least(self, owner: msgspec.Struct, path: str, *keys: str) -> None:
        for key in keys:
            value = getattr(owner, key)
            if value is not None:
                self._range(value, f"{path}/{key}", least=1)

    def _range(
        self,
        value: float,
        path: str,
        *,
        above: float = -math.inf,
        least: float = -math.inf,
        most: float = math.inf,
        code: str = "E_VALUE",
    ) -> None:
        key = path.rpartition("/")[2]
        if value <= above:
            self._error(code, f"{key} {value} is not above {above}", path)
        elif value < least:
            self._error(code, f"{key} {value} is below {least}", path)
        elif value > most:
            self._error(code, f"{key} {value} is above {most}", path)

    def _schema(self, schema: dict[str, Any] | bool, code: str, path: str) -> bool:
        from agentflow.definition.schemas import check_applicable, check_schema

        problems = check_schema(schema) or check_applicable(schema)
        for problem in problems:
            self._error(problem.code or code, shown(problem.message, 200), path + problem.path, problem.hint)
        return not problems

    # -- expressions ----------------------------------------------------------------------------

    def _whole(self, node: Node, key: str, text: str, path: str) -> None:
        """A field that is one expression: `guard`, `for_each`, `expression` of a condition."""
        try:
            if key == "expression":
                expression = parse(text, roots=ROOTS)
            else:
                expression = parse_whole(text, bare=key == "guard", roots=ROOTS)
        except ExpressionError as error:
            self._syntax(error, path)
            return
        item = key == "guard" and node.for_each is not None
        self._reads(expression, node, path, item=item, status=key == "guard")

    def _template(self, node: Node | None, value: Any, path: str, *, item: bool = True) -> None:
        if value is None or value is msgspec.UNSET:
            return
        errors: list[ExpressionError] = []
        template = compile_template(value, braces=_BRACES, roots=ROOTS, errors=errors)
        for error in errors:
            self._syntax(error, path + error.path)
        item = item and node is not None and node.for_each is not None
        for inner, _, expression in template.expressions:
            self._reads(expression, node, path + inner, item=item, status=False)

    def _syntax(self, error: ExpressionError, path: str) -> None:
        for problem in (error, *error.also):
            message = f"{problem.message}, at character {problem.offset + 1}"
            self._error(problem.code, message, path, problem.hint)

    def _reads(
        self, expression: Expression, node: Node | None, path: str, *, item: bool, status: bool
    ) -> None:
        """Scope, and references to nodes. `node` None: the outputs of the workflow, which see all."""
        if expression.status_functions and not status:
            name = min(expression.status_functions)
            self._error("E_EXPR_SCOPE", f"{name}() is known in guards only", path)
        for root in sorted(expression.roots & {"item", "index"}):
            if not item:
                self._error("E_EXPR_SCOPE", f'"{root}" needs for_each on this node', path)
        for reference in expression.references:
            root, *rest = reference.path
            if root in ("steps", "nodes"):
                self._names(str(root), rest, node, path)

    def _names(self, root: str, rest: Sequence[str | int | None], node: Node | None, path: str) -> None:
        name = str(rest[0]) if rest and rest[0] is not None else None
        inside = node is not None and node.id in self._steps
        if name is None:
            if root == "steps" and inside:
                message = f'"{shown(node.id if node else "")}" reads all of steps, not only those before it'
                self._error("E_REF_NOT_DEPENDENCY", message, path, "write steps.<id> of a dependency")
            return
        if name not in self._nodes:
            hint = self._report.did_you_mean(name, self._nodes)
            self._error("E_UNKNOWN_REFERENCE", f'there is no node "{shown(name)}"', path, hint)
        elif root == "steps" and name not in self._steps:
            message = f'"{name}" is entered by tokens, and is no member of steps'
            self._error("E_UNKNOWN_REFERENCE", message, path, f"write nodes.{name}")
        elif root == "steps" and node is not None and inside and not self._comes_before(name, node.id):
            message = f'"{node.id}" reads "{name}", not a dependency'
            self._error("E_REF_NOT_DEPENDENCY", message, path, f"add {name} to depends_on")

    def _comes_before(self, name: str, node_id: str) -> bool:
        """Whether a node waits for another one, directly or not."""
        if name in self._waits[node_id]:
            return True
        if self._before is None or self._before[0] != node_id:
            self._before = node_id, reachable(self._waits[node_id], self._waits)
        return name in self._before[1]


def _below(path: str, name: str) -> str:
    return f"{path}/{name.replace('~', '~0').replace('/', '~1')}"
