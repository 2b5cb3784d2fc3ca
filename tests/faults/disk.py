"""A disk that loses power: from the calls of a program to every state that its files may be found in.

What was synced is there. Of what was not, each 512-byte sector is found as it was at any moment since, on its
own; the length of the file too; and of the names in a directory that was not synced, any number of the last
changes may be missing. A file can therefore be torn, full of holes, too long, too short, there again, still
under its old name, or not there.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from tests.faults.calls import Call

__all__ = ["Disk", "Image", "write_image"]

SECTOR = 512
PAGE = 4_096

Image = dict[str, bytes | None]
"""Files by path, None for a directory."""


class _File:
    """A file's durable bytes and what was done to it since. A directory has no bytes."""

    def __init__(self, directory: bool = False) -> None:
        self.directory = directory
        self.durable = b""
        self.pending: list[Call] = []
        self.stale: bytes | None = None
        """What a program reads that a failed sync has left unwritten, with all that is durable."""
        self.sync_begun: list[int] = []

    def begin_sync(self) -> None:
        self.sync_begun.append(len(self.pending))

    def end_sync(self) -> None:
        done = self.sync_begun.pop(0)
        calls = self.pending[:done]
        view = bytearray(self._base())
        for call in calls:
            _apply(view, call)
        if self.stale is None:
            self.durable = bytes(view)
        else:
            self._write_out_pages(calls, bytes(view))
        del self.pending[:done]
        self.sync_begun = [max(0, n - done) for n in self.sync_begun]

    def _write_out_pages(self, calls: list[Call], view: bytes) -> None:
        """Only the pages that these calls have touched, as they are seen."""
        durable = bytearray(self.durable)
        for call in calls:
            if call.kind == "truncate":
                _apply(durable, call)
            else:
                first, last = call.at // PAGE * PAGE, -(-(call.at + len(call.data)) // PAGE) * PAGE
                _apply(durable, call._replace(at=first, data=view[first:last]))
        self.durable = bytes(durable)
        self.stale = None if view == self.durable else view

    def fail_sync(self) -> None:
        """What is pending will not be written by any later sync, unless it is written again."""
        self.stale = self.now()
        self.pending = []
        self.sync_begun = [0] * len(self.sync_begun)

    def _base(self) -> bytes:
        """As a program sees the file without the pending calls."""
        return self.durable if self.stale is None else self.stale

    def now(self, upto: int | None = None) -> bytes:
        """As a program sees it, when so many of the pending calls were made."""
        view = bytearray(self._base())
        for call in self.pending[:upto]:
            _apply(view, call)
        return bytes(view)

    def torn(self, seed: random.Random) -> bytes:
        """As it is found when each sector and the length went to the disk at some moment of their own."""
        view = bytearray(self._base())
        lengths = [len(self.durable)]
        versions: dict[int, list[bytes]] = {}
        for call in self.pending:
            _apply(view, call)
            lengths.append(len(view))
            if call.kind == "write":
                for sector in range(call.at // SECTOR, (call.at + len(call.data) - 1) // SECTOR + 1):
                    start = sector * SECTOR
                    versions.setdefault(sector, [self.durable[start : start + SECTOR]]).append(
                        bytes(view[start : start + SECTOR])
                    )
        length = seed.choice((lengths[-1], seed.choice(lengths)))
        found = bytearray(self.durable[:length].ljust(length, b"\0"))
        eager = seed.random()
        for sector, contents in versions.items():
            content = contents[-1] if seed.random() < eager else seed.choice(contents)
            start = sector * SECTOR
            if start < length:
                room = min(SECTOR, length - start)
                found[start : start + room] = content.ljust(SECTOR, b"\0")[:room]
        return bytes(found)


def _apply(view: bytearray, call: Call) -> None:
    if call.kind == "truncate":
        del view[call.at :]
        view.extend(bytes(call.at - len(view)))
    else:
        view.extend(bytes(max(0, call.at - len(view))))
        view[call.at : call.at + len(call.data)] = call.data


_Change = tuple[tuple[str, _File | None], ...]
"""Names, and the file each stands for from then on; all or none of it reaches the disk."""


class Disk:
    """The state of the disk after each call that it was told of."""

    def __init__(self) -> None:
        self._names: dict[str, _File] = {}  # as programs see them
        self._durable: dict[str, _File] = {}
        self._changes: list[_Change] = []

    @classmethod
    def holding(cls, image: Image) -> Disk:
        """A disk that has nothing but these files, all of them durable."""
        disk = cls()
        for path, content in image.items():
            file = disk._names[path] = disk._durable[path] = _File(content is None)
            file.durable = content or b""
        return disk

    def copy(self) -> Disk:
        """The same disk, to go another way."""
        return copy.deepcopy(self)

    def do(self, call: Call) -> None:
        """One call more."""
        match call.kind:
            case "create" | "mkdir":
                if call.path not in self._names:
                    self._change((call.path, _File(call.kind == "mkdir")))
            case "unlink":
                self._change((call.path, None))
            case "rename":
                self._change((call.to, self._names[call.path]), (call.path, None))
            case "sync_directory":
                self._sync_directory(call.path)
            case "said":
                pass
            case _:
                file = self._names.get(call.path)
                if file is not None:  # else it has no name any more, and nobody will find it
                    self._do_to(file, call)

    @staticmethod
    def _do_to(file: _File, call: Call) -> None:
        if call.kind in ("write", "truncate"):
            file.pending.append(call)
            return
        if call.kind == "sync_fails":
            file.fail_sync()
            return
        if call.kind == "sync_begins" or not file.sync_begun:
            file.begin_sync()
        if call.kind == "sync":
            file.end_sync()

    def _change(self, *names: tuple[str, _File | None]) -> None:
        self._changes.append(names)
        _rename(self._names, names)

    def _sync_directory(self, path: str) -> None:
        left: list[_Change] = []
        for change in self._changes:
            if str(PurePosixPath(change[0][0]).parent) == path:
                _rename(self._durable, change)
            else:
                left.append(change)
        self._changes = left

    def seen(self) -> Image:
        """The files as programs see them: what a killed program leaves behind."""
        return self._image(self._names, _File.now)

    def synced(self) -> Image:
        """Nothing that was not synced."""
        return self._image(self._durable, lambda file: file.durable)

    def without_last(self, count: int) -> Image:
        """All names, and every file without its last so many writes."""
        return self._image(self._names, lambda file: file.now(max(0, len(file.pending) - count)))

    def found(self, seed: random.Random) -> Image:
        """One of the states that a power failure may leave."""
        names = dict(self._durable)
        changes = self._changes
        if seed.random() < 0.5:  # a journal: the first so many changes
            changes = changes[: seed.randint(0, len(changes))] if seed.random() < 0.7 else changes
        else:  # none: each name by itself
            kept = {change[0][0]: seed.random() for change in changes}
            changes = [change for change in changes if seed.random() < kept[change[0][0]]]
        for change in changes:
            _rename(names, change)

        def content(file: _File) -> bytes:
            way = seed.random()
            if way < 0.15:
                return file.durable
            if way < 0.35:
                return file.now()
            if way < 0.5:
                return self._cut_short(file, seed)
            return file.torn(seed)

        return self._image(names, content)

    @staticmethod
    def _cut_short(file: _File, seed: random.Random) -> bytes:
        """The first so many calls, the last of them in part."""
        count = seed.randint(0, len(file.pending))
        view = bytearray(file.now(count))
        if count < len(file.pending) and (last := file.pending[count]).kind == "write":
            _apply(view, last._replace(data=last.data[: seed.randint(0, len(last.data))]))
        return bytes(view)

    @staticmethod
    def _image(names: dict[str, _File], content: Callable[[_File], bytes]) -> Image:
        contents: dict[int, bytes] = {}
        image: Image = {}
        for path in sorted(names):
            file = names[path]
            parent = str(PurePosixPath(path).parent)
            if parent != "." and parent not in image:
                continue  # its directory was lost, and all below it
            if file.directory:
                image[path] = None
            else:  # one file under two names is one content
                image[path] = contents.setdefault(id(file), content(file))
        return image


def _rename(names: dict[str, _File], change: _Change) -> None:
    for name, file in change:
        if file is None:
            names.pop(name, None)
        else:
            names[name] = file


def write_image(image: Image, directory: Path) -> None:
    """Make the files of the image below `directory`, which is empty."""
    for path, content in image.items():
        if content is None:
            (directory / path).mkdir()
        else:
            (directory / path).write_bytes(content)
