"""Hints for a paused run, below `agentflow run`, `resume` and `show`.

Every command that is printed here moves the run as it stands.
"""

from __future__ import annotations

import math
import shlex
from typing import TYPE_CHECKING, Any, cast

from msgspec import UNSET

if TYPE_CHECKING:
    from agentflow.cli.target import Where
    from agentflow.events.catalogue import WorkflowPaused

__all__ = [
    "command_line",
    "held_steps",
    "larger_limit",
    "pause_hint",
    "raise_answer",
    "suggested_limit",
    "suggested_raise",
]

_LOADING = frozenset({"answer", "approve", "deny", "fork", "resume", "retry", "signal"})
"""Verbs that take --load."""
_MAX_HELD = 10  # steps whose commands are printed


def command_line(verb: str, run_id: str, where: Where, *more: str) -> str:
    """Return a command about this run, as a shell takes it."""
    loads = [word for reference in where.load for word in ("--load", reference)] if verb in _LOADING else []
    return shlex.join(["agentflow", verb, run_id, *more, *loads, *where.flags])


def pause_hint(paused: WorkflowPaused | None, run_id: str, where: Where, *, is_local: bool) -> str:
    """Return what moves a paused run on. `is_local`: no daemon works on it."""
    resume = command_line("resume", run_id, where)
    if paused is None:
        return f"go on with `{resume}`"
    if paused.reason == "failure" and held_steps(paused):
        return _held_hint(held_steps(paused), run_id, where)
    if paused.reason == "budget" and isinstance(paused.budget, dict):
        larger = larger_limit(paused)
        if larger is None:
            return f"set a price for the model, then go on with `{resume}`"
        limit = f"{larger[0]}={_number(larger[1])}"
        return f"go on with a larger budget: `{command_line('resume', run_id, where, '--budget', limit)}`"
    if paused.reason == "quota":
        if paused.resume_after is UNSET:
            return (
                "wait until the provider takes requests again, or raise the limit of your account there;"
                f" then go on with `{resume}`"
            )
        if is_local:
            return f"the provider takes requests again at {paused.resume_after}; then go on with `{resume}`"
        return f"the daemon goes on with it at {paused.resume_after}; sooner with `{resume}`"
    if paused.reason == "definition_unavailable" and not where.load:
        by = (
            "`--load MODULE:WORKFLOW` of the command"
            if is_local
            else "`agentflow serve --load MODULE:WORKFLOW`"
        )
        return f"a workflow built in Python is imported by {by}; then go on with `{resume}`"
    return f"go on with `{resume}`"


def held_steps(paused: WorkflowPaused) -> list[str]:
    """Return the steps that a run is held at (`on_failure: hold`): the detail of its pause names them."""
    prefix, _, names = (paused.detail or "").partition(": ")
    return names.split(", ") if paused.reason == "failure" and prefix == "failed" and names else []


def _held_hint(step_ids: list[str], run_id: str, where: Where) -> str:
    lines = ["try a failed step again, skip it, or let its failure stand (--action done counts it as done):"]
    lines += [
        f"    {command_line('retry', run_id, where, step_id, '--action', action)}"
        for step_id in step_ids[:_MAX_HELD]
        for action in ("retry", "skip", "fail")
    ]
    if len(step_ids) > 1:
        lines.append(f"  all of them are tried again by `{command_line('resume', run_id, where)}`")
    return "\n".join(lines)


def larger_limit(paused: WorkflowPaused) -> tuple[str, float] | None:
    """Return the limit that a run has reached and a value that lets it go on; None if there is none."""
    figures: dict[str, Any] = paused.budget if isinstance(paused.budget, dict) else {}
    limits = cast("dict[str, float]", figures.get("limit") or {})
    for name, value in limits.items():
        if not figures["requested"]:  # a price is unknown: no limit is large enough
            return None
        return name, suggested_limit(name, value, figures["used"] + figures["requested"])
    return None


def raise_answer(subject: Any) -> str:
    """Return the answer that raises the limit about which a person is asked."""
    return f'{{"choice":"raise","limit":{_number(suggested_raise(subject))}}}'


def suggested_raise(subject: Any) -> float:
    """Return a value for the limit about which a person is asked, with which the run goes on."""
    least = subject["used"] + subject["requested"]
    return suggested_limit(subject["limit"], subject.get("value", 0), least)


def _number(limit: float) -> str:
    return str(limit) if isinstance(limit, int) else f"{limit:.6f}".rstrip("0").rstrip(".")


def suggested_limit(name: str, value: float, least: float) -> float:
    """Return twice the limit, or what has to fit if that is more: dollars in millionths, rounded up."""
    enough = max(2 * value, least)
    return math.ceil(enough * 1e6) / 1e6 if name == "max_cost_usd" else math.ceil(enough)
