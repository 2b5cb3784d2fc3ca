"""What a whole process costs: instructions by valgrind where it is installed, else seconds of CPU.

Instructions do not depend on the machine and what else it does; their ratio is close to that of CPU times.
"""

from __future__ import annotations

import os
import re
import resource
import shutil
import subprocess
import sys
from pathlib import Path

__all__ = ["ProcessCost"]

_VALGRIND = ("valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null")
_ROUNDS = 5  # of CPU time, of which the least counts


class ProcessCost:
    """Measures `python ARGUMENTS` beyond the start of the interpreter; `folder` holds compiled modules."""

    def __init__(self, folder: Path, root: Path) -> None:
        env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        self._env = env | {"PYTHONPYCACHEPREFIX": str(folder / "pyc"), "PYTHONHASHSEED": "0"}
        self._root = root
        self._counts = shutil.which("valgrind") is not None
        self._bare = self._measured("-c", "pass")

    def of(self, *arguments: str) -> float:
        """Return what these arguments cost, in instructions or seconds; only ratios of two have a meaning."""
        self._run(sys.executable, *arguments)  # compiles
        return self._measured(*arguments) - self._bare

    def _measured(self, *arguments: str) -> float:
        if self._counts:
            said = self._run(*_VALGRIND, sys.executable, *arguments)
            found = re.search(r"I +refs: +([\d,]+)", said)
            assert found is not None, said
            return float(found[1].replace(",", ""))
        return min(self._seconds(*arguments) for _ in range(_ROUNDS))

    def _seconds(self, *arguments: str) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        self._run(sys.executable, *arguments)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    def _run(self, *command: str) -> str:
        done = subprocess.run(
            command, check=True, cwd=self._root, env=self._env, capture_output=True, text=True, timeout=55
        )
        return done.stderr
