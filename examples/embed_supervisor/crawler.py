"""Find duplicate files below a folder: supervised workers, a rate limit, restarts, a live status.

    python examples/embed_supervisor/crawler.py FOLDER [--workers 4] [--rate 500] [--flaky 0.05]

The status goes to stderr while it works, the result as JSON to stdout. Only `actors` is used, nothing of the
rest of the product: this is how an application of your own embeds it.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import random
import sys
from collections import defaultdict, deque
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

import anyio.to_thread

from actors import (
    Actor,
    ActorSystem,
    Backoff,
    Failed,
    Message,
    OneForOne,
    Pool,
    Ref,
    Reject,
    Reply,
    Restarted,
    on,
)

ATTEMPTS = 3
"""How often a file is tried whose worker crashed."""


@dataclass(frozen=True)
class Take(Message[None]):
    """Wait for the next token of the limiter."""


@dataclass(frozen=True)
class Digest(Message[str]):
    """The hash of a file's content."""

    path: Path


@dataclass(frozen=True)
class Entries(Message[list[Path]]):
    """What a folder contains."""

    path: Path


@dataclass
class Summary:
    folders: int = 0
    files: int = 0
    bytes: int = 0
    unreadable: list[str] = field(default_factory=list[str])
    restarts: int = 0
    duplicates: list[list[str]] = field(default_factory=list[list[str]])


@dataclass(frozen=True)
class Crawl(Message[Summary]):
    """Everything below this folder."""

    path: Path


class Limiter(Actor[Take]):
    """Gives out tokens at a rate: an answer is put off until its time has come."""

    def __init__(self, rate: float) -> None:
        self.interval = 1 / rate
        self.waiting: deque[Reply[None]] = deque()

    @on(Take)
    def take(self, _: Take) -> None:
        self.waiting.append(self.ctx.defer())
        if "next" not in self.ctx.timers:
            self.ctx.timers.start("next", self.interval, "next")

    @on(str)
    def tick(self, _: str) -> None:
        while self.waiting:
            reply = self.waiting.popleft()
            if not reply.abandoned:
                reply.set(None)
                break
        if self.waiting:
            self.ctx.timers.start("next", self.interval, "next")


class Reader(Actor[Digest | Entries]):
    """Reads files in a thread. What cannot be read is the asker's affair; anything else crashes it."""

    def __init__(self, limiter: Ref[Take], flaky: float) -> None:
        self.limiter = limiter
        self.flaky = flaky

    @on(Digest)
    async def digest(self, message: Digest) -> str:
        await self.limiter.ask(Take(), timeout=None)
        if random.random() < self.flaky:
            raise ConnectionError("the disk went away for a moment")
        return await self.read(lambda: hashlib.sha256(message.path.read_bytes()).hexdigest())

    @on(Entries)
    async def entries(self, message: Entries) -> list[Path]:
        return await self.read(lambda: sorted(message.path.iterdir()))

    async def read(self, work: Any) -> Any:
        try:
            return await anyio.to_thread.run_sync(work)
        except (PermissionError, FileNotFoundError) as exc:
            raise Reject(str(exc)) from exc


class Workers(Pool[Digest | Entries], mailbox=200):
    """The pool of readers; tells the crawler about restarts."""

    def __init__(self, limiter: Ref[Take], size: int, flaky: float, crawler: Ref[Any]) -> None:
        patience = OneForOne(max_restarts=1000, within=60, backoff=Backoff(0.01, 0.5, jitter=0.2))
        super().__init__(lambda: Reader(limiter, flaky), size, supervise=patience)
        self.crawler = crawler

    @on(Failed, Restarted)
    def signal(self, signal: Failed | Restarted) -> None:
        if isinstance(signal, Restarted):
            self.crawler.tell(signal)


class Crawler(Actor[Crawl], mailbox=0):
    """Walks the tree: keeps what is to be visited, asks the pool, adds up. Never reads anything itself."""

    def __init__(self, workers: int, rate: float, flaky: float) -> None:
        self.settings = workers, rate, flaky
        self.summary = Summary()
        self.digests: defaultdict[str, list[str]] = defaultdict(list)
        self.open = 0

    async def on_start(self) -> None:
        workers, rate, flaky = self.settings
        limiter = await self.ctx.spawn(lambda: Limiter(rate), "limiter")
        me = self.ctx.self
        self.pool = await self.ctx.spawn(lambda: Workers(limiter, workers, flaky, me), "workers")
        self.ctx.timers.start("status", 0.2, "status", repeat=True)

    @on(Crawl)
    def crawl(self, message: Crawl) -> None:
        if not message.path.is_dir():
            raise Reject(f"{message.path} is not a folder")
        self.reply = self.ctx.defer()
        self.visit(message.path)

    def visit(self, path: Path, attempt: int = 1) -> None:
        self.open += 1
        folder = path.is_dir() and not path.is_symlink()
        question = self.pool.ask(Entries(path) if folder else Digest(path), timeout=60)
        self.ctx.pipe(question, lambda result: (path, attempt, result), lambda exc: (path, attempt, exc))

    @on(tuple)
    def visited(self, message: tuple[Path, int, Any]) -> None:
        path, attempt, result = message
        self.open -= 1
        match result:
            case list():
                self.summary.folders += 1
                for entry in cast("list[Path]", result):
                    self.visit(entry)
            case str():
                self.summary.files += 1
                self.summary.bytes += path.stat().st_size
                self.digests[result].append(str(path))
            case Reject():
                self.summary.unreadable.append(str(path))
            case _ if attempt < ATTEMPTS:
                self.visit(path, attempt + 1)
            case _:
                self.summary.unreadable.append(str(path))
        if not self.open:
            self.summary.duplicates = sorted(paths for paths in self.digests.values() if len(paths) > 1)
            self.summary.unreadable.sort()
            self.reply.set(self.summary)

    @on(Restarted)
    def restarted(self, _: Restarted) -> None:
        self.summary.restarts += 1

    @on(str)
    def status(self, _: str) -> None:
        done = self.summary
        print(
            f"{done.folders} folders, {done.files} files, {self.open} to go, {done.restarts} restarts",
            file=sys.stderr,
        )


async def crawl(folder: Path, *, workers: int = 4, rate: float = 500, flaky: float = 0.0) -> Summary:
    """Crawl a folder in an actor system of its own."""
    async with ActorSystem(name="crawler") as system:
        crawler = await system.spawn(lambda: Crawler(workers, rate, flaky), "crawler")
        return await crawler.ask(Crawl(folder), timeout=3600)


def main() -> int:
    parser = argparse.ArgumentParser(description="Find duplicate files below a folder.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--workers", type=int, default=4, help="files that are read at a time (4)")
    parser.add_argument("--rate", type=float, default=500, help="files that are read in a second (500)")
    parser.add_argument("--flaky", type=float, default=0.0, help="share of reads that crash a worker (0)")
    options = parser.parse_args()
    try:
        summary = asyncio.run(
            crawl(options.folder, workers=options.workers, rate=options.rate, flaky=options.flaky)
        )
    except Reject as exc:
        print(exc, file=sys.stderr)
        return 2
    print(json.dumps(asdict(summary), indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
