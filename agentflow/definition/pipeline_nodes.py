"""How the nodes of the fixed graph of the request pipeline are marked (page 004 §1).

Metadata whose names begin with `agentflow.` is the runtime's own: documents of users may not set it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, cast

from agentflow.definition.node import NodeBase

__all__ = [
    "DELEGATE",
    "PIPELINE",
    "PLAN_STEP",
    "RESERVED",
    "STAGE",
    "STAGES",
    "TOOLS",
    "Stage",
    "is_given",
    "marks",
    "stage_of",
    "workspace_of",
]

RESERVED = "agentflow."
PIPELINE = "agentflow.pipeline"
"""Metadata of the graph: the settings of the pipeline."""
STAGE = "agentflow.stage"
"""Metadata of a node: its stage."""
PLAN_STEP = "agentflow.plan_step"
"""Metadata of a node that is a step of a plan: the step."""
TOOLS = "agentflow.tools"
"""Metadata of the stage of execution: the functions that steps of a plan may call without a model."""
DELEGATE = "agentflow.delegate"
"""Metadata of a step of a plan: the service that works on it, if it is not the built-in delegate."""
_GIVEN = "agentflow.given"
"""Metadata of a stage whose result the request holds already: a template asks no model."""

Stage = Literal["normalize", "plan", "review", "execute", "verify", "write"]
STAGES: tuple[Stage, ...] = ("normalize", "plan", "review", "execute", "verify", "write")


def workspace_of(request: Mapping[str, Any], workflow_id: str) -> str | None:
    """Return the folder that the steps of a request work in, by its input; None if it has none."""
    given = request.get("workspace")
    if given is not None:
        return given
    root = request.get("workspace_root")
    return None if root is None else f"{root}/{workflow_id}"


def stage_of(spec: NodeBase) -> Stage | None:
    """Return the stage that a node is; None for any other node."""
    return cast("Any", spec.metadata.get(STAGE)) if spec.metadata else None


def is_given(spec: NodeBase) -> bool:
    """Return whether the result of a stage is given with the request."""
    return bool(spec.metadata) and spec.metadata.get(_GIVEN) is True


def marks(stage: Stage, *, given: bool = False) -> dict[str, Any]:
    """Return the metadata of a stage."""
    return {STAGE: stage, _GIVEN: True} if given else {STAGE: stage}
