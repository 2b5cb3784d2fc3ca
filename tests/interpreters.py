"""Run the tests of `actors` on every other CPython of this machine, 3.11 to 3.14, in its own environment.

    python -m tests.interpreters

An interpreter counts if `python3.12` (and so on) is on the path and starts; a shim that selects no version
does not. Its environment is made once, under `.cache`. Without package downloads that interpreter is passed
over. The exit code is 1 if a test failed on any of them.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
VERSIONS = ((3, 11), (3, 12), (3, 13), (3, 14))
PACKAGES = ("anyio", "hypothesis", "msgspec", "pytest", "pytest-asyncio", "pytest-timeout", "pytest-xdist")


def find(version: tuple[int, int]) -> str | None:
    """Return the path of an interpreter of this version that starts, or None."""
    path = shutil.which(f"python{version[0]}.{version[1]}")
    if path is None:
        return None
    code = "import sys, venv; print(*sys.version_info[:2], sys.implementation.name)"
    try:
        done = subprocess.run([path, "-c", code], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    expected = [str(version[0]), str(version[1]), "cpython"]
    return path if done.returncode == 0 and done.stdout.split() == expected else None


def prepare(python: str, folder: Path) -> bool:
    """Make the environment, unless it is there; false if its packages cannot be had."""
    ready = folder / ".ready"
    if ready.exists() and ready.read_text() == " ".join(PACKAGES):
        return True
    shutil.rmtree(folder, ignore_errors=True)
    install = [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install", "-q"]
    limits = ["--timeout", "10", "--retries", "1", "-c", str(ROOT / "constraints.txt")]
    for step in ([python, "-m", "venv", str(folder)], [*install, *limits, *PACKAGES]):
        done = subprocess.run(step, capture_output=True, text=True, check=False)
        if done.returncode:
            print(done.stderr[-500:].strip(), file=sys.stderr)
            return False
    ready.write_text(" ".join(PACKAGES))
    return True


def run(folder: Path) -> int:
    """Run the tests; return pytest's exit code."""
    command = [str(folder / "bin" / "python"), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "2"]
    command += ["tests/unit/actors", "-m", "not slow"]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


def main() -> int:
    """Test each interpreter that is found; return 1 if a test failed."""
    failed = False
    for version in VERSIONS:
        name = f"{version[0]}.{version[1]}"
        if version == sys.version_info[:2]:
            continue
        python = find(version)
        if python is None:
            print(f"actors on CPython {name}: passed over, no such interpreter here", flush=True)
            continue
        folder = ROOT / ".cache" / f"actors-{name}"
        if not prepare(python, folder):
            print(f"actors on CPython {name}: passed over, its packages cannot be installed", flush=True)
            continue
        print(f"actors on CPython {name}:", flush=True)
        failed |= run(folder) != 0
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
