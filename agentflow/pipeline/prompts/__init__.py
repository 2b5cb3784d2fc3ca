"""Prompts of the stages: package data with a version in its name. A run keeps the text that it began with."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

__all__ = ["VERSIONS", "prompt"]

VERSIONS = {"normalize": "1", "plan": "1", "delegate": "1"}


@cache
def prompt(stage: str) -> str:
    """Return the prompt of a stage in its present version."""
    name = f"{stage}-{VERSIONS[stage]}.md"
    return (
        files(__package__ or "agentflow.pipeline.prompts").joinpath(name).read_text(encoding="utf-8").strip()
    )
