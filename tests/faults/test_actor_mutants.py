"""Mistakes put into a copy of `actors`, one at a time, and caught by its tests: 23 about how actors end.

The first three are defects of old. `test_fuzz.py` finds those by itself, without knowing what it looks for.
Slow: each mistake costs a run of the tests that should notice it.
"""

# ruff: noqa: E501 - lines of the package are quoted whole

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.interpreters import find

ROOT = Path(__file__).parents[2]
ENDINGS = [
    "test_endings.py",
    "test_otp.py",
    "test_spread.py",
    "test_ignored.py",
    "test_rules_ending.py",
    "test_rules_supervision.py",
]
FUZZ = ["test_fuzz.py"]

NO_LIMIT = ("kernel/routines.py", "None if limit == inf else limit + GRACE", "None")
D1 = [
    NO_LIMIT,
    (
        "kernel/life.py",
        "    elif child.mode == states.IDLE and _ends_at_once(child):  # the common case, without a turn\n",
        "    elif child.mode == states.IDLE and not child.children:\n"
        '        child.order |= states.STOP\n        orders.shut(child)\n        yield from finish(child, "stopped", None)\n'
        "        return\n    elif False:\n",
    ),
]
D3 = [("kernel/turn.py", '        self.task = cast("asyncio.Task[Any] | None", task)\n', "")]
D4 = [
    NO_LIMIT,
    ("kernel/orders.py", "cell.mode == states.PARKED and cell.order & states.ENDING", "False"),
    ("kernel/fate.py", "    if cell.order & states.ENDING:\n        orders.unpark(cell)\n", ""),
]
DEFECTS = {"D1": D1, "D3": D3, "D4": D4}

MUTANTS = {
    "hooks have no time limit": [NO_LIMIT],
    "a hook that is late is not cancelled": [
        ("kernel/routines.py", "        scheduler.cancel(task)\n        yield settled(scheduler, task)\n    cell", "    cell")
    ],
    "a late hook counts as done": [("kernel/routines.py", "    if late and not cell", "    if False and not cell")],
    "a kill in the plain part of a hook is lost": [
        ("kernel/routines.py", "    if cell.order & KILL:  # the plain part", "    if False:  # the plain part")
    ],
    "the start limit of a spec is ignored": [
        ("kernel/life.py", "spec is not None and spec.start_timeout is not None", "False")
    ],
    "the class's stop limit counts for none": [
        ("kernel/life.py", "    return states.HOOK_TIME if cell.shutdown is None else cell.shutdown\n", "    return 1e9\n")
    ],
    "cancelled once only": [("kernel/scheduler.py", "        if times < CANCELS:\n            task.cancel()\n", "        if times < CANCELS:\n            return\n")],
    "nothing is closed by force": [("kernel/scheduler.py", "            self.abort(task)\n        else:", "            pass\n        else:")],
    "the shutdown time of a child is not kept": [
        ("kernel/life.py", "yield routines.within(ended, child.shutdown)", "yield routines.within(ended, None)")
    ],
    "a child that is late is not killed": [
        ("kernel/life.py", "    if not ended.done():\n        orders.kill(child)\n", "    if not ended.done():\n")
    ],
    "a child with a hook is ended as one without": [
        ("kernel/life.py", "(actor is None or type(actor).on_stop is Behaviour.on_stop) and not owns(cell)", "True")
    ],
    "a drained child is stopped": [("kernel/life.py", "spec is not None and spec.drain", "False")],
    "what was entered has no time to close": [
        ("kernel/life.py", "    yield routines.settled(cell.scheduler, task, limit)\n", "    yield routines.settled(cell.scheduler, task)\n")
    ],
    "a parked member is not told to end": [
        ("kernel/orders.py", "cell.mode == states.PARKED and cell.order & states.ENDING", "False")
    ],
    "a member that was ordered to end is parked": [
        ("kernel/fate.py", "    if cell.order & states.ENDING:\n        orders.unpark(cell)\n", "")
    ],
    "a member that has gone is taken": [
        ("kernel/fate.py", "cell.phase != states.RESTARTING or cell.mode != states.PARKED", "False")
    ],
    "a failed actor waits for ever": [
        ("kernel/fate.py", "cell.phase, cell.mode = states.FAILED, states.PARKED", "cell.phase = states.FAILED")
    ],
    "halting has no limit": [
        ("kernel/fate.py", "timeout=cell.shutdown, return_when", "timeout=None, return_when")
    ],
    "a kill skips the pipes": [("kernel/life.py", "            pipe.end()\n", "            pass\n")],
    "late watchers hear of a stop": [
        ("kernel/life.py", "    cell.fate = reason  #", '    cell.fate = "stopped"  #')
    ],
    "significant children mean nothing": [("kernel/life.py", "        orders.stop(parent)\n", "        pass\n")],
    "a kept spec is lost": [("kernel/life.py", "    if spec.keep:\n", "    if False:\n")],
    "watchers hear of no restart": [
        ("kernel/fate.py", "        if watcher is not parent:\n", "        if False:\n")
    ],
}  # fmt: skip


def run_mutant(folder, edits, tests, python=sys.executable):
    """Return the tests' exit code with these edits of the package."""
    shutil.copytree(ROOT / "actors", folder / "actors", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "tests" / "unit" / "actors", folder / "tests" / "unit" / "actors")
    for name in ("tests/__init__.py", "pyproject.toml"):
        shutil.copy(ROOT / name, folder / name)
    for name, old, new in edits:
        path = folder / "actors" / name
        source = path.read_text()
        assert source.count(old) == 1, f"{name} has {source.count(old)} times {old!r}"
        path.write_text(source.replace(old, new))
    paths = [f"tests/unit/actors/{name}" for name in tests]
    command = [python, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--timeout", "15", *paths]
    env = {**os.environ, "PYTHONPATH": str(folder)}
    try:
        done = subprocess.run(command, cwd=folder, env=env, capture_output=True, timeout=90, check=False)
    except subprocess.TimeoutExpired:  # a life without an end
        return 1
    return done.returncode


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("defect", DEFECTS)
def test_the_fuzz_finds_the_old_defects(defect, tmp_path):
    python = sys.executable
    if defect == "D3" and sys.version_info < (3, 12):  # it shows where tasks start eagerly
        folders = [ROOT / ".cache" / f"actors-3.{minor}" / "bin" / "python" for minor in (12, 13, 14)]
        made = [folder for folder in folders if folder.exists() and find((3, int(folder.parts[-3][-2:])))]
        if not made:
            pytest.skip("no interpreter from 3.12 on; `python -m tests.interpreters` makes its environment")
        python = str(made[0])
    assert run_mutant(tmp_path, DEFECTS[defect], FUZZ, python) != 0


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda name: name.replace(" ", "-"))
def test_a_mistake_about_endings_is_caught(mutant, tmp_path):
    assert run_mutant(tmp_path, MUTANTS[mutant], ENDINGS) != 0


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_without_a_mistake_the_same_tests_pass(tmp_path):
    assert run_mutant(tmp_path, [], ENDINGS + FUZZ) == 0
