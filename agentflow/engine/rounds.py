"""Rounds of a fan-in: what has arrived from each source, and when a round closes (page 002 §5).

A source that cannot arrive any more is dead: no live node can reach it over edges that do not lead into the
join. How many live nodes can is a counter for each join and source, changed when a node becomes live or
stops being so. `closings` reads, everything else is called by folds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from agentflow.definition.failure import ErrorInfo
from agentflow.events.catalogue import TimerScheduled
from agentflow.events.envelope import iso

if TYPE_CHECKING:
    from agentflow.engine.graph import Edge, Node
    from agentflow.engine.joins import Fan
    from agentflow.engine.path import Path

__all__ = [
    "Arrived",
    "Closing",
    "Entry",
    "Round",
    "begin_rounds",
    "closings",
    "count_live",
    "expired_round",
    "incomplete",
]


class Arrived(NamedTuple):
    """One message for a join."""

    edge: Edge
    number: int
    type: str
    payload: Any


class Entry(NamedTuple):
    """All that one activation of a source sent to the join, and when (µs)."""

    activation: str
    messages: list[Arrived]
    ts: int


class Closing(NamedTuple):
    """A round that closes: what it takes, the sources that are missing, and why it must not."""

    fan: Fan
    entries: tuple[Entry, ...]
    missing: tuple[str, ...]
    error: ErrorInfo | None = None


class Round:
    """The buffers of one fan-in on one path."""

    __slots__ = ("armed", "awaited", "buffers", "charged", "closed", "fan", "live")

    def __init__(self, fan: Fan) -> None:
        self.fan = fan
        self.buffers: dict[str, deque[Entry]] = {source: deque() for source in fan.sources}
        self.live = dict.fromkeys(fan.sources, 0)
        """By source: the live nodes that can reach it."""
        self.charged = dict.fromkeys(fan.sources, 0)
        """By source: activations that come too late, because their rounds closed without them."""
        self.awaited = 0
        """Sources of which nothing is buffered and that can still arrive."""
        self.closed = 0
        """Rounds that closed so far."""
        self.armed: TimerScheduled | None = None
        """The timer of the present round, once the log has it."""

    def add(self, source: str, entry: Entry) -> bool:
        """Buffer what an activation sent; False if its round has closed without it."""
        if self.charged[source]:
            self.charged[source] -= 1
            return False
        buffer = self.buffers[source]
        if not buffer and self.live[source]:
            self.awaited -= 1
        buffer.append(entry)
        return True

    def take(self) -> None:
        """Remove what a closing round takes. What absent sources that live send next comes too late."""
        for source, buffer in self.buffers.items():
            if buffer:
                buffer.popleft()
                if not buffer and self.live[source]:
                    self.awaited += 1
            elif self.live[source]:
                self.charged[source] += 1
        self.closed += 1

    def due(self) -> str | None:
        """Return when the time of the present round is over; None without a limit or an arrival."""
        if self.fan.timeout is None:
            return None
        first = min((buffer[0].ts for buffer in self.buffers.values() if buffer), default=None)
        return None if first is None else iso(first + round(self.fan.timeout * 1e6))

    @property
    def is_armed(self) -> bool:
        """True if the log has the timer of the present round, or none where none is due."""
        return self.due() == (None if self.armed is None else self.armed.due_at)

    def left(self) -> Iterator[tuple[str, Arrived]]:
        """Yield what is buffered, with the activation that sent it."""
        for buffer in self.buffers.values():
            for entry in buffer:
                for message in entry.messages:
                    yield entry.activation, message


def begin_rounds(path: Path) -> None:
    """Give a path the buffers of its graph's fan-ins."""
    for fan in path.graph.fans:
        path.rounds[fan.index] = Round(fan)


def count_live(path: Path, node: Node, change: int) -> None:
    """Count a node that became live, or stopped being so, at every source that it can reach."""
    rounds = path.rounds
    for index, source in node.fan_watchers:
        found = rounds[index]
        before = found.live[source]
        now = found.live[source] = before + change
        if now == 0:
            if not found.buffers.get(source):
                found.awaited -= 1
            found.charged[source] = 0  # the charge lapses with the source
            path.due[index] = None
        elif before == 0 and not found.buffers.get(source):
            found.awaited += 1


def closings(path: Path) -> list[Closing]:
    """Return the rounds that close now, in order.

    Those with all their sources, or their quorum, close first. The others close one at a time in the order
    of the joins' names, and what a closed one makes live counts for the rest.
    """
    found: list[Closing] = []
    taken: dict[int, int] = {}
    revived: set[tuple[int, str]] = set()
    while (closing := _next_closing(path, taken, revived)) is not None:
        found.append(closing)
        if closing.error is not None:
            break
        fan = closing.fan
        taken[fan.index] = taken.get(fan.index, 0) + 1
        revived.update(fan.target.fan_watchers)
    return found


def _next_closing(path: Path, taken: dict[int, int], revived: set[tuple[int, str]]) -> Closing | None:
    lacking: Closing | None = None
    for index in sorted(path.due):
        held = path.rounds[index]
        fan, skip = held.fan, taken.get(index, 0)
        if held.awaited and not skip and fan.quorum is None:
            continue  # as after most arrivals: a scan of all sources each time would be quadratic
        entries = [buffer[skip] for buffer in held.buffers.values() if len(buffer) > skip]
        if not entries:
            continue
        missing = tuple(s for s, buffer in held.buffers.items() if len(buffer) <= skip)
        if not missing or (fan.quorum is not None and len(entries) >= fan.quorum):
            return Closing(fan, tuple(entries), missing)
        if lacking is not None or fan.on_missing == "wait":
            continue
        if all(held.live[s] == 0 and (index, s) not in revived for s in missing):
            error = incomplete(fan, missing) if fan.on_missing == "fail" else None
            lacking = Closing(fan, tuple(entries), missing, error)
    return lacking


def expired_round(held: Round) -> Closing | None:
    """Return how a round closes whose time is over; None if nothing has arrived."""
    entries = tuple(buffer[0] for buffer in held.buffers.values() if buffer)
    if not entries:
        return None
    missing = tuple(s for s, buffer in held.buffers.items() if not buffer)
    fails = missing and held.fan.on_missing != "partial"
    error = incomplete(held.fan, missing) if fails else None
    return Closing(held.fan, entries, missing, error)


def incomplete(fan: Fan, missing: tuple[str, ...]) -> ErrorInfo:
    """Return the error of a join one of whose sources does not arrive."""
    arrived = [source for source in fan.sources if source not in missing]
    return ErrorInfo(
        category="agent",
        code="join_incomplete",
        message=(
            f"the fan-in at {fan.name} cannot close: {', '.join(missing)} cannot arrive any more"
            f" ({', '.join(arrived) or 'no other source'} can or did); let each source send on every way, or"
            ' state on_missing="partial"'
        ),
        details={"join": fan.name, "arrived": arrived, "missing": list(missing)},
    )
