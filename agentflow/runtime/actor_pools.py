"""Actors that all runs of a Runtime share, one for each provider key and each service."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from actors import ActorSystem, ChildSpec, Ref
from agentflow.definition.ir import ModelRef, Workflow
from agentflow.engine import BoundGraph, ModelTerms
from agentflow.errors import DefinitionError
from agentflow.events.deltas import DeltaHub
from agentflow.models import ModelProvider, Models
from agentflow.runtime.agent_actor import Directory
from agentflow.runtime.bound import Bound, merge_services
from agentflow.runtime.clock import Clock
from agentflow.runtime.model_actor import ModelActor
from agentflow.runtime.tool_actor import ToolActor
from agentflow.tools import Service, ServiceLoader

__all__ = ["ActorPools"]

_STOP_TIMEOUT_S = 8.0
"""Longer than the three stages of stopping a server process (ask, terminate, kill), of 2 s each."""


class ActorPools:
    """Starts shared actors when they are first needed, and replaces one that has ended for good. No actor
    itself: it only maps keys to actors, on the loop of its system.

    `loader` holds the declared services; it is closed when no actor is left. `call_started` is called with
    the id of a run when one of its calls has got a slot of its provider or service. `clock` times calls.
    """

    def __init__(
        self, system: ActorSystem, deltas: DeltaHub, call_started: Callable[[str], None], clock: Clock
    ) -> None:
        self._system = system
        self._work_began = call_started
        self._deltas = deltas
        self._clock = clock
        self._providers: dict[str, tuple[dict[str, ModelProvider], Ref[Any] | None]] = {}
        self._services: dict[tuple[Any, ...], tuple[Service, Ref[Any]]] = {}
        self._workers: dict[Any, _Worker] = {}
        self._numbers = itertools.count()
        self.loader = ServiceLoader()

    def directory(self, bound: Bound, models: Models) -> Directory:
        """Return the actors that a run's calls go to."""
        return _RunDirectory(self, bound, bound.own_models or models)

    def find_provider(self, provider: ModelProvider) -> Ref[Any]:
        """Return the actor of a provider key: providers that share a rate limit share its slots."""
        key = provider.limiter_key
        sharing, ref = self._providers.get(key, ({}, None))
        sharing[provider.name] = provider
        if ref is None or not ref.is_alive:
            name = f"model-{provider.name}-{next(self._numbers)}"
            factory = partial(
                ModelActor, provider.max_concurrency, sharing, self._deltas, self._work_began, self._clock
            )
            worker = self._workers[key] = _Worker(f"model:{provider.name}", factory)
            ref = worker.ref = self._system.spawn_soon(ChildSpec(name, worker.start))
            self._providers[key] = (sharing, ref)
        return ref

    def find_service(self, service: Service) -> Ref[Any]:
        """Return the actor of a service, one however often a document that declares it is bound."""
        known = self._services.get(service.identity)
        if known is None or not known[1].is_alive:
            name = f"tools-{service.name}-{next(self._numbers)}"
            factory = partial(ToolActor, service, self._deltas, self._work_began, self._clock)
            worker = self._workers[service.identity] = _Worker(f"service:{service.name}", factory)
            ref = worker.ref = self._system.spawn_soon(
                ChildSpec(name, worker.start, shutdown=_STOP_TIMEOUT_S)
            )
            # Keeps the functions, and so what they are known by.
            known = self._services[service.identity] = (service, ref)
        return known[1]

    def queued(self) -> Mapping[str, int]:
        """Count the calls that wait for a slot of their provider or service."""
        found = {"model_calls": 0, "tool_calls": 0}
        for worker in self._workers.values():
            actor = worker.actor
            if actor is not None:
                found["model_calls" if isinstance(actor, ModelActor) else "tool_calls"] += actor.queued
        return found

    def health(self) -> Mapping[str, int]:
        """Return the state of each provider and service that was called, of several under one name the worst:
        0 unavailable, 1 degraded, 2 healthy."""
        found: dict[str, int] = {}
        for worker in self._workers.values():
            found[worker.label] = min(found.get(worker.label, 2), worker.health)
        return found


class _RunDirectory(Directory):
    """The actors of what one run was bound to, and of what it is bound to later."""

    __slots__ = ("_bound", "_models", "_pools", "_providers", "_services")

    def __init__(self, pools: ActorPools, bound: Bound, models: Models) -> None:
        self.code = bound.code
        self._pools = pools
        self._bound = bound
        self._models = models
        self._providers: dict[str, ModelProvider] = {}
        self._services = bound.services  # of all runs with this binding; not changed in place
        self._add_providers(bound)
        for graph in bound.graphs:
            self._add(graph)

    def _add(self, found: Bound) -> None:
        services = dict(self._services)
        merge_services(services, found.services)
        self._services = services
        self._add_providers(found)

    def _add_providers(self, found: Bound) -> None:
        for step in found.steps.values():
            for ref in step.models:
                self._providers[ref.provider] = self._models.provider(ref)

    def model(self, provider: str) -> Ref[Any]:
        return self._pools.find_provider(self._providers[provider])

    def tool(self, service: str) -> Ref[Any]:
        return self._pools.find_service(self._services[service])

    def service(self, name: str) -> Service | None:
        return self._services.get(name)

    async def resolve(self, model: str | None) -> tuple[ModelRef, ModelTerms]:
        from agentflow.runtime.adapters import import_adapters
        from agentflow.runtime.bound_infos import terms_of

        models = self._models
        await import_adapters(models, [model], models.resolve)
        ref = models.resolve(model)
        self._providers[ref.provider] = models.provider(ref)
        return ref, terms_of(models, ref)

    async def bind_graph(self, graph: Workflow | str) -> BoundGraph:
        assert self._bound.bind_graph is not None
        try:
            found = await self._bound.bind_graph(graph)
        except DefinitionError as error:
            return BoundGraph({}, tuple(error.diagnostics))
        self._add(found)
        wrong = tuple(one for one in found.diagnostics if one.severity == "error")
        return BoundGraph(found.steps, wrong, found.graph)


class _Worker:
    """A shared actor as gauges see it: its present instance, which a restart replaces."""

    __slots__ = ("_factory", "actor", "label", "ref")

    def __init__(self, label: str, factory: Callable[[], ModelActor | ToolActor]) -> None:
        self.label = label
        self.actor: ModelActor | ToolActor | None = None
        self.ref: Ref[Any] | None = None
        self._factory = factory

    def start(self) -> ModelActor | ToolActor:
        """Create an instance."""
        self.actor = self._factory()
        return self.actor

    @property
    def health(self) -> int:
        """0 once the actor has ended for good."""
        if self.ref is not None and not self.ref.is_alive:
            return 0
        return 2 if self.actor is None else self.actor.health
