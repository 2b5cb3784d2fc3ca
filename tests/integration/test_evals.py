"""Evals: suites, datasets, evaluators, reports and exit codes (page 003 §13), with real runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from agentflow import Runtime
from agentflow.errors import DefinitionError
from agentflow.evals.report import to_junit, to_text
from agentflow.evals.runner import run_eval
from agentflow.evals.suite import EvalError
from tests.unit.cli.support import ECHO, ModelServer, Sandbox, user_text
from tests.unit.server.kit import serving

SUITE = """\
id: greetings
workflow_path: flow.yaml
dataset_path: cases.jsonl
"""
ASKS = ECHO.replace("      agent:", "      approval: {before: step}\n      agent:")
HANDLERS = """\
def length(payload):
    return {"score": len(payload["actual"]) / 10, "reason": f"{len(payload['actual'])} characters"}

def wrong(payload):
    return 7

def raises(payload):
    raise ValueError("no")

async def same(payload):
    passed = payload["actual"] == payload["expected"]
    return {"passed": passed, "metadata": {"threshold": payload["threshold"]}}
"""


@pytest.fixture
def sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sandbox]:
    monkeypatch.chdir(tmp_path)
    made = Sandbox(tmp_path)
    made.write("flow.yaml", ECHO)
    made.write("suite.yaml", SUITE)
    made.write("handlers.py", HANDLERS)
    with ModelServer(lambda body: 500 if user_text(body) == "fail" else f"hello {user_text(body)}") as server:
        made.env |= {"OPENAI_BASE_URL": server.url, "AGENTFLOW_MODEL": "openai:test"}
        for name, value in {"OPENAI_BASE_URL": server.url, "OPENAI_API_KEY": "k"}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("AGENTFLOW_MODEL", "openai:test")
        yield made


def cases(sandbox: Sandbox, *records: dict[str, Any]) -> None:
    sandbox.write("cases.jsonl", "".join(json.dumps(record) + "\n\n" for record in records))


def case(id: str, name: str = "Ann", expected: Any = None, **more: Any) -> dict[str, Any]:
    wanted = {"greet": f"hello {name}"} if expected is None else expected
    return {"id": id, "input": {"name": name}, "expected_output": wanted, **more}


def evaluated(sandbox: Sandbox, *arguments: str) -> tuple[int, dict[str, Any]]:
    result = sandbox.invoke("eval", "suite.yaml", "--json", *arguments)
    return result.exit_code, json.loads(result.stdout)


def test_all_cases_pass(sandbox: Sandbox):
    cases(sandbox, case("one"), case("two", "Bob"))
    code, report = evaluated(sandbox)
    assert code == 0
    assert (report["suite_id"], report["status"]) == ("greetings", "passed")
    assert report["summary"] == {"total": 2, "passed": 2, "failed": 0, "error_cases": 0, "pass_rate": 1.0}
    assert [c["case_id"] for c in report["cases"]] == ["one", "two"]
    assert report["cases"][0]["evaluations"] == [{"id": "exact", "passed": True}]
    found = json.loads(sandbox.invoke("list", "--label", "eval=greetings", "--json").stdout)["items"]
    assert {run["workflow_id"] for run in found} == {c["workflow_id"] for c in report["cases"]}


def test_a_mismatch_names_its_path_and_fails_the_suite(sandbox: Sandbox):
    cases(sandbox, case("one"), case("two", expected={"greet": "bye"}))
    code, report = evaluated(sandbox, "--junit", "report.xml")
    assert (code, report["status"]) == (1, "failed")
    bad = report["cases"][1]
    assert (bad["status"], bad["first_failed_path"]) == ("failed", "$.greet")
    assert bad["evaluations"][0]["reason"] == '$.greet is "hello Ann", expected "bye"'
    root = ElementTree.parse("report.xml").getroot()
    assert root[0].attrib["failures"] == "1"
    assert [(c.attrib["name"], [child.tag for child in c]) for c in root[0]] == [
        ("one", []),
        ("two", ["failure"]),
    ]
    shown = sandbox.invoke("eval", "suite.yaml")
    assert shown.exit_code == 1
    assert "greetings: 1 of 2 passed (50%), 1 failed, 0 in error" in shown.stdout
    assert 'exact: $.greet is "hello Ann", expected "bye"' in shown.stdout


def test_a_run_that_fails_is_an_error_case_with_its_node(sandbox: Sandbox):
    sandbox.write("flow.yaml", ECHO.replace("      agent:", "      retry: false\n      agent:"))
    cases(sandbox, case("one"), case("bad", "fail"))
    code, report = evaluated(sandbox)
    assert (code, report["status"], report["summary"]["error_cases"]) == (1, "error", 1)
    bad = report["cases"][1]
    assert (bad["error"]["code"], bad["first_failed_node"]) == ("workflow_run_failed", "greet")


def test_paths_are_compared_on_both_sides(sandbox: Sandbox):
    sandbox.write("suite.yaml", SUITE + "comparison: {mode: paths, paths: [greet]}\n")
    cases(sandbox, case("one"), case("none", expected={"other": 1}))
    code, report = evaluated(sandbox)
    assert code == 1
    assert [c["status"] for c in report["cases"]] == ["passed", "failed"]
    assert report["cases"][1]["first_failed_path"] == "$.greet"


def test_custom_evaluators_judge_parts_of_the_output(sandbox: Sandbox):
    customs = (
        "custom_evals:\n"
        "  - {id: long, handler: length, actual_path: greet, threshold: 0.9}\n"
        "  - {id: same, handler: same, actual_path: greet, expected_path: greet}\n"
    )
    sandbox.write("suite.yaml", SUITE + customs)
    cases(sandbox, case("one"), case("two", "Bartholomew"))
    code, report = evaluated(sandbox)
    assert [c["status"] for c in report["cases"]] == ["passed", "passed"], report
    long, same = report["cases"][0]["evaluations"][1:]
    assert (long["score"], long["reason"], same["metadata"]) == (0.9, "9 characters", {"threshold": 0.5})
    sandbox.write("suite.yaml", SUITE + customs.replace("0.9", "0.95"))
    code, report = evaluated(sandbox)
    assert (code, [c["status"] for c in report["cases"]]) == (1, ["failed", "passed"])


@pytest.mark.parametrize("handler", ["wrong", "raises"])
def test_an_evaluator_that_gives_no_judgement_is_an_error_case(sandbox: Sandbox, handler: str):
    sandbox.write("suite.yaml", SUITE + f"custom_evals: [{{id: mine, handler: {handler}}}]\n")
    cases(sandbox, case("one"))
    code, report = evaluated(sandbox)
    assert (code, report["cases"][0]["error"]["code"]) == (1, "custom_eval_failed")


def test_responses_answer_people_and_a_case_without_one_is_an_error(sandbox: Sandbox):
    sandbox.write("flow.yaml", ASKS)
    cases(
        sandbox,
        case("yes", responses={"greet": "approve"}),
        case("no", responses={"greet": False}),
        case("silent"),
    )
    code, report = evaluated(sandbox)
    assert code == 1
    assert [c["status"] for c in report["cases"]] == ["passed", "error", "error"]
    assert [c["error"] and c["error"]["code"] for c in report["cases"]] == [
        *(None, "workflow_run_failed", "human_input_unanswered")
    ]
    states = {
        c["case_id"]: json.loads(sandbox.invoke("show", c["workflow_id"], "--json").stdout)["state"]
        for c in report["cases"]
    }
    assert states == {"yes": "completed", "no": "failed", "silent": "cancelled"}


INVALID: dict[str, tuple[str, str, str]] = {
    "no suite": ("", "", "read_suite_failed"),
    "no YAML": ("id: [", "", "parse_suite_failed"),
    "unknown key": (SUITE + "comparisons: {}\n", "", "invalid_suite"),
    "bad count": (SUITE + "max_concurrency: 0\n", "", "invalid_suite"),
    "paths without any": (SUITE + "comparison: {mode: paths}\n", "", "invalid_suite"),
    "no such handler": (SUITE + "custom_evals: [{id: a, handler: lenght}]\n", "{}", "invalid_suite"),
    "no dataset": (SUITE.replace("cases.jsonl", "none.jsonl"), "", "read_dataset_failed"),
    "no record": (SUITE, "\n", "invalid_dataset"),
    "no JSON": (SUITE, '{"id": "a"}\n{"id": ', "parse_dataset_line_failed"),
    "unknown member": (SUITE, '{"id": "a", "inputs": {}}', "parse_dataset_line_failed"),
    "same id twice": (SUITE, '{"id": "a", "input": 1, "expected_output": 1}\n' * 2, "that of line 1 too"),
    "no input": (SUITE, '\n{"id": "a", "expected_output": 1}', 'cases.jsonl:2: case "a" has no input'),
    "nothing to judge": (
        *(SUITE, '{"id": "a", "input": null}'),
        'cases.jsonl:1: case "a" has no expected_output, and no evaluator judges it',
    ),
    "no path": (
        SUITE + "comparison: {mode: paths, paths: [a, b..c]}\n",
        *("", 'suite.yaml:4:38: "b..c" is not a path'),
    ),
    "no one path": (
        SUITE + "custom_evals: [{id: a, handler: length, actual_path: 'a[*]'}]\n",
        *("", 'suite.yaml:4:54: "a[*]" is not a path'),
    ),
}


@pytest.mark.parametrize("name", INVALID)
def test_a_suite_that_cannot_be_used_runs_nothing(sandbox: Sandbox, name: str):
    suite, dataset, expected = INVALID[name]
    (sandbox.folder / "suite.yaml").unlink()
    if suite:
        sandbox.write("suite.yaml", suite)
    sandbox.write("cases.jsonl", json.dumps(case("one")) if dataset == "{}" else dataset)
    result = sandbox.invoke("eval", "suite.yaml")
    assert result.exit_code == 3
    assert expected in result.stderr
    assert json.loads(sandbox.invoke("list", "--json").stdout)["items"] == []


async def test_a_case_that_only_callables_judge_needs_no_expected_output(sandbox: Sandbox):
    cases(sandbox, {"id": "one", "input": {"name": "Ann"}})
    async with Runtime() as runtime:
        with pytest.raises(EvalError, match="no evaluator judges it"):
            await run_eval(sandbox.folder / "suite.yaml", runtime)
        report = await run_eval(
            sandbox.folder / "suite.yaml", runtime, evaluators={"any": lambda given: given["input"] == {}}
        )
    assert [(c.status, [e.id for e in c.evaluations]) for c in report.cases] == [("failed", ["any"])]


async def test_callables_judge_too_and_the_order_is_that_of_the_dataset(sandbox: Sandbox):
    sandbox.write("suite.yaml", SUITE + "max_concurrency: 4\n")
    cases(sandbox, *(case(f"c{i}", f"N{i}") for i in range(8)))
    seen: list[str] = []

    def polite(given: dict[str, Any]) -> bool:
        seen.append(given["id"])
        return given["actual"]["greet"].startswith("hello")

    async def odd(given: dict[str, Any]) -> dict[str, Any]:
        return {"passed": int(given["id"][1:]) % 2 == 1, "reason": "it is even"}

    async with Runtime("memory:") as runtime:
        report = await run_eval("suite.yaml", runtime, evaluators=[polite, odd])
    assert [c.case_id for c in report.cases] == [f"c{i}" for i in range(8)]
    assert sorted(seen) == [f"c{i}" for i in range(8)]
    assert [c.status for c in report.cases] == ["failed", "passed"] * 4
    assert "odd: it is even" in to_text(report)
    assert len(ElementTree.fromstring(to_junit(report))[0]) == 8


async def test_a_case_that_takes_too_long_is_ended(sandbox: Sandbox):
    sandbox.write("flow.yaml", ECHO)
    sandbox.write("suite.yaml", SUITE + "execution: {timeout: 0.000001}\n")
    cases(sandbox, case("one"))
    async with Runtime("memory:") as runtime:
        report = await run_eval("suite.yaml", runtime)
        found = report.cases[0]
        assert found.error is not None
        assert (found.status, found.error.code) == ("error", "workflow_run_failed")
        assert found.workflow_id is not None
        assert (await runtime.record(found.workflow_id)).state == "cancelled"


async def test_after_a_bad_case_fail_fast_begins_no_other(sandbox: Sandbox):
    sandbox.write("suite.yaml", SUITE + "execution: {fail_fast: true}\n")
    cases(sandbox, case("one"), case("two", expected=1), case("three"))
    async with Runtime("memory:") as runtime:
        report = await run_eval("suite.yaml", runtime)
    assert [c.case_id for c in report.cases] == ["one", "two"]


async def test_a_workflow_that_is_refused_is_told_as_such(sandbox: Sandbox):
    sandbox.write("flow.yaml", ECHO.replace("systemPrompt", "systemPromt"))
    cases(sandbox, case("one"))
    async with Runtime("memory:") as runtime:
        with pytest.raises(DefinitionError):
            await run_eval("suite.yaml", runtime)
        with pytest.raises(EvalError):
            await run_eval("none.yaml", runtime)


NODES = {
    "id": "w",
    "entry_node": "a",
    "globals": {"seen": 0},
    "nodes": [
        {
            "id": "a",
            "node_type": {"transform": {"expression": "input.name"}},
            "config": {"update_globals": {"seen": {"op": "increment"}}},
        },
        {"id": "b", "node_type": {"end": {"greeting": "hello {{ nodes.a.output }}"}}},
    ],
    "edges": [{"from": "a", "to": "b"}],
}
OUTPUT = {
    "status": "completed",
    "terminal_node": "b",
    "terminal_output": {"greeting": "hello Ann"},
    "outputs": {"a": {"output": "Ann"}},
    "globals": {"seen": 1},
    "trace": ["a", "b"],
}


@pytest.mark.parametrize("where", ["runtime", "daemon"])
async def test_node_yaml_is_judged_by_its_output_object(sandbox: Sandbox, where: str):
    sandbox.write("flow.yaml", json.dumps(NODES))
    wrong = {**OUTPUT, "outputs": {"a": {"output": "Bob"}}}
    cases(sandbox, case("good", expected=OUTPUT), case("bad", expected=wrong))
    if where == "runtime":
        async with Runtime() as runtime:
            report = await run_eval(sandbox.folder / "suite.yaml", runtime)
    else:
        async with serving(sandbox.folder) as served, served.client() as client:
            report = await run_eval(sandbox.folder / "suite.yaml", client)
    good, bad = report.cases
    assert (good.status, bad.status) == ("passed", "failed"), good
    assert (bad.first_failed_path, bad.first_failed_node) == ("$.outputs.a.output", "a")
    assert good.actual["workflow_id"] == good.workflow_id


async def test_options_of_a_suite_are_those_of_a_run(sandbox: Sandbox):
    cases(sandbox, case("one"))
    telemetry = {"telemetry": {"enabled": True, "sample_rate": 1}, "on_failure": "halt"}
    sandbox.write("suite.yaml", SUITE + f"workflow_options: {json.dumps(telemetry)}\n")
    async with Runtime() as runtime:
        assert (await run_eval(sandbox.folder / "suite.yaml", runtime)).status == "passed"
    sandbox.write("suite.yaml", SUITE + "workflow_options: {telemetry: {sampling: 1}}\n")
    async with Runtime() as runtime:
        with pytest.raises(EvalError, match="/workflow_options/telemetry/sampling") as refused:
            await run_eval(sandbox.folder / "suite.yaml", runtime)
        assert refused.value.code == "invalid_suite"
        assert not (await runtime.log.runs()).items
