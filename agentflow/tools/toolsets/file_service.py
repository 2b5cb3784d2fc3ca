"""The toolset `file`: read, write, append and list inside the workspace of the run."""

from __future__ import annotations

from typing import Any, Final

from agentflow.config import FileConfig
from agentflow.tools.python import function
from agentflow.tools.service import Service
from agentflow.tools.tool import ToolContext, ToolError
from agentflow.tools.toolsets.parts import private_service
from agentflow.tools.toolsets.places import Places
from agentflow.tools.toolsets.workspace import WorkspaceError

__all__ = ["file_service"]

_MAX_ENTRIES: Final = 1_000
_HINTS: Final = {
    "outside": "give a path relative to the workspace",
    "too_large": "write it in parts, to several files",
    "missing": "file__list shows what is there",
}


def file_service(config: FileConfig, places: Places) -> Service:
    """Return the service. Its functions block: each call runs in a thread."""

    @function(side_effect="read")
    def read(path: str, ctx: ToolContext) -> dict[str, Any]:
        """Read a text file of the workspace. `path` is relative to it."""
        workspace = places.of(ctx)
        try:
            return {"path": path, "content": workspace.read_text(path, config.max_read_bytes)}
        except WorkspaceError as error:
            raise _failed(error) from None

    @function(side_effect="write", idempotent=True)
    def write(path: str, content: str, ctx: ToolContext) -> dict[str, Any]:
        """Write a text file of the workspace; an existing one is replaced, directories are made."""
        workspace = places.of(ctx)
        try:
            found = workspace.write(path, content.encode(), limit=config.max_bytes)
        except WorkspaceError as error:
            raise _failed(error) from None
        return {"path": path, "size": found.size, "sha256": found.sha256}

    @function(side_effect="write", idempotent=False)
    def append(path: str, content: str, ctx: ToolContext) -> dict[str, Any]:
        """Append text to a file of the workspace, or make it."""
        workspace = places.of(ctx)
        try:
            size = workspace.append(path, content.encode(), limit=config.max_bytes)
        except WorkspaceError as error:
            raise _failed(error) from None
        return {"path": path, "size": size}

    @function(side_effect="read", name="list")
    def list_directory(ctx: ToolContext, path: str = ".") -> dict[str, Any]:
        """List a directory of the workspace: name, type and size of its entries, at most 1,000."""
        workspace = places.of(ctx)
        try:
            workspace.make()
            found, has_more = workspace.list(path, _MAX_ENTRIES)
        except WorkspaceError as error:
            raise _failed(error) from None
        entries = [{"name": one.name, "type": one.type, "size": one.size} for one in found]
        return {"path": path, "entries": entries, "more": has_more}

    return private_service("file", read, write, append, list_directory)


def _failed(error: WorkspaceError) -> ToolError:
    hint = _HINTS.get(error.reason)
    message = f"{error}; {hint}" if hint else str(error)
    return ToolError.of("tool", f"file_{error.reason}", message, executed=error.reason == "failed")
