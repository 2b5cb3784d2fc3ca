"""Options of one run that change its graph (page 003 §2, §6, §12): what they hold, and the graph with them.

They are checked like a document, so that a wrong one is a diagnostic with its place. The graph with the
options is what runs, so that a restart, a fork and a replay need nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

import msgspec

from agentflow.definition.diagnostics import Diagnostic
from agentflow.definition.graph import Workflow
from agentflow.definition.ir_vocabulary import POLICY
from agentflow.definition.kinds import kind_of
from agentflow.definition.node import Budget, Policy
from agentflow.definition.policies import compiled_budget, merged_policy
from agentflow.definition.policy import RetryPolicy
from agentflow.definition.report import Fatal, Report
from agentflow.definition.shapes import Const, Duration, Enum, Field, Json, Number, Shape, Text
from agentflow.definition.source import node_of_value
from agentflow.definition.source_tree import Object
from agentflow.definition.structure import Found, check_structure
from agentflow.definition.vocabulary_values import RETRY

__all__ = [
    "GRAPH_OPTIONS",
    "LIMITS",
    "RUN_OPTIONS",
    "check_run_options",
    "deadline_of",
    "graph_with_options",
    "step_policy",
]

_FLAG = Const((True, False))
_COUNT = Number(minimum=1, integer=True)

LIMITS = (
    "max_steps",
    "max_iterations",
    "max_map_items",
    "max_filter_items",
    "max_batch_items",
    "max_parallel_branches",
    "scheduler_max_in_flight",
)
"""Limits of the options of a graph that a run may set for itself."""

_TELEMETRY = Shape(
    "telemetry",
    {
        "enabled": Field(_FLAG, "Whether spans are exported.", True),
        "sample_rate": Field(Number(minimum=0, maximum=1), "The part of runs whose spans are exported.", 1),
        "payload_mode": Field(
            Enum(("full_payload", "redacted_payload")), "Whether spans hold what was said, or leave it out."
        ),
        "tool_trace_mode": Field(
            Enum(("full", "redacted", "off")),
            "Whether calls of functions are spans, with their values or not.",
        ),
        "edge_spans": Field(_FLAG, "Whether what each edge did with each message is a span.", False),
    },
)

RUN_OPTIONS = Shape(
    "options",
    {
        "model": Field(Text(), "The model of every node, whatever it names."),
        "healing": Field(_FLAG, "Whether every answer with a schema is healed.", False),
        "node_llm_streaming": Field(_FLAG, "False: no node streams.", True),
        "workflow_streaming": Field(_FLAG, "Whether every llm node streams.", False),
        "split_stream_deltas": Field(_FLAG, "Whether deltas of thinking come beside the output.", False),
        "telemetry": Field(_TELEMETRY, "What is exported of the run."),
        "deadline": Field(Duration(), "How long the run may take; time spent paused does not count."),
        "retry": Field(
            RETRY, "Retry of every node that does work, below what it states; false: one attempt."
        ),
        "llm_node_policy": Field(POLICY, "Retry and time-out of llm and agent nodes that state none."),
        "tool_node_policy": Field(POLICY, "Retry and time-out of tool nodes that state none."),
        "replay_mode": Field(Enum(("validate_recorded_trace",)), "What is checked when the run has ended."),
        **{name: Field(_COUNT, "A limit of the run, in place of that of the graph.") for name in LIMITS},
    },
)
"""What a submission may say beside the options of page 000."""

GRAPH_OPTIONS = frozenset(RUN_OPTIONS.fields) - {
    *("telemetry", "split_stream_deltas", "replay_mode", "deadline"),
}
"""Options that change the graph."""

_POLICIES = ("llm_node_policy", "tool_node_policy")


def check_run_options(
    given: Mapping[str, Any], *, known: Iterable[str] = (), at: str = "/options"
) -> list[Diagnostic]:
    """Return all that is wrong with options, each with its place below `at`. `known` are the names of further
    options, whose values are checked elsewhere."""
    report = Report()
    others = {name: Field(Json(), "An option of page 000.") for name in known}
    shape = msgspec.structs.replace(RUN_OPTIONS, fields={**RUN_OPTIONS.fields, **others})
    found = _structure(given, shape, report)
    if found is not None:
        for name in _POLICIES:
            policy = found.get(name)
            if policy is not None and policy.get("budget") is not None:
                budget = cast("Found", policy.get("budget"))
                message = f"{name} gives no budget"
                report.error(
                    "E_UNKNOWN_KEY", message, budget.key, budget.pointer, "set the budget of the run"
                )
        if found.plain("workflow_streaming") is True and found.plain("node_llm_streaming") is False:
            streams = cast("Found", found.get("workflow_streaming"))
            message = "node_llm_streaming is off: no node streams"
            report.error("E_CONFLICTING_FIELDS", message, streams.key, streams.pointer, "keep one of the two")
    return [msgspec.structs.replace(one, path=f"{at}{one.path or ''}") for one in report.diagnostics()]


def _structure(given: Mapping[str, Any], shape: Shape, report: Report) -> Found | None:
    try:
        root = node_of_value(dict(given), report)
    except Fatal:
        return None
    assert isinstance(root, Object)
    return check_structure(root, shape, report)


def graph_with_options(workflow: Workflow, given: Mapping[str, Any]) -> Workflow:
    """Return the graph as it runs with options that were checked; the same one if they change nothing."""
    options = {name: value for name, value in given.items() if name in GRAPH_OPTIONS and value is not None}
    if not options:
        return workflow
    found = _structure(options, RUN_OPTIONS, Report())
    assert found is not None
    policies = {name: _policy(policy) for name in _POLICIES if (policy := found.get(name)) is not None}
    return _Changed(options, policies, merged_policy([found.get("retry")], None)).graph(workflow)


def deadline_of(given: Mapping[str, Any]) -> float | None:
    """Return the seconds that options which were checked give a run; None without a deadline."""
    deadline = given.get("deadline")
    if deadline is None:
        return None
    found = _structure({"deadline": deadline}, RUN_OPTIONS, Report())
    assert found is not None
    return float(found.plain("deadline"))


def _policy(found: Found) -> Policy:
    retry = found.get("retry")
    if retry is not None and isinstance(retry.node, Object) and retry.get("max_retries") is not None:
        values = dict(retry.items())
        retries = values.pop("max_retries")
        values["max_attempts"] = Found(int(retries.value) + 1, retries.node, retries.pointer, retries.key)
        retry = Found(values, retry.node, retry.pointer, retry.key)
    merged = merged_policy([retry], found.plain("timeout"))
    return Policy() if merged is None else merged


def step_policy(
    given: Mapping[str, Any], *, at: str = "/options"
) -> tuple[Policy | None, Budget | None, list[Diagnostic]]:
    """Return the policy and the budget that `retry`, `timeout` and `budget` of the options of a request give
    each step of its plan, and all that is wrong with them, each with its place below `at`."""
    report = Report()
    found = _structure(given, POLICY, report)
    problems = [msgspec.structs.replace(one, path=f"{at}{one.path or ''}") for one in report.diagnostics()]
    if found is None or problems:
        return None, None, problems
    policy = merged_policy([found.get("retry")], found.plain("timeout"))
    return policy, compiled_budget(found.get("budget")), []


class _Changed:
    """Makes the graph with options, and those inside it."""

    def __init__(
        self, options: Mapping[str, Any], policies: Mapping[str, Policy], retry: Policy | None
    ) -> None:
        self._options = options
        self._policies = policies
        self._retry = retry
        self._limits = {name: options[name] for name in LIMITS if name in options}

    def graph(self, workflow: Workflow, *, is_whole: bool = True) -> Workflow:
        changed: dict[str, Any] = {
            "nodes": tuple(self._node(node) for node in workflow.nodes),
            "graphs": {name: self.graph(graph, is_whole=False) for name, graph in workflow.graphs.items()},
        }
        if is_whole and self._limits:
            changed["options"] = msgspec.structs.replace(workflow.options, **self._limits)
        return msgspec.structs.replace(workflow, **changed)

    def _node(self, node: Any) -> Any:
        kind = kind_of(node)
        changed = kind.adapted(node, self._options)
        policy = self._policies.get(kind.policy_option or "")
        if policy is not None:
            changed["policy"] = _over(policy, node.policy)
        if self._retry is not None and "policy" in kind.takes and getattr(node, "body", None) is None:
            changed["policy"] = _over(self._retry, changed.get("policy", node.policy))
        inline = kind.inner(node) or getattr(node, "inline", None)
        if inline is not None:
            changed["inline"] = self.graph(inline, is_whole=False)
        return msgspec.structs.replace(node, **changed) if changed else node


def _over(below: Policy, own: Policy | None) -> Policy:
    """Return the policy of a node with what it leaves open taken from that of the run, key by key."""
    if own is None:
        return below
    retry = own.retry or below.retry
    if own.retry is not None and below.retry is not None:
        default = RetryPolicy()
        open_fields = {
            name: getattr(below.retry, name)
            for name in RetryPolicy.__struct_fields__
            if getattr(own.retry, name) == getattr(default, name)
        }
        retry = msgspec.structs.replace(own.retry, **open_fields)
    return Policy(retry=retry, timeout=below.timeout if own.timeout is None else own.timeout)
