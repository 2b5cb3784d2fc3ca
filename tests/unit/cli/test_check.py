from __future__ import annotations

import json
import os
import shutil

import pytest

from tests.unit.cli.support import DOCUMENTS, ECHO, ModelServer, Sandbox


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
        ("gone.yaml", None, "gone.yaml: error E_FILE: there is no such file"),
        ("flow.txt", "{}", 'flow.txt: error E_FILE: suffix ".txt" is not read'),
        ("flow.yaml", "version: [", "flow.yaml:1:10: error E_SYNTAX: "),
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


def test_problems_of_a_line_share_its_excerpt(sandbox: Sandbox):
    sandbox.write("flow.json", '{"version": "1.0", "workflow": {"steps": [{"type": "loop", "id": "9"}]}}')
    assert sandbox.invoke("check", "flow.json").stderr.splitlines() == [
        'flow.json:1:43: error E_REQUIRED: step has no "agent"',
        'flow.json:1:52: error E_VALUE: type "loop" is not allowed',
        '  hint: write "run"',
        'flow.json:1:66: error E_VALUE: id "9" is not a name',
        "  hint: begin with a letter or _, go on with letters, digits, _ and -, at most 64",
        '    1 | {"version": "1.0", "workflow": {"steps": [{"type": "loop", "id": "9"}]}}',
        "      |                                           ^        ^~~~~~        ^~~",
        "flow.json: not valid (3 errors, 0 warnings)",
    ]


@pytest.mark.parametrize(
    ("options", "env", "coloured"),
    [
        ([], {}, False),
        (["--color", "never"], {}, False),
        (["--color", "always"], {}, True),
        (["--color", "always"], {"NO_COLOR": "1"}, True),
    ],
)
def test_colour_as_wanted(sandbox: Sandbox, options: list[str], env: dict[str, str], coloured: bool):
    sandbox.write("flow.yaml", "version: [")
    sandbox.env |= env
    result = sandbox.invoke("check", "flow.yaml", *options)
    assert ("\x1b[" in result.stderr) is coloured
    assert "error" in result.stderr


@pytest.mark.parametrize(("env", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_colour_on_a_terminal(sandbox: Sandbox, env: dict[str, str], coloured: bool):
    import pty

    sandbox.write("flow.yaml", "version: [")
    ours, theirs = pty.openpty()
    process = sandbox.start("check", "flow.yaml", env={"TERM": "xterm", **env}, stderr=theirs)
    try:
        assert process.wait(30) == 3
        shown = os.read(ours, 65536).decode()
    finally:
        os.close(theirs)
        os.close(ours)
        sandbox.close()
    assert "E_SYNTAX" in shown
    assert ("\x1b[" in shown) is coloured


# --- against runs

FLOW = ECHO.replace('version: "1.0"\n', 'version: "1.0"\nname: greeting\n')
TWO = (
    FLOW
    + """\
    - type: run
      id: part
      depends_on: [greet]
      approval: true
      agent:
        systemPrompt: Say good-bye.
        input: ${{ steps.greet.outputs.result }}
        attachedFunctions: none
        resultSchema: {type: string}
"""
)


@pytest.fixture
def waiting(sandbox: Sandbox, model: ModelServer) -> str:
    """The id of a run that has greeted, and waits for a person."""
    sandbox.write("flow.yaml", TWO)
    done = sandbox.invoke("run", "flow.yaml", "-i", "name=Ann", "--id", "wf_one")
    assert done.exit_code == 9, done.stderr
    return "wf_one"


def against(sandbox: Sandbox, text: str) -> tuple[int, str]:
    sandbox.write("flow.yaml", text)
    done = sandbox.invoke("check", "flow.yaml", "--against-runs")
    return done.exit_code, done.stdout


def test_without_a_store_there_are_no_runs(sandbox: Sandbox):
    assert against(sandbox, FLOW) == (0, "flow.yaml: valid\nno run of it is on its way\n")
    assert not sandbox.database.exists()


def test_a_run_of_the_same_graph_fits(sandbox: Sandbox, waiting: str):
    assert against(sandbox, TWO) == (0, "flow.yaml: valid\nwf_one  waiting  has the same graph\n")


def test_a_run_fits_when_only_details_changed(sandbox: Sandbox, waiting: str):
    code, text = against(sandbox, TWO.replace("Say good-bye", "Say farewell"))
    assert code == 0
    assert text.splitlines()[1:] == [
        "wf_one  waiting  goes on with its own graph, and can be forked to this one",
        '  - the system prompt of "part" changed',
    ]


def test_a_run_does_not_fit_another_structure(sandbox: Sandbox, waiting: str):
    code, text = against(sandbox, FLOW)
    assert code == 3
    assert text.splitlines()[1:] == [
        "wf_one  waiting  goes on with its own graph, and cannot be forked to this one",
        '  - step "part" is gone',
    ]
    found = json.loads(sandbox.invoke("check", "flow.yaml", "--against-runs", "--json").stdout)
    assert found["valid"] is True
    assert found["runs"] == [
        {
            "workflow_id": "wf_one",
            "state": "waiting",
            "fits": False,
            "differences": [{"node": "part", "message": 'step "part" is gone', "structural": True}],
        }
    ]


def test_a_recorded_result_that_the_new_schema_refuses_does_not_fit(sandbox: Sandbox, waiting: str):
    code, text = against(sandbox, TWO.replace("type: string", "type: string, maxLength: 3", 1))
    assert code == 3
    assert text.splitlines()[2:] == [
        '  - the recorded result of "greet" breaks its new schema: "hello Ann" has more than 3 characters',
        '  - the result schema of "greet" changed',
    ]


def test_runs_at_their_end_and_of_other_names_are_not_asked(sandbox: Sandbox, waiting: str):
    other = against(sandbox, FLOW.replace("name: greeting", "name: other"))
    assert other == (0, "flow.yaml: valid\nno run of it is on its way\n")
    assert sandbox.invoke("cancel", waiting).exit_code in (0, 8)
    assert against(sandbox, FLOW)[1].endswith("no run of it is on its way\n")


def test_a_document_with_errors_is_not_compared(sandbox: Sandbox, waiting: str):
    code, text = against(sandbox, FLOW + "retries: 1\n")
    assert (code, text) == (3, "")
