"""Reasons of a waiting run beside answers: a time, a signal, a child run. Pure."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from agentflow.cli.output import printable
from agentflow.cli.pauses import command_line

if TYPE_CHECKING:
    from agentflow.cli.target import Where
    from agentflow.events.catalogue import WorkflowWaiting

__all__ = ["NEAR_S", "Waits", "is_near", "waits_of", "waits_text"]

NEAR_S = 60.0
"""Seconds to the next timer up to which a command that follows a run goes on following it."""

_DEADLINES = frozenset({"run", "approval", "input"})
"""Timers that end a wait badly; the others let the run go on."""


class Waits(NamedTuple):
    """The time at which the run goes on by itself (ISO), names of signals, ids of child runs."""

    due: str | None = None
    signals: tuple[str, ...] = ()
    children: tuple[str, ...] = ()


def waits_of(data: WorkflowWaiting | None) -> Waits:
    """Return what a `workflow.waiting` names beside requests."""
    if data is None:
        return Waits()
    timers = [(name.partition(" ")[0], name.rpartition(" ")[2]) for name in data.timers]
    due = min((at for kind, at in timers if kind not in _DEADLINES), default=None)
    named = [name.partition(" ") for name in data.signals]
    return Waits(
        due,
        tuple(dict.fromkeys(name for kind, _, name in named if kind == "signal")),
        tuple(dict.fromkeys(name for kind, _, name in named if kind == "child")),
    )


def is_near(due: str) -> bool:
    """Return whether a time is at most NEAR_S away."""
    from agentflow.events.envelope import micros

    return micros(due) / 1e6 - time.time() <= NEAR_S


def waits_text(waits: Waits, run_id: str, where: Where, *, is_local: bool) -> list[str]:
    """Return the lines about signals and the time, each with the command that moves the run on."""
    lines: list[str] = []
    for name in waits.signals:
        lines.append(printable(f"{run_id} waits for the signal {name}; DATA may follow the name"))
        lines.append(f"    {command_line('signal', run_id, where, name)}")
    resume = command_line("resume", run_id, where)
    if waits.due is not None:
        lines.append(f"{run_id} goes on at {waits.due}")
        if is_local:
            lines.append(f"  hint: go on then with `{resume}`, or leave it to a daemon (`serve`)")
        else:
            lines.append(f"  hint: the daemon goes on with it; follow it with `{resume}`")
    return lines
