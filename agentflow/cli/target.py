"""Targets of commands: runs of a store in this process, or those of the daemon (page 000 §12).

`--url`, then `--store` or `--local`, then AGENTFLOW_URL decide; without any of them a daemon that listens on
the default socket, else this process on the configured store.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import click

from agentflow.cli.names import RunName, resolve_all
from agentflow.cli.options import ExportedRun

if TYPE_CHECKING:
    from agentflow.client import Client
    from agentflow.config import Config
    from agentflow.events.log import EventLog
    from agentflow.records.commands import Resumed
    from agentflow.records.read_model import ReadModel
    from agentflow.records.runs import RunRecord, RunResult, RunSummary
    from agentflow.runtime import Runtime

__all__ = [
    "LocalTarget",
    "RemoteTarget",
    "StoreTarget",
    "Target",
    "Where",
    "open_reader",
    "open_target",
    "read_only_option",
    "target_options",
]

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Where:
    """What the flags said. `store` and `url` as they were given."""

    store: str | None
    url: str | None
    local: bool
    read_only: bool = False
    """Whether the store is opened beside the process that writes to it, if there is one."""
    load: tuple[str, ...] = ()
    """Workflows built in Python, `module:attribute`, that a Runtime of this process registers."""

    @property
    def flags(self) -> tuple[str, ...]:
        """The flags that lead another command to the same runs."""
        found: list[str] = []
        if self.url is not None:
            found += ["--url", self.url]
        if self.store is not None:
            found += ["--store", self.store]
        elif self.local:
            found.append("--local")
        return tuple(found)

    def config(self, on_unknown: Any = None) -> Config:
        """Return the configuration with these flags. Raises ConfigurationError."""
        from agentflow.cli.options import settings_of

        return settings_of(self.store, on_unknown)

    def daemon(self) -> str | None:
        """Return the URL of the daemon that these flags mean; None when the command works in this process."""
        if self.url is not None:
            if self.store is not None or self.local:
                raise click.UsageError("--url names a daemon, --store and --local this process: give one")
            if self.read_only:
                raise click.UsageError("--url names a daemon, --read-only reads the store here: give one")
            return self.url
        if self.store is not None or self.local or self.read_only:
            return None
        named = os.environ.get("AGENTFLOW_URL")
        if named:
            return named
        from agentflow.config import default_socket

        path = default_socket(os.environ)
        return f"unix:{path}" if _listens(str(path)) else None


def _listens(path: str) -> bool:
    """Return whether a daemon answers on this socket: a file alone may be left over from one that died."""
    if not os.path.exists(path):
        return False
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1)
        try:
            probe.connect(path)
        except OSError:
            return False
    return True


def target_options(command: F) -> F:
    """Add `--url URL`, `--store URL` and `--local`, given to the command as one `where`."""
    from functools import wraps

    @wraps(command)
    def call(*args: Any, store: str | None, url: str | None, local: bool, **more: Any) -> Any:
        where = Where(store, url, local)
        if any(isinstance(value, RunName) for value in more.values()):
            more = resolve_all(replace(where, read_only=more.get("read_only", False)), more)
        return command(*args, where=where, **more)

    found: Any = click.option(
        "--local", is_flag=True, help="Work in this process on the store, although a daemon listens."
    )(call)
    found = click.option(
        "--store",
        metavar="URL",
        help="Work in this process on this store: sqlite:FILE, file:DIR or memory:. Without a daemon the"
        " default is AGENTFLOW_STORE, `store` in agentflow.toml, else"
        " sqlite:$XDG_DATA_HOME/agentflow/agentflow.db.",
    )(found)
    return click.option(
        "--url",
        metavar="URL",
        help="The daemon: http://HOST:PORT or unix:PATH. Default: AGENTFLOW_URL, else the default socket if"
        " a daemon listens there.",
    )(found)


def read_only_option(command: F) -> F:
    """Add `--read-only`, kept in the command's `where`. Stands below `target_options`."""
    from functools import wraps

    @wraps(command)
    def call(*args: Any, read_only: bool, where: Where, **more: Any) -> Any:
        return command(*args, where=replace(where, read_only=read_only), **more)

    found: Any = click.option(
        "--read-only",
        is_flag=True,
        help="Read the store in this process and write nothing, also on a read-only file system: a sqlite:"
        " store even beside a daemon, a file: store only while no process has it open.",
    )(call)
    return found


