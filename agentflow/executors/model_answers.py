"""ModelAnswer: what a model answered a handler (page 002 §3)."""

from __future__ import annotations

from typing import Any

import msgspec

from agentflow.definition.conversation import Usage

__all__ = ["ModelAnswer"]


class ModelAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of a model to `ctx.call_model`.

    `data` is its value if an `output_type` was asked for, `model` as the provider names it; `usage` is that
    of all calls that it took."""

    text: str
    data: Any = None
    model: str = ""
    finish_reason: str = ""
    usage: Usage = Usage()
