"""Instructions a step that were counted last, by Python version and case; `make test` compares with them.

`python -m tests.benchmarks.instructions --counter valgrind --record` writes them again. Counts depend on the
interpreter and on msgspec's build, hardly on the machine.
"""

from __future__ import annotations

import platform
import sys
from pathlib import Path

import msgspec

__all__ = ["CASES", "TOLERANCE", "read", "write"]

CASES = ("chain 100", "turns 50", "executors eager 100", "executors superstep 100")
"""Cases that are compared in the tests: each takes valgrind 10 s."""
TOLERANCE = 1.1
"""A step may cost so many times what was recorded."""

_FILE = Path(__file__).with_name("recorded.json")


def _place() -> str:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    return f"{platform.machine()} {version} msgspec {msgspec.__version__}"


def read() -> dict[str, int]:
    """Return the instructions a step by case; empty if none were recorded for this interpreter."""
    return msgspec.json.decode(_FILE.read_bytes(), type=dict[str, dict[str, int]]).get(_place(), {})


def write(figures: dict[str, int]) -> None:
    """Keep figures of this interpreter beside those of other ones."""
    known = msgspec.json.decode(_FILE.read_bytes()) if _FILE.exists() else {}
    known[_place()] = known.get(_place(), {}) | figures
    _FILE.write_bytes(msgspec.json.format(msgspec.json.encode(known, order="sorted"), indent=1) + b"\n")
