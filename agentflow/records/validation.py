"""What is found wrong with a submission."""

from __future__ import annotations

import msgspec

from agentflow.definition.diagnostics import Diagnostic

__all__ = ["Validation"]


class Validation(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong with a submission; `ir_hash` names its graph when it has one."""

    valid: bool
    diagnostics: list[Diagnostic]
    ir_hash: str | None
