"""SIGKILL at every call that writes, syncs, renames or removes: nothing promised is lost, and all goes on.

Two ways to kill. strace makes the kernel deliver the signal as a thread enters its n-th such call; it is used
where it is allowed. The shim kills inside the process, before the n-th call of all threads, or in the middle
of a write; it is always used. The summary of the run names both if both were.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.faults import shim, strace
from tests.faults.images import STORE, scratch
from tests.faults.promises import Problem, Promises, broken, examine
from tests.faults.tally import TALLIES, Tally

ROOT = Path(__file__).parents[2]

needs_shim = pytest.mark.skipif(not shim.shim_works(), reason="SQLite hides its functions here")
needs_strace = pytest.mark.skipif(not strace.strace_works(), reason="no process may be traced here")


class Zygote:
    """The process whose forks are killed."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def run(
        self, root: Path, url: str, incarnation: str, rounds: int, number: int, part: int
    ) -> tuple[list[str], bool]:
        """What the workload said, and whether it came to that call and was killed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(root, url, incarnation, rounds, number, part, file=self._process.stdin, flush=True)
        said: list[str] = []
        for line in self._process.stdout:
            words = line.split()
            if words[0] == "done":
                assert int(words[1]) in (0, signal.SIGKILL), f"the workload failed: {said[-3:]}"
                return said, int(words[1]) != 0
            if words[0] != "calls":
                said.append(line.rstrip("\n"))
        raise AssertionError("the process that forks has ended")


@contextmanager
def zygote() -> Generator[Zygote, None, None]:
    command = [sys.executable, "-m", "tests.faults.shimmed"]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield Zygote(process)
        assert process.stdin is not None
        process.stdin.close()


def judge(url: str, said: list[str], tally: Tally, go_on: str = "z") -> list[Problem]:
    """Reopen what the killed program left, and go on."""
    tally.kills += 1
    problems = broken(Promises().take(said), asyncio.run(examine(url, go_on)))
    tally.blame(problems)
    return problems


@needs_shim
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("rounds", "start", "step"), [(3, 2, 13), pytest.param(7, 1, 1, marks=pytest.mark.slow)]
)
def test_killed_before_or_in_the_middle_of_any_call(kind, tally, rounds, start, step):
    """A new store, then the same store again: killed at the n-th call, then in the middle of it."""
    tally.means.add("shim")
    with zygote() as forks:
        number, ended = start, 0
        while ended < 3:  # how many calls there are varies a little from run to run
            with scratch() as root:
                url, said = f"{kind}:{root}/{STORE}", list[str]()
                for incarnation, part in (("a", 0), ("b", 60)):
                    told, killed = forks.run(root, url, incarnation, rounds, number, part)
                    ended += not killed
                    said += told
                    problems = judge(url, said, tally, go_on=f"z{incarnation}") if killed else []
                    assert not problems, f"killed at call {number}, {part} % of it done: {problems[:10]}"
            number += step
    assert number > 20


@needs_strace
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("store", "rounds"),
    [
        pytest.param("there", 3, id="some"),
        pytest.param("there", 6, marks=pytest.mark.slow),
        pytest.param("new", 6, marks=pytest.mark.slow),
    ],
)
def test_killed_by_the_kernel_at_any_call(kind, tally, store, rounds):
    """Each thread counts its own calls: in a new store those of opening come first, in one that is there they
    are few, and it is the writing thread that is killed."""
    with scratch() as root:
        before = first_life(kind, root, rounds) if store == "there" else []
        sweep(kind, tally, root, before, rounds)


@needs_strace
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "rounds", [pytest.param(3, id="some"), pytest.param(6, marks=pytest.mark.slow, id="all")]
)
def test_killed_by_the_kernel_in_a_checkpoint(rounds):
    """The database file itself is written by checkpoints alone."""
    with scratch() as root:
        sweep("sqlite", TALLIES["sqlite"], root, first_life("sqlite", root, rounds), rounds, only=STORE)


def first_life(kind: str, root: Path, rounds: int) -> list[str]:
    """What is said of a store that is then closed."""
    with zygote() as forks:
        return forks.run(root, f"{kind}:{root}/{STORE}", "a", rounds, 0, 0)[0]


def sweep(
    kind: str, tally: Tally, root: Path, before: list[str], rounds: int, only: str | None = None
) -> None:
    """On copies of what is below `root`: for each call, kill as a thread makes it for the n-th time, until
    none makes it so often. The short form tries few of them."""
    tally.means.add("strace")
    all_of_them = rounds > 3
    killed = 0
    for call in strace.CHANGES if all_of_them else ("pwrite64", "fdatasync"):
        number = 1 if all_of_them else 3
        while True:
            with scratch() as copy:
                shutil.copytree(root, copy, dirs_exist_ok=True)
                file = None if only is None else copy / only
                url = f"{kind}:{copy}/{STORE}"
                died, said = strace.run_killed(call, number, url, "b", str(rounds), only=file)
                if not died:
                    break
                problems = judge(url, before + said, tally)
                assert not problems, f"killed at {call} number {number} of a thread: {problems[:10]}"
            killed += 1
            number += 1 + number // 10 if all_of_them else 40
    assert killed
