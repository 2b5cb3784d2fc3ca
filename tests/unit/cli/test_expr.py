from __future__ import annotations

import json

import pytest

from tests.unit.cli.support import Sandbox

DATA = json.dumps({"inputs": {"n": 3, "who": "Ann"}, "steps": {"a": {"outputs": {"result": [1, 2]}}}})


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("inputs.n > 2", "true"),
        ("${{ inputs.n > 2 }}", "true"),
        ("  ${{ inputs.who }}\n", '"Ann"'),
        ("steps.a.outputs.result", "[1,2]"),
        ("steps.b.outputs.result", "null"),
        ("inputs", '{"n":3,"who":"Ann"}'),
        ("item || 'none'", '"none"'),
        ("length(inputs.who)", "3"),
        ("1.0", "1.0"),
    ],
)
def test_values_are_json(sandbox: Sandbox, expression: str, value: str):
    result = sandbox.invoke("expr", expression, "--data", DATA)
    assert (result.exit_code, result.stdout, result.stderr) == (0, value + "\n", "")
    assert sandbox.invoke("expr", expression, "--data", DATA, "--json").stdout == value + "\n"


def test_data_from_a_file(sandbox: Sandbox):
    sandbox.write("roots.yaml", "inputs: {n: 3}")
    assert sandbox.invoke("expr", "inputs.n", "--data", "@roots.yaml").stdout == "3\n"


def test_a_syntax_error_has_a_caret_and_exit_3(sandbox: Sandbox):
    result = sandbox.invoke("expr", "inputs.n = 2")
    assert result.exit_code == 3
    assert result.stdout == ""
    assert result.stderr.splitlines() == [
        'expr:1:10: error E_EXPR_SYNTAX: unexpected "="',
        "  hint: compare with ==",
        "    1 | inputs.n = 2",
        "      |          ^",
    ]


def test_all_names_that_are_wrong_are_told(sandbox: Sandbox):
    result = sandbox.invoke("expr", "${{ step.a == size(item) }}")
    assert result.exit_code == 3
    assert "expr:1:5: error E_EXPR_NAME" in result.stderr
    assert 'did you mean "steps"?' in result.stderr
    assert "expr:1:15: error E_EXPR_FUNCTION" in result.stderr


@pytest.mark.parametrize(
    ("expression", "place"),
    [
        ('inputs.n < "x"', "expr:1:10: error expression_error: "),
        ("fromJSON('{')", "expr:1:1: error expression_error: "),
        ("success()", "expr:1:1: error expression_error: "),
    ],
)
def test_a_failure_at_run_time_is_exit_1(sandbox: Sandbox, expression: str, place: str):
    result = sandbox.invoke("expr", expression, "--data", DATA)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.startswith(place)
    assert "^" in result.stderr


@pytest.mark.parametrize(
    ("data", "code", "says"),
    [
        ("nonsense", 2, "error usage: Invalid value for --data: not JSON at column 1"),
        ("[1]", 2, "error usage: Invalid value for --data: must be a JSON object"),
        ("@gone.json", 3, "gone.json: error E_FILE: "),
    ],
)
def test_bad_data(sandbox: Sandbox, data: str, code: int, says: str):
    result = sandbox.invoke("expr", "inputs", "--data", data)
    assert result.exit_code == code
    assert result.stderr.startswith(says)
    assert result.stdout == ""


def test_data_and_run_exclude_each_other(sandbox: Sandbox):
    result = sandbox.invoke("expr", "inputs", "--data", "{}", "--run", "wf_a")
    assert result.exit_code == 2
    assert "give one" in result.stderr


@pytest.mark.parametrize(
    ("run", "code", "says"),
    [
        ("wf_none", 4, "no run wf_none"),
        ("no ne", 2, "is not the id of a run"),
        ("none", 4, "no run wf_none"),
        ("gone.ndjson", 3, "gone.ndjson"),
    ],
)
def test_a_run_that_is_not_there(sandbox: Sandbox, run: str, code: int, says: str):
    result = sandbox.invoke("expr", "inputs", "--run", run)
    assert (result.exit_code, result.stdout) == (code, "")
    assert says in result.stderr


def test_a_syntax_error_is_told_before_any_run_is_looked_for(sandbox: Sandbox):
    assert sandbox.invoke("expr", "inputs ==", "--run", "wf_none").exit_code == 3
