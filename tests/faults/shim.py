"""Stands between a store and the operating system, inside the process: to note, stop or kill it at any call.

Python code is caught at the functions of `os` and `open`, SQLite at its layer for the operating system (a VFS
that hands everything on to the one it replaces). What passes by other ways is not seen; `test_power_loss`
holds the shim against what strace sees.
"""

from __future__ import annotations

import _sqlite3
import contextlib
import ctypes
import io
import os
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any

from tests.faults.calls import Call, Hook

__all__ = ["Shim", "below", "shim_works"]


class Shim:
    """What is done below `root`: noted in `calls`, after `hook` has let it pass."""

    def __init__(self, root: Path, hook: Hook | None = None) -> None:
        self.root = f"{root}/"
        self.hook = hook
        self.calls: list[Call] = []
        # Held over each call, so that `calls` has the order in which things happened.
        self.lock = threading.RLock()

    def path_of(self, path: str | os.PathLike[str]) -> str | None:
        """Relative to the root; None if it is not below it, or is no file that a disk keeps."""
        text = os.path.abspath(path)
        if text + "/" == self.root:
            return "."
        if not text.startswith(self.root) or text.endswith("-shm"):
            return None
        return text[len(self.root) :]

    def path_of_fd(self, fd: int) -> str | None:
        return self.path_of(os.readlink(f"/proc/self/fd/{fd}"))

    def before(self, call: Call) -> None:
        """OSError if the hook says so."""
        if self.hook is not None:
            number = self.hook(call)
            if number:
                if call.kind == "sync":
                    self.calls.append(call._replace(kind="sync_fails"))
                raise OSError(number, os.strerror(number))

    def say(self, line: str) -> None:
        """A line of the program's own output."""
        with self.lock:
            self.calls.append(Call("said", "", data=line.encode()))


_current: Shim | None = None


@contextlib.contextmanager
def below(root: Path, hook: Hook | None = None) -> Generator[Shim, None, None]:
    """Watch what this process does below `root`; files that SQLite has opened before are not watched."""
    global _current
    assert _current is None
    _install()
    _current = Shim(root, hook)
    try:
        yield _current
    finally:
        _current = None


# -- Python

_real = {
    name: getattr(os, name)
    for name in ("open", "pwrite", "write", "fsync", "fdatasync", "ftruncate", "unlink", "rename", "mkdir")
}
_UNWATCHED = (
    "pwritev",
    "writev",
    "truncate",
    "link",
    "symlink",
    "sendfile",
    "posix_fallocate",
    "copy_file_range",
)
_MAKES = os.O_CREAT | os.O_TRUNC


def _open(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
    shim = _current
    name = shim.path_of(path) if shim is not None and flags & _MAKES else None
    if shim is None or name is None:
        return _real["open"](path, flags, mode, dir_fd=dir_fd)
    with shim.lock:
        there = os.path.exists(path)
        if not there:
            shim.before(Call("create", name))
        elif flags & os.O_TRUNC:
            shim.before(Call("truncate", name))
        fd = _real["open"](path, flags, mode)
        if not there:
            shim.calls.append(Call("create", name))
        elif flags & os.O_TRUNC:
            shim.calls.append(Call("truncate", name))
        return fd


def _write_at(fd: int, data: Any, at: int | None) -> int:
    shim = _current
    name = shim.path_of_fd(fd) if shim is not None else None
    if shim is None or name is None:
        return _real["write"](fd, data) if at is None else _real["pwrite"](fd, data, at)
    with shim.lock:
        position = os.lseek(fd, 0, os.SEEK_CUR) if at is None else at
        call = Call("write", name, position, bytes(data))
        shim.before(call)
        size = _real["write"](fd, data) if at is None else _real["pwrite"](fd, data, at)
        shim.calls.append(call._replace(data=call.data[:size]))
        return size


def _sync(fd: int) -> None:
    shim = _current
    name = shim.path_of_fd(fd) if shim is not None else None
    if shim is None or name is None:
        _real["fsync"](fd)
        return
    with shim.lock:
        call = Call("sync_directory" if (Path(shim.root) / name).is_dir() else "sync", name)
        shim.before(call)
        _real["fsync"](fd)
        shim.calls.append(call)


def _ftruncate(fd: int, length: int) -> None:
    shim = _current
    name = shim.path_of_fd(fd) if shim is not None else None
    if shim is None or name is None:
        _real["ftruncate"](fd, length)
        return
    with shim.lock:
        call = Call("truncate", name, length)
        shim.before(call)
        _real["ftruncate"](fd, length)
        shim.calls.append(call)


def _named(kind: Any, real: str, path: Any, to: Any = "", *rest: Any, **more: Any) -> None:
    """A call on names: unlink, rename, mkdir."""
    shim = _current
    name = shim.path_of(path) if shim is not None else None
    arguments = (path, *((to,) if to != "" else ()), *rest)
    if shim is None or name is None:
        _real[real](*arguments, **more)
        return
    with shim.lock:
        call = Call(kind, name, to=(shim.path_of(to) or "") if kind == "rename" else "")
        shim.before(call)
        _real[real](*arguments, **more)
        shim.calls.append(call)


class _RawFile(io.FileIO):
    """A file that Python writes through functions that are watched."""

    def write(self, data: Any) -> int:
        return _write_at(self.fileno(), data, None)

    def truncate(self, size: int | None = None) -> int:
        length = self.tell() if size is None else size
        _ftruncate(self.fileno(), length)
        return length


def _buffered(file: Any, mode: str) -> Any:
    raw = _RawFile(file, mode.replace("b", ""), opener=_opener)
    return io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)


