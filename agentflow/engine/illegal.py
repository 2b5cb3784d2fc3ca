"""The error of a log whose events do not follow from each other."""

from __future__ import annotations

from typing import Any

__all__ = ["IllegalEvent"]


class IllegalEvent(Exception):
    """The state of the run does not allow this event: the log is damaged, or not of this engine."""

    def __init__(self, data: Any, reason: str) -> None:
        super().__init__(f"{data.event_type}: {reason}")
        self.event_type: str = data.event_type
        self.reason = reason
