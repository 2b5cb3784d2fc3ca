"""The embedded language model: weights on disk, a supervised child process, a provider over it."""

from agentflow.models.local.weights import LocalModelFile, install, installed, require, usable

__all__ = ["LocalModelFile", "install", "installed", "require", "usable"]
