"""What a user can do about a paused run: the hint below `agentflow run`, `resume` and `show`.

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

__all__ = ["command_line", "pause_hint", "raise_answer", "suggested_limit"]


def command_line(verb: str, run_id: str, where: Where, *more: str) -> str:
    """Return a command about this run, as a shell takes it."""
    return shlex.join(["agentflow", verb, run_id, *more, *where.flags])


def pause_hint(paused: WorkflowPaused | None, run_id: str, where: Where, *, is_local: bool) -> str:
    """Return what moves a paused run on. `is_local`: no daemon works on it."""
    resume = command_line("resume", run_id, where)
    if paused is None:
        return f"go on with `{resume}`"
    if paused.reason == "budget" and isinstance(paused.budget, dict):
        larger = _larger_budget(paused.budget)
        if larger is None:
            return f"set a price for the model, then go on with `{resume}`"
        return f"go on with a larger budget: `{command_line('resume', run_id, where, '--budget', larger)}`"
    if paused.reason == "quota":
        if paused.resume_after is UNSET:
            return (
                "wait until the provider takes requests again, or raise the limit of your account there;"
                f" then go on with `{resume}`"
            )
        if is_local:
            return f"the provider takes requests again at {paused.resume_after}; then go on with `{resume}`"
        return f"the daemon goes on with it at {paused.resume_after}; sooner with `{resume}`"
    return f"go on with `{resume}`"


def _larger_budget(figures: dict[str, Any]) -> str | None:
    limits = cast("dict[str, float]", figures.get("limit") or {})
    for name, value in limits.items():
        if not figures["requested"]:  # a price is unknown: no limit is large enough
            return None
        return f"{name}={_text(name, value, figures['used'] + figures['requested'])}"
    return None


def raise_answer(subject: Any) -> str:
    """Return the answer that raises the limit about which a person is asked."""
    least = subject["used"] + subject["requested"]
    limit = _text(subject["limit"], subject.get("value", 0), least)
    return f'{{"choice":"raise","limit":{limit}}}'


def _text(name: str, value: float, least: float) -> str:
    limit = suggested_limit(name, value, least)
    return str(limit) if isinstance(limit, int) else f"{limit:.6f}".rstrip("0").rstrip(".")


def suggested_limit(name: str, value: float, least: float) -> float:
    """Return twice the limit, or what has to fit if that is more: dollars in millionths, rounded up."""
    enough = max(2 * value, least)
    return math.ceil(enough * 1e6) / 1e6 if name == "max_cost_usd" else math.ceil(enough)