def _opener(path: str, flags: int) -> int:
    return _open(path, flags, 0o666)


_real_open = io.open
_real_fdopen = os.fdopen


def _io_open(file: Any, mode: str = "r", *arguments: Any, **more: Any) -> Any:
    shim = _current
    if shim is None or "b" not in mode or mode in ("rb", "br"):
        return _real_open(file, mode, *arguments, **more)
    name = shim.path_of_fd(file) if isinstance(file, int) else shim.path_of(file)
    return _real_open(file, mode, *arguments, **more) if name is None else _buffered(file, mode)


def _unwatched(name: str) -> Any:
    real = getattr(os, name)

    def call(*arguments: Any, **more: Any) -> Any:
        if _current is not None:
            raise AssertionError(f"the shim does not know os.{name}")
        return real(*arguments, **more)

    return call


_installed = False


def _install() -> None:
    """Once for the process; without a current Shim all goes its usual way."""
    global _installed
    if _installed:
        return
    _installed = True
    os.open = _open
    os.pwrite = _write_at
    os.write = lambda fd, data: _write_at(fd, data, None)
    os.fsync = os.fdatasync = _sync
    os.ftruncate = _ftruncate
    os.unlink = os.remove = lambda path, **more: _named("unlink", "unlink", path, **more)
    os.rename = os.replace = lambda path, to, **more: _named("rename", "rename", path, to, **more)
    os.mkdir = lambda path, mode=0o777, **more: _named("mkdir", "mkdir", path, mode, **more)
    io.open = _io_open
    os.fdopen = _io_open
    for name in _UNWATCHED:
        setattr(os, name, _unwatched(name))
    _install_vfs()


# -- SQLite

_int, _ptr, _i64, _text = ctypes.c_int, ctypes.c_void_p, ctypes.c_int64, ctypes.c_char_p
_OPEN = ctypes.CFUNCTYPE(_int, _ptr, _ptr, _ptr, _int, ctypes.POINTER(_int))
_DELETE = ctypes.CFUNCTYPE(_int, _ptr, _text, _int)
_WRITE = ctypes.CFUNCTYPE(_int, _ptr, _ptr, _int, _i64)
_TRUNCATE = ctypes.CFUNCTYPE(_int, _ptr, _i64)
_SYNC = ctypes.CFUNCTYPE(_int, _ptr, _int)

_SQLITE_FULL = 13
_IOERR_WRITE, _IOERR_FSYNC, _IOERR_TRUNCATE, _IOERR_DELETE = (10 | n << 8 for n in (3, 4, 6, 10))
_CANTOPEN = 14
_JOURNAL_OR_WAL = 0x00000800 | 0x00080000


class _Vfs(ctypes.Structure):
    _fields_ = [
        ("iVersion", _int),
        ("szOsFile", _int),
        ("mxPathname", _int),
        ("pNext", _ptr),
        ("zName", _text),
        ("pAppData", _ptr),
        ("xOpen", _OPEN),
        ("xDelete", _DELETE),
        ("others", _ptr * 14),
    ]


class _Methods(ctypes.Structure):
    _fields_ = [
        ("iVersion", _int),
        ("xClose", _ptr),
        ("xRead", _ptr),
        ("xWrite", _WRITE),
        ("xTruncate", _TRUNCATE),
        ("xSync", _SYNC),
        ("others", _ptr * 13),
    ]


