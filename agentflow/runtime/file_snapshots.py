"""What the expected files of a step are before it starts, and the time (page 004 §9). Blocks: call it in a
thread.

Files are read as the verifier reads them: by descriptor, and never outside the workspace.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from agentflow.tools.toolsets.workspace import TOTAL_HASH_BYTES, Workspace, WorkspaceError, relative_path

__all__ = ["snapshot_files"]

_MISSING = {"exists": False, "size": None, "mtime": None, "sha256": None}


def snapshot_files(workspace: str, names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return {exists, size, mtime, sha256} of each file, by its name; mtime in nanoseconds. A file that is
    too large to be hashed has no hash, nor has one behind the first 4 GiB.

    `.` is the workspace itself: its `time` in nanoseconds is before any later change of any file in it; None
    if that time cannot be told.
    """
    reader, left = Workspace(workspace), TOTAL_HASH_BYTES
    found: dict[str, dict[str, Any]] = {".": {"time": reader.clock()}}
    for name in names:
        path = relative_path(name, workspace)
        try:
            state = None if path is None else reader.read(path, hashed=left > 0)
        except WorkspaceError:
            state = None  # what the verifier could not read either is not there
        if state is None:
            found[name] = dict(_MISSING)
            continue
        left -= state.size if state.sha256 is not None else 0
        found[name] = {"exists": True, "size": state.size, "mtime": state.mtime, "sha256": state.sha256}
    return found
