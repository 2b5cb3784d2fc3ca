"""`agentflow new`: a starter project that checks, runs and is tested from its first minute.

All of it is written or nothing: the files are made in a folder beside it, which then takes its name.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from importlib.util import find_spec
from pathlib import Path

import click

from agentflow.cli.app import Command
from agentflow.cli.errors import CommandError, Exit
from agentflow.cli.output import emit

__all__ = ["new"]

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")


@click.command("new", cls=Command)
@click.argument("name")
def new(name: str) -> Exit:
    """Write a starter project into the folder NAME.

    A workflow with comments, a function that its agents may call, and a test that needs no model.
    """
    from agentflow.cli.starter import starter_files

    if not _NAME.fullmatch(name):
        raise CommandError(
            Exit.USAGE,
            "usage",
            f'"{name}" is not a name for a project',
            "begin with a letter, go on with letters, digits, _ and -; it becomes a folder here",
        )
    target = Path(name)
    if target.is_symlink() or (target.exists() and not (target.is_dir() and not any(target.iterdir()))):
        raise CommandError(Exit.CONFLICT, "exists", f"{name} exists already", "choose another name")
    files = starter_files(name)
    try:
        _write(target, files)
    except OSError as error:
        message = f"{name} cannot be written: {error.strerror or error}"
        raise CommandError(Exit.FAILED, "not_written", message) from None
    emit(f"wrote {name}/: {', '.join(sorted(files))}")
    test = "python -m pytest" if find_spec("pytest") else "python -m pip install pytest && python -m pytest"
    emit(f"next: cd {name} && agentflow check workflow.yaml && {test}")
    return Exit.DONE


def _write(target: Path, files: dict[str, bytes]) -> None:
    """Write the whole folder, or nothing. Raises OSError."""
    draft = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        for file, content in files.items():
            (draft / file).write_bytes(content)
        draft.chmod(0o755)  # mkdtemp makes it private
        # Takes the place of an empty folder, and fails where something has come into it meanwhile.
        draft.rename(target)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
