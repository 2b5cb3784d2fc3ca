"""`agentflow help`: the pages of the documentation, and the help of each verb."""

from __future__ import annotations

import sys

import click

from agentflow.cli.app import Command
from agentflow.cli.errors import CommandError, Exit
from agentflow.cli.output import columns, emit, is_terminal

__all__ = ["show_help"]

_MAX_WIDTH = 100  # columns of a rendered page


@click.command("help", cls=Command)
@click.argument("topic", required=False)
@click.pass_context
def show_help(ctx: click.Context, topic: str | None) -> Exit:
    """List the topics of the documentation, or print the page TOPIC.

    On a terminal the page is rendered; in a pipe it is Markdown. TOPIC may also be a command, as in
    `agentflow help run`, or a code, as in `agentflow help E_CYCLE`.
    """
    from agentflow.docs import TOPICS, read_page

    if topic is None:
        emit(_list_topics())
        return Exit.DONE
    if topic in TOPICS:
        _print_page(read_page(topic).text)
        return Exit.DONE
    from agentflow.docs.codes import DIAGNOSTICS, FAILURES, find_code

    info = find_code(topic)
    if info is not None:
        emit(f"{topic}\n{info.meaning}\nWhat to do: {info.remedy}")
        return Exit.DONE
    parent = ctx.parent
    assert parent is not None
    assert isinstance(parent.command, click.Group)
    command = parent.command.get_command(parent, topic)
    if command is None:
        raise _unknown(topic, [*TOPICS, *parent.command.list_commands(parent), *DIAGNOSTICS, *FAILURES])
    with command.make_context(topic, ["--help"], parent=parent, resilient_parsing=True) as inner:
        emit(command.get_help(inner))
    return Exit.DONE


def _list_topics() -> str:
    """Return the topics by kind of page, each with its title."""
    from agentflow.docs import GROUPS, read_page

    rows: list[tuple[str, str]] = []
    for group, topics in GROUPS.items():
        rows.append((group, ""))
        rows += [(f"  {topic}", read_page(topic).title) for topic in topics]
    return columns(("TOPIC", "PAGE"), rows) + "\n\nagentflow help TOPIC prints a page."


def _print_page(text: str) -> None:
    """Write Markdown to stdout: rendered on a terminal, as it is in a pipe."""
    if not is_terminal(sys.stdout):
        emit(text.rstrip("\n"))
        return
    from rich.console import Console
    from rich.markdown import Markdown

    console = Console()
    console.print(Markdown(text), width=min(console.width, _MAX_WIDTH))


def _unknown(topic: str, known: list[str]) -> CommandError:
    from agentflow.definition.diagnostics import did_you_mean

    hint = did_you_mean(topic, known)
    listed = "`agentflow help` lists the topics"
    return CommandError(
        Exit.USAGE, "usage", f'there is no topic "{topic}"', f"{hint} {listed}" if hint else listed
    )
