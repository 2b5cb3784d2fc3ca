"""Access to the files of one directory by descriptor: no path, link or race leads out of it.

A path is walked component by component from an open directory, each opened with O_NOFOLLOW. A symbolic link
is read and its target walked in its place, from the directory that holds it: `..` goes back to the directory
that was opened before, and never above the root. What was checked is the descriptor, and the same descriptor
is read, so that a swap between check and use changes nothing. Blocking: call it in a thread.
"""

from __future__ import annotations

import codecs
import errno
import hashlib
import os
import re
import secrets
import stat
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple
from urllib.parse import unquote, urlsplit

__all__ = [
    "HASH_LIMIT_BYTES",
    "TEXT_LIMIT_BYTES",
    "TOTAL_HASH_BYTES",
    "FileState",
    "Listed",
    "Reason",
    "Workspace",
    "WorkspaceError",
    "normal_path",
    "relative_path",
]

TEXT_LIMIT_BYTES: Final = 64 << 20
"""The largest file whose content is taken into memory."""
HASH_LIMIT_BYTES: Final = 1 << 30
"""The largest file that is hashed; a larger one, such as a sparse file of 10 GB, has no `sha256`."""
TOTAL_HASH_BYTES: Final = 4 << 30
"""Bytes that one look at many files hashes; files beyond are judged by size and time."""
HASH_TIMEOUT_S: Final = 20.0
"""Seconds for the hash of one file; beyond them it has no `sha256`."""

_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_PASSING: Final = _DIRECTORY | getattr(os, "O_PATH", 0)
"""For directories on the way, which this user may be allowed to search and not to read."""
_SLICE_BYTES: Final = 1 << 20
_MAX_LINKS: Final = 40
_MAX_PATH: Final = 4_096
_MAX_DEPTH: Final = 128
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")

Reason = Literal["outside", "missing", "not_regular", "too_large", "not_text", "exists", "denied", "failed"]


