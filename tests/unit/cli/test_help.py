"""Help is fast because it loads nothing: that is what holds on every machine."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import click
import pytest

from agentflow.cli import app
from agentflow.cli.app import Command
from agentflow.cli.errors import Exit
from tests.unit.cli.support import ROOT, Sandbox

HEAVY = (
    "httpx",
    "yaml",
    "jsonschema",
    "sqlite3",
    "opentelemetry",
    "structlog",
    "rich",
    "actors",
    "asyncio",
    "msgspec",
)

PROBE = """
import contextlib, io, json, sys
import agentflow.cli
for args in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit):
        agentflow.cli.app.main(args)
    assert out.getvalue()
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
"""


def loaded(*calls: list[str]) -> set[str]:
    """The top-level modules that a process has loaded after these calls."""
    probe = subprocess.run(
        [sys.executable, "-c", PROBE, json.dumps(calls)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return set(json.loads(probe.stdout))


def verbs() -> dict[str, click.Command]:
    context = click.Context(app)
    found = {name: app.get_command(context, name) for name in app.list_commands(context)}
    return {name: command for name, command in found.items() if command is not None}


def test_help_loads_nothing_heavy():
    found = loaded(["--help"], ["--version"], ["version"], *([verb, "--help"] for verb in verbs()))
    assert "click" in found
    assert not found & set(HEAVY)


def test_help_lists_every_exit_code():
    """daily-use 17: 7 was missing."""
    words = " ".join((app.help or "").split()).partition("Exit codes: ")[2]
    assert [int(code) for code in re.findall(r"(\d+) [a-z]", words)] == [int(code) for code in Exit]


def test_the_list_of_verbs_loads_no_verb():
    code = (
        "import sys, agentflow.cli\n"
        "try: agentflow.cli.app.main(['--help'])\n"
        "except SystemExit: pass\n"
        "print(sorted(m for m in sys.modules if m.startswith('agentflow.')), file=sys.stderr)"
    )
    probe = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    wanted = [
        "agentflow.cli",
        "agentflow.cli.app",
        "agentflow.cli.errors",
        "agentflow.cli.output",
        "agentflow.errors",
    ]
    assert probe.stderr.strip() == str(wanted)


def test_every_verb_has_help_that_the_list_repeats(sandbox: Sandbox):
    listing = sandbox.invoke("--help").stdout
    width = max(map(len, verbs())) + 2
    for name, command in verbs().items():
        first = (command.help or "").splitlines()[0]
        assert f"  {name:<{width}}{first}\n" in listing
        assert sandbox.invoke(name, "--help").exit_code == 0


def test_every_verb_takes_debug():
    for name, command in verbs().items():
        leaves = command.commands.values() if isinstance(command, click.Group) else [command]
        for leaf in leaves:
            assert isinstance(leaf, Command), name


@pytest.mark.parametrize("args", [("version",), ("--version",)])
def test_version(sandbox: Sandbox, args: tuple[str, ...]):
    import agentflow

    assert sandbox.invoke(*args).stdout.startswith(f"agentflow {agentflow.__version__} (Python 3")


def test_an_unknown_verb_gets_a_suggestion(sandbox: Sandbox):
    result = sandbox.invoke("chek", "flow.yaml")
    assert result.exit_code == 2
    assert result.stderr == (
        'error usage: there is no command "chek"; did you mean "check"?\n  hint: agentflow --help\n'
    )
    assert result.stdout == ""


@pytest.mark.parametrize("args", [(), ("model",)])
def test_without_a_verb_the_help_is_shown(sandbox: Sandbox, args: tuple[str, ...]):
    result = sandbox.invoke(*args)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("Usage: agentflow")


def test_an_unknown_option_names_the_help_of_its_verb(sandbox: Sandbox):
    result = sandbox.invoke("run", "flow.yaml", "--stor", "memory:")
    assert result.exit_code == 2
    assert result.stderr.startswith("error usage: ")
    assert "--store" in result.stderr
    assert result.stderr.endswith("  hint: agentflow run --help\n")


def test_an_option_without_its_value_names_the_help_of_its_verb(sandbox: Sandbox):
    result = sandbox.invoke("run", "flow.yaml", "--input")
    assert result.exit_code == 2
    assert result.stderr.startswith("error usage: Option '--input' requires an argument.")
    assert result.stderr.endswith("  hint: agentflow run --help\n")
