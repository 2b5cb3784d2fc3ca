"""`agentflow events` on a terminal: time, step and what happened in words, a line or more for each event."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import click

from agentflow.cli.output import printable
from agentflow.cli.progress import Progress
from agentflow.events.catalogue import TYPES
from agentflow.events.envelope import decode

__all__ = ["Happenings", "check_types"]

_STEP_WIDTH = 16
_NAMED = ("tool_name", "model", "turn", "purpose", "due_at", "name", "kind", "request_id")
"""Members of an event's data that say in a word what it is about."""


class Happenings:
    """Words for the events of one run, in their order."""

    def __init__(self) -> None:
        self._progress = Progress.of_steps("", ())

    def lines(self, body: bytes) -> list[str]:
        """Return the lines that an event is shown as; of the text of a model call, the text."""
        event: Any = decode(body)
        told = self._progress.take(event) or [_generic(event)]
        clock = datetime.fromisoformat(event.timestamp).astimezone().strftime("%H:%M:%S.%f")[:-3]
        step = getattr(event.data, "step_id", None)
        step = step if isinstance(step, str) else ""
        iteration = getattr(event.data, "iteration", None)
        place = f"{step}[{iteration}]" if isinstance(iteration, int) else step
        return [
            printable(f"{clock}  {place:<{_STEP_WIDTH}}  {line.removeprefix(f'{place} ') if place else line}")
            for line in told
        ]


def _generic(event: Any) -> str:
    what = event.type.replace(".", " ").replace("_", " ")
    named = [str(value) for key in _NAMED if isinstance(value := getattr(event.data, key, None), str | int)]
    return f"{what}: {', '.join(named)}" if named else what


def check_types(types: list[str]) -> None:
    """Raise click.BadParameter for a type or family that no event has, with the nearest one."""
    from difflib import get_close_matches

    families = {f"{name.partition('.')[0]}.*" for name in TYPES} | {"custom.*"}
    for wanted in types:
        family = wanted.endswith(".*") and any(name.startswith(wanted[:-1]) for name in TYPES)
        if wanted == "*" or wanted in TYPES or wanted in families or family or wanted.startswith("custom."):
            continue
        close = get_close_matches(wanted, families if wanted.endswith("*") else [*TYPES, *families], 1)
        meant = f'; did you mean "{close[0]}"?' if close else f"; families: {', '.join(sorted(families))}"
        raise click.BadParameter(f'no event has the type "{wanted}"{meant}', param_hint="--type")
