"""Predicates and selections that are Python code, on edges of nodes that are no executors (page 002 §4).

The messages of a handler come with the results of this code. The message of an agent or another node is
made by the engine, which calls no code of users: it asks its caller for the results, as for a Lookup, and
decides the same step again with them; what does not wait for them goes on. Only the routes that follow are
recorded; a run that is taken up before they are durable asks again. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from agentflow.engine.decisions import Decisions
    from agentflow.engine.graph import Node
    from agentflow.engine.messages import Outgoing

__all__ = ["Judgement", "Unjudged", "has_code", "with_judgements"]


class Judgement(NamedTuple):
    """A message whose predicates and selections the caller is to evaluate; the answer is the message with
    their results, under `key` in what it has found."""

    key: str
    node: Node
    message: Outgoing


class Unjudged(NamedTuple):
    """The end of a step, in place of its events; `complete` gives these for the message with the results."""

    judgement: Judgement
    complete: Callable[[Any], Decisions]


def has_code(node: Node) -> bool:
    """Return whether an edge of a node asks Python code about a message."""
    return any(
        route.kind == "multi" or any(edge.predicate is not None for edge in route.edges)
        for route in node.routes
    )


def with_judgements(moves: Decisions, found: Mapping[str, Any]) -> Decisions:
    """Return the events of steps whose results are found; else the first Judgement that is missing, or
    nothing while its results are awaited."""
    complete: Decisions = []
    for move in moves:
        if move.__class__ is not Unjudged:
            complete.append(move)
        elif found.get(move.judgement.key) == "asked":
            return []
        elif move.judgement.key in found:
            complete += move.complete(found[move.judgement.key])
        else:
            return [move.judgement]
    return complete
