"""What runs cost on disk and in memory: bytes and syncs of a step, growth, recovery, a store of a million.

    python -m tests.benchmarks.storage [--case NAME] [--runs 1000000]

JSON lines {suite, case, subject, value, unit} on stdout, a table on stderr. Each case is a process of its
own. There are no peers: these are figures of the product with limits of their own, which README.md names.
Counting syncs needs strace and is passed over where it does not work.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.benchmarks.harness import QUIET, emit
from tests.faults.strace import strace_works

ROOT = Path(__file__).parents[3]


def report(case: str, subject: str, value: float, unit: str) -> None:
    emit("storage", case, subject, value, unit)
    print(f"{case:<12} {subject:<44} {value:>14,.2f} {unit}", file=sys.stderr, flush=True)


def start(*arguments: str, under: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    command = [*under, sys.executable, "-m", "tests.benchmarks.storage.subject", *arguments]
    environment = {**os.environ, **QUIET}
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, env=environment)


def finish(process: subprocess.Popen[str], case: str) -> None:
    """Report each figure as it comes. Raises RuntimeError if the process fails."""
    assert process.stdout is not None
    with process:
        for line in process.stdout:
            report(case, *json.loads(line))
    if process.returncode:
        raise RuntimeError(f"{case}: the measured process ended with code {process.returncode}")


def alone(case: str, *more: str) -> None:
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        finish(start(case, folder, *more), case)


def commits(runs: int) -> None:
    """Pages and commits of a step from the WAL that a run leaves behind, syncs from the kernel."""
    for effect in ("none", "external"):
        with tempfile.TemporaryDirectory(prefix="bench-") as folder:
            trace = Path(folder) / "trace"
            under: tuple[str, ...] = ()
            if strace_works():
                under = ("strace", "-f", "-e", "trace=fsync,fdatasync", "-o", str(trace))
            finish(start("commits", folder, effect, under=under), "commits")


def recovery(runs: int) -> None:
    """Kill a process at work on 1,000 runs; count the CPU of the one that takes them up."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        with start("crowd", folder) as process:
            assert process.stdout is not None
            ready = process.stdout.readline()
            process.send_signal(signal.SIGKILL)
        if ready != "ready\n":
            raise RuntimeError("recovery: the process to be killed did not begin its runs")
        finish(start("recovery", folder), "recovery")


CASES: dict[str, Callable[[int], None]] = {
    "log": lambda runs: alone("log"),
    "commits": commits,
    "memory": lambda runs: alone("memory"),
    "growth": lambda runs: alone("growth"),
    "recovery": recovery,
    "scale": lambda runs: alone("scale", str(runs)),
}


def main() -> int:
    """Run the suite; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.storage")
    parser.add_argument("--peers-python", help="not used: there are no peers")
    parser.add_argument("--case", dest="cases", action="append", choices=list(CASES), help="only this one")
    parser.add_argument("--runs", type=int, default=1_000_000, help="runs of the case scale (1,000,000)")
    options: Any = parser.parse_args()
    failed = False
    for name in options.cases or list(CASES):
        try:
            CASES[name](options.runs)
        except RuntimeError as error:
            print(error, file=sys.stderr)
            failed = True
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
