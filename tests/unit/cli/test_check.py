from __future__ import annotations

import json
import shutil

import pytest

from tests.unit.cli.support import DOCUMENTS, ECHO, Sandbox


def test_a_valid_document(sandbox: Sandbox):
    sandbox.write("flow.yaml", ECHO)
    result = sandbox.invoke("check", "flow.yaml")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "flow.yaml: valid\n", "")


def test_diagnostics_are_printed_as_page_001_says(sandbox: Sandbox):
    shutil.copy(DOCUMENTS / "2-parallel.yaml", "flow.yaml")
    result = sandbox.invoke("check", "flow.yaml")
    assert result.exit_code == 3
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    first = lines.index(
        'flow.yaml:48:20: error E_UNKNOWN_DEPENDENCY: "enrich_ticket" depends on'
        ' unknown step "get_customer_data"'
    )
    assert lines[first + 1] == '  hint: did you mean "get_customer_date"?'
    source, mark = lines[first + 2], lines[first + 3]
    assert source.startswith("   48 | ")
    assert source[mark.index("^") :].startswith("get_customer_data")
    assert 'flow.yaml:52:31: error E_UNKNOWN_STEP: unknown step "get_customer_data"' in lines
    assert lines[-1].startswith("flow.yaml: not valid (2 errors, ")


def test_json_is_the_whole_of_stdout(sandbox: Sandbox):
    shutil.copy(DOCUMENTS / "2-parallel.yaml", "flow.yaml")
    result = sandbox.invoke("check", "flow.yaml", "--json")
    found = json.loads(result.stdout)
    assert (result.exit_code, result.stderr) == (3, "")
    assert found["valid"] is False
    wanted = {"code", "severity", "message", "file", "line", "column", "path", "hint"}
    assert all(set(d) == wanted for d in found["diagnostics"])
    assert [d["path"] for d in found["diagnostics"] if d["severity"] == "error"] == [
        "/workflow/steps/2/depends_on/0",
        "/workflow/steps/2/agent/input/customer",
    ]


def test_strict_makes_warnings_errors(sandbox: Sandbox):
    sandbox.write("flow.yaml", ECHO.replace('version: "1.0"\n', ""))
    lax, strict = sandbox.invoke("check", "flow.yaml"), sandbox.invoke("check", "flow.yaml", "--strict")
    assert (lax.exit_code, strict.exit_code) == (0, 3)
    assert "flow.yaml:1:1: warning W_VERSION_MISSING" in lax.stderr
    assert lax.stdout == "flow.yaml: valid (0 errors, 1 warning)\n"
    assert "flow.yaml:1:1: error W_VERSION_MISSING" in strict.stderr
    assert json.loads(sandbox.invoke("check", "flow.yaml", "--json").stdout)["valid"] is True


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("gone.yaml", None, "gone.yaml: error E_FILE: cannot be read: No such file or directory"),
        ("flow.txt", "{}", 'flow.txt: error E_FILE: suffix ".txt" is not read'),
        ("flow.yaml", "version: [", "flow.yaml:2:1: error E_SYNTAX: "),
        ("flow.yaml", ECHO + "retries: 3\n", 'flow.yaml:11:1: error E_UNKNOWN_KEY: unknown key "retries"'),
        ("flow.json", "[1, 2]", "flow.json:1:1: error E_TYPE: document must be a mapping"),
    ],
)
def test_bad_documents(sandbox: Sandbox, name: str, text: str | None, line: str):
    if text is not None:
        sandbox.write(name, text)
    result = sandbox.invoke("check", name)
    assert result.exit_code == 3
    assert any(shown.startswith(line) for shown in result.stderr.splitlines()), result.stderr
    assert result.stdout == ""


def test_nothing_is_made_by_checking(sandbox: Sandbox):
    sandbox.write("flow.yaml", ECHO)
    sandbox.invoke("check", "flow.yaml")
    assert [p.name for p in sandbox.folder.iterdir()] == ["flow.yaml"]
