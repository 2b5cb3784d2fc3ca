"""Run benchmark suites: `python -m tests.benchmarks SUITE|all [--peers-python PATH]`.

The suites' JSON lines go to stdout and nothing else does. Exit 2 for a suite that is not there, 1 when
one failed; a suite that gives no figure has failed too.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

SUITES = (
    "actors",
    "events",
    "storage",
    "spans",
    "expressions",
    "schemas",
    "workflows",
    "agents",
    "model_wires",
    "server",
    "start",
    "instructions",
)
HERE = Path(__file__).parent
ROOT = HERE.parent.parent
FIELDS = {"suite", "case", "subject", "value", "unit"}


def exists(suite: str) -> bool:
    return (HERE / suite / "__main__.py").is_file()


def run(suite: str, peers_python: str) -> bool:
    """Run one suite, passing its figures on as they come; whether it went well."""
    command = [sys.executable, "-m", f"tests.benchmarks.{suite}", "--peers-python", peers_python]
    print(f"== {suite}", file=sys.stderr, flush=True)
    figures = 0
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if is_figure(line):
                figures += 1
                sys.stdout.write(line)
                sys.stdout.flush()
            else:
                sys.stderr.write(line)
    problem = f"exit code {process.returncode}" if process.returncode else "" if figures else "no figure"
    if problem:
        print(f"== {suite} failed: {problem}", file=sys.stderr, flush=True)
    return not problem


def is_figure(line: str) -> bool:
    try:
        row = json.loads(line)
    except ValueError:
        return False
    return isinstance(row, dict) and row.keys() == FIELDS


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks")
    parser.add_argument("suite", choices=(*SUITES, "all"))
    parser.add_argument("--peers-python", default=sys.executable, metavar="PATH")
    options = parser.parse_args()
    # Suites run in the root of the checkout; the path was given from here.
    python = (
        str(Path(options.peers_python).absolute()) if "/" in options.peers_python else options.peers_python
    )
    if options.suite != "all":
        if not exists(options.suite):
            print(f"there is no suite {options.suite} yet", file=sys.stderr)
            return 2
        return 0 if run(options.suite, python) else 1
    wanted = []
    for suite in SUITES:
        if exists(suite):
            wanted.append(suite)
        else:
            print(f"== {suite} passed over: there is no such suite yet", file=sys.stderr)
    failed = [suite for suite in wanted if not run(suite, python)]
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
