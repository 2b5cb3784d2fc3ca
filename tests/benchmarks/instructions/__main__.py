"""Instructions a step by shape and size of the graph, in memory, and the bytes of compiled plans.

    python -m tests.benchmarks.instructions [--full] [--case CASE] [--counter perf|valgrind|cpu]

JSON lines {suite, case, subject, value, unit} on stdout, a table on stderr. A case is a shape and its number
of steps; it is run once to warm up, which also compiles its plan, and then counted. Instructions hardly
depend on what else the machine does, so that figures of two commits can be compared.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.benchmarks.harness import PRODUCT, QUIET, emit
from tests.benchmarks.instructions import recorded
from tests.benchmarks.instructions.counters import UNITS, VALGRIND, available, read_dumps

ROOT = Path(__file__).parents[3]

SIZES = {
    "tokens": (100, 1_000),
    "chain": (100, 1_000),
    "fan-out": (100, 1_000),
    "independent": (100, 1_000),
    "for_each": (100, 1_000),
    "agents": (100,),
    "turns": (50, 500),
    "executors eager": (100,),
    "executors superstep": (100,),
    "engine tokens": (100, 1_000),
    "engine chain": (100, 1_000),
}
FULL = {
    "tokens": (4_000, 10_000),
    "chain": (4_000, 10_000),
    "fan-out": (4_000, 10_000),
    "independent": (4_000, 10_000),
    "for_each": (4_000, 10_000),
    "agents": (1_000,),
    "engine tokens": (10_000,),
}
PLANS = ("tokens 1000", "chain 1000", "fan-out 1000", "independent 1000", "agents 1000")


def run_subject(counter: str, cases: list[str]) -> list[dict[str, Any]]:
    """Return the figures of the cases, counted in one process. Raises RuntimeError if it fails."""
    command = [sys.executable, "-m", "tests.benchmarks.instructions.subject", counter, *cases]
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        dumps = Path(folder) / "callgrind.out"
        if counter == "valgrind":
            command = [*VALGRIND, f"--callgrind-out-file={dumps}", *command]
        environment = {**os.environ, **QUIET, "PYTHONHASHSEED": "0"}
        done = subprocess.run(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"the measured process ended with code {done.returncode}")
        rows = [json.loads(line) for line in done.stdout.splitlines()]
        if counter == "valgrind":
            counts = read_dumps(dumps)
            if len(counts) != len(rows):
                raise RuntimeError(f"{len(rows)} cases, but {len(counts)} pieces were counted")
            rows = [row | {"count": count} for row, count in zip(rows, counts, strict=True)]
    return rows


def report(rows: list[dict[str, Any]], unit: str) -> None:
    """Print the figures a step, and how each grows over the smallest size of its shape."""
    least: dict[str, float] = {}
    for row in rows:
        value = row["count"] / row["steps"]
        shape = row["case"].rpartition(" ")[0]
        growth = value / least.setdefault(shape, value)
        emit("instructions", row["case"], PRODUCT, value, unit)
        print(f"{row['case']:24} {value:12,.0f} {unit:18} {growth:6.2f} x", file=sys.stderr)


def main() -> int:
    """Run the suite; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.instructions")
    parser.add_argument("--peers-python", help="not used: no peer is measured")
    parser.add_argument("--full", action="store_true", help="sizes up to 10,000: half an hour under valgrind")
    parser.add_argument("--case", dest="cases", action="append", help='only this one, as "chain 100"')
    parser.add_argument("--record", action="store_true", help="keep the figures for the tests")
    parser.add_argument("--counter", choices=tuple(UNITS), default=None)
    options = parser.parse_args()
    counter = options.counter or available()
    sizes = {
        shape: (*small, *(FULL.get(shape, ()) if options.full else ())) for shape, small in SIZES.items()
    }
    cases = options.cases or [f"{shape} {size}" for shape, found in sizes.items() for size in found]
    print(f"counted by {counter}", file=sys.stderr)
    try:
        rows = run_subject(counter, cases)
        report(rows, UNITS[counter])
        if options.record and counter == "valgrind":
            recorded.write({row["case"]: round(row["count"] / row["steps"]) for row in rows})
        if not options.cases:
            report(run_subject("memory", list(PLANS)), "bytes of plan/node")
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
