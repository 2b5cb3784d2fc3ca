"""`agentflow new`: what it writes checks, runs and passes its own test; all of it is written or nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from agentflow import Runtime
from agentflow.cli.starter import starter_files
from agentflow.schemas import json_schema
from tests.unit.cli.support import ROOT, Sandbox
from tests.unit.models.local_model import environment

FILES = ["README.md", "desk.py", "test_workflow.py", "workflow.schema.json", "workflow.yaml"]


def test_writes_a_project_that_has_no_problem(sandbox: Sandbox):
    done = sandbox.invoke("new", "hello-world")
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.startswith("wrote hello-world/: README.md, desk.py, ")
    project = sandbox.folder / "hello-world"
    assert sorted(p.name for p in project.iterdir()) == FILES
    assert [p.name for p in sandbox.folder.iterdir()] == ["hello-world"]
    checked = sandbox.invoke("check", "hello-world/workflow.yaml", "--strict")
    assert (checked.exit_code, checked.stdout, checked.stderr) == (
        0,
        "hello-world/workflow.yaml: valid\n",
        "",
    )
    assert "name: hello-world\n" in (project / "workflow.yaml").read_text()
    assert (project / "workflow.schema.json").read_bytes() == json_schema("workflow")
    assert (
        (project / "workflow.yaml").read_text().startswith("# yaml-language-server: $schema=workflow.schema")
    )


def test_what_the_test_needs_is_installed_first(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch):
    """pytest is no part of the product."""
    monkeypatch.setattr("agentflow.cli.new.find_spec", lambda name: None)
    made = sandbox.invoke("new", "hello")
    assert made.stdout.endswith("python -m pip install pytest && python -m pytest\n")
    readme = (sandbox.folder / "hello/README.md").read_text()
    assert readme.index("pip install pytest") < readme.index("python -m pytest")
    assert sandbox.invoke("new", "hello").exit_code == 5


@pytest.mark.timeout(240)
def test_its_own_test_passes(sandbox: Sandbox):
    assert sandbox.invoke("new", "hello").exit_code == 0
    without = [f"-pno:{plugin}" for plugin in ("cacheprovider", "asyncio", "schemathesis")]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *without, "-W", "error"],
        cwd=sandbox.folder / "hello",
        env={**sandbox.env, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout


@pytest.mark.local_model
@pytest.mark.timeout(240)
async def test_it_runs_with_the_embedded_model(sandbox: Sandbox, monkeypatch, tmp_path):
    assert sandbox.invoke("new", "hello").exit_code == 0
    for name, value in environment(tmp_path / "models").items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AGENTFLOW_MODEL", "local:smollm2-135m")
    async with Runtime() as runtime:
        result = await runtime.run("hello/workflow.yaml", {"message": "Where is my parcel?"})
    assert result.output == {"topic": "delivery", "reply": "Parcels arrive within three days."}


@pytest.mark.parametrize(
    "name", ["", "1a", "-a", "_a", "a b", "a/b", "..", "../a", "/tmp", "a.b", "é", "a" * 65, "a\n"]
)
def test_odd_names_are_refused(sandbox: Sandbox, name: str):
    done = sandbox.invoke("new", "--", name)
    assert done.exit_code == 2
    assert "is not a name for a project" in done.stderr
    assert list(sandbox.folder.iterdir()) == []


def test_an_empty_folder_is_used(sandbox: Sandbox):
    (sandbox.folder / "hello").mkdir()
    assert sandbox.invoke("new", "hello").exit_code == 0
    assert sorted(p.name for p in (sandbox.folder / "hello").iterdir()) == FILES


@pytest.mark.parametrize("there", ["file", "folder", "link"])
def test_what_exists_is_left_alone(sandbox: Sandbox, there: str):
    target = sandbox.folder / "hello"
    if there == "file":
        target.write_text("mine")
    elif there == "link":
        (sandbox.folder / "else").mkdir()
        target.symlink_to(sandbox.folder / "else")
    else:
        target.mkdir()
        (target / "notes.txt").write_text("mine")
    before = sorted(p.relative_to(sandbox.folder) for p in sandbox.folder.rglob("*"))
    done = sandbox.invoke("new", "hello")
    assert done.exit_code == 5
    assert "hello exists already" in done.stderr
    assert sorted(p.relative_to(sandbox.folder) for p in sandbox.folder.rglob("*")) == before


def test_nothing_is_left_when_writing_fails(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch):
    files = starter_files("hello")
    assert sorted(files) == FILES
    written: list[str] = []
    whole = Path.write_bytes

    def full(self: Path, data: bytes) -> int:
        written.append(self.name)
        if len(written) == 3:
            raise OSError(28, "No space left on device")
        return whole(self, data)

    monkeypatch.setattr(Path, "write_bytes", full)
    done = sandbox.invoke("new", "hello")
    assert done.exit_code == 1
    assert "hello cannot be written: No space left on device" in done.stderr
    assert len(written) == 3
    assert list(sandbox.folder.iterdir()) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_takes_no_files(sandbox: Sandbox):
    sandbox.folder.chmod(0o500)
    try:
        done = sandbox.invoke("new", "hello")
    finally:
        sandbox.folder.chmod(0o700)
    assert (done.exit_code, list(sandbox.folder.iterdir())) == (1, [])
