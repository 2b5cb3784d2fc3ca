"""Runs the workload again and again, each time in a fork of this process that the shim kills at one call.

    python -m tests.faults.shimmed

Each line of input is `ROOT URL INCARNATION ROUNDS NUMBER PART`: kill before the call of that number (0:
never) below ROOT; if it is a write, PART of its bytes, in percent, are written first. What the workload says
is written to the output, then `done` and the wait status. A fork needs no start of the interpreter, so every
call of a workload can be tried in seconds.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from tests.faults import shim
from tests.faults.calls import Call
from tests.faults.workload import run_workload, small_files


def run(root: str, url: str, incarnation: str, rounds: int, number: int, part: int) -> None:
    """The life of a fork."""
    made = 0

    def kill_at(call: Call) -> int:
        nonlocal made
        made += 1
        if made != number:
            return 0
        if call.kind == "write" and part:
            with open(os.open(Path(root, call.path), os.O_WRONLY), "wb", buffering=0) as file:
                file.seek(call.at)
                file.write(call.data[: len(call.data) * part // 100])
        os.kill(os.getpid(), signal.SIGKILL)
        return 0

    with shim.below(Path(root), kill_at):
        asyncio.run(run_workload(url, incarnation, say, rounds))
    say(f"calls {made}")


def say(line: str) -> None:
    os.write(1, f"{line}\n".encode())


def main() -> None:
    small_files()
    for line in sys.stdin:
        root, url, incarnation, *numbers = line.split()
        pid = os.fork()
        if pid == 0:
            run(root, url, incarnation, *map(int, numbers))
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        say(f"done {status}")


if __name__ == "__main__":
    main()
