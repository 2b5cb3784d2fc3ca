"""The command `agentflow`: its verbs, each in a module that is imported when it is wanted."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Generator, Sequence
from importlib import import_module
from typing import Any, NoReturn

import click

from agentflow.cli.errors import Exit, report

__all__ = ["App", "Command", "app", "main"]

_VERBS = {
    "run": ("run", "run", "Run the workflow FILE and follow it."),
    "resume": ("run", "resume", "Go on with the run ID and follow it, or with all."),
    "request": ("requests", "request", "Do what TEXT asks for: plan it, execute it, verify it."),
    "classify": ("requests", "classify", "Print what TEXT asks for, as JSON."),
    "plan": ("requests", "plan", "Print the plan of the request ID as JSON, or replace it."),
    "execute": ("requests", "execute", "Execute the plan of the request ID and follow it."),
    "reject": ("requests", "reject", "Reject the plan of the request ID."),
    "final": ("requests", "final", "Print the final output of the request ID as JSON."),
    "template": ("templates", "template", "List, run, install and remove templates of plans."),
    "new": ("new", "new", "Write a starter project into the folder NAME."),
    "check": ("check", "check", "Check a workflow FILE without running it."),
    "graph": ("graph", "graph", "Draw the graph of a FILE or of the run ID."),
    "schema": ("schema", "schema", "Print the JSON Schema NAME: workflow, graph, yaml, ir or event."),
    "list": ("inspect", "list_runs", "List the runs of the store, newest first."),
    "show": ("inspect", "show", "Show the run ID: state, steps, usage, output."),
    "events": ("inspect", "events", "Print the events of the run ID, until it has ended."),
    "state": ("export", "state", "Print the state of the run ID, or of its STEP, as JSON."),
    "log": ("export", "log", "Print the log of the run ID as NDJSON, to be kept as a file."),
    "open": ("export", "open_file", "Check the exported FILE and show its run."),
    "export-spans": ("spans", "export_spans", "Send the OpenTelemetry spans of the run ID again."),
    "eval": ("eval", "eval_suite", "Run the cases of the eval SUITE and report."),
    "expr": ("expr", "expr", "Evaluate EXPRESSION and print its value as JSON."),
    "tools": ("tools", "tools", "List the functions that are registered, or of FILE."),
    "inbox": ("control", "inbox", "List what waits for a person."),
    "approve": ("control", "approve", "Approve what the run ID asks for, and follow it."),
    "deny": ("control", "deny", "Deny what the run ID asks for, and follow it."),
    "answer": ("control", "answer", "Answer the open REQUEST of the run ID."),
    "import": ("importing", "import_states", "Make paused runs of the lines of a state file."),
    "pause": ("control", "pause", "Pause the run ID until `agentflow resume`."),
    "cancel": ("control", "cancel", "Cancel the run ID."),
    "retry": ("control", "retry", "Decide about the STEP that the run ID is held at, and follow it."),
    "fork": ("control", "fork", "Go on from a point of the run ID as a new run, and follow it."),
    "replay": ("control", "replay", "Run the recorded run ID again as a new run, and follow it."),
    "signal": ("control", "signal", "Send the signal NAME to the run ID."),
    "gc": ("retention", "gc", "Take the ended runs that retention takes."),
    "archive": ("retention", "archive", "Move the ended runs into the archive."),
    "verify": ("store", "verify", "Check the store: every event, record and page."),
    "backup": ("store", "backup", "Copy the store to DEST, while a daemon writes to it."),
    "ui": ("ui", "ui", "Open the dashboard in the browser."),
    "serve": ("serve", "serve", "Run the daemon."),
    "mcp-server": ("mcp_server", "mcp_server", "Offer the workflow FILES as tools to MCP clients."),
    "health": ("serve", "health", "Ask the daemon how it is."),
    "drain": ("serve", "drain", "Let the daemon park its runs and end."),
    "context": ("history", "context", "Print the conversation of the agent of STEP in the run ID."),
    "history": ("history", "history", "Print what the run ID executed, as JSON."),
    "trace": ("trace", "trace", "Print the trace of the run ID: nodes entered, left and failed."),
    "timeline": (
        "trace",
        "timeline",
        "List what happened to the nodes of the run ID.",
    ),
    "checkpoints": (
        "checkpoints",
        "checkpoints",
        "List the checkpoints of the run ID, for `agentflow fork`.",
    ),
    "diff": ("diff", "diff", "Compare the runs A and B."),
    "rm": ("history", "rm", "Delete the run ID, which has ended."),
    "completion": ("completion", "completion", "Print the script that completes commands in SHELL."),
    "model": ("model", "model", "Install and list language models."),
    "help": ("help", "show_help", "List the topics of the documentation, or print the page TOPIC."),
    "version": ("version", "version", "Print the version of agentflow and of Python."),
}
"""Verb to module of this package, name of the command in it, and its line in the list of verbs, which is
kept here so that `--help` imports none of these modules. In the order of the help."""


class _ReaderGone(Exception):
    """stdout is closed at its other end."""


class App(click.Group):
    """The group of all verbs. Exceptions end here, as a message and an exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        found = _VERBS.get(cmd_name)
        if found is None:
            return None
        return getattr(import_module(f"agentflow.cli.{found[0]}"), found[1])

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(verb, line) for verb, (_, _, line) in _VERBS.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0] if args else ""
        if name and not name.startswith("-") and name not in _VERBS:
            raise click.UsageError(f'there is no command "{name}"{_similar(name)}', ctx)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise _ReaderGone from None  # click would make 1 of it, which says that a run failed

    def main(self, args: Sequence[str] | None = None, *more: Any, **extra: Any) -> NoReturn:
        """Run the command line and exit. Never returns."""
        extra["standalone_mode"] = False
        words = list(sys.argv[1:] if args is None else args)
        try:
            result: Any = super().main(words, *more, **extra)
            code = result if isinstance(result, int) else Exit.DONE
        except _ReaderGone:
            # The reader has gone. Python would complain again when it flushes at exit.
            with contextlib.suppress(OSError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            code = 141  # as a program that SIGPIPE ended
        except (KeyboardInterrupt, click.Abort):
            code = Exit.INTERRUPTED
        except Exception as error:
            code = report(error, debug="--debug" in words)
        sys.exit(int(code))


def _similar(name: str) -> str:
    from difflib import get_close_matches

    close = get_close_matches(name, _VERBS, 1)
    return f'; did you mean "{close[0]}"?' if close else ""


class Command(click.Command):
    """A verb. Its callback returns the exit code, or None for 0. Every verb takes `--debug`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Read from the command line by `App.main`, which must know it for errors of parsing too.
        self.params.append(
            click.Option(["--debug"], is_flag=True, expose_value=False, help="Show tracebacks of errors.")
        )

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        with _naming_the_verb(ctx):
            return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        with _naming_the_verb(ctx):
            return super().invoke(ctx)


@contextlib.contextmanager
def _naming_the_verb(ctx: click.Context) -> Generator[None]:
    """Give a usage error that has no context the one of its verb, whose help its hint names."""
    try:
        yield
    except click.UsageError as error:
        error.ctx = error.ctx or ctx
        raise


def _print_version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from agentflow.cli.version import version_line

        click.echo(version_line())
        ctx.exit()


@click.group(cls=App, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_print_version,
    help="Show the version.",
)
@click.option("--debug", is_flag=True, expose_value=False, help="Show tracebacks of errors.")
def app() -> None:
    """Run AI-agent workflows that must not lose work.

    \b
    Exit codes: 0 done, 1 run failed, 2 usage, 3 diagnostics, 4 not found, 5 conflict, 6 unreachable,
    7 not authorised, 8 cancelled, 9 waiting or paused, 10 partial or blocked, 74 storage,
    78 configuration, 130 interrupted.
    """


def main() -> NoReturn:
    """Run the command `agentflow`. Never returns."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a character must not cost the user the result.
        with contextlib.suppress(AttributeError):
            stream.reconfigure(errors="backslashreplace")  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    app.main(prog_name="agentflow")
