"""Appends lines to the newest segment: one write and one sync for each call. Used by the writer thread alone.

After a failed sync nothing is written any more (page 000 §7): a second one may falsely succeed. The same
holds when the directory or a segment was deleted or replaced: what is written then is lost with the open
descriptor.
"""

from __future__ import annotations

import errno
import os

from agentflow.errors import LogFailed, StorageUnavailable, StoreError
from agentflow.events.files import open_durably
from agentflow.events.identity import FileIdentity
from agentflow.events.segments.files import StoreFiles
from agentflow.events.segments.index import Index, Segment

__all__ = ["SegmentWriter"]

# After these nothing was taken and it may be taken later; after any other error the disk cannot be trusted.
_UNTAKEN = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS})

# What a sync says when it fails; a call that writes files of its own is not asked which step failed.
_BROKEN = frozenset({errno.EIO, errno.ENXIO, errno.ENODEV})


class SegmentWriter:
    """The newest segment of `index`, open. `failure` is read by other threads."""

    def __init__(self, files: StoreFiles, index: Index) -> None:
        self._files = files
        self._index = index
        self.failure: LogFailed | None = None
        self.lost = False
        """True if the log failed because its files are no longer those under its path."""
        newest = index.segments.get(index.end[0])
        if newest is not None and newest.first_version:  # a segment holds lines of one form
            index.end = (index.end[0] + 1, 0)
        self._fd = self._open(index.end[0])
        self._lock = FileIdentity(files.lock)

    def _open(self, number: int) -> int:
        path = self._files.segment(number)
        fd = open_durably(path)
        if number not in self._index.segments:
            self._index.segments[number] = Segment(FileIdentity(path, fd))
        return fd

    def append(self, data: bytes) -> None:
        """Append lines, durably. Raises StorageUnavailable or LogFailed; then nothing of them is there."""
        position = self._index.end[1]
        try:
            written = 0
            while written < len(data):
                written += os.pwrite(self._fd, memoryview(data)[written:], position + written)
        except OSError as error:
            self._take_back(position, error)
            raise self.failure or _unavailable(error) from error
        try:
            os.fdatasync(self._fd)
        except OSError as error:
            raise self._fail(error) from error
        self.check()

    def _take_back(self, end: int, cause: OSError) -> None:
        """Remove what a failed write has left, so that the next batch follows the last whole one."""
        try:
            os.ftruncate(self._fd, end)
            # Else a power failure may leave lines of it among those of the next batches, which have their
            # numbers.
            os.fsync(self._fd)
        except OSError as error:
            self._fail(error)
        if cause.errno not in _UNTAKEN:
            self._fail(cause)

    def roll(self) -> None:
        """Begin another segment; the newest grows on if there is no space for that."""
        number, position = self._index.end
        if self.failure is not None or not position:
            return
        old = self._fd
        try:
            self.check()
            os.fsync(old)  # also that what a failed write had left is gone
            self._fd = self._open(number + 1)
        except LogFailed:
            return
        except OSError as error:
            if error.errno not in _UNTAKEN:
                self._fail(error)
            return
        self._index.end = (number + 1, 0)
        os.close(old)

    def close(self) -> None:
        """Close the segment; there will be no more lines."""
        os.close(self._fd)

    # -- the end of all writing

    def check(self) -> None:
        """Raise LogFailed, now and from now on, if the newest segment is no longer at its path."""
        self._verify(self._index.segments[self._index.end[0]].identity)
        if self.lost and (failed := self.refused()) is not None:
            raise failed

    def check_all(self) -> None:
        """Fail the log if the lock or a segment is no longer at its path."""
        for identity in (self._lock, *(segment.identity for segment in self._index.segments.values())):
            self._verify(identity)

    def _verify(self, identity: FileIdentity) -> None:
        try:
            identity.verify()
        except LogFailed as lost:
            self.lost = True
            self.failure = self.failure or lost

    def _fail(self, error: OSError) -> LogFailed:
        """Accept nothing more because of `error`; return what to raise."""
        lost = LogFailed(
            f"the store failed: {error.strerror}",
            hint="check the disk and start again; what was acknowledged is kept",
        )
        self.failure = self.failure or lost
        return lost

    def refused(self) -> LogFailed | None:
        """Return a new error that says why nothing is accepted any more, None if all is well."""
        failure = self.failure
        return None if failure is None else LogFailed(str(failure), hint=failure.hint)

    def error_of_call(self, error: OSError) -> StoreError:
        """Return what a call that writes files of its own is told of an OSError."""
        self.check_all()
        if (failed := self.refused()) is not None:
            return failed
        if error.errno in _UNTAKEN:
            return _unavailable(error)
        if error.errno in _BROKEN:
            return self._fail(error)
        return StoreError(f"the store failed: {error.strerror}")


def _unavailable(error: OSError) -> StorageUnavailable:
    return StorageUnavailable(
        f"the store takes nothing now: {error.strerror}",
        hint="see that the store's disk has space and can be written to; runs go on by themselves",
    )
