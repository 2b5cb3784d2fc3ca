"""What of the actor system is measured: how many messages wait, and how many nobody handled."""

from __future__ import annotations

from collections.abc import Mapping

from actors import ActorInfo, ActorSystem

__all__ = ["dead_letters", "mailbox_depths"]


def mailbox_depths(system: ActorSystem) -> Mapping[str, int]:
    """Messages that wait, by type of actor. Visits every actor once."""
    found: dict[str, int] = {}
    left: list[ActorInfo] = [system.tree()]
    while left:
        info = left.pop()
        found[info.type] = found.get(info.type, 0) + info.depth
        left += info.children
    return found


def dead_letters(system: ActorSystem) -> Mapping[str, int]:
    """Dead letters since the system began, by reason."""
    return {str(reason): count for reason, count in system.dead_letters.counts.items()}