class Target(Protocol):
    """The runs that a command is about. What it raises, the Runtime raises."""

    parks: bool
    """True if leaving stops the run that is followed."""

    damaged: set[str]
    """Runs that the lists so far could not show, because what the store holds of them is damaged."""

    reader: ReadModel | Client
    """What answers questions about recorded runs, here or with the daemon."""

    async def submit(self, definition: Any, value: Any, **more: Any) -> str:
        """Begin a run and return its id. A repeated id goes on with its run."""
        ...

    async def tell(self, command: str, workflow_id: str, **more: Any) -> str:
        """Give a command (a method of the Runtime); return the id of the run that it leads to."""
        ...

    async def resume_all(self, reason: str, budget: Mapping[str, Any] | None) -> Resumed:
        """Resume every run that is paused for this reason."""
        ...

    async def last_offset(self, workflow_id: str) -> int:
        """Return the offset of the run's last event."""
        ...

    async def rest(self, workflow_id: str) -> RunResult:
        """Wait until the run is terminal, paused or waits."""
        ...

    def lines(
        self,
        workflow_id: str,
        after: int | None = None,
        *,
        follow: bool = True,
        types: Sequence[str] | None = None,
        deltas: bool = False,
    ) -> AsyncGenerator[bytes]:
        """Yield events behind offset `after` (None: all that are left), as the bytes that are stored.

        `deltas`: the text of model calls between them, which only the process that makes the calls can give.
        """
        ...


class _Reading:
    """What reading a store here and asking a daemon have in common."""

    def __init__(self, reader: ReadModel | Client) -> None:
        self.reader = reader
        self.damaged = set[str]()

    async def records(self, *, limit: int, **query: Any) -> list[RunRecord]:
        """Return the records of the newest runs. `query`: state, name, label, since (µs), or None."""
        found = await self.listed(limit=limit, usage=False, **query)
        return [await self.reader.record(run.workflow_id) for run in found]

    async def listed(
        self, *, limit: int, since: int | None = None, usage: bool = True, **query: Any
    ) -> list[RunSummary]:
        """Return the newest runs, as the store indexes them; `query` as for `records`."""
        from agentflow.events.ids import iso

        begin = None if since is None else iso(since)
        page = await self.reader.summaries(limit=limit, since=begin, usage=usage, **query)
        self.damaged.update(page.damaged)
        return page.items


