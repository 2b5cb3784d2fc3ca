"""Language models behind one protocol: `provider:model` names, providers, errors, prices."""

from agentflow.models.base import (
    AnswerEnd,
    DeltaSink,
    ModelError,
    ModelProfile,
    ModelProvider,
    ModelReply,
    ModelRequest,
    ModelResolutionError,
    TokenKind,
)
from agentflow.models.catalog import Models

__all__ = [
    "AnswerEnd",
    "DeltaSink",
    "ModelError",
    "ModelProfile",
    "ModelProvider",
    "ModelReply",
    "ModelRequest",
    "ModelResolutionError",
    "Models",
    "TokenKind",
]
