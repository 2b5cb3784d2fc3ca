"""What the kinds of nodes do: one module each, and the table of them.

A kind is two halves of one name: `agentflow.definition.kinds` says what its node looks like and what is wrong
with it, the half here what it does (`Kind`). Nothing else in the engine asks what kind a node has.
"""

from agentflow.engine.kinds.kind import Kind

__all__ = ["KINDS", "Kind"]

KINDS: dict[str, Kind] = {}
"""Kinds by name; a kind that only a test knows is added here and in the table of the definition."""


def _load() -> None:
    from agentflow.engine.kinds import (
        agent,
        batch,
        cache_read,
        cache_write,
        condition,
        debounce,
        end,
        event_trigger,
        executor,
        filter,
        human_in_the_loop,
        llm,
        loop,
        map,
        merge,
        parallel,
        reduce,
        retry_compensate,
        router,
        start,
        subgraph,
        throttle,
        tool,
        transform,
        wait,
    )

    modules = (agent, batch, condition, end, executor, loop, map, merge, parallel, router)
    data = (reduce, filter, transform, cache_read, cache_write, debounce, throttle)
    calls = (event_trigger, human_in_the_loop, llm, retry_compensate)
    for module in (*modules, start, subgraph, tool, wait, *data, *calls):
        KINDS[module.KIND.name] = module.KIND


_load()
