"""The embedded language model: weights on disk, a supervised child process, a provider over it."""

from agentflow.models.local.weights import (
    LocalModelFile,
    ModelInstallError,
    install,
    installed,
    require,
    usable,
)

__all__ = ["LocalModelFile", "ModelInstallError", "install", "installed", "require", "usable"]
