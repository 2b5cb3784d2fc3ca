"""`agentflow serve`, `health` and `drain`: the daemon, and how it is."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from agentflow.cli.app import Command
from agentflow.cli.errors import CommandError, Exit
from agentflow.cli.options import json_option, settings_of
from agentflow.cli.output import emit, emit_json, say

if TYPE_CHECKING:
    from agentflow.client import SyncClient
    from agentflow.config import Config

__all__ = ["drain", "health", "serve"]


@click.command("serve", cls=Command)
@click.option(
    "--socket", metavar="PATH", help="The Unix socket. Default: $XDG_RUNTIME_DIR/agentflow/agentflow.sock."
)
@click.option("--no-socket", is_flag=True, help="Listen on no Unix socket.")
@click.option(
    "--listen", "addresses", multiple=True, metavar="HOST:PORT", help="Also listen there. May be repeated."
)
@click.option("--store", metavar="URL", help="The store of the runs: sqlite:FILE, file:DIR or memory:.")
@click.option(
    "--load",
    "references",
    multiple=True,
    metavar="MODULE:WORKFLOW",
    help="Import a workflow that was built in Python: a definition by its name, whose runs go on; an Agent"
    " that nodes may name; a Listener; or a dict of worker handlers. May be repeated.",
)
@click.option("--print-unit", is_flag=True, help="Print a systemd user unit that runs this, and end.")
def serve(
    socket: str | None,
    no_socket: bool,
    addresses: tuple[str, ...],
    store: str | None,
    references: tuple[str, ...],
    print_unit: bool,
) -> Exit:
    """Run the daemon.

    It takes up the runs of its store that are not at their end, and serves the HTTP API. SIGTERM and Ctrl-C
    park the runs and end it; a second one stops it at once, which loses nothing either.
    """
    if print_unit:
        from agentflow.server.notify import unit_file

        loads = [word for reference in references for word in ("--load", reference)]
        emit(unit_file([*_arguments(socket, no_socket, addresses, store), *loads]).rstrip())
        return Exit.DONE
    config = _with_flags(settings_of(store), "" if no_socket else socket, addresses)
    from agentflow import logs
    from agentflow.cli.python_workflows import load_extension
    from agentflow.errors import ConfigurationError
    from agentflow.graphs import Agent
    from agentflow.runtime.listeners import Listener
    from agentflow.server.daemon import serve as run_daemon

    level = os.environ.get("AGENTFLOW_LOG_LEVEL", "info").lower()
    try:
        logs.configure(level)
    except ValueError as error:
        raise ConfigurationError(f"AGENTFLOW_LOG_LEVEL: {error}") from None
    loaded = [load_extension(reference) for reference in references]
    workers = {name: handler for one in loaded if isinstance(one, dict) for name, handler in one.items()}
    agents = [one for one in loaded if isinstance(one, Agent)]
    listeners = [one for one in loaded if isinstance(one, Listener)]
    workflows = [one for one in loaded if not isinstance(one, dict | Agent | Listener)]
    run_daemon(
        config,
        workflows=workflows,
        workers=workers,
        agents=agents,
        listeners=listeners,
        on_ready=_say_where,
    )
    return Exit.DONE


def _say_where(names: list[str]) -> None:
    for name in names:
        say(f"agentflow serves {name}")


def _with_flags(config: Config, socket: str | None, addresses: tuple[str, ...]) -> Config:
    import msgspec

    given: dict[str, Any] = {}
    if socket is None:
        socket = os.environ.get("AGENTFLOW_SOCKET")
    if socket is not None:
        given["socket"] = socket
    if not addresses and os.environ.get("AGENTFLOW_LISTEN"):
        addresses = tuple(part.strip() for part in os.environ["AGENTFLOW_LISTEN"].split(","))
    if addresses:
        given["listen"] = addresses
    return msgspec.structs.replace(config, server=msgspec.structs.replace(config.server, **given))


def _arguments(
    socket: str | None, no_socket: bool, addresses: tuple[str, ...], store: str | None
) -> list[str]:
    found = ["--socket", os.path.abspath(socket)] if socket else []
    found += ["--no-socket"] if no_socket else []
    for address in addresses:
        found += ["--listen", address]
    return found + (["--store", store] if store else [])


@contextmanager
def _daemon(url: str | None) -> Generator[SyncClient]:
    """Open a client; what it raises becomes the exit codes of page 000 §12."""
    from agentflow.client import NotAuthorised, SyncClient, Unavailable, Unreachable

    try:
        with SyncClient(url) as client:
            yield client
    except (Unreachable, Unavailable) as error:
        raise CommandError(Exit.UNREACHABLE, error.code, str(error), error.hint) from error
    except NotAuthorised as error:
        raise CommandError(Exit.NOT_AUTHORISED, error.code, str(error), error.hint) from error


def _url_option(command: Any) -> Any:
    return click.option(
        "--url",
        metavar="URL",
        help="The daemon: http://HOST:PORT or unix:PATH. Default: AGENTFLOW_URL, else the default socket.",
    )(command)


@click.command("health", cls=Command)
@_url_option
@json_option("Print the answer as JSON.")
def health(url: str | None, as_json: bool) -> Exit:
    """Ask the daemon how it is.

    Exit code 0 when it works, 6 when it cannot be reached, 74 when its store has failed.
    """
    with _daemon(url) as client:
        found = client.health()
    if as_json:
        emit_json(found)
    else:
        durable = "durable" if found.durable else "not durable"
        emit(
            f"{found.status}, store {found.store} ({durable})" + (f": {found.detail}" if found.detail else "")
        )
    return Exit.STORAGE if found.status == "failed" else Exit.DONE


@click.command("drain", cls=Command)
@_url_option
def drain(url: str | None) -> Exit:
    """Let the daemon park its runs and end.

    They go on when a daemon is started on the store again.
    """
    with _daemon(url) as client:
        client.drain()
    emit("the daemon parks its runs and ends")
    return Exit.DONE
