"""The table of moves: what each event does to the spans of its run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from agentflow.events.envelope import Trace
from agentflow.telemetry.projection import agents, calls, runs, steps

__all__ = ["MOVES"]

MOVES: Final[Mapping[type, Callable[[Any, Any, int, int, Trace | None], None]]] = {
    **runs.MOVES,
    **steps.MOVES,
    **agents.MOVES,
    **calls.MOVES,
}
"""By type of event: called with the RunSpans, the data, the time in µs, the offset, and the ids of the
event's span."""
