"""The sockets of the daemon: bound here, so that their modes and their owner are the daemon's business.

A Unix socket is made with mode 0600 in a folder of mode 0700; one that a dead daemon left is replaced, one
that a process listens on is not. Sockets that systemd hands over are taken as they are.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import ipaddress
import os
import socket
import stat
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from agentflow.config import ServerConfig, default_socket
from agentflow.errors import ConfigurationError

__all__ = ["BACKLOG", "Listener", "Listeners", "bind_all"]

Kind = Literal["unix", "loopback", "remote"]
"""Reach of a socket: users who may open the file, users of this machine, all hosts."""

_FIRST_FD = 3  # of socket activation, says sd_listen_fds(3)
BACKLOG = 4_096
_LONGEST = 107  # bytes of a socket's path


class Listener:
    """A listening socket. `name` is how a person would reach it."""

    def __init__(self, sock: socket.socket, kind: Kind, name: str) -> None:
        self.sock = sock
        self.kind: Kind = kind
        self.name = name


class Listeners:
    """All sockets of a daemon, and what has to be put back when it leaves."""

    def __init__(self) -> None:
        self.listeners: list[Listener] = []
        self._files: list[tuple[Path, int]] = []  # path and inode
        self._locks: list[int] = []

    def __iter__(self) -> Iterator[Listener]:
        return iter(self.listeners)

    @property
    def kinds(self) -> set[Kind]:
        """Of all listeners."""
        return {listener.kind for listener in self.listeners}

    def add_unix(self, path: Path, *, private: bool = False) -> None:
        """Bind a Unix socket. `private`: its folder is agentflow's own, so it is closed to others.

        ConfigurationError when another daemon listens there, or the socket cannot be made.
        """
        if len(os.fsencode(path)) > _LONGEST:
            raise ConfigurationError(
                f"the path of the socket is longer than {_LONGEST} bytes: {path}", hint="choose a shorter one"
            )
        try:
            _own_folder(path.parent, private)
            lock = _lock_beside(path)
        except OSError as error:
            raise ConfigurationError(f"{path} cannot be made: {error.strerror}") from error
        self._locks.append(lock)
        _remove_stale(path)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with _private_mode():
                sock.bind(str(path))
            self._files.append((path, path.stat().st_ino))
            sock.listen(BACKLOG)
        except OSError as error:
            sock.close()
            raise ConfigurationError(f"{path} cannot be listened on: {error.strerror}") from error
        self._add(sock, "unix", f"unix:{path}")

    def add_tcp(self, address: str) -> None:
        """Bind `HOST:PORT`, on every address that HOST has. ConfigurationError."""
        host, port = split_address(address)
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        except OSError as error:
            raise ConfigurationError(f"{host!r} is no address of this machine: {error.strerror}") from error
        for family, place in {info[4][0]: (info[0], info[4]) for info in found}.values():
            # The protocol must be named: otherwise asyncio leaves Nagle's algorithm on (40 ms a request).
            sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
            try:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                sock.bind((place[0], port, *place[2:]))
                port = sock.getsockname()[1]  # one port, also when it was for the system to choose
                sock.listen(BACKLOG)
            except OSError as error:
                sock.close()
                hint = "another program listens there" if error.errno == errno.EADDRINUSE else None
                raise ConfigurationError(
                    f"{address} cannot be listened on: {error.strerror}", hint=hint
                ) from error
            self._add_bound(sock)

    def add_activated(self, env: Mapping[str, str]) -> bool:
        """Take the sockets that systemd passed to this process, if it did."""
        if env.get("LISTEN_PID") != str(os.getpid()):
            return False
        count = int(env.get("LISTEN_FDS", "0") or 0)
        for fd in range(_FIRST_FD, _FIRST_FD + count):
            os.set_inheritable(fd, False)
            sock = socket.socket(fileno=fd)
            if sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) != 1:
                raise ConfigurationError(f"the socket {fd} that systemd passed does not listen")
            if sock.family == socket.AF_UNIX:
                self._add(sock, "unix", f"unix:{os.fsdecode(sock.getsockname())}")
            else:
                self._add_bound(sock)
        return count > 0

    def close(self) -> None:
        """Close all, and remove the socket files that are still ours."""
        for listener in self.listeners:
            listener.sock.close()
        for path, inode in self._files:
            with contextlib.suppress(OSError):
                if path.stat().st_ino == inode:
                    path.unlink()
        for lock in self._locks:
            os.close(lock)
        self.listeners, self._files, self._locks = [], [], []

    def _add_bound(self, sock: socket.socket) -> None:
        host, port = sock.getsockname()[:2]
        kind: Kind = "loopback" if ipaddress.ip_address(host.partition("%")[0]).is_loopback else "remote"
        shown = f"[{host}]" if ":" in host else host
        self._add(sock, kind, f"http://{shown}:{port}")

    def _add(self, sock: socket.socket, kind: Kind, name: str) -> None:
        sock.setblocking(False)
        self.listeners.append(Listener(sock, kind, name))


def bind_all(config: ServerConfig, env: Mapping[str, str]) -> Listeners:
    """Bind all sockets of the daemon: those that systemd passed, or the configured (or default) Unix socket;
    and the TCP addresses. Raises ConfigurationError."""
    listeners = Listeners()
    try:
        activated = listeners.add_activated(env)
        if config.socket or (config.socket is None and not activated):
            path = Path(config.socket).absolute() if config.socket else default_socket(env)
            listeners.add_unix(path, private=not config.socket)
        for address in config.listen:
            listeners.add_tcp(address)
        if not listeners.listeners:
            raise ConfigurationError("there is nothing to listen on", hint="name --socket or --listen")
    except BaseException:
        listeners.close()
        raise
    return listeners


def split_address(address: str) -> tuple[str, int]:
    """Split `HOST:PORT`, an IPv6 address in brackets; port 0 takes a free one. Raises ConfigurationError."""
    host, colon, port = address.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        colon = ""
    numeric = port.isascii() and port.isdecimal()
    if not colon or not host or not numeric or int(port) > 65_535:
        raise ConfigurationError(
            f"{address!r} is not an address to listen on", hint="write HOST:PORT, such as 127.0.0.1:8700"
        )
    return host, int(port)


def _own_folder(folder: Path, private: bool) -> None:
    """Create a missing folder for the owner alone; one that exists keeps its mode."""
    missing = [level for level in (folder, *folder.parents) if not level.exists()]
    for level in reversed(missing):
        level.mkdir(mode=0o700, exist_ok=True)
    about = folder.stat()
    if about.st_uid not in (os.geteuid(), 0):
        raise ConfigurationError(
            f"{folder} belongs to user {about.st_uid}", hint="name a folder of your own with --socket"
        )
    if about.st_uid == os.geteuid() and private and about.st_mode & 0o077:
        folder.chmod(0o700)
    elif about.st_mode & 0o022 and not about.st_mode & stat.S_ISVTX:
        raise ConfigurationError(
            f"others may write to {folder}, so they could put a socket of theirs there",
            hint=f"chmod go-w {folder}, or name another folder with --socket",
        )


def _lock_beside(path: Path) -> int:
    """Lock a file beside the socket for as long as the daemon lives, so that only one of two that start
    together listens."""
    lock = os.open(path.with_name(path.name + ".lock"), os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise _taken(path) from None
    return lock


def _remove_stale(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ConfigurationError(f"{path} is there and is no socket", hint="name another path with --socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            path.unlink(missing_ok=True)
            return
        except OSError as error:
            raise ConfigurationError(f"{path} cannot be looked at: {error.strerror}") from error
    raise _taken(path)


def _taken(path: Path) -> ConfigurationError:
    return ConfigurationError(
        f"a daemon listens on {path}", hint="use it, stop it with `agentflow drain`, or name another --socket"
    )


@contextmanager
def _private_mode() -> Generator[None]:
    """Create files with mode 0600 in this block: a change of mode after the bind would come too late."""
    before = os.umask(0o177)
    try:
        yield
    finally:
        os.umask(before)
