"""Declared services, each opened once and shared by all runs that declare the same."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from agentflow import known_secrets
from agentflow.definition.diagnostics import Diagnostic
from agentflow.definition.ir import ServiceSpec, canonical_json
from agentflow.threads import in_thread
from agentflow.tools.modules import imported_service_module
from agentflow.tools.problems import denied, unavailable
from agentflow.tools.python_service import load_python_service
from agentflow.tools.service import Service

__all__ = ["Loaded", "ServiceLoader", "declared_service"]

START_TIMEOUT = 30.0
_MOST_KEPT = 256


class Loaded(NamedTuple):
    """A service that is ready, or None and why not. The path of a problem is one inside the service."""

    service: Service | None
    problems: list[Diagnostic]


class ServiceLoader:
    """Gives the same Service for the same name, declaration and folder, until `aclose`.

    Modules are imported anew when they have changed; servers and descriptions are asked again when they may
    have. At most 256 services are kept: of more, the one not wanted for longest gives back what it holds, and
    opens it again when it is called.
    """

    def __init__(self, *, start_timeout: float = START_TIMEOUT) -> None:
        self._start_timeout = start_timeout
        self._kept: OrderedDict[tuple[str, bytes, str, bool], Service] = OrderedDict()
        self._opening: dict[tuple[str, bytes, str, bool], asyncio.Lock] = {}
        self._loading: set[asyncio.Future[Loaded]] = set()
        self._closed = False
        self.workflows: Callable[[str, ServiceSpec, Path | None, bool], Service] | None = None
        """Makes a service of type workflow: name, declaration, folder, and whether it is trusted."""

    async def load(
        self, name: str, spec: ServiceSpec, folder: Path | None, *, trusted: bool = True
    ) -> Loaded:
        """Import, connect and list, within the time limit. Raises nothing: problems are diagnostics.

        Not `trusted`: a service that runs code, needs a secret or has a private address is E_SERVICE_DENIED.
        """
        if not trusted and (refusal := _needs_trust(name, spec)) is not None:
            return Loaded(None, [refusal])
        closed = Loaded(None, [unavailable(name, "the Runtime is closed")])
        if self._closed:
            return closed
        work = asyncio.ensure_future(self._load(name, spec, folder, trusted))
        self._loading.add(work)
        try:
            return _without_secrets(await work)
        except TimeoutError:
            reason = f"it was not ready within {self._start_timeout:g} s"
            return Loaded(None, [unavailable(name, reason)])
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._closed and not (task is not None and task.cancelling()):
                return closed
            raise
        finally:
            self._loading.discard(work)

    async def _load(self, name: str, spec: ServiceSpec, folder: Path | None, trusted: bool) -> Loaded:
        async with asyncio.timeout(self._start_timeout):
            if spec.type == "python":
                return await _python(name, spec, folder)
            return await self._remote(name, spec, folder, trusted)

    async def _remote(self, name: str, spec: ServiceSpec, folder: Path | None, trusted: bool) -> Loaded:
        key = (name, canonical_json(spec), str(folder or ""), trusted)
        async with self._opening.setdefault(key, asyncio.Lock()):
            service = self._kept.get(key)
            is_new = service is None
            if service is None:
                if spec.type == "workflow" and self.workflows is not None:
                    service = self.workflows(name, spec, folder, trusted)
                else:
                    service = declared_service(name, spec, folder, trusted=trusted)
            problems: list[Diagnostic] | None = None
            try:
                problems = await service.open()
            finally:
                if is_new and (problems is None or problems):  # also when the time is over
                    await service.aclose()
            if problems:
                return Loaded(None, problems)
            self._kept[key] = service
            self._kept.move_to_end(key)
        await self._forget()
        return Loaded(service, [])

    def find(self, name: str) -> Service | None:
        """Return a service of this name that is kept: the one that was opened last."""
        found = (service for service in reversed(self._kept.values()) if service.name == name)
        return next(found, None)

    async def _forget(self) -> None:
        while len(self._kept) > _MOST_KEPT:
            _, forgotten = self._kept.popitem(last=False)
            await forgotten.aclose()
        if len(self._opening) > 4 * _MOST_KEPT:
            # A lock that is held or waited for is not forgotten: two would open the same service.
            free = [k for k, lock in self._opening.items() if k not in self._kept and not lock.locked()]
            for key in free:
                del self._opening[key]

    async def aclose(self) -> None:
        """End every connection and process that services hold, for good; idempotent."""
        self._closed = True
        for work in self._loading:
            work.cancel()
        if self._loading:
            await asyncio.wait(self._loading)
        services = list(self._kept.values())
        self._kept.clear()
        await asyncio.gather(*(service.aclose() for service in services))


def _without_secrets(loaded: Loaded) -> Loaded:
    """Hide known secrets in the problems: a module or a server may quote what it was given."""
    if not loaded.problems:
        return loaded
    hide = known_secrets.hider()
    problems = [
        msgspec.structs.replace(p, message=hide(p.message), hint=p.hint and hide(p.hint))
        for p in loaded.problems
    ]
    return Loaded(loaded.service, problems)


def declared_service(
    name: str, spec: ServiceSpec, folder: Path | None = None, *, trusted: bool = True
) -> Service:
    """Return a service of type http, openapi or mcp as it is declared; nothing is opened yet."""
    if spec.type == "http":
        from agentflow.tools.http_service import HttpService

        return HttpService(name, spec, trusted=trusted)
    if spec.type == "openapi":
        from agentflow.tools.openapi_service import OpenApiService

        return OpenApiService(name, spec, folder, trusted=trusted)
    if spec.type == "mcp":
        from agentflow.tools.mcp_service import McpService

        return McpService(name, spec, folder, trusted=trusted)
    raise ValueError(f'a service of type "{spec.type}" is not declared in this way')


async def _python(name: str, spec: ServiceSpec, folder: Path | None) -> Loaded:
    if imported_service_module(str(spec.options.get("module", "")), folder) is not None:
        return Loaded(*load_python_service(name, spec, folder))
    # A module's own code may take as long as it likes: not on the loop.
    load = partial(load_python_service, name, spec, folder)
    return Loaded(*await in_thread(load, f"agentflow import {name}"))


def _needs_trust(name: str, spec: ServiceSpec) -> Diagnostic | None:
    if spec.type == "python":
        return denied(name, "runs code, this submission may not", "/type")
    if spec.type == "mcp" and spec.options.get("transport") == "stdio":
        return denied(name, "starts a process, this submission may not", "/transport")
    for key in ("headers", "env"):
        values: Mapping[str, Any] = spec.options.get(key) or {}
        for header, value in values.items():
            if isinstance(value, dict):
                path = f"/{key}/{header.replace('~', '~0').replace('/', '~1')}"
                return denied(name, "needs a secret, which this submission may not use", path)
    return None