class WorkspaceError(Exception):
    """A path cannot be used; `reason` says why, the message is a sentence that names the path."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason: Reason = reason


class FileState(NamedTuple):
    """A regular file as one descriptor showed it. `sha256` is None if it was too large to be hashed, `body`
    if it was not asked for or is larger than the limit. `mtime` and `changed` in nanoseconds since 1970.

    `changed` is when the path last came to name this content: the last change of the file's content, name or
    rights, of a link on the way, or of the name of a directory on the way. Nobody can set its time."""

    size: int
    mtime: int
    sha256: str | None
    body: bytes | None
    changed: int


class Listed(NamedTuple):
    """An entry of a directory."""

    name: str
    type: Literal["file", "directory", "link", "other"]
    size: int


def normal_path(uri: str) -> str | None:
    """Return a relative path without `.`, `..` and doubled slashes, as artifacts are matched by; None for one
    that leaves the workspace by its text, is absolute, or is no path."""
    if not uri or len(uri) > _MAX_PATH or "\0" in uri or uri.startswith(("/", "~")):
        return None
    if _SCHEME.match(uri):
        return None
    parts: list[str] = []
    for part in uri.split("/"):
        if part == "..":
            if not parts:
                return None
            parts.pop()
        elif part not in ("", "."):
            parts.append(part)
    return "/".join(parts) or "."


def relative_path(uri: str, root: str | None) -> str | None:
    """Return the path of an artifact relative to the workspace, by its text; None if it leaves it.

    A step may also name its file by an absolute path or a `file:` URI below the workspace.
    """
    if uri.lower().startswith("file:"):
        parts = urlsplit(uri)
        if parts.netloc not in ("", "localhost"):
            return None
        uri = unquote(parts.path)
    if root is not None and uri.startswith("/"):
        for base in dict.fromkeys((os.path.abspath(root), os.path.realpath(root))):
            if uri.startswith(base.rstrip("/") + "/"):
                uri = uri[len(base.rstrip("/")) + 1 :]
                break
    return normal_path(uri)


class Workspace:
    """The directory of a run. Nothing is held open between two calls.

    `root` is a real path, as it was when the run began. A link that has since taken the place of one of its
    directories is refused like any other that leads out.
    """

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)

    def make(self) -> None:
        """Make the directory, with mode 0700. Raises WorkspaceError."""
        try:
            self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise WorkspaceError("failed", f"the workspace cannot be made: {error.strerror}") from error

    # -- reading --------------------------------------------------------------------------------

    def read(
        self, path: str, *, keep: bool = False, hashed: bool = True, limit: int = TEXT_LIMIT_BYTES
    ) -> FileState:
        """Return size, time and hash of a regular file, with its bytes if `keep` and it has at most `limit`.

        Content and hash are of the same pass. A file that grows meanwhile is read up to the size it had.
        Raises WorkspaceError: outside, missing, not_regular or failed.
        """
        with self._opened(path) as (descriptor, came):
            found = _state_of(descriptor, keep=keep, hashed=hashed, limit=limit)
        return found._replace(changed=max(found.changed, came))

    def clock(self) -> int | None:
        """Return the time in nanoseconds since 1970 by the clock that stamps the files of this directory:
        what changes later is stamped no earlier. It may be a server's, or tick in seconds. None if it cannot
        be asked without leaving a trace: the system or the file system has no files without a name then.
        """
        unnamed = getattr(os, "O_TMPFILE", None)
        if unnamed is None:
            return None
        try:
            with self._directory_of(".", last_too=True) as (directory, _):
                descriptor = os.open(".", unnamed | os.O_RDWR | os.O_CLOEXEC, 0o600, dir_fd=directory)
        except (OSError, WorkspaceError):
            return None
        try:
            return os.fstat(descriptor).st_ctime_ns
        finally:
            os.close(descriptor)

    def read_text(self, path: str, limit: int) -> str:
        """Return the content of a file in UTF-8. Raises WorkspaceError, also too_large and not_text."""
        with self._opened(path) as (descriptor, _):
            found = _state_of(descriptor, keep=True, hashed=False, limit=limit)
        if found.body is None:
            raise WorkspaceError(
                "too_large", f'"{path}" has {found.size:,} bytes, the limit is {limit:,} bytes'
            )
        try:
            return codecs.decode(found.body, "utf-8")
        except UnicodeDecodeError:
            raise WorkspaceError("not_text", f'"{path}" is not text in UTF-8') from None

    def list(self, path: str, limit: int) -> tuple[list[Listed], bool]:
        """Return the first `limit` entries of a directory by name, and whether there are more."""
        with self._directory_of(path, last_too=True) as (directory, _):
            names = sorted(os.listdir(directory))
            found = [entry for name in names[:limit] if (entry := _listed(directory, name)) is not None]
        return found, len(names) > limit

    # -- writing --------------------------------------------------------------------------------

    def write(self, path: str, data: bytes, *, limit: int) -> FileState:
        """Replace a file, or make it with its directories, at once: readers see the old content or the new.

        A symbolic link at the path is replaced, not followed, and so is a hard link. Raises WorkspaceError.
        """
        _check_size(path, len(data), limit)
        with self._directory_of(path, make=True) as (directory, name):
            _check_replaceable(directory, name, path)
            temporary = f".agentflow-{secrets.token_hex(8)}"
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(temporary, flags, 0o600, dir_fd=directory)
            try:
                _write_all(descriptor, data)
                os.fsync(descriptor)
                os.replace(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
                return _written(descriptor, data)
            except BaseException:
                with suppress(OSError):
                    os.unlink(temporary, dir_fd=directory)
                raise
            finally:
                os.close(descriptor)

    def append(self, path: str, data: bytes, *, limit: int, line: bool = False) -> int:
        """Append to a file, or make it, by one write; return its new size.

        `line`: what is appended begins a line, also behind a line that was torn.

        A link is refused, and so is a file with several names (hard links), because one may be outside.
        Raises WorkspaceError.
        """
        _check_size(path, len(data), limit)
        with self._directory_of(path, make=True) as (directory, name):
            _check_replaceable(directory, name, path)
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            descriptor = os.open(name, flags, 0o600, dir_fd=directory)
            try:
                found = os.fstat(descriptor)
                if not stat.S_ISREG(found.st_mode):
                    raise WorkspaceError("not_regular", f'"{path}" is no regular file')
                _check_one_name(found, path)
                _check_size(path, found.st_size + len(data), limit)
                if line and found.st_size and not _ends_line(directory, name, found):
                    data = b"\n" + data  # a torn line stays by itself
                _write_all(descriptor, data)
                os.fsync(descriptor)
                return found.st_size + len(data)
            finally:
                os.close(descriptor)

    # -- walking --------------------------------------------------------------------------------

    @contextmanager
    def _opened(self, path: str) -> Generator[tuple[int, int]]:
        """Yield a descriptor of a regular file for reading, and the last change of the way to it, in ns;
        links inside the workspace are followed."""
        with self._walking(path) as walk:
            directory, name = walk.to_last(make=False, follow=True, last_too=False)
            # A FIFO is not opened, since a writer would see it, nor a device, since that may do something.
            found = os.stat(name, dir_fd=directory, follow_symlinks=False)
            if not stat.S_ISREG(found.st_mode):
                raise WorkspaceError("not_regular", f'"{path}" is {_kind_name(found.st_mode)}')
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
            descriptor = os.open(name, flags, dir_fd=directory)
            try:
                # It may be another one by now.
                found = os.fstat(descriptor)
                if not stat.S_ISREG(found.st_mode):
                    raise WorkspaceError("not_regular", f'"{path}" is {_kind_name(found.st_mode)}')
                _check_one_name(found, path)
                yield descriptor, walk.changed
            finally:
                os.close(descriptor)

    @contextmanager
    def _directory_of(
        self, path: str, *, make: bool = False, follow: bool = False, last_too: bool = False
    ) -> Generator[tuple[int, str]]:
        """Yield the open directory that holds a path, and the last component; with `last_too` the directory
        that the path itself is."""
        with self._walking(path, make=make) as walk:
            yield walk.to_last(make=make, follow=follow, last_too=last_too)

    @contextmanager
    def _walking(self, path: str, *, make: bool = False) -> Generator[_Walk]:
        """Yield a walk at the root. Every error of the operating system becomes a WorkspaceError."""
        walk = _Walk(self.root, path)
        try:
            if make:
                self.make()
            walk.start()
            yield walk
        except OSError as error:
            raise _told(path, error) from error
        finally:
            walk.close()


class _Walk:
    """One walk from the root. `_open` is the stack of directories from the root down to the present one."""

    def __init__(self, root: Path, path: str) -> None:
        normal = normal_path(path)
        if normal is None:
            raise WorkspaceError("outside", f'"{path[:200]}" is no path inside the workspace')
        self._root = root
        self._path = path
        self._left = [part for part in normal.split("/") if part != "."]
        self._open: list[int] = []
        self._links = 0
        self.changed = 0
        """The last change of a link or of a directory's name on the way, in ns since 1970; 0 if none."""

    def start(self) -> None:
        """Open the root, each of its directories by name. Raises WorkspaceError for a link, and OSError."""
        _, *parents, last = os.path.abspath(self._root).split("/")
        at = os.open("/", _PASSING)
        try:
            for name in parents:
                following = os.open(name, _PASSING, dir_fd=at)
                os.close(at)
                at = following
            self._open.append(os.open(last or ".", _DIRECTORY, dir_fd=at))
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR):
                raise WorkspaceError("outside", "a link stands in the place of the workspace") from None
            raise
        finally:
            os.close(at)

    def close(self) -> None:
        for descriptor in self._open:
            os.close(descriptor)
        self._open.clear()

    def to_last(self, *, make: bool, follow: bool, last_too: bool) -> tuple[int, str]:
        while True:
            while self._left and (len(self._left) > 1 or last_too or self._left[0] == ".."):
                self._step(self._left.pop(0), make=make)
            if not self._left:
                if last_too:
                    return self._open[-1], ""
                raise WorkspaceError("not_regular", f'"{self._path}" is a directory')
            name = self._left[0]
            if not follow or not self._take_link(name, pop=True):
                return self._open[-1], name

    def _step(self, name: str, *, make: bool) -> None:
        if name == "..":
            if len(self._open) == 1:
                raise self._outside()
            os.close(self._open.pop())
            return
        if len(self._open) > _MAX_DEPTH:
            raise WorkspaceError("failed", f'"{self._path[:80]}" is nested more than {_MAX_DEPTH} deep')
        try:
            self._open.append(os.open(name, _DIRECTORY, dir_fd=self._open[-1]))
            found = os.fstat(self._open[-1])
            # A new name stamps the change alone; an entry that comes or goes, both.
            if found.st_ctime_ns != found.st_mtime_ns:
                self.changed = max(self.changed, found.st_ctime_ns)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR) and self._take_link(name):
                return
            if error.errno != errno.ENOENT or not make:
                raise
            with suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=self._open[-1])
            self._open.append(os.open(name, _DIRECTORY, dir_fd=self._open[-1]))

    def _take_link(self, name: str, *, pop: bool = False) -> bool:
        """Put the target of a symbolic link in the place of its name; return False if it is none."""
        try:
            target = os.readlink(name, dir_fd=self._open[-1])
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.ENOENT):
                return False
            raise
        with suppress(OSError):  # it may be gone by now
            link = os.stat(name, dir_fd=self._open[-1], follow_symlinks=False)
            self.changed = max(self.changed, link.st_ctime_ns)
        self._links += 1
        if self._links > _MAX_LINKS or len(target) > _MAX_PATH:
            raise WorkspaceError("outside", f'"{self._path}" leads through too many links')
        if pop:
            self._left.pop(0)
        if target.startswith("/"):
            target = self._below_root(target)
            while len(self._open) > 1:
                os.close(self._open.pop())
        self._left[:0] = [part for part in target.split("/") if part not in ("", ".")]
        return True

    def _below_root(self, target: str) -> str:
        """Return an absolute target relative to the root; by its text, since each component is walked."""
        for root in (os.path.realpath(self._root), os.path.abspath(self._root)):
            if target == root or target.startswith(root.rstrip("/") + "/"):
                return target[len(root.rstrip("/")) :]
        raise self._outside()

    def _outside(self) -> WorkspaceError:
        return WorkspaceError("outside", f'"{self._path}" leads out of the workspace')


