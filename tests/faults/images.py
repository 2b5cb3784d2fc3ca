"""Judges the states in which a store may be found, by opening each with the real store."""

from __future__ import annotations

import asyncio
import hashlib
import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from tests.faults.disk import Image, write_image
from tests.faults.promises import Found, Problem, Promises, broken, examine
from tests.faults.tally import Tally

__all__ = ["STORE", "Judge", "is_log", "scratch"]

STORE = "data/log"
"""Where the store lies below its root: in a directory that the store makes itself."""


def is_log(path: str) -> bool:
    """Whether it is a file to which batches are appended."""
    return path.endswith("-wal") or "/segments/" in path


@contextmanager
def scratch() -> Generator[Path, None, None]:
    """A directory that is gone afterwards; in memory where possible, since nothing in it need be durable."""
    memory = Path("/dev/shm")
    directory = Path(tempfile.mkdtemp(prefix="faults-", dir=memory if memory.is_dir() else None))
    try:
        yield directory
    finally:
        shutil.rmtree(directory)


class Judge:
    """Opens images and collects what is wrong. Images with equal bytes are opened once."""

    def __init__(self, kind: str, tally: Tally) -> None:
        self.kind = kind
        self.tally = tally
        self.problems: list[tuple[str, Problem]] = []
        self._known: dict[bytes, Found] = {}
        self._judged: set[tuple[bytes, int]] = set()

    def judge(self, image: Image, promises: Promises, where: str) -> None:
        """Hold the image to the promises made so far; `where` says how it came about."""
        digest = _digest(image)
        key = (digest, len(promises.events) + len(promises.blobs))
        if key in self._judged:
            return
        self._judged.add(key)
        self.tally.images += 1
        found = self._known.get(digest)
        if found is None:
            found = self._known[digest] = self.open(image)
        problems = broken(promises, found)
        self.tally.blame(problems)
        self.problems += [(where, problem) for problem in problems]

    def open(self, image: Image) -> Found:
        """What the store says of the image, and whether it goes on; of some, whether it does so twice."""
        with scratch() as root:
            write_image(image, root)
            url = f"{self.kind}:{root}/{STORE}"
            found = asyncio.run(examine(url))
            if not found.problems and _digest(image)[0] % 3 == 0:
                again = asyncio.run(examine(url, go_on="y"))
                found.problems += again.problems
                if again.events.items() < found.events.items():
                    found.problems.append(("lost", "what the crash had left is gone at the next start"))
            return found

    def verdict(self) -> str:
        """Empty if every promise was kept."""
        return "\n".join(f"{where}: {kind}: {text}" for where, (kind, text) in self.problems[:20])


def _digest(image: Image) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for path in sorted(image):
        content = image[path]
        digest.update(f"{path} {-1 if content is None else len(content)}\n".encode())
        digest.update(content or b"")
    return digest.digest()
