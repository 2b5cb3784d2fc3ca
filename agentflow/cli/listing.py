"""The table of `agentflow list`, and the times and labels that choose its runs."""

from __future__ import annotations

import re
import time
from collections.abc import Container, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

import click

from agentflow.cli.output import columns

if TYPE_CHECKING:
    from agentflow.records.runs import RunSummary

__all__ = ["list_table", "parse_label", "parse_since"]

_UNITS = {"s": 1, "m": 60, "min": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*(s|min|m|h|d|w)")


def parse_since(text: str | None, now: float | None = None) -> int | None:
    """Return the time in µs since the epoch: a span before now (`2h`), a date, or a time of RFC 3339.

    A date and a time without an offset are of the local time zone. Raises click.BadParameter.
    """
    if text is None:
        return None
    span = _SPAN.fullmatch(text.strip())
    if span is not None:
        return round(((time.time() if now is None else now) - float(span[1]) * _UNITS[span[2]]) * 1e6)
    try:
        return round(datetime.fromisoformat(text.strip()).timestamp() * 1e6)
    except (ValueError, OverflowError, OSError):
        raise click.BadParameter(
            f'"{text}" is no time: write 30m, 2h, 7d, 2026-11-22 or 2026-11-22T10:00', param_hint="--since"
        ) from None


def parse_label(text: str | None) -> tuple[str, str] | None:
    """Return name and value of `k=v`. Raises click.BadParameter."""
    if text is None:
        return None
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise click.BadParameter(f'"{text}" is not written as k=v', param_hint="--label")
    return name.strip(), value


def list_table(rows: Sequence[RunSummary], left: Container[str] = ()) -> str:
    """Return a line for each run; no process works on those in `left`.

    Tokens and cost stand in the last event, so only ended runs have them.
    """
    from agentflow.cli.progress import cost_text, duration

    if not rows:
        return "no runs"
    return columns(
        ("ID", "STATE", "CREATED", "DURATION", "TOKENS", "COST", "EVENTS", "WORKFLOW"),
        [
            (
                row.workflow_id,
                f"{row.state}, left" if row.workflow_id in left else row.state,
                row.created_at[:19] + "Z",
                "" if row.duration_ms is None else duration(row.duration_ms),
                "" if row.usage is None else f"{row.usage.input_tokens + row.usage.output_tokens:,}",
                "" if row.usage is None or not row.usage.model_calls else cost_text(row.usage.cost_usd),
                str(row.last_offset + 1),
                row.name or "",
            )
            for row in rows
        ],
    )
