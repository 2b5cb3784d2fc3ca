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
from agentflow.events.segments.index import Segment
from agentflow.events.segments.recovery import Recovered

__all__ = ["SegmentWriter"]

# After these nothing was taken and it may be taken later; after any other error the disk cannot be trusted.
_UNTAKEN = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS})

# What a sync says when it fails; a call that writes files of its own is not asked which step failed.
_BROKEN = frozenset({errno.EIO, errno.ENXIO, errno.ENODEV})


class SegmentWriter:
    """The open end of what `recover` has found. `end` and `failure` are read by other threads."""

    def __init__(self, files: StoreFiles, found: Recovered) -> None:
        self._files = files
        self._segments = found.index.segments
        self.failure: LogFailed | None = None
        self.lost = False
        """True if the log failed because its files are no longer those under its path."""
        self.batch = found.batch
        """The last durable batch."""
        self.last = found.last
        """Run and first offset of that batch, None if it is about more than one removal."""
        newest = self._segments.get(found.segment)
        self.end = (max(found.segment, 1), found.end)
        """Segment and position up to which everything is durable."""
        if newest is not None and newest.first_form:  # a segment holds lines of one form
            self.end = (found.segment + 1, 0)
        self._fd, self._newest = self._open(self.end[0])
        self._lock = FileIdentity(files.lock)

    def _open(self, number: int) -> tuple[int, FileIdentity]:
        path = self._files.segment(number)
        fd = open_durably(path)
        identity = FileIdentity(path, fd)
        self._segments.setdefault(number, Segment(number, identity))
        return fd, identity

    # -- lines

    def append(self, data: bytes, batches: int, last: tuple[str, int] | None) -> int:
        """Append lines that hold so many batches, durably; return the position of the first.

        Raises StorageUnavailable or LogFailed; then nothing of them is there. The caller moves on with
        `advance` once the index holds the lines.
        """
        position = self.end[1]
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
        self.batch += batches
        self.last = last
        return position

    def advance(self, length: int) -> None:
        """Let readers see `length` bytes more."""
        number, position = self.end
        self._segments[number].size = position + length
        self.end = (number, position + length)

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
        if self.failure is not None or not self.end[1]:
            return
        old = self._fd
        try:
            self.check()
            os.fsync(old)  # also that what a failed write had left is gone
            self._fd, self._newest = self._open(self.end[0] + 1)
        except LogFailed:
            return
        except OSError as error:
            if error.errno not in _UNTAKEN:
                self._fail(error)
            return
        self.end = (self.end[0] + 1, 0)
        os.close(old)

    def close(self) -> None:
        """Close the segment; there will be no more lines."""
        os.close(self._fd)

    # -- the end of all writing

    def check(self) -> None:
        """Raise LogFailed, now and from now on, if the newest segment is no longer at its path."""
        try:
            self._newest.verify()
        except LogFailed as lost:
            self._lose(lost)
            raise

    def check_all(self) -> None:
        """Fail the log if the lock or a segment is no longer at its path."""
        for identity in (self._lock, *(segment.identity for segment in self._segments.values())):
            try:
                identity.verify()
            except LogFailed as lost:
                self._lose(lost)
                return

    def _fail(self, error: OSError) -> LogFailed:
        """Accept nothing more because of `error`; return what to raise."""
        lost = LogFailed(
            f"the store failed: {error.strerror}",
            hint="check the disk and start again; what was acknowledged is kept",
        )
        self.failure = self.failure or lost
        return lost

    def _lose(self, failure: LogFailed) -> None:
        self.lost = True
        self.failure = self.failure or failure

    def refused(self) -> LogFailed | None:
        """Return a new error that says why nothing is accepted any more, None if all is well."""
        failure = self.failure
        return None if failure is None else LogFailed(str(failure), hint=failure.hint)

    def error_of_call(self, error: OSError) -> StoreError:
        """Return what a call that writes files of its own is told of an OSError."""
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
