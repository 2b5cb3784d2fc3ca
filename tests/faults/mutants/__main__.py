"""`python -m tests.faults.mutants [WORD ...]`: make the mistakes whose names contain a word; none: all."""

from __future__ import annotations

import os
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue

from tests.faults.mutants.run import copy_package, run_mutant
from tests.faults.mutants.table import EXPLAINED, MUTANTS

JOBS = int(os.environ.get("JOBS", "2"))


def main(words: list[str]) -> int:
    """Print caught or survived for each; return 1 if one survives that is not explained."""
    chosen = [name for name in MUTANTS if not words or any(word in name for word in words)]
    survived: list[str] = []
    with tempfile.TemporaryDirectory() as made, ThreadPoolExecutor(JOBS) as pool:
        folders: Queue[Path] = Queue()
        for job in range(JOBS):
            folders.put(copy_package(Path(made) / str(job)))

        def run(name: str) -> None:
            folder = folders.get()
            try:
                outcome = run_mutant(folder, MUTANTS[name])
            finally:
                folders.put(folder)
            print(f"{outcome:8}  {name}", flush=True)
            if outcome == "survived" and name not in EXPLAINED:
                survived.append(name)

        list(pool.map(run, chosen))
    print(f"{len(survived)} of {len(chosen)} survived without a reason")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
