"""Checks, adjustments and compilation of plans (page 004 §4)."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest

from agentflow.definition.ir import AgentNode, HumanNode, canonical_json, decode_ir, ir_hash
from agentflow.definition.plan_checks import check_plan, plan_digest
from agentflow.definition.plan_compiler import compile_plan
from agentflow.definition.stage_schemas import Plan, read
from agentflow.definition.toolsets import ToolEntry, Toolset, Toolsets, policy_of

WEB = Toolset(name="web", tools=(ToolEntry(name="web.fetch", side_effect="read"),))
FILE = Toolset(
    name="file",
    tools=(
        ToolEntry(name="file.write", side_effect="write"),
        ToolEntry(name="file.read", side_effect="read"),
    ),
)
MAIL = Toolset(
    name="messaging",
    tools=(ToolEntry(name="messaging.send", side_effect="external"),),
    aliases=("slack", "send_message"),
)
OFF = Toolset(name="terminal", tools=(ToolEntry(name="terminal.run", side_effect="external"),), enabled=False)
REGISTRY = Toolsets([WEB, FILE, MAIL, OFF])


def step(id: Any = "a", **more: Any) -> dict[str, Any]:
    return {"id": id, "title": "T", "action": "A", "owner": "agent", "depends_on": [], **more}


def plan(*steps: Any, **more: Any) -> dict[str, Any]:
    base = {"status": "ready", "summary": "s", "risks": [], "artifacts": [], "blockers": []}
    return {**base, "steps": list(steps), **more}


def found(value: Any, **more: Any) -> list[tuple[str, str | None]]:
    return [(d.code, d.path) for d in check_plan(value, REGISTRY, **more).diagnostics]


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (plan(), [("E_PLAN_EMPTY", "/steps")]),
        (plan(step(), summary=1), [("E_PLAN_SCHEMA", "/summary")]),
        ("text", [("E_PLAN_SCHEMA", "")]),
        (plan(step(more=1)), [("E_PLAN_SCHEMA", "/steps/0")]),
        (plan(*(step(f"s{i}") for i in range(101))), [("E_PLAN_TOO_LARGE", "/steps")]),
        (plan(step("")), [("E_PLAN_STEP_ID", "/steps/0/id")]),
        (plan(step("1a")), [("E_PLAN_STEP_ID", "/steps/0/id")]),
        (plan(step("__a")), [("E_PLAN_STEP_ID", "/steps/0/id")]),
        (plan(step("a"), step("a")), [("E_PLAN_DUPLICATE_ID", "/steps/1/id")]),
        (plan(step(depends_on=["b"])), [("E_PLAN_DEPENDENCY", "/steps/0/depends_on/0")]),
        (plan(step(depends_on=["a"])), [("E_PLAN_CYCLE", "/steps/0/depends_on/0")]),
        (
            plan(step("a", depends_on=["b"]), step("b", depends_on=["a"])),
            [("E_PLAN_CYCLE", "/steps/0/depends_on")],
        ),
        (plan(step(toolsets=["wep"])), [("E_PLAN_TOOLSET", "/steps/0/toolsets/0")]),
        (
            plan(step(toolsets=["terminal"], verification={"exists": True})),
            [("W_PLAN_TOOLSET_OFF", "/steps/0/toolsets/0")],
        ),
        (
            plan(step(expected_artifacts=[{"type": "exe", "uri": "a"}])),
            [("E_PLAN_ARTIFACT", "/steps/0/expected_artifacts/0/type")],
        ),
        (plan(step(expected_artifacts=["../a"])), [("E_PLAN_ARTIFACT", "/steps/0/expected_artifacts/0")]),
        (plan(step(expected_artifacts=["/etc/x"])), [("E_PLAN_ARTIFACT", "/steps/0/expected_artifacts/0")]),
        (plan(step(expected_artifacts=["a/../b.md", "https://a.example/../x"])), []),
        (plan(step(verification={"size": 1})), [("E_PLAN_CHECK", "/steps/0/verification/size")]),
        (
            plan(step(verification=[{"min_bytes": "many"}])),
            [("E_PLAN_CHECK", "/steps/0/verification/0/min_bytes")],
        ),
        (
            plan(step(verification={"json_schema": {"type": "nothing"}})),
            [("E_PLAN_CHECK", "/steps/0/verification/json_schema")],
        ),
        (
            plan(step(approval_status="approved")),
            [("W_PLAN_SELF_APPROVED", "/steps/0/approval_status")],
        ),
        (plan(step(toolsets=["file"])), [("W_PLAN_UNVERIFIABLE", "/steps/0")]),
    ],
)
def test_each_problem_has_its_code_and_place(value: Any, wanted: Any):
    assert found(value) == wanted


def test_all_problems_are_reported_at_once():
    value = plan(
        step("a", depends_on=["a"], toolsets=["nothing"]),
        step("a", depends_on=["zz"], verification={"x": 1}),
        step("", expected_artifacts=["../out"]),
        status="done",
    )
    codes = {code for code, _ in found(value)}
    assert codes == {
        "E_PLAN_SCHEMA",
        "E_PLAN_DUPLICATE_ID",
        "E_PLAN_CYCLE",
        "E_PLAN_DEPENDENCY",
        "E_PLAN_TOOLSET",
        "E_PLAN_CHECK",
        "E_PLAN_STEP_ID",
        "E_PLAN_ARTIFACT",
    }


def test_a_name_that_is_near_is_suggested():
    checked = check_plan(plan(step("search"), step("b", depends_on=["serch"], toolsets=["wbe"])), REGISTRY)
    assert [d.hint for d in checked.errors] == ['did you mean "search"?', 'did you mean "web"?']


def test_the_path_of_a_cycle_is_shown():
    value = plan(step("a", depends_on=["c"]), step("b", depends_on=["a"]), step("c", depends_on=["b"]))
    assert "a -> c -> b -> a" in check_plan(value, REGISTRY).errors[0].message


def test_each_cycle_is_listed():
    pairs = [("a", "b"), ("b", "a"), ("c", "d"), ("d", "c"), ("e", "e"), ("f", "a")]
    errors = check_plan(plan(*(step(id, depends_on=[on]) for id, on in pairs)), REGISTRY).errors
    assert [d.message.partition(": ")[2] for d in errors] == ["e -> e", "a -> b -> a", "c -> d -> c"]


HUGE = {
    "a chain": plan(*(step(f"s{i}", depends_on=[f"s{i + 1}"]) for i in range(20_000))),
    "unknown names": plan(*(step(f"s{i}", depends_on=[f"z{i}"] * 10) for i in range(5_000))),
    "wrong schemas": plan(step(verification=[{"json_schema": {"type": "no"}}] * 20_000)),
    "wrong keys": plan(step(verification=dict.fromkeys((f"z{i}" for i in range(20_000)), 1))),
    "wrong toolsets": plan(step(toolsets=[f"z{i}" for i in range(20_000)])),
}


@pytest.mark.parametrize("value", HUGE.values(), ids=HUGE)
def test_a_huge_plan_is_refused_in_bounded_time(value: Any):
    """Without the bounds it takes from seconds to minutes, in which the daemon does nothing else."""
    begun = time.process_time()
    assert check_plan(value, REGISTRY).plan is None
    assert time.process_time() - begun < 5


def test_adjustments_are_listed_and_only_tighten():
    value = plan(
        step("a", toolsets=["slack", "send_message"], requires_approval=False, approval_status="approved"),
        step("b", toolsets=["web"], requires_approval=True, approval_status="not_required"),
    )
    checked = check_plan(value, REGISTRY)
    assert checked.plan is not None
    a, b = checked.plan.steps
    assert (a.toolsets, a.requires_approval, a.approval_status) == (("messaging",), True, "pending")
    assert (b.requires_approval, b.approval_status) == (True, "pending")
    assert [(m["step_id"], m["field"], m["reason"]) for m in checked.adjustments] == [
        ("a", "toolsets", "alias"),
        ("a", "approval_status", "approval_reset"),
        ("a", "requires_approval", "class"),
        ("b", "approval_status", "step"),
    ]


@pytest.mark.parametrize(
    ("match", "asks"),
    [
        ({"toolset": "web"}, True),
        ({"toolset": "file"}, False),
        ({"tool": "web.fetch"}, True),
        ({"step": "a"}, True),
        ({"step": "b"}, False),
        ({"template": "digest"}, True),
        ({"template": "other"}, False),
        ({"toolset": "web", "step": "b"}, False),
    ],
)
def test_a_rule_asks_for_the_steps_that_it_matches(match: dict[str, str], asks: bool):
    rules = policy_of([{"match": match, "require": "approval"}])
    checked = check_plan(plan(step(toolsets=["web"])), REGISTRY, rules, template="digest")
    assert checked.plan is not None
    assert (checked.plan.steps[0].requires_approval is True) is asks


def settings(**more: Any) -> dict[str, Any]:
    return {"toolsets": REGISTRY.to_value(), "delegate_prompt": "Do it.", **more}


def test_a_plan_compiles_to_the_same_graph_each_time():
    checked = check_plan(
        plan(
            step("a", toolsets=["web", "file"], action="${{ inputs.secret }} {{x}}", verification="look"),
            step("b", toolsets=["slack"], depends_on=["a"], expected_artifacts=["mailto:a@b.example"]),
            step("c", owner="human", depends_on=["a"]),
        ),
        REGISTRY,
    )
    assert checked.plan is not None
    graph = compile_plan(checked.plan, settings())
    again = compile_plan(read(Plan, msgspec.json.decode(canonical_json(checked.plan))), settings())
    assert ir_hash(graph) == ir_hash(again)
    assert decode_ir(canonical_json(graph)) == graph
    a, b, c = graph.nodes
    assert isinstance(a, AgentNode)
    assert a.metadata["tools"] == ["file.read", "file.write", "web.fetch"]
    assert [f"{f.service}.{f.function}" for f in a.agent.functions or ()] == a.metadata["tools"]
    assert (a.approval, a.index, a.join) == (None, 0, "all_succeeded")
    assert "secret" not in a.agent.system_prompt
    assert b.approval is not None
    assert (b.approval.before, b.approval.on_denied, b.approval.timeout) == ("step", "skip", 7 * 86_400.0)
    assert (b.metadata["class"], b.metadata["rule"], b.depends_on) == ("external", "class", ("a",))
    assert isinstance(c, HumanNode)


def test_the_digest_follows_the_adjusted_plan():
    one = check_plan(plan(step(toolsets=["slack"])), REGISTRY).plan
    two = check_plan(plan(step(toolsets=["messaging"], requires_approval=True)), REGISTRY).plan
    three = check_plan(plan(step(toolsets=["messaging"], action="B")), REGISTRY).plan
    assert one is not None
    assert two is not None
    assert three is not None
    assert plan_digest(one) == plan_digest(two) != plan_digest(three)
