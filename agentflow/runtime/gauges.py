"""What a Runtime shows of itself at this moment, by the name of the metric. Called on the loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from actors import ActorInfo, ActorSystem
from agentflow.telemetry import conventions as c

if TYPE_CHECKING:
    from agentflow.runtime.actor_pools import ActorPools
    from agentflow.runtime.run_registry import RunRegistry

__all__ = ["gauges_of", "mailbox_depths"]


def gauges_of(
    system: ActorSystem, pools: ActorPools, registry: RunRegistry
) -> Mapping[str, Callable[[], Mapping[str, int]]]:
    """Return the gauges of a Runtime."""
    return {
        c.MAILBOX_DEPTH: partial(mailbox_depths, system),
        c.DEAD_LETTERS: partial(_dead_letters, system),
        c.QUEUE_DEPTH: lambda: {"runs": registry.queued, **pools.queued()},
        c.WORKER_HEALTH: pools.health,
    }


def mailbox_depths(system: ActorSystem) -> Mapping[str, int]:
    """Count the queued messages by type of actor. Visits every actor once."""
    found: dict[str, int] = {}
    left: list[ActorInfo] = [system.tree()]
    while left:
        info = left.pop()
        found[info.type] = found.get(info.type, 0) + info.depth
        left += info.children
    return found


def _dead_letters(system: ActorSystem) -> Mapping[str, int]:
    """Count the dead letters since the system started, by reason."""
    return {str(reason): count for reason, count in system.dead_letters.counts.items()}
