"""What a definition was bound to: its models, functions and services, and the cache of such bindings."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import cached_property
from typing import Any, NamedTuple

from agentflow.definition.bound_nodes import bound_nodes
from agentflow.definition.diagnostics import Diagnostic
from agentflow.definition.ir import ModelRef, Workflow
from agentflow.engine import Bindings, BoundGraph, StepBinding
from agentflow.engine.effect_replay import Policy, Recording
from agentflow.executors.callables import Callables
from agentflow.models import Models
from agentflow.tools import Service, Tool, ToolRegistry

__all__ = ["BindingCache", "BindsGraph", "Bound", "Pins", "ReplaySource", "merge_services", "unbound_graph"]

BindsGraph = Callable[["Workflow | str"], Awaitable["Bound"]]


class Pins:
    """What an existing run was bound to: it keeps its models and may not gain functions."""

    def __init__(self, models: dict[str, list[dict[str, Any]]], grants: dict[str, list[str]]) -> None:
        self.models = {
            step: tuple(
                ModelRef(provider=m["provider"], model=m["model"], parameters=m.get("parameters", {}))
                for m in refs
            )
            for step, refs in models.items()
        }
        self.grants = {step: frozenset(names) for step, names in grants.items()}


class ReplaySource(NamedTuple):
    """The recorded run that serves the effects of a run, and how."""

    recording: Recording
    policy: Policy


class Bound:
    """The result: what the engine needs, the services that were loaded, and what a run must remember."""

    def __init__(self) -> None:
        self.steps: dict[str, StepBinding] = {}
        self.services: dict[str, Service] = {}
        self.diagnostics: list[Diagnostic] = []
        self.grants: dict[str, list[str]] = {}
        self.code: Callables | None = None
        """The Python code of the workflow, if it was built in Python."""
        self.declared: list[Tool] = []
        """The functions that were granted of services that the document declares, and handlers of files."""
        self.replay: ReplaySource | None = None
        self.graphs: list[Bound] = []
        """Of the graphs that became known in a stored run."""
        self.bind_graph: BindsGraph | None = None
        """Binds a graph that becomes known in the run, by the same rules."""
        self.graph: Workflow | None = None
        """Such a graph as it was bound, if it is another one than was asked for."""
        self.own_models: Models | None = None
        """What makes the model calls of this run alone, if it is not the providers of the Runtime."""

    def copy(self) -> Bound:
        """Return another one with the same contents, for another run."""
        made = object.__new__(Bound)
        made.__dict__.update(self.__dict__)
        return made

    @cached_property
    def bindings(self) -> Bindings:
        """What the engine needs; made when binding is over."""
        functions = frozenset(
            tool.name for service in self.services.values() for tool in service.tools.values()
        )
        return Bindings(steps=self.steps, functions=functions)

    @property
    def models(self) -> dict[str, list[dict[str, Any]]]:
        """Pinned models, as `workflow.started` stores them."""
        return {
            step: [{"provider": r.provider, "model": r.model, "parameters": r.parameters} for r in b.models]
            for step, b in self.steps.items()
            if b.models
        }


class BindingCache:
    """What the newest 64 definitions were bound to, so that a run of the same one begins at once.

    Only what follows from the graph, its code and the registered services alone is kept: no agents, whose
    models follow the environment; no services, handlers or graphs that a document names; nothing that had a
    diagnostic; no code that brings handlers or makes the calls of one run.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[Any, ...], tuple[tuple[Any, ...], Bound]] = {}

    def find(self, key: tuple[Any, ...], registry: ToolRegistry, code: Callables | None) -> Bound | None:
        """Return what was kept under this key, if the registry and the code are still the same."""
        kept = self._kept.get(key)
        if kept is None or kept[1].code is not code:
            return None
        known, now = kept[0], _contents(registry)
        if len(known) != len(now) or any(a is not b for a, b in zip(known, now, strict=True)):
            del self._kept[key]
            return None
        return kept[1].copy()

    def keep(self, key: tuple[Any, ...], registry: ToolRegistry, workflow: Workflow, bound: Bound) -> None:
        """Keep what a definition was bound to, if it can be used again."""
        if bound.diagnostics or workflow.services or workflow.graphs:
            return
        if bound.code is not None and bound.code.makes_calls:
            return
        if any(binding.models for binding in bound.steps.values()):
            return
        if any(service is not registry.services.get(name) for name, service in bound.services.items()):
            return
        if any(node.agent is not None or node.binds.graph is not None for node in bound_nodes(workflow)):
            return
        _ = bound.bindings  # shared by all runs
        self._kept[key] = (_contents(registry), bound.copy())
        if len(self._kept) > _MAX_KEPT:
            del self._kept[next(iter(self._kept))]


_MAX_KEPT = 64


def _contents(registry: ToolRegistry) -> tuple[Any, ...]:
    """Return the objects of a registry that a binding depends on: other ones are found by identity."""
    services = registry.services.values()
    return (*(x for service in services for x in (service, service.tools)), *registry.workers.values())


def merge_services(services: dict[str, Service], more: Mapping[str, Service]) -> None:
    """Add services; to one that has only what its nodes call, as that of workers, what others call."""
    for name, service in more.items():
        known = services.get(name)
        if known is None:
            services[name] = service
        elif not service.tools.keys() <= known.tools.keys():
            services[name] = type(known)(name, known.spec, {**known.tools, **service.tools})


def unbound_graph(error: BaseException) -> BoundGraph:
    """Return what stands for the bindings of a graph when binding itself failed."""
    message = f"the graph could not be bound: {type(error).__name__}"
    return BoundGraph({}, (Diagnostic(code="E_SERVICE_UNAVAILABLE", severity="error", message=message),))
