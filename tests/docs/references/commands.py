"""The page `commands`: every verb with its arguments and options, from the command line itself."""

from __future__ import annotations

import click

from agentflow.cli.app import app
from tests.docs.references.tables import GENERATED, table

__all__ = ["make_commands"]

_EVERYWHERE = {"--debug", "--help"}


def make_commands() -> str:
    """Return the page."""
    context = click.Context(app, info_name="agentflow")
    verbs: list[tuple[str, click.Command]] = []
    for name in app.list_commands(context):
        command = app.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            verbs += [(f"{name} {inner}", part) for inner, part in command.commands.items()]
        else:
            verbs.append((name, command))
    text = f"""# Commands

{GENERATED}

Every command has `--help` and `--debug`, which shows tracebacks. With `--json`, stdout has JSON only.

Commands use the daemon of `--url URL`, of `AGENTFLOW_URL`, or of the default socket. With `--local` or `--store URL`, or if
no daemon listens, they work in their own process on that store. ID is the id of a run, `wf_…`. Exit codes:
`agentflow help codes`.

{table(("command", "what it does"), [(f"`{name}`", _first_line(command)) for name, command in verbs])}"""
    for name, command in verbs:
        text += f"\n## `agentflow {name}`\n\n{_about(command)}\n\n{_parameters(name, command)}"
    return text


def _parameters(name: str, command: click.Command) -> str:
    context = click.Context(command, info_name=f"agentflow {name}")
    usage = " ".join(command.collect_usage_pieces(context))
    rows: list[tuple[str, str]] = []
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None and record[1] and not _EVERYWHERE & {*parameter.opts}:
            rows.append((f"`{record[0]}`", record[1]))
    text = f"`agentflow {name} {usage}`\n"
    return text + ("\n" + table(("option", "what it does"), rows) if rows else "")


def _first_line(command: click.Command) -> str:
    return command.get_short_help_str(limit=200)


def _about(command: click.Command) -> str:
    paragraphs = (command.help or "").replace("\b\n", "").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
