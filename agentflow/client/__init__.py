"""Clients of the daemon, with the methods of the embedded Runtime: `Client` and, blocking, `SyncClient`."""

from agentflow.client.client import Client, Health, Validation, Version
from agentflow.client.errors import ClientError, NotAuthorised, ProblemError, Unavailable, Unreachable
from agentflow.client.registered import RegisteredDefinition
from agentflow.client.run import RemoteRun
from agentflow.client.sync import SyncClient, SyncRun

__all__ = [
    "Client",
    "ClientError",
    "Health",
    "NotAuthorised",
    "ProblemError",
    "RegisteredDefinition",
    "RemoteRun",
    "SyncClient",
    "SyncRun",
    "Unavailable",
    "Unreachable",
    "Validation",
    "Version",
]
