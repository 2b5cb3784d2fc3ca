"""Messages, questions, rings and starts per second of actors, beside other actor libraries and plain designs.

    python -m tests.benchmarks.actors [--peers-python PATH]

JSON lines {suite, case, subject, value, unit} on stdout, a table on stderr. The cases of `footprint.py`
(memory of an idle actor, how long a busy actor delays the loop, from a crash to the next answer) stand for
the product alone; next to them stands the bare event loop's pace, which decides most of what an ask can cost
on a machine.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.benchmarks.harness import SubjectProcess, Suite, arguments, emit

HERE = Path(__file__).parent

CASES = {
    "tell": "one sender, one actor, plain handler",
    "ask": "one question after the other, plain handler",
    "ask64": "64 questions in flight, plain handler",
    "ring100": "hops of a token around 100 actors",
    "tell_async": "one sender, one actor, async handler",
    "ask_async": "one question after the other, async handler",
    "spawn": "actors started",
    "fan_out": "answers of 1,000 actors that one actor asks at once",
    "stop": "actors started, stopped and gone",
    "crash": "crashes, restarts and the next answers",
}
PRODUCT = [HERE / f"{name}.py" for name in ("product", "asyncio_queue", "anyio_stream")]
PEERS = [HERE / f"{name}_peer.py" for name in ("pykka", "xoscar", "autogen", "thespian")]


def footprint() -> bool:
    """The product's own figures, measured in a fresh process; whether all are as they should be."""
    done = subprocess.run(
        [sys.executable, "-P", str(HERE / "footprint.py")], stdout=subprocess.PIPE, text=True, check=False
    )
    for line in done.stdout.splitlines():
        row = json.loads(line)
        emit("actors", row["case"], row["subject"], row["value"], row["unit"])
        print(f"{row['case']:<22} {row['subject']:<12} {row['value']:12,.1f} {row['unit']}", file=sys.stderr)
    return done.returncode == 0


def main() -> int:
    options = arguments("actors", [*CASES, "footprint"])
    scripts = [(script, sys.executable) for script in PRODUCT]
    scripts += [(script, options.peers_python) for script in PEERS]
    started: list[SubjectProcess] = []
    try:
        for script, python in scripts:
            started.append(SubjectProcess(script, python).__enter__())
        suite = Suite("actors", started, "1/s")
        for case in CASES:
            if case in options.cases:
                suite.run(case, rounds=options.rounds, seconds=options.seconds)
    finally:
        for process in reversed(started):
            process.__exit__()
    suite.print_table()
    well = footprint() if "footprint" in options.cases else True
    return 1 if suite.failures or not well else 0


if __name__ == "__main__":
    sys.exit(main())
