"""Copies of a store that is in use: consistent, checked, and there as a whole or not at all.

The copy is written beside its place under another name, opened and checked there, and renamed at the end. A
copy belongs to no process, so its runs can be resumed at once. Events that are committed while it is made
may be in it or not; of a run it holds a prefix in any case.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from agentflow.errors import AgentflowError, ConfigurationError, LogCorrupt, StorageUnavailable, StoreError
from agentflow.events.files import sync_directory, sync_file
from agentflow.events.open import open_log, store_path
from agentflow.events.verification import Verified, verify_log

__all__ = ["backup_store", "verify_store"]

_TRIES = 3
_NOT_COPIED = ("lock", "probe")  # names of files that say something of the process, not of runs


async def verify_store(url: str) -> Verified:
    """Check the store `url`, a `sqlite:` store also while a daemon writes to it.

    Raises ConfigurationError if there is none or, of a `file:` store, if a process has it; StoreError if it
    cannot be opened.
    """
    scheme, path = _existing(url)
    if scheme == "sqlite":
        from agentflow.events.sqlite.verify import verify_file

        return await asyncio.to_thread(verify_file, path)
    log = await asyncio.to_thread(open_log, url)
    try:
        return await verify_log(log)
    finally:
        await log.close()


async def backup_store(url: str, target: Path) -> Verified:
    """Copy the store `url` to `target`, also while a daemon writes to it; return what the check of the copy
    found.

    Raises ConfigurationError if there is no such store or something at `target`, LogCorrupt if the copy is
    damaged, StorageUnavailable if it cannot be written. Then there is nothing at `target`.
    """
    scheme, path = _existing(url)
    _check_free(target)
    draft = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        copy = _copy_database if scheme == "sqlite" else _copy_directory
        await asyncio.to_thread(copy, path, draft)
        found = await verify_store(f"{scheme}:{draft}")
        if not found.sound:
            first = [*(f"{run.workflow_id}: {run.problem}" for run in found.damaged), *found.problems][0]
            raise LogCorrupt(
                f"{url} is damaged, so no copy was kept: {first}",
                hint="`agentflow verify` names all that is damaged",
            )
        await asyncio.to_thread(_put_in_place, draft, target)
        return found
    except OSError as error:
        raise StorageUnavailable(
            f"the copy {target} cannot be written: {error.strerror}",
            hint="see that its disk has space and its directory can be written to",
        ) from error
    finally:
        await asyncio.to_thread(_remove, draft)


def _existing(url: str) -> tuple[str, Path]:
    scheme, path = store_path(url)
    if not path.exists():
        raise ConfigurationError(f"there is no store {url}", hint="name a store that exists with --store")
    return scheme, path


def _check_free(target: Path) -> None:
    if target.exists() or target.is_symlink():
        raise ConfigurationError(f"{target} exists", hint="name a new file; a copy overwrites nothing")


def _copy_database(path: Path, draft: Path) -> None:
    """Copy by SQLite's backup interface, in one step: it holds a read of one state of the store, which lets
    the writer go on. In several steps it would begin anew with every commit."""
    from agentflow.events.sqlite.failures import unusable
    from agentflow.events.sqlite.readonly import open_read_only

    os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    source, _ = open_read_only(path)
    with closing(source), closing(sqlite3.connect(draft)) as copy:
        try:
            source.backup(copy)
            copy.execute("PRAGMA journal_mode = DELETE")  # all of it is in the one file
        except sqlite3.Error as error:
            failure: AgentflowError = unusable(error, path)
            raise failure if isinstance(failure, StoreError) else StoreError(str(failure)) from error
    sync_file(draft)


def _copy_directory(path: Path, draft: Path) -> None:
    """Copy the segments first and what they name last, so that a copied event finds all that it names.

    Segments only grow; what is appended meanwhile ends in a torn line at most, which opening the copy cuts
    off. A file that retention takes away meanwhile makes the copy begin anew.
    """
    for attempt in range(_TRIES):
        try:
            for file in _files(path):
                to = draft / file.relative_to(path)
                to.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                shutil.copyfile(file, to)
                sync_file(to)
            return
        except FileNotFoundError:
            _remove(draft)
            if attempt == _TRIES - 1:
                raise


def _files(path: Path) -> Iterator[Path]:
    segments = path / "segments"
    if segments.is_dir():
        yield from sorted(segments.iterdir())
    for file in sorted(path.rglob("*")):
        if file.is_file() and segments not in file.parents and file.stem not in _NOT_COPIED:
            yield file


def _put_in_place(draft: Path, target: Path) -> None:
    for folder in [draft, *draft.rglob("*")]:
        if folder.is_dir():
            sync_directory(folder)
    _check_free(target)  # again: it may have been made meanwhile
    draft.rename(target)
    sync_directory(target.parent)


def _remove(draft: Path) -> None:
    for file in (draft, *draft.parent.glob(f"{draft.name}-*")):
        with contextlib.suppress(OSError):
            if file.is_dir():
                shutil.rmtree(file)
            else:
                file.unlink()
