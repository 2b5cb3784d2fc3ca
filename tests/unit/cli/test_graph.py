"""`agentflow graph`: of files and of runs, as text and as pictures."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import pytest

from tests.unit.cli.support import ECHO, ModelServer, Sandbox

BESIDE_PYTHON = str(Path(sys.executable).parent)


@pytest.fixture(autouse=True)
def only_our_graphviz(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Graphviz of the machine would do as well; the tests use the one of the extra."""
    monkeypatch.setenv("PATH", BESIDE_PYTHON)


def test_mermaid_is_the_default(sandbox: Sandbox):
    sandbox.write("flow.yaml", ECHO)
    done = sandbox.invoke("graph", "flow.yaml")
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout == (
        "flowchart TD\n"
        '  __end["__end\\n(end)"]\n'
        '  __start["__start\\n(start)"]\n'
        '  greet["greet\\n(agent)"]\n'
        "  __start --> greet\n"
        "  greet --> __end\n"
    )


def test_dot(sandbox: Sandbox):
    sandbox.write("flow.yaml", ECHO)
    done = sandbox.invoke("graph", "flow.yaml", "--format", "dot")
    assert done.stdout.startswith('digraph "flow" {\n')
    assert done.stdout.endswith("}\n")


@pytest.mark.parametrize(("kind", "magic"), [("svg", b"<svg"), ("png", b"\x89PNG")])
def test_pictures(sandbox: Sandbox, kind: str, magic: bytes):
    sandbox.write("flow.yaml", ECHO)
    done = sandbox.invoke("graph", "flow.yaml", "--format", kind)
    assert done.exit_code == 0, done.stderr
    assert done.stdout_bytes.startswith(magic)
    to_file = sandbox.invoke("graph", "flow.yaml", "--format", kind, "-o", f"graph.{kind}")
    assert (to_file.exit_code, to_file.stdout) == (0, "")
    assert (sandbox.folder / f"graph.{kind}").read_bytes() == done.stdout_bytes


def test_a_run_has_the_states_of_its_steps(sandbox: Sandbox, model: ModelServer):
    sandbox.write("flow.yaml", ECHO)
    assert sandbox.invoke("run", "flow.yaml", "-i", "name=Ann", "--id", "wf_one").exit_code == 0
    (sandbox.folder / "flow.yaml").unlink()
    assert "  class greet succeeded\n" in sandbox.invoke("graph", "wf_one").stdout
    assert "succeeded" in sandbox.invoke("graph", "wf_one", "--format", "svg").stdout


def test_without_graphviz_it_says_how_to_get_it(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch):
    sandbox.write("flow.yaml", ECHO)
    monkeypatch.setenv("PATH", "")
    sandbox.env["PATH"] = ""
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(sandbox.folder))
    done = sandbox.invoke("graph", "flow.yaml", "--format", "png", "-o", "graph.png")
    assert (done.exit_code, done.stdout) == (78, "")
    assert "png needs Graphviz" in done.stderr
    assert "pip install 'agentflow[graph]'" in done.stderr
    assert sandbox.invoke("graph", "flow.yaml", "--format", "svg").exit_code == 0


def test_a_graphviz_that_fails_says_why(sandbox: Sandbox):
    sandbox.write("flow.yaml", ECHO)
    fake = Path(sandbox.write("bin/dot", "#!/bin/sh\necho 'no layout today' >&2\nexit 3\n"))
    fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
    sandbox.env["PATH"] = f"{fake.parent}{os.pathsep}{os.environ['PATH']}"
    done = sandbox.invoke("graph", "flow.yaml", "--format", "png", "-o", "graph.png")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "no layout today" in done.stderr


def test_a_file_that_cannot_be_written(sandbox: Sandbox):
    sandbox.write("flow.yaml", ECHO)
    done = sandbox.invoke("graph", "flow.yaml", "-o", "gone/graph.mmd")
    assert done.exit_code == 1
    assert "gone/graph.mmd cannot be written: No such file or directory" in done.stderr


def test_a_bad_document_and_an_unknown_run(sandbox: Sandbox):
    sandbox.write("flow.yaml", "version: 1")
    assert sandbox.invoke("graph", "flow.yaml").exit_code == 3
    assert sandbox.invoke("graph", "wf_none").exit_code == 4
