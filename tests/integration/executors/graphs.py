"""Graphs of executors for tests: the IR by hand, and the code beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from agentflow import Runtime
from agentflow.definition.ir import Edge, EndNode, ExecutorNode, Options, Policy, StartNode, Workflow
from agentflow.definition.loader import Definition, definition_of
from agentflow.events.catalogue import Output
from agentflow.events.envelope import Event, decode
from agentflow.executors import Callables, Executor
from agentflow.executors.payloads import Payloads

__all__ = ["Built", "build", "completed", "events", "outputs", "types"]


class Built(msgspec.Struct):
    """A workflow with its code, as a builder gives it."""

    definition: Definition
    callables: Callables


def build(
    *executors: Executor,
    edges: Sequence[Edge | tuple[str, str]] = (),
    predicates: dict[str, Callable[..., bool]] | None = None,
    selections: dict[str, Any] | None = None,
    name: str = "w",
    options: dict[str, Any] | None = None,
    **more: Any,
) -> Built:
    """Build a graph whose input goes to the first executor. Edges are Edge values or (source, target)."""
    nodes = [
        ExecutorNode(
            id=e.id,
            index=i,
            executor=e.id,
            accepts=e.accepts,
            emits=e.emits,
            on_error=e.on_error or "fail",
            policy=Policy(retry=e.retry, timeout=e.timeout) if e.retry or e.timeout else None,
        )
        for i, e in enumerate(executors)
    ]
    made = tuple(e if isinstance(e, Edge) else Edge(source=e[0], target=e[1]) for e in edges)
    start, end = StartNode(id="__start", next=nodes[0].id), EndNode(id="__end", index=len(nodes), drain=True)
    settings = Options(**{"policy": "superstep", "on_failure": "halt", **(options or {})})
    graph = Workflow(name=name, nodes=(start, *nodes, end), edges=made, options=settings, **more)
    code = Callables(
        executors={e.id: e for e in executors},
        predicates=predicates or {},
        selections=selections or {},
        payloads=Payloads([annotation for e in executors for annotation in e.annotations]),
    )
    return Built(definition_of(graph), code)


async def events(runtime: Runtime, run_id: str) -> list[Event[Any]]:
    return [decode(row.body) for row in await runtime.log.read(run_id, 0, 10_000)]


async def types(runtime: Runtime, run_id: str) -> list[str]:
    return [event.type for event in await events(runtime, run_id)]


async def outputs(runtime: Runtime, run_id: str) -> list[Any]:
    return [e.data.value for e in await events(runtime, run_id) if isinstance(e.data, Output)]


async def completed(runtime: Runtime, built: Built, message: Any, **more: Any) -> list[Any]:
    """Run to the end and return the outputs."""
    handle = await runtime.submit(built, message, **more)
    await handle.result()
    return await outputs(runtime, handle.workflow_id)
