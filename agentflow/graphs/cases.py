"""Cases of a switch, and what a failed node leaves (page 002 §3, §4)."""

from __future__ import annotations

from typing import Any

import msgspec

from agentflow.definition.failure import ErrorInfo

__all__ = ["Case", "Default", "NodeFailure"]


class Case:
    """A case of a switch: `condition` is `fn(data)`, `fn(data, shared)` or an expression over `message` and
    `state`; `name` names it in drawings, events and the graph signature."""

    def __init__(self, condition: Any, target: Any, name: str | None = None) -> None:
        self.condition = condition
        self.target = target
        self.name = name


class Default:
    """What a switch does if no case is true. It is tried last, wherever it stands."""

    def __init__(self, target: Any, name: str | None = None) -> None:
        self.target = target
        self.name = name


class NodeFailure(msgspec.Struct, frozen=True, kw_only=True):
    """What an error edge brings: the activation whose attempts are used up, its error and its input."""

    activation: str
    error: ErrorInfo
    input: Any = None
