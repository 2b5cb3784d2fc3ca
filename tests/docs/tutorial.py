"""Runs the tutorial as a reader does and prints the transcript: `python -m tests.docs.tutorial`.

A fresh virtual environment, the packages and the embedded model are installed into a temporary folder, every
command of the page is a process of its own, and nothing of it stays.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

from tests.docs.blocks import ROOT, read_blocks
from tests.docs.runner import PageRunner
from tests.unit.cli.support import Sandbox

__all__ = ["INSTALLS", "main"]

INSTALLS = ('pip install ".[local]"\n', "agentflow model install smollm2-135m\n")
"""The blocks of the page that only this script executes, because they take a network."""
_SOURCES = ("actors", "agentflow", "pyproject.toml", "README.md", "LICENSE", "constraints.txt")


def main() -> None:
    """Print each command of the tutorial with what it prints, and the time that all of them took."""
    with tempfile.TemporaryDirectory() as folder:
        python = _install(Path(folder))
        work = Path(folder) / "work"
        work.mkdir()
        sandbox = Sandbox(work, AGENTFLOW_MODEL="local:smollm2-135m", XDG_RUNTIME_DIR=str(work))
        del sandbox.env["PYTHONPATH"]  # what was installed runs, not the checkout
        runner = PageRunner(sandbox, separate=True, python=str(python), tell=print)
        began = time.monotonic()
        try:
            _call(python, "-m", "agentflow", "model", "install", "smollm2-135m", env=sandbox.env)
            for block in read_blocks("tutorial"):
                runner.run(block)
        finally:
            runner.close()
            sandbox.close()
        print(f"every block of the tutorial ran, in {time.monotonic() - began:.0f} s behind the installation")


def _install(folder: Path) -> Path:
    """Install a copy of the sources, so that the checkout stays as it is; return the interpreter."""
    source = folder / "source"
    for name in _SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            source.mkdir(exist_ok=True)
            shutil.copy(ROOT / name, source)
    venv.create(folder / "venv", with_pip=True)
    python = folder / "venv/bin/python"
    print("$ pip install '.[local]'")
    _call(python, "-m", "pip", "install", "--quiet", "-c", "constraints.txt", ".[local]", cwd=source)
    return python


def _call(python: Path, *words: str, cwd: Path | None = None, env: dict[str, str] | None = None) -> None:
    given = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} if env is None else env
    subprocess.run([str(python), *words], cwd=cwd, env=given, check=True, stdout=sys.stderr)


if __name__ == "__main__":
    main()
