"""Artifacts that are files: file, json, markdown (page 004 §9). Blocking: for a thread."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from agentflow.pipeline.verification.findings import Content, Finding, failed, passed
from agentflow.pipeline.verification.json_text import check_json
from agentflow.tools.toolsets.workspace import (
    HASH_LIMIT_BYTES,
    TEXT_LIMIT_BYTES,
    TOTAL_HASH_BYTES,
    FileState,
    Workspace,
    WorkspaceError,
    relative_path,
)

__all__ = ["FILE_TYPES", "FileReader", "check_file"]

FILE_TYPES: Final = ("file", "json", "markdown")
_KEPT_BYTES: Final = 2 * TEXT_LIMIT_BYTES
"""Bytes of content that one verification keeps for further checks."""
_CODES: Final = {
    "outside": "artifact_outside_workspace",
    "missing": "artifact_missing",
    "not_regular": "artifact_not_regular",
    "denied": "artifact_missing",
    "failed": "artifact_missing",
}


class FileReader:
    """Reads each file of one workspace once, so that all checks of a verification see one content."""

    def __init__(self, root: str | None) -> None:
        self.root = root
        self._workspace = None if root is None else Workspace(root)
        self._kept: dict[str, FileState | WorkspaceError] = {}
        self._left = TOTAL_HASH_BYTES
        self._room = _KEPT_BYTES

    def read(self, uri: str) -> FileState:
        """Return the file as it is. Raises WorkspaceError."""
        path = relative_path(uri, self.root)
        if self._workspace is None or path is None:
            raise WorkspaceError("outside", f'"{uri[:200]}" is not in the workspace')
        found = self._kept.get(path)
        if found is None:
            try:
                found = self._workspace.read(path, keep=True, hashed=self._left > 0, limit=TEXT_LIMIT_BYTES)
                self._left -= found.size if found.sha256 is not None else 0
            except WorkspaceError as error:
                found = error
            # Contents that are kept must not add up: beyond that one is read again.
            size = 0 if isinstance(found, WorkspaceError) else len(found.body or b"")
            if size <= self._room:
                self._room -= size
                self._kept[path] = found
        if isinstance(found, WorkspaceError):
            raise found
        return found

    def content(self, uri: str) -> Content:
        """Return what a Check looks at."""
        try:
            found = self.read(uri)
        except WorkspaceError as error:
            return Content(exists=False, why=str(error))
        why = None if found.body is not None else f"it has more than {TEXT_LIMIT_BYTES:,} bytes"
        return Content(exists=True, size=found.size, sha256=found.sha256, body=found.body, why=why)


def check_file(
    type: str, uri: str, reader: FileReader, before: Mapping[str, Any] | None, began: int | None = None
) -> tuple[list[Finding], dict[str, Any] | None]:
    """Return the checks of a file and its evidence {sha256, size, mtime}. `before`: what it was when its step
    began, None if that is not known; `began`: when that was, in ns, None if that is not known either."""
    try:
        found = reader.read(uri)
    except WorkspaceError as error:
        return [failed("file", _CODES.get(error.reason, "artifact_missing"), str(error))], None
    checks = [passed("exists")]
    empty = found.size == 0
    checks.append(failed("size", "artifact_empty", "it has 0 bytes") if empty else passed("size"))
    checks.append(_fresh(found, before, began))
    if type == "json":
        checks.append(_json(found))
    elif type == "markdown":
        checks.append(_markdown(found))
    return checks, _evidence(found)


def _evidence(found: FileState) -> dict[str, Any]:
    return {"sha256": found.sha256, "size": found.size, "mtime": found.mtime}


def _fresh(found: FileState, before: Mapping[str, Any] | None, began: int | None) -> Finding:
    if before is None and began is not None and found.changed < began:
        return failed("fresh", "artifact_stale", "it has not changed since the step began")
    if before is None or not before.get("exists"):
        return passed("fresh")
    old = before.get("sha256")
    if before.get("mtime") != found.mtime or before.get("size") != found.size:
        return passed("fresh")
    if old is not None and found.sha256 is not None and old != found.sha256:
        return passed("fresh")
    return failed("fresh", "artifact_stale", "it has not changed since the step began")


def _json(found: FileState) -> Finding:
    if found.body is None:
        return failed("json", "artifact_invalid_json", f"it has more than {TEXT_LIMIT_BYTES:,} bytes")
    problem = check_json(found.body)
    return passed("json") if problem is None else failed("json", "artifact_invalid_json", problem)


def _markdown(found: FileState) -> Finding:
    if found.body is None:
        return failed("text", "artifact_invalid_text", f"it has more than {TEXT_LIMIT_BYTES:,} bytes")
    try:
        text = found.body.decode("utf-8")
    except UnicodeDecodeError as error:
        return failed("text", "artifact_invalid_text", f"byte {error.start:,} is no UTF-8")
    blank = not text.removeprefix("\ufeff").strip()
    return failed("text", "artifact_blank", "it has no text") if blank else passed("text")


assert TEXT_LIMIT_BYTES <= HASH_LIMIT_BYTES
