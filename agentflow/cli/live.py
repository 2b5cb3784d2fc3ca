"""The progress of a run, shown: a table that is drawn anew on a terminal, else a line for each event."""

from __future__ import annotations

import asyncio
import time
from typing import IO, TYPE_CHECKING, Any, Protocol

import click

from agentflow.cli.output import is_terminal, printable
from agentflow.cli.progress import Progress, StepProgress, clock_time, cost_text, count, duration

if TYPE_CHECKING:
    from rich.console import RenderableType

    from agentflow.events.envelope import Event

__all__ = ["LineView", "QuietView", "TableView", "View", "view_on"]

_FRAME = 0.125
_SIGNS = {
    "pending": ("·", "dim"),
    "running": ("▸", "cyan"),
    "waiting": ("?", "yellow"),
    "succeeded": ("✓", "green"),
    "failed": ("✗", "red"),
    "skipped": ("-", "dim"),
    "cancelled": ("✗", "yellow"),
}
# Which steps are kept when the terminal is too low for all.
_URGENCY = {
    "running": 0,
    "waiting": 0,
    "failed": 1,
    "cancelled": 2,
    "pending": 3,
    "skipped": 4,
    "succeeded": 4,
}


class View(Protocol):
    """Shows a run while it is entered."""

    def take(self, event: Event[Any], *, old: bool = False) -> None:
        """Show an event; an `old` one happened before this command began."""
        ...

    def __enter__(self) -> View: ...

    def __exit__(self, *raised: object) -> None: ...


def view_on(stream: IO[str], progress: Progress, *, quiet: bool = False) -> View:
    """Return the view that fits the stream; one that shows nothing if `quiet`."""
    if quiet:
        return QuietView(progress)
    return TableView(stream, progress) if is_terminal(stream) else LineView(stream, progress)


class QuietView:
    """Folds the events and shows nothing."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def take(self, event: Event[Any], *, old: bool = False) -> None:
        self._progress.take(event)

    def __enter__(self) -> QuietView:
        return self

    def __exit__(self, *raised: object) -> None:
        pass


class LineView:
    """One line for each event of interest, with the time of day."""

    def __init__(self, stream: IO[str], progress: Progress) -> None:
        self._stream = stream
        self._progress = progress

    def take(self, event: Event[Any], *, old: bool = False) -> None:
        for line in self._progress.take(event):
            if not old:
                click.echo(f"{clock_time(event.timestamp)} {printable(line)}", file=self._stream)

    def __enter__(self) -> LineView:
        return self

    def __exit__(self, *raised: object) -> None:
        pass


class TableView:
    """A table of the steps, drawn eight times a second at most. Enter it inside the running loop."""

    def __init__(self, stream: IO[str], progress: Progress) -> None:
        from rich.console import Console
        from rich.live import Live

        self._progress = progress
        self._console = Console(file=stream, highlight=False)
        self._live = Live(
            console=self._console, auto_refresh=False, get_renderable=self._draw, vertical_overflow="crop"
        )
        self._ticker: asyncio.Task[None] | None = None

    def take(self, event: Event[Any], *, old: bool = False) -> None:
        self._progress.take(event)

    def __enter__(self) -> TableView:
        self._live.start()
        self._ticker = asyncio.get_running_loop().create_task(self._tick())
        return self

    def __exit__(self, *raised: object) -> None:
        if self._ticker is not None:
            self._ticker.cancel()
        self._live.refresh()
        self._live.stop()

    async def _tick(self) -> None:
        while True:
            self._live.refresh()
            await asyncio.sleep(_FRAME)

    def _draw(self) -> RenderableType:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        now = time.time_ns() // 1_000
        steps = list(self._progress.steps.values())
        shown = _most_urgent(steps, max(3, self._console.height - 4))
        table = Table(box=None, padding=(0, 2, 0, 0), show_header=False, expand=True)
        table.add_column(no_wrap=True)
        table.add_column(no_wrap=True, max_width=40, overflow="ellipsis")
        for _ in range(3):
            table.add_column(no_wrap=True, justify="right")
        table.add_column(no_wrap=True, overflow="ellipsis", ratio=1)  # takes what is left, gives way first
        for step in shown:
            sign, style = _SIGNS[step.state]
            attempt = f"attempt {step.attempt}" if step.attempt > 1 else ""
            detail = ", ".join(part for part in (attempt, step.detail) if part)
            cells = (
                sign,
                step.step_id,
                "" if step.total is None else f"{step.done}/{step.total}",
                _elapsed(step, now),
                count(step.tokens, "token") if step.tokens else "",
                detail or (step.state if step.state in ("running", "waiting", "skipped") else ""),
            )
            table.add_row(
                *(Text(printable(cell), style=style if i != 3 else "") for i, cell in enumerate(cells))
            )
        if len(shown) < len(steps):
            table.add_row("", f"and {len(steps) - len(shown)} more")
        return Group(table, Text(f"   {self._summary(now)}", style="bold", no_wrap=True, overflow="ellipsis"))

    def _summary(self, now: int) -> str:
        progress = self._progress
        ms = progress.duration_ms
        if ms is None and progress.started is not None:
            ms = max(0, now - progress.started) // 1_000
        parts = [progress.run_id] if progress.run_id else []
        parts += [printable(progress.name), progress.state]
        parts += [duration(ms)] if ms is not None else []
        parts += [count(progress.tokens, "token")] if progress.tokens else []
        parts += [cost_text(progress.cost_usd)] if progress.tokens and progress.cost_usd is not None else []
        return " · ".join(parts)


def _elapsed(step: StepProgress, now: int) -> str:
    if step.duration_ms is not None:
        return duration(step.duration_ms)
    if step.started is None or step.state not in ("running", "waiting"):
        return ""
    return duration(max(0, now - step.started) / 1_000)


def _most_urgent(steps: list[StepProgress], limit: int) -> list[StepProgress]:
    """Return at most `limit` steps, in their order: what is at work or went wrong before what is to come or
    done."""
    if len(steps) <= limit:
        return steps
    ranked = sorted(range(len(steps)), key=lambda i: (_URGENCY[steps[i].state], i))
    return [steps[i] for i in sorted(ranked[:limit])]
