"""What the expected files of a step are before it starts (page 004 §9). Blocks: call it in a thread."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from agentflow.tools.toolsets.workspace import Workspace, WorkspaceError, normal_path

__all__ = ["snapshot_files"]


def snapshot_files(workspace: str, names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return {exists, size, mtime, sha256} of each file by its path; mtime in nanoseconds."""
    folder, found = Workspace(workspace), dict[str, dict[str, Any]]()
    for path in {normal_path(name): None for name in names}:
        if path is None:
            continue
        try:
            state = folder.read(path)
            found[path] = {
                "exists": True,
                "size": state.size,
                "mtime": state.mtime,
                "sha256": state.sha256,
            }
        except WorkspaceError:
            found[path] = {"exists": False, "size": None, "mtime": None, "sha256": None}
    return found
