"""What starting costs: CPU milliseconds over a bare Python, beside the import of asyncio.

    python -m tests.benchmarks.start

The limits (100 ms for `Runtime`, 120 for `list` and `show`) hold where asyncio takes 37 ms. The store of
`list` and `show` has 10,000 runs; `prefix` is `show` by a unique prefix.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Awaitable
from pathlib import Path
from typing import Any, Final

from agentflow import Runtime
from agentflow.events.envelope import StoredEvent
from agentflow.events.log import Append, RunMeta
from agentflow.events.open import open_log
from agentflow.testing import ScriptedModel

ROOT: Final = Path(__file__).parents[3]
RUNS: Final = 10_000
ROUNDS: Final = 7


async def fill(url: str) -> None:
    """Make a store of one run with its whole log and copies of its end."""
    async with Runtime(url, models=[ScriptedModel(["done"])]) as runtime:
        step = {"name": "a", "system_prompt": "s", "model": "scripted:m"}
        await runtime.run({"agents": [step]}, "go", workflow_id="wf_original")
        (last,) = await runtime.log.read("wf_original", await runtime.log.last("wf_original"), 1)
    body = last.body.replace(b'"offset":%d,' % last.offset, b'"offset":0,')
    log = open_log(url)
    appended: list[Awaitable[Any]] = []
    for number in range(RUNS):
        run_id = f"wf_{number:05d}x"
        event = StoredEvent(0, last.ts, last.type, body.replace(b"wf_original", run_id.encode()))
        meta = RunMeta(name="n", definition_hash="h", created_at=number)
        appended.append(log.append(Append(run_id, 1, 0, [event], "completed", meta)))
    await asyncio.gather(*appended)
    await log.close()


def cost(env: dict[str, str], *arguments: str) -> float:
    """Return the least milliseconds of CPU of a process with these arguments."""
    return min(_spent(env, arguments) for _ in range(ROUNDS)) * 1_000


def _spent(env: dict[str, str], arguments: tuple[str, ...]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], check=True, cwd=ROOT, env=env, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> int:
    """Print a figure for each case."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.start")
    parser.add_argument("--peers-python", help="not used: no peer is measured")
    parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        store = f"sqlite:{folder}/runs.db"
        asyncio.run(fill(store))
        env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        env["PYTHONPYCACHEPREFIX"] = f"{folder}/pyc"
        flow = ("-m", "agentflow")
        cases = {
            "import asyncio": ("-c", "import asyncio"),
            "import agentflow.Runtime": ("-c", "import agentflow; agentflow.Runtime"),
            "--help": (*flow, "--help"),
            "list": (*flow, "list", "--store", store),
            "show": (*flow, "show", "wf_original", "--store", store),
            "prefix": (*flow, "show", "orig", "--store", store),
        }
        for arguments in cases.values():  # compiles
            _spent(env, arguments)
        bare = cost(env, "-c", "pass")
        for case, arguments in cases.items():
            value = round(cost(env, *arguments) - bare, 1)
            subject = "python" if case == "import asyncio" else "agentflow"
            row = {"suite": "start", "case": case, "subject": subject, "value": value, "unit": "ms"}
            print(json.dumps(row), flush=True)
            print(f"{case:28} {value:8.1f} ms", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
