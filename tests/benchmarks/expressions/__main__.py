"""Parse and evaluate one condition of three comparisons, beside other expression languages.

    python -m tests.benchmarks.expressions [--peers-python PATH]

JSON lines {suite, case, subject, value, unit} on stdout, a table on stderr. PATH is an interpreter in
which cel-python, simpleeval and jmespath are installed, or some of them; by default this one.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from agentflow.definition.expressions import compile_template, parse
from tests.benchmarks.expressions.peers import SCOPE, best

CONDITION = 'steps.evaluate.outputs.result.urgency == "high" && inputs.amount >= 100 && inputs.region != "eu"'


def ours() -> list[dict[str, object]]:
    expression = parse(CONDITION)
    assert expression.evaluate(SCOPE) is True
    text = {"a": ["Order of ${{ inputs.amount }} from ${{ inputs.region }}"], "b": "${{ steps.evaluate }}"}
    template = compile_template(text)

    def first() -> object:
        return parse(CONDITION).evaluate(SCOPE)

    cases = {
        "parse": lambda: parse(CONDITION),
        "parse and first evaluation": first,
        "evaluate": lambda: expression.evaluate(SCOPE),
        "compile a template of 3 expressions": lambda: compile_template(text),
        "evaluate a template of 3 expressions": lambda: template.evaluate(SCOPE),
    }
    return [
        {"suite": "expressions", "case": case, "subject": "agentflow", "value": best(run), "unit": "us"}
        for case, run in cases.items()
    ]


def peers(python: str) -> list[dict[str, object]]:
    script = Path(__file__).with_name("peers.py")
    done = subprocess.run([python, str(script)], capture_output=True, text=True, timeout=300, check=False)
    sys.stderr.write(done.stderr)
    return [json.loads(line) for line in done.stdout.splitlines()]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.expressions")
    parser.add_argument("--peers-python", default=sys.executable, metavar="PATH")
    options = parser.parse_args()
    rows = ours() + peers(options.peers_python)
    for row in rows:
        print(json.dumps(row))
    for row in sorted(rows, key=lambda row: (str(row["case"]), float(str(row["value"])))):
        print(f"{row['case']!s:40} {row['subject']!s:20} {row['value']:10.2f} µs", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
