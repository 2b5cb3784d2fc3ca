"""The life of the daemon: bind, open, take up what was left, serve, drain (page 000 §8, §11).

It owns the order of things. Sockets are bound and the store is locked before anything is opened, so that a
second daemon is refused before it can harm the first. At the end the runs are parked while the API still
answers; streams end when the last event is out.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import ssl
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from types import FrameType
from typing import TYPE_CHECKING, Any

from agentflow import __version__, logs
from agentflow.aside import import_aside
from agentflow.config import Config, ServerConfig
from agentflow.errors import AgentflowError, ConfigurationError, StorageUnavailable
from agentflow.events.archive import open_archive
from agentflow.events.log import EventLog
from agentflow.events.open import open_log
from agentflow.models import ModelProvider, Models
from agentflow.pipeline.assembly import assemble
from agentflow.runtime import Runtime
from agentflow.runtime.result_cache import ResultCache
from agentflow.runtime.retention import upkeep
from agentflow.server.access import check_safe
from agentflow.server.app import Application
from agentflow.server.descriptors import connection_limit, raise_descriptor_limit
from agentflow.server.heap import Heap, tuned_interpreter
from agentflow.server.http_server import HttpServer
from agentflow.server.lock import lock_store
from agentflow.server.metrics import Metrics
from agentflow.server.notify import sd_notify
from agentflow.server.sockets import Listeners, bind_all
from agentflow.server.tokens import load_tokens
from agentflow.signal_handlers import SignalHandlers
from agentflow.tools import Service as ToolService

if TYPE_CHECKING:
    from agentflow.graphs import Agent, Workflow
    from agentflow.runtime.listeners import Listener

__all__ = ["Daemon", "loop_factory", "serve"]

_log = logs.get_logger("agentflow.server")
_FIRST_REQUEST = (
    "agentflow.definition.json_source",
    "agentflow.definition.step_document",
    "agentflow.definition.yaml_source",
    "jsonschema",
    "jsonschema_rs",
)
"""Modules of the first requests, imported before the daemon is ready: some hold the loop for 20 ms."""
_DAY = 86_400.0
_CLOSING = 5.0  # seconds of the drain that belong to the HTTP server


class Daemon:
    """One daemon. `run` returns when it has drained. For the main thread.

    `services` are functions that documents may name without declaring them; `models` adds providers.
    `workers` are handlers that nodes call as `worker:NAME`. `workflows`, built in Python, are definitions by
    their names; their runs of earlier daemons go on. `agents` are those that nodes may name, `listeners` get
    the events of all runs.
    """

    def __init__(
        self,
        config: Config,
        *,
        services: Iterable[ToolService] = (),
        models: Iterable[ModelProvider] | None = None,
        workflows: Iterable[Workflow] = (),
        workers: Mapping[str, Callable[..., Any]] | None = None,
        agents: Iterable[Agent] = (),
        listeners: Iterable[Listener] = (),
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._config = config
        self._workflows = tuple(workflows)
        self._workers = workers
        self._agents = tuple(agents)
        self._listeners = tuple(listeners)
        self._server_config = config.server
        self._services = tuple(services)
        self._models = Models(models, config=config.for_models())
        self._env = os.environ if env is None else env
        self._stopping = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    async def run(self, on_ready: Callable[[list[str]], None] = lambda names: None) -> None:
        """Serve until SIGTERM, SIGINT or `POST /admin/drain`; `on_ready` is told where it listens.

        A second signal ends the process at once. Raises ConfigurationError (nothing was opened), and
        StoreError, also at the end if the store failed meanwhile.
        """
        logs.load()
        tokens = load_tokens(self._server_config.tokens, self._env)
        tls = _tls(self._server_config)
        listeners = bind_all(self._server_config, self._env)
        try:
            check_safe(self._server_config, listeners.kinds, tokens)
            with lock_store(self._config.store), _Signals(self), tuned_interpreter():
                await self._serve(listeners, tokens, tls, on_ready)
        finally:
            listeners.close()

    def stop(self) -> None:
        """Begin to drain. Idempotent, and safe in a signal handler."""
        self._loop.call_soon_threadsafe(self._stopping.set)

    async def _serve(self, listeners: Listeners, tokens: Any, tls: Any, on_ready: Any) -> None:
        config = self._config
        raise_descriptor_limit()
        grace = max(1.0, self._server_config.drain - 2 * _CLOSING)
        metrics = Metrics()
        assembly = assemble(config, self._services)
        async with AsyncExitStack() as opened:
            store: str | EventLog = config.store
            if config.archive is not None:
                await open_archive(config.archive).check()
                store = open_log(config.store, archive=config.archive)
                opened.push_async_callback(store.close)
            runtime = await opened.enter_async_context(
                Runtime(
                    store,
                    models=self._models,
                    services=[*self._services, *assembly.services()],
                    workers=self._workers,
                    grace=grace,
                    telemetry=metrics.telemetry(),
                    listeners=self._listeners,
                )
            )
            _check_writable(runtime.log)
            for one in (*self._workflows, *self._agents):
                runtime.register(one)
            app = Application(runtime, self._server_config, tokens, stop=self.stop, metrics=metrics)
            service = app.service
            service.requests = assembly.requests(runtime)
            service.definitions.load(self._workflows)
            log = runtime.log
            service.ready = False
            service.retention = config.retention
            connections = connection_limit(self._server_config.max_connections)
            # Streams stay open for hours: a quarter of the connections is left to all other requests.
            service.streams.limit = min(service.streams.limit, connections * 3 // 4)
            server = HttpServer(app, listeners, tls, max_connections=connections)
            names = [listener.name for listener in listeners]
            serving = asyncio.ensure_future(server.serve())
            try:
                recovering = asyncio.ensure_future(self._recover(runtime, service))
                await self._started(server, serving)
                await recovering
                await import_aside(*_FIRST_REQUEST)
                _log.info("daemon_ready", listeners=names, store=_shown(config.store), version=__version__)
                sd_notify(f"READY=1\nSTATUS=serving {', '.join(names)}", self._env)
                on_ready(names)
                keeping = [asyncio.ensure_future(work) for work in (self._keep(runtime), Heap().keep())]
                stopping = asyncio.ensure_future(self._stopping.wait())
                await asyncio.wait({stopping, serving}, return_when=asyncio.FIRST_COMPLETED)
                stopping.cancel()
                for work in keeping:
                    work.cancel()
                await self._drain(opened, service)
            finally:
                server.stop()
                await serving
            failure = log.failure
        if failure is not None:  # else a supervisor would take this for an orderly end
            raise failure
        _log.info("daemon_stopped")

    async def _started(self, server: HttpServer, serving: asyncio.Future[None]) -> None:
        waiting = asyncio.ensure_future(server.started_event.wait())
        await asyncio.wait({waiting, serving}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if serving.done():
            serving.result()

    async def _recover(self, runtime: Runtime, service: Any) -> None:
        """Take up the runs that a daemon before this one left."""
        began = time.monotonic()
        found = await runtime.recover()
        service.metrics.runs_recovered = len(found)
        service.ready = True
        if found:
            _log.info("runs_recovered", runs=len(found), seconds=round(time.monotonic() - began, 3))

    async def _keep(self, runtime: Runtime) -> None:
        """Apply retention once a day. A failure is retried the next day."""
        while True:
            try:
                now = runtime.clock.now()
                done = await upkeep(runtime.log, self._config.retention, now)
                await ResultCache(runtime.log, runtime.clock).sweep()
                gone = done.collected.done_count if done.collected else 0
                if gone:
                    _log.info("runs_collected", runs=gone)
            except AgentflowError as error:
                _log.warning("retention_failed", error=str(error))
            await asyncio.sleep(_DAY)

    async def _drain(self, opened: AsyncExitStack, service: Any) -> None:
        """Reject new runs, suspend those at work, and end streams behind the last event of their run."""
        service.draining = True
        sd_notify("STOPPING=1", self._env)
        _log.info("daemon_draining")
        # Whatever hangs, a disk or a function: the process ends, and the log goes on where it is.
        self._loop.call_later(self._server_config.drain, _give_up)
        service.streams.close()
        await opened.aclose()


def _check_writable(log: EventLog) -> None:
    """Raise StorageUnavailable for a store that would refuse every submission."""
    if log.read_only:
        raise StorageUnavailable(
            f"the store {_shown(log.url)} cannot be written to, so that no daemon can serve it",
            hint="see that this user may write to it and its directory; `--read-only` of commands reads it",
        )


def _give_up() -> None:
    os.write(2, b"the drain took too long and was cut off; the log holds all that was done\n")
    os._exit(1)


def _shown(store: str) -> str:
    """Return the URL of a store without what stands before an `@`: it may be a password."""
    return re.sub(r"//[^/@]*@", "//…@", store)


class _Signals:
    """While entered, the first SIGTERM or SIGINT drains, the second ends the process."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._seen = False
        self._process = os.getpid()
        self._handlers = SignalHandlers((signal.SIGTERM, signal.SIGINT), self._take)

    def __enter__(self) -> None:
        self._handlers.__enter__()

    def __exit__(self, *raised: object) -> None:
        self._handlers.__exit__(*raised)

    def _take(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:  # a child that a function forked: to drain is the parent's
            os._exit(128 + number)
        if self._seen:
            os.write(2, b"stopped at once; the log holds all that was done\n")
            os._exit(128 + number)
        self._seen = True
        self._daemon.stop()


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return the loop factory of uvloop if it is installed (extra `fast`), else that of asyncio."""
    if sys.platform == "win32":
        return None
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def serve(
    config: Config,
    *,
    services: Iterable[ToolService] = (),
    models: Iterable[ModelProvider] | None = None,
    workflows: Iterable[Workflow] = (),
    workers: Mapping[str, Callable[..., Any]] | None = None,
    agents: Iterable[Agent] = (),
    listeners: Iterable[Listener] = (),
    on_ready: Callable[[list[str]], None] = lambda names: None,
) -> None:
    """Run a daemon in this process until it has drained; blocks. For the main thread.

    `on_ready` is told where it listens. Raises ConfigurationError, StoreError; then nothing was accepted.
    """

    async def within() -> None:
        daemon = Daemon(
            config,
            services=services,
            models=models,
            workflows=workflows,
            workers=workers,
            agents=agents,
            listeners=listeners,
        )
        await daemon.run(on_ready)

    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(within())


def _tls(config: ServerConfig) -> ssl.SSLContext | None:
    if config.tls_cert is None and config.tls_key is None:
        return None
    if config.tls_cert is None or config.tls_key is None:
        raise ConfigurationError("tls_cert and tls_key belong together")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(config.tls_cert, config.tls_key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigurationError(f"the certificate cannot be used: {error}") from error
    return context
