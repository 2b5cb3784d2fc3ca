"""Measure the product and its peers on the same work, window by window in turn, and print the figures.

A *subject script* defines `SUBJECTS`: by subject the cases that it does, each a function of an empty
folder that gives an async context manager, which gives an async function that does the work once,
checks its result, and returns how many units it did.

Each script is a process of its own, with the interpreter that has its packages. One window = set up
anew, work once (which also warms up), collect garbage, then work for a while with the collector on. The
windows of all subjects of a case take turns, and the turn rotates, so that a machine that drifts drifts
for everybody; the figure is the median of the windows.

Standard library only: this file is also what runs inside those processes, where nothing of the product
may be installed.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

Work = Callable[[], Awaitable[int]]
Case = Callable[[Path], AbstractAsyncContextManager[Work]]

PRODUCT = "agentflow"

# A case that takes longer than this (seconds; a slow disk) is left after fewer rounds.
_LONG = 15.0
_LEAST_ROUNDS = 3

# Nothing that is measured may phone home or wait for a service that is not there.
QUIET = {
    "BURR_TELEMETRY_ENABLED": "false",
    "LANGSMITH_TRACING": "false",
    "LANGCHAIN_TRACING_V2": "false",
    "OTEL_SDK_DISABLED": "true",
    "AUTOGEN_DISABLE_RUNTIME_TRACING": "true",
}


# -- inside a subject's process -------------------------------------------------------------------


class _GcTime:
    """Seconds that the garbage collector took while it was open."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._began = 0.0

    def __enter__(self) -> _GcTime:
        gc.callbacks.append(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        gc.callbacks.remove(self._note)

    def _note(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._began = time.perf_counter()
        else:
            self.seconds += time.perf_counter() - self._began


async def _window(case: Case, seconds: float) -> dict[str, float]:
    """One window: units per second and per second of CPU, the shares of garbage collection in the time and of
    child processes (a peer's servers) in the CPU."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        async with case(Path(folder)) as work:
            await work()  # no cold pass is timed, however long one takes
            return await _measure(work, seconds)


async def _measure(work: Work, seconds: float) -> dict[str, float]:
    gc.collect()
    units = 0
    clock = time.perf_counter
    with _GcTime() as collected:
        others = -_cpu_of_children(os.getpid())
        cpu = -time.process_time()
        began = clock()
        while True:
            units += await work()
            passed = clock() - began
            if passed >= seconds:
                break
        cpu += time.process_time()
        others += _cpu_of_children(os.getpid())
    total = cpu + others
    return {
        "passed": passed,
        "value": units / passed,
        "cpu": units / total,
        "gc": collected.seconds / passed,
        "servers": others / total,
    }


def _cpu_of_children(root: int) -> float:
    """Return the seconds of CPU of the processes that the process `root` has started, and of those they have
    started, ended ones included. The kernel counts them in hundredths of a second."""
    children: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    ended: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        pid = int(entry.name)
        children.setdefault(int(fields[1]), []).append(pid)
        ended[pid] = int(fields[13]) + int(fields[14])
        ticks[pid] = int(fields[11]) + int(fields[12]) + ended[pid]
    found, total = children.get(root, []), ended.get(root, 0)
    while found:
        pid = found.pop()
        total += ticks[pid]
        found += children.get(pid, ())
    return total / os.sysconf("SC_CLK_TCK")


def _load(script: str) -> dict[str, dict[str, Case]]:
    """The subjects of a script. It is a module of `sys.modules`, where packages look up annotations."""
    spec = importlib.util.spec_from_file_location("subject_script", script)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.SUBJECTS


async def _serve(script: str) -> None:
    try:
        subjects = _load(script)
    except ImportError as error:
        _say({"missing": str(error)})
        return
    _say({"subjects": {subject: list(cases) for subject, cases in subjects.items()}})
    while line := await asyncio.to_thread(sys.stdin.readline):
        wanted = json.loads(line)
        try:
            case = subjects[wanted["subject"]][wanted["case"]]
            _say(await _window(case, wanted["seconds"]))
        except Exception as error:
            _say({"error": f"{type(error).__name__}: {error}"})


def _say(message: dict[str, Any]) -> None:
    os.write(_REPLIES, json.dumps(message).encode() + b"\n")


def _work_for_harness(script: str) -> None:
    global _REPLIES
    # What a package prints must not end up among the replies.
    _REPLIES = os.dup(1)
    os.dup2(2, 1)
    asyncio.run(_serve(script))


_REPLIES = -1


# -- the side that asks ---------------------------------------------------------------------------


class SubjectProcess:
    """A running subject script. Used as a context manager; leaving it ends the process."""

    def __init__(self, script: Path, python: str) -> None:
        self.script = script
        self.subjects: dict[str, list[str]] = {}
        # -P: a folder of suites must not hide a package of the same name.
        self._process = subprocess.Popen(
            [python, "-P", __file__, str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **QUIET},
        )

    def __enter__(self) -> SubjectProcess:
        reply = self._reply()
        if "missing" in reply:
            print(f"{self.script.stem} is passed over: {reply['missing']}", file=sys.stderr)
        self.subjects = reply.get("subjects", {})
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def measure(self, subject: str, case: str, seconds: float) -> dict[str, Any]:
        """One window. The reply has `value`, `cpu`, `gc` and `servers`, or `error`."""
        assert self._process.stdin is not None
        request = {"subject": subject, "case": case, "seconds": seconds}
        try:
            print(json.dumps(request), file=self._process.stdin, flush=True)
        except BrokenPipeError:
            return {"error": "its process has ended"}
        return self._reply()

    def _reply(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        return json.loads(line) if line else {"error": f"exit code {self._process.wait()}"}


@dataclass
class Figure:
    """The windows of one subject on one case."""

    case: str
    subject: str
    unit: str
    windows: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    collected: list[float] = field(default_factory=list)
    servers: list[float] = field(default_factory=list)

    @property
    def value(self) -> float:
        return statistics.median(self.windows)

    @property
    def cpu_us(self) -> float:
        """Microseconds of CPU a unit, a peer's server processes included."""
        return 1e6 / statistics.median(self.cpu)


class Suite:
    """Runs cases, prints a JSON line for each figure as it is known, and keeps them for the table."""

    def __init__(self, name: str, processes: Iterable[SubjectProcess], unit: str) -> None:
        self.name = name
        self.unit = unit
        self.failures = 0
        self.figures: list[Figure] = []
        self._processes = list(processes)

    def run(self, case: str, *, rounds: int, seconds: float, disk: bool = False) -> None:
        """All subjects that know the case; with `disk` also how long a sync takes meanwhile."""
        entries = [
            (process, Figure(case, subject, self.unit))
            for process in self._processes
            for subject, cases in process.subjects.items()
            if case in cases
        ]
        sync = Figure(case, "fdatasync of 4 KiB", "ms")
        began = time.monotonic()
        for turn in range(rounds):
            if turn >= _LEAST_ROUNDS and time.monotonic() - began > _LONG:
                break
            if disk:
                sync.windows.append(sync_time())
            start = turn % max(1, len(entries))
            for process, figure in entries[start:] + entries[:start]:
                reply = process.measure(figure.subject, case, seconds)
                if "error" in reply:
                    self.failures += 1
                    print(f"{case}: {figure.subject} failed: {reply['error']}", file=sys.stderr)
                    entries = [e for e in entries if e[1] is not figure]
                else:
                    figure.windows.append(reply["value"])
                    figure.cpu.append(reply["cpu"])
                    figure.collected.append(reply["gc"])
                    figure.servers.append(reply["servers"])
        found = [figure for _, figure in entries if figure.windows]
        found.sort(key=lambda figure: -figure.value)
        for figure in (*found, *([sync] if disk else [])):
            self.figures.append(figure)
            emit(self.name, case, figure.subject, figure.value, figure.unit)
        for figure in found:  # a busy machine disturbs these least
            emit(self.name, case, f"{figure.subject}, CPU", figure.cpu_us, "µs")
        product = next((f for f in found if f.subject == PRODUCT), None)
        for figure in found:
            if product is not None and figure is not product:
                pair = f"{PRODUCT} / {figure.subject}"
                emit(self.name, case, pair, product.value / figure.value, "x")
                emit(self.name, case, f"{pair}, per CPU second", figure.cpu_us / product.cpu_us, "x")

    def print_table(self) -> None:
        """The figures on stderr: median and spread of the windows, the product's ratio; the CPU of a unit
        (which a busy machine disturbs least), the product's ratio in it, and how much of it was in processes
        that the subject started; the share of time of garbage collection."""
        time_columns = ("case", "subject", "median", "from", "to", "unit", f"{PRODUCT} is")
        columns = (*time_columns, "µs CPU", f"{PRODUCT} is", "servers", "gc")
        rows = [columns]
        products = {f.case: f for f in self.figures if f.subject == PRODUCT}
        for figure in self.figures:
            if rows[-1][0] != figure.case:
                rows.append(("",) * len(columns))
            form = ",.0f" if figure.value >= 100 else ".3f"
            spread = (figure.value, min(figure.windows), max(figure.windows))
            product = products.get(figure.case)
            ratio = cpu = saved = servers = share = ""
            if product is not None and figure.cpu and figure is not product:
                ratio = f"{product.value / figure.value:.2f} x"
                saved = f"{figure.cpu_us / product.cpu_us:.2f} x"
            if figure.cpu:
                cpu = f"{figure.cpu_us:,.4g}"
                servers = f"{statistics.median(figure.servers):.0%}"
                share = f"{statistics.median(figure.collected):.0%}"
            shown = tuple(format(value, form) for value in spread)
            rows.append((figure.case, figure.subject, *shown, figure.unit, ratio, cpu, saved, servers, share))
        widths = [max(len(row[i]) for row in rows) for i in range(len(columns))]
        for row in rows:
            cells = [
                cell.ljust(width) if i in (0, 1, 5) else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(row, widths, strict=True))
            ]
            print("  ".join(cells).rstrip(), file=sys.stderr)


def emit(suite: str, case: str, subject: str, value: float, unit: str) -> None:
    """One figure as a JSON line on stdout."""
    digits = 4 - len(str(int(abs(value)))) if abs(value) < 1000 else 0
    value = round(value, max(0, digits))
    row = {"suite": suite, "case": case, "subject": subject, "value": value, "unit": unit}
    print(json.dumps(row), flush=True)


def sync_time(writes: int = 40) -> float:
    """Milliseconds that a 4 KiB append and its fdatasync take where temporary folders are: the median.

    Disks change their pace for minutes at a time, so a durable figure says little without this one.
    """
    block = b"\0" * 4096
    times = []
    with tempfile.TemporaryFile(buffering=0) as file:
        for _ in range(writes):
            began = time.perf_counter()
            file.write(block)
            os.fdatasync(file.fileno())
            times.append(time.perf_counter() - began)
    return statistics.median(times) * 1000


def arguments(suite: str, cases: Iterable[str]) -> argparse.Namespace:
    """The command line that every suite has: `peers_python`, `rounds`, `seconds`, `cases`."""
    known = list(cases)
    parser = argparse.ArgumentParser(prog=f"python -m tests.benchmarks.{suite}")
    parser.add_argument("--peers-python", default=sys.executable, metavar="PATH")
    parser.add_argument("--rounds", type=int, default=5, help="windows of each subject (5)")
    parser.add_argument("--seconds", type=float, default=0.3, help="length of a window (0.3)")
    parser.add_argument("--case", dest="cases", action="append", choices=known, help="only this one")
    options = parser.parse_args()
    options.cases = options.cases or known
    return options


def main(
    suite: str, cases: dict[str, bool], product: list[Path], peers: list[Path], *, unit: str
) -> NoReturn:
    """Run a suite from its command line. `cases`: name → whether it writes to the disk."""
    options = arguments(suite, cases)
    scripts = [(script, sys.executable) for script in product]
    scripts += [(script, options.peers_python) for script in peers]
    started: list[SubjectProcess] = []
    try:
        for script, python in scripts:
            started.append(SubjectProcess(script, python).__enter__())
        runner = Suite(suite, started, unit)
        for case in options.cases:
            runner.run(case, rounds=options.rounds, seconds=options.seconds, disk=cases[case])
    finally:
        for process in reversed(started):
            process.__exit__()
    runner.print_table()
    sys.exit(1 if runner.failures else 0)


if __name__ == "__main__":
    _work_for_harness(sys.argv[1])