def _state_of(descriptor: int, *, keep: bool, hashed: bool, limit: int) -> FileState:
    found = os.fstat(descriptor)
    keep = keep and found.st_size <= limit
    hashed = hashed and found.st_size <= HASH_LIMIT_BYTES
    digest, parts, left = hashlib.sha256(), list[bytes](), found.st_size
    end = time.monotonic() + HASH_TIMEOUT_S
    while left > 0 and (keep or hashed):
        part = os.read(descriptor, min(left, _SLICE_BYTES))
        if not part:  # it was cut meanwhile
            return _state(found, found.st_size - left, digest if hashed else None, parts if keep else None)
        left -= len(part)
        if hashed:
            digest.update(part)
        if keep:
            parts.append(part)
        if time.monotonic() > end:
            keep = hashed = False
    return _state(found, found.st_size, digest if hashed else None, parts if keep else None)


def _state(found: os.stat_result, size: int, digest: Any, parts: list[bytes] | None) -> FileState:
    return FileState(
        size=size,
        mtime=found.st_mtime_ns,
        sha256=None if digest is None else digest.hexdigest(),
        body=None if parts is None else b"".join(parts),
        changed=found.st_ctime_ns,
    )


def _check_one_name(found: os.stat_result, path: str) -> None:
    """Raise WorkspaceError for a hard link: its file may be one of another directory."""
    if found.st_nlink > 1:
        message = f'"{path}" has {found.st_nlink} names: one of them may be outside'
        raise WorkspaceError("outside", message)


