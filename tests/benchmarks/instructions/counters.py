"""Ways to count what a piece of work costs this process, from the exactest to the one that always works.

| name | unit | how |
|---|---|---|
| perf | instructions | the processor's counter, by `perf_event_open`; most virtual machines have none |
| valgrind | instructions | callgrind counts; `os.getppid` marks where a piece begins and ends |
| cpu | ns of CPU | `time.process_time_ns`; depends on the machine and what else it does |
"""

from __future__ import annotations

import ctypes
import os
import shutil
import struct
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

__all__ = ["UNITS", "VALGRIND", "available", "open_counter", "read_dumps"]

UNITS = {"perf": "instructions/step", "valgrind": "instructions/step", "cpu": "ns CPU/step"}

VALGRIND = (
    *("valgrind", "-q", "--tool=callgrind", "--instr-atstart=no"),
    *("--dump-before=getppid", "--compress-strings=no"),
)
"""How a process is started whose pieces are counted; an option for the output file is to be added.

Its imports are not counted, which takes a tenth of the time.
"""

_SYSCALL = {"x86_64": 298, "aarch64": 241}
_HARDWARE, _INSTRUCTIONS = 0, 1
_INHERIT, _EXCLUDE_KERNEL, _EXCLUDE_HYPERVISOR = 1 << 1, 1 << 5, 1 << 6


def available() -> str:
    """Return the exactest counter that works here."""
    if _open_perf() is not None:
        return "perf"
    return "valgrind" if shutil.which("valgrind") else "cpu"


def _open_perf(kind: int = _HARDWARE, config: int = _INSTRUCTIONS) -> int | None:
    number = _SYSCALL.get(os.uname().machine)
    if number is None or os.uname().sysname != "Linux":
        return None
    size = 112
    flags = _INHERIT | _EXCLUDE_KERNEL | _EXCLUDE_HYPERVISOR
    head = struct.pack("IIQQQQQ", kind, size, config, 0, 0, 0, flags)
    attributes = ctypes.create_string_buffer(head, size)
    descriptor = ctypes.CDLL(None, use_errno=True).syscall(number, attributes, 0, -1, -1, 0)
    return descriptor if descriptor >= 0 else None


def open_counter(name: str) -> Callable[[], int]:
    """Return a function that gives the count so far. Under valgrind it gives 0 and writes a dump."""
    if name == "perf":
        descriptor = _open_perf()
        assert descriptor is not None
        return lambda: struct.unpack("Q", os.read(descriptor, 8))[0]
    if name == "valgrind":
        command = ("callgrind_control", "--instr=on", str(os.getpid()))
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return lambda: os.getppid() * 0
    return time.process_time_ns


def read_dumps(base: Path) -> list[int]:
    """Return the instructions of each marked piece; what lies between two pieces is left out."""
    totals: dict[int, int] = {}
    for path in base.parent.glob(f"{base.name}.*"):
        lines = path.read_text().splitlines()
        totals[int(path.suffix[1:])] = next(int(x.split()[1]) for x in lines if x.startswith("totals:"))
    return [totals[part] for part in sorted(totals) if part % 2 == 0]
