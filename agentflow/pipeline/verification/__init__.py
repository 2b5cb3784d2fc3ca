"""Stage 4 of the request pipeline: deterministic verification by evidence (page 004 §9)."""

from agentflow.pipeline.verification.verifier import NOTHING_TO_CHECK, verify

__all__ = ["NOTHING_TO_CHECK", "verify"]
