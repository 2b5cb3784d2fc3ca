"""Where the runs of a command are: in this process on a store, or with the daemon (page 000 §12).

`--url`, then `--store` or `--local`, then AGENTFLOW_URL decide; without any of them a daemon that listens on
the default socket, else this process on the configured store.
"""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import click

from agentflow.cli.names import RunName, resolve_all
from agentflow.cli.options import ExportedRun

if TYPE_CHECKING:
    from agentflow.client import Client
    from agentflow.config import Config
    from agentflow.definition.conversation import Usage
    from agentflow.definition.ir import Workflow
    from agentflow.definition.loader import Definition
    from agentflow.events.log import EventLog, RunRow
    from agentflow.runtime import RunRecord, RunResult, Runtime
    from agentflow.runtime.bulk import Resumed
    from agentflow.runtime.requests import RequestRecord
    from agentflow.runtime.view_records import RunSummary

__all__ = [
    "Listed",
    "LocalTarget",
    "RemoteTarget",
    "Target",
    "Where",
    "list_log",
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
        """The configuration with these flags. Raises ConfigurationError."""
        from agentflow.cli.options import settings_of

        return settings_of(self.store, on_unknown)

    def daemon(self) -> str | None:
        """The URL of the daemon that these flags mean; None when the command works in this process."""
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
    """Whether a daemon answers on this socket: a file alone may be left over from one that died."""
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
    """`--url URL`, `--store URL` and `--local`, given to the command as one `where`."""
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
    """`--read-only`, kept in the command's `where`. Stands below `target_options`."""
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


class Listed(NamedTuple):
    """A line of `agentflow list`. `left`: nobody works on a run that should be at work."""

    workflow_id: str
    name: str
    state: str
    created_at: str
    events: int
    left: bool
    duration_ms: int | None = None
    usage: Usage | None = None


class Target(Protocol):
    """The runs that a command is about. What it raises, the Runtime raises."""

    parks: bool
    """Whether leaving stops the run that is followed."""

    damaged: set[str]
    """Runs that the lists so far could not show, because what the store holds of them is damaged."""

    async def submit(self, definition: Definition, value: Any, **more: Any) -> str:
        """Begin a run; its id."""
        ...

    async def tell(self, command: str, workflow_id: str, **more: Any) -> str:
        """Give a command (a method of the Runtime); the id of the run that it leads to."""
        ...

    async def resume_all(self, reason: str, budget: Mapping[str, Any] | None) -> Resumed:
        """Resume every run that is paused for this reason."""
        ...

    async def record(self, workflow_id: str) -> RunRecord:
        """The run record."""
        ...

    async def records(self, *, limit: int, **query: Any) -> list[RunRecord]:
        """Return the records of the newest runs. `query`: state, name, label, since (µs), or None."""
        ...

    async def listed(self, *, limit: int, **query: Any) -> list[Listed]:
        """Return the newest runs, as the store indexes them; `query` as for `records`."""
        ...

    async def last_offset(self, workflow_id: str) -> int:
        """The offset of the run's last event."""
        ...

    async def rest(self, workflow_id: str) -> RunResult:
        """Wait until the run is terminal, paused or waits."""
        ...

    async def requests(
        self, workflow_id: str | None = None, *, kind: str | None = None
    ) -> list[RequestRecord]:
        """What waits for a person."""
        ...

    async def graph(self, workflow_id: str) -> Workflow:
        """The graph that the run is pinned to."""
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
        """Events behind offset `after` (None: all that are left), as the bytes that are stored. `deltas`: the
        text of model calls between them, which only the process that makes the calls can give."""
        ...


def _listed(run: RunSummary) -> Listed:
    events = run.last_offset + 1
    return Listed(
        run.workflow_id, run.name or "", run.state, run.created_at, events, False, run.duration_ms, run.usage
    )


async def list_log(log: EventLog, damaged: set[str], *, limit: int, **query: Any) -> list[Listed]:
    """Return the newest runs of a log of this process; adds to `damaged` those that cannot be shown."""
    from agentflow.events.endings import final_usage
    from agentflow.events.ids import iso

    page = await log.runs(limit=limit, **query)
    damaged.update(page.damaged)
    found: list[Listed] = []
    for row in page.items:
        ms = None if row.ended_at is None else max(0, row.ended_at - row.created_at) // 1000
        usage, left = await final_usage(log, row), _is_left(log, row)
        created, events = iso(row.created_at), row.last_offset + 1
        found.append(Listed(row.workflow_id, row.name or "", row.state, created, events, left, ms, usage))
    return found


def _is_left(log: EventLog, row: RunRow) -> bool:
    at_work = row.state in ("pending", "running")
    return at_work and (row.owner is None or not log.is_alive(row.owner))


class LocalTarget:
    """A Runtime of this process."""

    parks = True

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.damaged = set[str]()
        self._handles: dict[str, Any] = {}

    async def submit(self, definition: Definition, value: Any, **more: Any) -> str:
        """As `Target.submit`. A repeated id goes on with its run."""
        handle = await self.runtime.submit(definition, value, by="cli", **more)
        if more.get("workflow_id") is not None:
            handle = await self.runtime.resume(handle.workflow_id, by="cli")
        return self._kept(handle)

    async def tell(self, command: str, workflow_id: str, **more: Any) -> str:
        """As `Target.tell`."""
        if command in ("decide", "answer_all"):
            more["via"] = "cli"
        if command != "withdraw":
            more["by"] = "cli"
        return self._kept(await getattr(self.runtime, command)(workflow_id, **more))

    async def resume_all(self, reason: str, budget: Mapping[str, Any] | None) -> Resumed:
        """As `Target.resume_all`."""
        return await self.runtime.resume_all(reason=reason, budget=budget, by="cli")

    def _kept(self, handle: Any) -> str:
        self._handles[handle.workflow_id] = handle
        return handle.workflow_id

    async def record(self, workflow_id: str) -> RunRecord:
        """As `Target.record`."""
        return await self.runtime.record(workflow_id)

    async def records(self, *, limit: int, **query: Any) -> list[RunRecord]:
        """As `Target.records`."""
        return [await self.runtime.record(row.workflow_id) for row in await self._rows(limit, query)]

    async def _rows(self, limit: int, query: dict[str, Any]) -> list[RunRow]:
        page = await self.runtime.log.runs(limit=limit, **query)
        self.damaged.update(page.damaged)
        return page.items

    async def listed(self, *, limit: int, **query: Any) -> list[Listed]:
        """As `Target.listed`."""
        return await list_log(self.runtime.log, self.damaged, limit=limit, **query)

    async def left(self, workflow_id: str) -> bool:
        """Whether nobody works on the run though it is not at rest."""
        return _is_left(self.runtime.log, await self.runtime.log.run(workflow_id))

    async def last_offset(self, workflow_id: str) -> int:
        """As `Target.last_offset`."""
        return await self.runtime.log.last(workflow_id)

    async def rest(self, workflow_id: str) -> RunResult:
        """As `Target.rest`; also when the Runtime is closed, for runs that this command moved."""
        handle = self._handles.get(workflow_id)
        return await (self.runtime.rest(workflow_id) if handle is None else handle.rest())

    async def requests(
        self, workflow_id: str | None = None, *, kind: str | None = None
    ) -> list[RequestRecord]:
        """As `Target.requests`."""
        return await self.runtime.requests(workflow_id, kind=kind)

    async def graph(self, workflow_id: str) -> Workflow:
        """As `Target.graph`."""
        return await self.runtime.graph(workflow_id)

    async def lines(
        self,
        workflow_id: str,
        after: int | None = None,
        *,
        follow: bool = True,
        types: Sequence[str] | None = None,
        deltas: bool = False,
    ) -> AsyncGenerator[bytes]:
        """As `Target.lines`. ConfigurationError with `deltas`: this process only reads."""
        if deltas:
            from agentflow.errors import ConfigurationError

            raise ConfigurationError(
                "only the daemon that carries out a run can give its deltas",
                hint="start `agentflow serve`, or name the daemon with --url",
            )
        stream = self.runtime.hub.batches(workflow_id, after, follow=follow, types=types)
        async with aclosing(stream) as batches:
            async for batch in batches:
                for event in batch:
                    yield event.body


class RemoteTarget:
    """The daemon."""

    parks = False

    def __init__(self, client: Client) -> None:
        self.client = client
        self.damaged = set[str]()

    async def submit(self, definition: Definition, value: Any, **more: Any) -> str:
        """As `Target.submit`."""
        return (await self.client.submit(definition, value, **more)).workflow_id

    async def tell(self, command: str, workflow_id: str, **more: Any) -> str:
        """As `Target.tell`."""
        return (await getattr(self.client, command)(workflow_id, **more)).workflow_id

    async def resume_all(self, reason: str, budget: Mapping[str, Any] | None) -> Resumed:
        """As `Target.resume_all`."""
        return await self.client.resume_all(reason=reason, budget=budget)

    async def record(self, workflow_id: str) -> RunRecord:
        """As `Target.record`."""
        return await self.client.record(workflow_id)

    async def records(self, *, limit: int, state: str | None = None, **query: Any) -> list[RunRecord]:
        """As `Target.records`."""
        if any(value is not None for value in query.values()):
            found = await self._summaries(limit, {"state": state, **query})
            return [await self.client.record(summary.workflow_id) for summary in found]
        page = await self.client.records(limit=limit, state=state)
        self.damaged.update(page.damaged)
        return page.items

    async def listed(self, *, limit: int, **query: Any) -> list[Listed]:
        """As `Target.listed`."""
        return [_listed(found) for found in await self._summaries(limit, query)]

    async def _summaries(self, limit: int, query: dict[str, Any]) -> list[RunSummary]:
        from agentflow.events.ids import iso

        since = query.pop("since", None)
        since = None if since is None else iso(since)
        page = await self.client.summaries(limit=limit, usage=True, since=since, **query)
        self.damaged.update(page.damaged)
        return page.items

    async def last_offset(self, workflow_id: str) -> int:
        """As `Target.last_offset`."""
        return (await self.client.record(workflow_id)).last_offset

    async def rest(self, workflow_id: str) -> RunResult:
        """As `Target.rest`."""
        return await self.client.rest(workflow_id)

    async def requests(
        self, workflow_id: str | None = None, *, kind: str | None = None
    ) -> list[RequestRecord]:
        """As `Target.requests`."""
        return await self.client.requests(workflow_id, kind=kind)

    async def graph(self, workflow_id: str) -> Workflow:
        """As `Target.graph`."""
        return await self.client.graph(workflow_id)

    def lines(
        self,
        workflow_id: str,
        after: int | None = None,
        *,
        follow: bool = True,
        types: Sequence[str] | None = None,
        deltas: bool = False,
    ) -> AsyncGenerator[bytes]:
        """As `Target.lines`; comes back by itself when the connection breaks."""
        return self.client.event_lines(workflow_id, after, follow=follow, types=types, deltas=deltas)


@asynccontextmanager
async def open_target(
    where: Where, *, run_id: str | None = None, config: Config | None = None
) -> AsyncGenerator[LocalTarget | RemoteTarget]:
    """The runs that the flags mean. With `run_id` the command is about a run that exists: RunNotFound. A run
    in a file is read here, whatever the flags say."""
    url = None if isinstance(run_id, ExportedRun) else where.daemon()
    if url is None:
        from agentflow.cli.session import open_runtime

        config = config or where.config()
        async with open_runtime(config, run_id=run_id, read_only=where.read_only) as runtime:
            yield LocalTarget(runtime)
        return
    from agentflow.client import Client

    async with Client(url) as client:
        yield RemoteTarget(client)
