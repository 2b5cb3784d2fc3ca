"""`agentflow version`."""

from __future__ import annotations

import platform

import click

import agentflow
from agentflow.cli.app import Command
from agentflow.cli.output import emit

__all__ = ["version", "version_line"]


def version_line() -> str:
    """Return the line that `version` and `--version` print."""
    return f"agentflow {agentflow.__version__} (Python {platform.python_version()}, {platform.system()})"


@click.command("version", cls=Command)
def version() -> None:
    """Print the version of agentflow and of Python."""
    emit(version_line())