def _written(descriptor: int, data: bytes) -> FileState:
    found = os.fstat(descriptor)
    digest = hashlib.sha256(data).hexdigest()
    return FileState(found.st_size, found.st_mtime_ns, digest, None, found.st_ctime_ns)


def _ends_line(directory: int, name: str, found: os.stat_result) -> bool:
    """Return whether the last byte of a file ends a line; a file that was swapped meanwhile does not."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(name, flags, dir_fd=directory)
    try:
        same = os.fstat(descriptor)
        if (same.st_dev, same.st_ino) != (found.st_dev, found.st_ino):
            return False
        return os.pread(descriptor, 1, found.st_size - 1) == b"\n"
    finally:
        os.close(descriptor)


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _check_size(path: str, size: int, limit: int) -> None:
    if size > limit:
        raise WorkspaceError("too_large", f'"{path}" would have {size:,} bytes, the limit is {limit:,} bytes')


def _check_replaceable(directory: int, name: str, path: str) -> None:
    """Raise WorkspaceError if something else than a file or a link stands at the place to write."""
    try:
        found = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return
    if not (stat.S_ISREG(found.st_mode) or stat.S_ISLNK(found.st_mode)):
        raise WorkspaceError("not_regular", f'"{path}" is {_kind_name(found.st_mode)}')


def _listed(directory: int, name: str) -> Listed | None:
    try:
        found = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None
    mode = found.st_mode
    if stat.S_ISREG(mode):
        return Listed(name, "file", found.st_size)
    if stat.S_ISDIR(mode):
        return Listed(name, "directory", 0)
    return Listed(name, "link" if stat.S_ISLNK(mode) else "other", 0)


def _kind_name(mode: int) -> str:
    if stat.S_ISDIR(mode):
        return "a directory"
    if stat.S_ISLNK(mode):
        return "a link"
    if stat.S_ISFIFO(mode):
        return "a FIFO"
    if stat.S_ISSOCK(mode):
        return "a socket"
    return "a device"


def _told(path: str, error: OSError) -> WorkspaceError:
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return WorkspaceError("missing", f'"{path}" does not exist')
    if error.errno == errno.ELOOP:  # swapped for a link after it was looked at
        return WorkspaceError("outside", f'"{path}" is a link, or was replaced by one')
    if error.errno == errno.EISDIR:
        return WorkspaceError("not_regular", f'"{path}" is a directory')
    if error.errno in (errno.ENXIO, errno.ENODEV):
        return WorkspaceError("not_regular", f'"{path}" is no regular file')
    if error.errno in (errno.EACCES, errno.EPERM):
        return WorkspaceError("denied", f'"{path}" may not be opened by this user')
    return WorkspaceError("failed", f'"{path}": {os.strerror(error.errno or errno.EIO)}')
