"""What it costs to look at a run: `list`, `show` and their kin start no Runtime and import none."""

from __future__ import annotations

import asyncio
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from agentflow import Runtime
from agentflow.testing import ScriptedModel
from tests.unit.server.kit import agents, serving

ROOT = Path(__file__).parents[2]
CARRIES_OUT = ("actors", "agentflow.engine", "agentflow.runtime", "agentflow.models", "agentflow.tools")
MODULES = f"""
import sys
from agentflow.cli import main
try:
    main()
except SystemExit as end:
    print(end.code, [m for m in sys.modules if m.startswith({CARRIES_OUT!r})], file=sys.stderr)
"""
LIBRARIES = "import asyncio, click, msgspec, httpx"


@pytest.fixture
async def store(tmp_path: Path) -> str:
    url = f"sqlite:{tmp_path / 'runs.db'}"
    async with Runtime(url, models=[ScriptedModel(lambda request: "done")]) as runtime:
        await runtime.run(agents("p"), "go", workflow_id="wf_seen")
    return url


COMMANDS = {
    "list": ["list"],
    "show": ["show", "wf_seen"],
    "state": ["state", "wf_seen"],
    "events": ["events", "wf_seen"],
    "diff": ["diff", "wf_seen", "wf_seen"],
    "inbox": ["inbox"],
}


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_reading_a_store_imports_nothing_that_carries_runs_out(store: str, command: list[str]):
    done = subprocess.run(
        [sys.executable, "-c", MODULES, *command, "--store", store],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=50,
    )
    assert done.stderr.splitlines()[-1] == "0 []", done.stderr
    assert "wf_seen" in done.stdout or command == ["inbox"]


@pytest.mark.parametrize("command", [["list"], ["show", "wf_seen"]], ids=["list", "show"])
async def test_reading_through_a_daemon_imports_nothing_that_carries_runs_out(
    tmp_path: Path, command: list[str]
):
    async with serving(tmp_path) as served:
        await served.runtime.run(agents("p"), "go", workflow_id="wf_seen")
        done = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-c", MODULES, *command, "--url", served.unix_url],
            capture_output=True,
            text=True,
            cwd=ROOT,
            timeout=50,
        )
    assert done.stderr.splitlines()[-1] == "0 []", done.stderr
    assert "wf_seen" in done.stdout


@pytest.mark.slow
def test_looking_at_a_run_costs_less_than_importing_the_libraries_of_a_client(store: str, tmp_path: Path):
    """engine: `show` cost 253 ms of CPU where these imports cost 186; it imported all of the runtime."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    env["PYTHONPYCACHEPREFIX"] = str(tmp_path / "pyc")

    def cost(*arguments: str) -> float:
        spent: list[float] = []
        for _ in range(5):  # the first compiles
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run(
                [sys.executable, *arguments], check=True, cwd=ROOT, env=env, capture_output=True, timeout=50
            )
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            spent.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        return min(spent)

    libraries = cost("-c", LIBRARIES)
    for command in (["list"], ["show", "wf_seen"]):
        assert cost("-m", "agentflow", *command, "--store", store) < libraries, command