def _library() -> ctypes.CDLL | None:
    """The SQLite that `sqlite3` uses; None if it hides its functions."""
    try:
        library = ctypes.CDLL(_sqlite3.__file__)
        library.sqlite3_vfs_find.restype = ctypes.POINTER(_Vfs)
        library.sqlite3_vfs_register.argtypes = [_ptr, _int]
    except (OSError, AttributeError):
        return None
    return library


def shim_works() -> bool:
    """Whether SQLite can be watched in this process."""
    return _library() is not None and os.path.exists("/proc/self/fd")


class _File:
    def __init__(self, path: str, real: _Methods, new_names: bool) -> None:
        self.path = path
        self.real = real
        self.sync_directory = new_names  # of a journal, SQLite makes the name durable with the first sync


_files: dict[int, _File] = {}
_tables: dict[int, _Methods] = {}  # by the address of the table that they replace; never freed
_kept: list[Any] = []


def _watch(call: Call, failed: int, make: Any) -> int:
    """Make a call of SQLite's; its code, or `failed` (SQLITE_FULL: no space) if the hook stops it."""
    shim = _current
    if shim is None:
        return make()
    name = shim.path_of(call.path)
    if name is None:
        return make()
    call = call._replace(path=name)
    with shim.lock:
        try:
            shim.before(call)
        except OSError as error:
            return _SQLITE_FULL if error.errno == 28 else failed
        code = make()
        if code == 0:
            shim.calls.append(call)
        return code


def _install_vfs() -> None:
    library = _library()
    if library is None:
        return
    real = library.sqlite3_vfs_find(None).contents
    ours = _Vfs.from_buffer_copy(real)
    real_open, real_delete = real.xOpen, real.xDelete

    def x_open(vfs: int, path: int, file: int, flags: int, out: Any) -> int:
        text = ctypes.string_at(path).decode() if path else ""
        there = not text or os.path.exists(text)

        def make() -> int:
            return real_open(vfs, path, file, flags, out)

        code = make() if there else _watch(Call("create", text), _CANTOPEN, make)
        if code == 0 and text and not text.endswith("-shm"):
            _take_over(file, text, bool(flags & _JOURNAL_OR_WAL))
        return code

    def x_delete(vfs: int, path: bytes, sync: int) -> int:
        text = path.decode()
        if not os.path.exists(text):
            return real_delete(vfs, path, sync)
        code = _watch(Call("unlink", text), _IOERR_DELETE, lambda: real_delete(vfs, path, sync))
        if code == 0 and sync:
            code = _watch(Call("sync_directory", os.path.dirname(text)), _IOERR_FSYNC, lambda: 0)
        return code

    ours.xOpen, ours.xDelete = _OPEN(x_open), _DELETE(x_delete)
    ours.zName = b"watched"
    _kept.extend((ours, library))
    assert library.sqlite3_vfs_register(ctypes.addressof(ours), 1) == 0


def _take_over(file: int, path: str, new_names: bool) -> None:
    """Put our functions for writing, truncating and syncing into an open file."""
    methods = ctypes.cast(file, ctypes.POINTER(_ptr))
    address = methods[0]
    real = ctypes.cast(address, ctypes.POINTER(_Methods)).contents
    _files[file] = _File(path, real, new_names)
    table = _tables.get(address)
    if table is None:
        table = _tables[address] = _Methods.from_buffer_copy(real)
        table.xWrite, table.xTruncate, table.xSync = _x_write, _x_truncate, _x_sync
    methods[0] = ctypes.addressof(table)


@_WRITE
def _x_write(file: int, data: int, size: int, at: int) -> int:
    known = _files[file]
    call = Call("write", known.path, at, ctypes.string_at(data, size))
    return _watch(call, _IOERR_WRITE, lambda: known.real.xWrite(file, data, size, at))


@_TRUNCATE
def _x_truncate(file: int, length: int) -> int:
    known = _files[file]
    call = Call("truncate", known.path, length)
    return _watch(call, _IOERR_TRUNCATE, lambda: known.real.xTruncate(file, length))


@_SYNC
def _x_sync(file: int, flags: int) -> int:
    known = _files[file]
    code = _watch(Call("sync", known.path), _IOERR_FSYNC, lambda: known.real.xSync(file, flags))
    if code == 0 and known.sync_directory:
        known.sync_directory = False
        directory = os.path.dirname(known.path)
        code = _watch(Call("sync_directory", directory), _IOERR_FSYNC, lambda: 0)
    return code
