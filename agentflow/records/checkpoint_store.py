"""Files of exported checkpoints (page 003 §10): each is whole or not there, also after a crash."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import msgspec

from agentflow.errors import CheckpointNotFound, StorageUnavailable
from agentflow.events.files import make_directories, replace_file
from agentflow.records.checkpoints import Checkpoint, parse_checkpoint

__all__ = ["FilesystemCheckpointStore"]

_RUN = re.compile(r"[A-Za-z0-9_-]{1,128}")


class FilesystemCheckpointStore:
    """Keeps exports of checkpoints in a folder, by the id of the checkpoint, `WORKFLOW_ID@OFFSET`.

    A write goes to a temporary file, which is synced and takes the place of the old one; so a reader sees an
    export whole, also after a crash. Blocks for as long as the disk takes. Every method raises
    CheckpointNotFound for an id that is none, and StorageUnavailable if the file system refuses.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self._root = Path(root)

    def save(self, checkpoint: str | Checkpoint, export: Any) -> Path:
        """Store an export, bytes as `agentflow log` writes them or a JSON value, in the place of an earlier
        one; return its file once that is durable."""
        path = self._path(checkpoint, ".ndjson" if isinstance(export, bytes) else ".json")
        body = export if isinstance(export, bytes) else msgspec.json.encode(export)
        try:
            make_directories(path.parent)
            replace_file(path, body)
            self._path(checkpoint, ".json" if isinstance(export, bytes) else ".ndjson").unlink(
                missing_ok=True
            )
        except OSError as error:
            raise StorageUnavailable(f"{path} cannot be written: {error.strerror}") from error
        return path

    def load(self, checkpoint: str | Checkpoint) -> Any:
        """Return an export as it was given. Raises CheckpointNotFound if there is none."""
        for suffix in (".ndjson", ".json"):
            path = self._path(checkpoint, suffix)
            try:
                body = path.read_bytes()
            except FileNotFoundError:
                continue
            except OSError as error:
                raise StorageUnavailable(f"{path} cannot be read: {error.strerror}") from error
            return body if suffix == ".ndjson" else msgspec.json.decode(body)
        raise CheckpointNotFound(f"{_id(checkpoint)} is not in {self._root}")

    def delete(self, checkpoint: str | Checkpoint) -> None:
        """Remove an export. Raises CheckpointNotFound if there is none."""
        paths = [self._path(checkpoint, suffix) for suffix in (".ndjson", ".json")]
        found = [path for path in paths if path.exists()]
        if not found:
            raise CheckpointNotFound(f"{_id(checkpoint)} is not in {self._root}")
        try:
            for path in found:
                path.unlink(missing_ok=True)
        except OSError as error:
            raise StorageUnavailable(f"{found[0]} cannot be removed: {error.strerror}") from error

    def _path(self, checkpoint: str | Checkpoint, suffix: str) -> Path:
        parsed = parse_checkpoint(_id(checkpoint))
        if parsed is None or not _RUN.fullmatch(parsed[0]):
            hint = "write <workflow_id>@<offset>"
            raise CheckpointNotFound(f'"{_id(checkpoint)}" is not the id of a checkpoint', hint=hint)
        return self._root / f"{parsed[0]}@{parsed[1]}{suffix}"


def _id(checkpoint: str | Checkpoint) -> str:
    return checkpoint if isinstance(checkpoint, str) else checkpoint.id
