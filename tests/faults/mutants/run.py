"""Puts a mistake into a copy of the package and runs the tests that should notice: caught or survived."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Literal

from tests.faults.mutants.table import Mutant

__all__ = ["CPU_LIMIT_S", "TIMEOUT_S", "Outcome", "copy_package", "run_mutant"]

ROOT = Path(__file__).parents[3]
CPU_LIMIT_S = 300
"""Seconds of processor time that the tests of one mistake may take together, several times of what they take
without it: a mistake that makes them loop is caught. Other work on the machine does not count."""

TIMEOUT_S = 3_600.0
"""Seconds after which a run of tests is given up, which says nothing of the mistake. A test that waits for
ever fails after 30 s by itself."""

_MAX_BYTES = 4 << 30
"""Address space of the tests: a mistake may let a loop fill the memory."""

_NOT_MEASURED = "not as_many_functions and not 2_kib and not test_mutant_texts"
"""Tests that count instructions and bytes take long, and judge no behaviour. That which looks for the texts
of the mistakes in the sources fails in every copy that has one, and would call each of them caught."""

Outcome = Literal["caught", "survived"]

_COPIED = ("agentflow", "actors", "tests")
_IGNORED = shutil.ignore_patterns("__pycache__", "benchmarks", "*.sqlite", "first_version")


def copy_package(folder: Path) -> Path:
    """Copy package and tests into a folder, once for many mistakes; return the folder."""
    for name in _COPIED:
        shutil.copytree(ROOT / name, folder / name, ignore=_IGNORED)
    shutil.copytree(ROOT / "tests" / "benchmarks", folder / "tests" / "benchmarks")
    shutil.copytree(ROOT / "tests/golden/first_version", folder / "tests/golden/first_version")
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def run_mutant(folder: Path, mutant: Mutant, *, cpu_limit_s: int = CPU_LIMIT_S) -> Outcome:
    """Return whether the tests notice the mistake. Raises ValueError if a module has not its text once, and
    subprocess.TimeoutExpired if the machine is too busy to tell."""
    with _edited(folder, mutant):
        return _judge(folder, mutant.tests, cpu_limit_s)


@contextmanager
def _edited(folder: Path, mutant: Mutant) -> Generator[None]:
    before: dict[Path, str] = {}
    try:
        for name, old, new in mutant.edits:
            path = folder / "agentflow" / name
            source = path.read_text(encoding="utf-8")
            if source.count(old) != 1:
                raise ValueError(f"{name} has {source.count(old)} times {old!r}")
            before.setdefault(path, source)
            _write(path, source.replace(old, new))
        yield
    finally:
        for path, source in before.items():
            _write(path, source)


def _write(path: Path, source: str) -> None:
    """Write a module and forget its bytecode, which is known by seconds and size alone."""
    path.write_text(source, encoding="utf-8")
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        compiled.unlink()


def _limit(cpu_s: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_MAX_BYTES, _MAX_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))


def _judge(folder: Path, tests: tuple[str, ...], cpu_limit_s: int) -> Outcome:
    options = ["-x", "-q", "-p", "no:cacheprovider", "--timeout", "30", "-k", _NOT_MEASURED]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *tests],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        timeout=TIMEOUT_S,
        check=False,
        preexec_fn=partial(_limit, cpu_limit_s),
    )
    if done.returncode > 3:
        raise RuntimeError(done.stdout.decode()[-2000:])  # no test ran
    return "caught" if done.returncode else "survived"  # a signal ends the tests that loop
