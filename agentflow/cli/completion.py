"""`agentflow completion`: the completion of verbs and options by the shell."""

from __future__ import annotations

import click

from agentflow.cli.app import Command, app
from agentflow.cli.errors import Exit
from agentflow.cli.output import emit

__all__ = ["completion"]


@click.command("completion", cls=Command)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> Exit:
    """Print the script that completes commands in SHELL.

    bash and zsh: `eval "$(agentflow completion bash)"` in the start file of the shell; fish:
    `agentflow completion fish > ~/.config/fish/completions/agentflow.fish`.
    """
    from click.shell_completion import get_completion_class

    found = get_completion_class(shell)
    assert found is not None
    emit(found(app, {}, "agentflow", "_AGENTFLOW_COMPLETE").source())
    return Exit.DONE
