"""Judge an answer of 100 objects by its schema, beside the two libraries alone.

    python -m tests.benchmarks.schemas

JSON lines {suite, case, subject, value, unit} on stdout, a table on stderr. The limit is 30 µs; `ratio` is
agentflow's time by that of jsonschema-rs in the same run, which judges without a bound on its cost.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from typing import Any, Final

import jsonschema
import jsonschema_rs

from agentflow.definition.schemas import validate, validator
from tests.benchmarks.expressions.peers import best

CASE: Final = "100 objects"
SCHEMA: Final[dict[str, Any]] = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 1},
            "count": {"type": "integer", "minimum": 0},
            "urgency": {"enum": ["low", "high"]},
        },
        "required": ["name", "count"],
        "additionalProperties": False,
    },
}
VALUE: Final = [{"name": f"item {n}", "count": n, "urgency": "low"} for n in range(100)]


def main() -> int:
    """Print a figure for each subject, and the ratio."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.schemas")
    parser.add_argument("--peers-python", help="not used: the peers are libraries that agentflow uses")
    parser.parse_args()
    judge, fast = validator(SCHEMA), jsonschema_rs.Draft202012Validator(SCHEMA)
    slow = jsonschema.Draft202012Validator(SCHEMA)
    assert judge(VALUE) == []
    assert validate(SCHEMA, [*VALUE, {}])
    assert fast.is_valid(VALUE)
    assert slow.is_valid(VALUE)
    subjects: dict[str, Callable[[], object]] = {
        "agentflow": lambda: judge(VALUE),
        "agentflow, schema given": lambda: validate(SCHEMA, VALUE),
        "jsonschema-rs": lambda: fast.is_valid(VALUE),
        "jsonschema": lambda: slow.is_valid(VALUE),
    }
    found = {subject: best(run) for subject, run in subjects.items()}
    rows = [(subject, value, "us") for subject, value in found.items()]
    rows.append(("agentflow by jsonschema-rs", found["agentflow"] / found["jsonschema-rs"], "ratio"))
    for subject, value, unit in rows:
        row = {"suite": "schemas", "case": CASE, "subject": subject, "value": round(value, 2), "unit": unit}
        print(json.dumps(row), flush=True)
        print(f"{CASE:20} {subject:28} {value:10.2f} {unit}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
