"""What the expected files of a step are before it starts (page 004 §9). Blocks: call it in a thread.

Files are read as the verifier reads them: by descriptor, and never outside the workspace.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from agentflow.tools.toolsets.workspace import Workspace, WorkspaceError, relative_path

__all__ = ["snapshot_files"]


def snapshot_files(workspace: str, names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return {exists, size, mtime, sha256} of each file, by its name; mtime in nanoseconds. A file that is
    too large to be hashed has no hash."""
    reader = Workspace(workspace)
    return {name: _snapshot(reader, relative_path(name, workspace)) for name in names}


def _snapshot(reader: Workspace, path: str | None) -> dict[str, Any]:
    try:
        if path is not None:
            found = reader.read(path)
            return {"exists": True, "size": found.size, "mtime": found.mtime, "sha256": found.sha256}
    except WorkspaceError:
        pass  # what the verifier could not read either is not there
    return {"exists": False, "size": None, "mtime": None, "sha256": None}
