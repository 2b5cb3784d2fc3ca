"""The command line (page 000 §12).

Every command is a thin client of `Runtime`. Importing this package, and rendering any help text, must load
click and nothing else that is heavy: what a command needs is imported when it runs.
"""

from __future__ import annotations

from agentflow.cli.app import app, main

__all__ = ["app", "main"]
