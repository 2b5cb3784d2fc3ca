"""Tells the log of this process which runs an answer across runs could not show."""

from __future__ import annotations

from typing import Any

from agentflow.events.rows import VERIFY_HINT, Page
from agentflow.logs import get_logger

__all__ = ["warn_of_damage"]

_log = get_logger("agentflow.runtime")


def warn_of_damage(page: Page[Any], reader: str) -> None:
    """Log a warning for each run that is missing from `page`; `reader` names who goes on without it."""
    for workflow_id in page.damaged:
        _log.warning("run_damaged", workflow_id=workflow_id, reader=reader, hint=VERIFY_HINT)