class StoreTarget(_Reading):
    """A store that is read in this process, without a Runtime."""

    parks = True

    def __init__(self, log: EventLog, reader: ReadModel | None = None) -> None:
        from agentflow.events.hub import Hub
        from agentflow.records.read_model import ReadModel

        super().__init__(reader or ReadModel(log))
        self.log = log
        self.hub = Hub(log)

    async def is_left(self, workflow_id: str) -> bool:
        """Return whether no process works on the run though it is not at rest."""
        row = await self.log.run(workflow_id)
        at_work = row.state in ("pending", "running")
        return at_work and (row.owner is None or not self.log.is_alive(row.owner))

    async def last_offset(self, workflow_id: str) -> int:
        """Implement `Target.last_offset`."""
        return await self.log.last(workflow_id)

    async def delete(self, workflow_id: str) -> None:
        """Delete a run that has ended."""
        await self.log.delete(workflow_id, time.time_ns() // 1000)

    async def lines(
        self,
        workflow_id: str,
        after: int | None = None,
        *,
        follow: bool = True,
        types: Sequence[str] | None = None,
        deltas: bool = False,
    ) -> AsyncGenerator[bytes]:
        """Implement `Target.lines`. Raises ConfigurationError with `deltas`: this process only reads."""
        if deltas:
            from agentflow.errors import ConfigurationError

            raise ConfigurationError(
                "only the daemon that carries out a run can give its deltas",
                hint="start `agentflow serve`, or name the daemon with --url",
            )
        stream = self.hub.batches(workflow_id, after, follow=follow, types=types)
        async with aclosing(stream) as batches:
            async for batch in batches:
                for event in batch:
                    yield event.wire


class LocalTarget(StoreTarget):
    """A Runtime of this process."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__(runtime.log, runtime)
        self.runtime = runtime
        self.hub = runtime.hub
        self._handles: dict[str, Any] = {}

    async def submit(self, definition: Any, value: Any, **more: Any) -> str:
        """Implement `Target.submit`."""
        from agentflow.definition.loader import Definition

        if not isinstance(definition, Definition):
            value = definition.read_input(value)
        handle = await self.runtime.submit(definition, value, by="cli", **more)
        if more.get("workflow_id") is not None and not handle.created:  # a new one may be paused by now
            handle = await self.runtime.resume(handle.workflow_id, by="cli")
        return self.keep(handle)

    async def tell(self, command: str, workflow_id: str, **more: Any) -> str:
        """Implement `Target.tell`."""
        from agentflow.records.commands import COMMANDS

        via = {"via": "cli"} if COMMANDS[command].has_via else {}
        return self.keep(await getattr(self.runtime, command)(workflow_id, **more, by="cli", **via))

    async def resume_all(self, reason: str, budget: Mapping[str, Any] | None) -> Resumed:
        """Implement `Target.resume_all`."""
        return await self.runtime.resume_all(reason=reason, budget=budget, by="cli")

    def keep(self, handle: Any) -> str:
        """Keep the handle of a run that this command moves; return its id."""
        self._handles[handle.workflow_id] = handle
        return handle.workflow_id

    async def rest(self, workflow_id: str) -> RunResult:
        """Implement `Target.rest`; also when the Runtime is closed, for runs that this command moved."""
        handle = self._handles.get(workflow_id)
        return await (self.runtime.rest(workflow_id) if handle is None else handle.rest())


class RemoteTarget(_Reading):
    """The daemon."""

    parks = False

    def __init__(self, client: Client) -> None:
        super().__init__(client)
        self.client = client

    async def submit(self, definition: Any, value: Any, **more: Any) -> str:
        """Implement `Target.submit`; a workflow built in Python is the one that the daemon has loaded."""
        return (await self.client.submit(await self._loaded(definition), value, **more)).workflow_id

    async def tell(self, command: str, workflow_id: str, **more: Any) -> str:
        """Implement `Target.tell`; a definition that was built in Python is the one that the daemon has."""
        if "definition" in more:
            more["definition"] = await self._loaded(more["definition"])
        return (await getattr(self.client, command)(workflow_id, **more)).workflow_id

    async def _loaded(self, given: Any) -> Any:
        """Return what the daemon knows a workflow by that was built in Python; other definitions as they are.

        Raises ConfigurationError if the daemon has loaded another graph of this name.
        """
        from agentflow.client import RegisteredDefinition
        from agentflow.definition.loader import Definition
        from agentflow.errors import ConfigurationError

        if isinstance(given, Definition | RegisteredDefinition):
            return given
        registered = RegisteredDefinition(given.name, given.version)
        known = (await self.client.validate(registered)).ir_hash
        if known is not None and known != given.definition.ir_hash:
            message = f"the daemon has loaded another graph as {given.name}@{given.version}"
            hint = "give this one another version, or restart `agentflow serve --load` with it"
            raise ConfigurationError(message, hint=hint)
        return registered

    async def resume_all(self, reason: str, budget: Mapping[str, Any] | None) -> Resumed:
        """Implement `Target.resume_all`."""
        return await self.client.resume_all(reason=reason, budget=budget)

    async def delete(self, workflow_id: str) -> None:
        """Delete a run that has ended."""
        await self.client.delete(workflow_id)

    async def records(self, *, limit: int, **query: Any) -> list[RunRecord]:
        """Return the records of the newest runs; those that only `state` chooses in one request."""
        if any(value is not None for name, value in query.items() if name != "state"):
            return await super().records(limit=limit, **query)
        page = await self.client.records(limit=limit, state=query.get("state"))
        self.damaged.update(page.damaged)
        return page.items

    async def last_offset(self, workflow_id: str) -> int:
        """Implement `Target.last_offset`."""
        return (await self.client.record(workflow_id)).last_offset

    async def rest(self, workflow_id: str) -> RunResult:
        """Implement `Target.rest`."""
        return await self.client.rest(workflow_id)

    def lines(
        self,
        workflow_id: str,
        after: int | None = None,
        *,
        follow: bool = True,
        types: Sequence[str] | None = None,
        deltas: bool = False,
    ) -> AsyncGenerator[bytes]:
        """Implement `Target.lines`; comes back by itself when the connection breaks."""
        return self.client.event_lines(workflow_id, after, follow=follow, types=types, deltas=deltas)


@asynccontextmanager
async def open_target(
    where: Where, *, run_id: str | None = None, config: Config | None = None
) -> AsyncGenerator[LocalTarget | RemoteTarget]:
    """Open the runs that the flags mean, to move them. With `run_id` the command is about a run that exists:
    raises RunNotFound."""
    url = where.daemon()
    if url is None:
        from agentflow.cli.python_workflows import load_extension, register
        from agentflow.cli.session import open_runtime

        loaded = [load_extension(reference) for reference in where.load]
        async with open_runtime(config or where.config(), run_id=run_id) as runtime:
            register(runtime, loaded)
            yield LocalTarget(runtime)
        return
    if where.load:
        raise click.UsageError(
            "--load imports a workflow into this process, and the daemon has its own:"
            " `agentflow serve --load`, or add --local"
        )
    async with _open_remote(url) as target:
        yield target


@asynccontextmanager
async def open_reader(
    where: Where, *, run_id: str | None = None
) -> AsyncGenerator[StoreTarget | RemoteTarget]:
    """Open the runs that the flags mean, to read them; as `open_target`, but no Runtime is started. A run in
    a file is read here, whatever the flags say."""
    url = None if isinstance(run_id, ExportedRun) else where.daemon()
    if url is None:
        from agentflow.cli.session import open_store

        async with open_store(where.config(), run_id=run_id, read_only=where.read_only) as log:
            target = StoreTarget(log)
            try:
                yield target
            finally:
                target.hub.close()
        return
    async with _open_remote(url) as target:
        yield target


@asynccontextmanager
async def _open_remote(url: str) -> AsyncGenerator[RemoteTarget]:
    from agentflow.client import Client

    async with Client(url) as client:
        yield RemoteTarget(client)
