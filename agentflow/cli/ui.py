"""`agentflow ui`: the dashboard of a daemon, of a store, or of an exported run, in the browser.

The link holds a code that can be used once; the browser gets a cookie for it. A daemon on a Unix socket is
reached through a port of this process on 127.0.0.1, which asks for that cookie, because the socket itself
would take every local user for its owner.
"""

from __future__ import annotations

import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import click

from agentflow.cli.app import Command
from agentflow.cli.errors import CommandError, Exit
from agentflow.cli.output import emit, say
from agentflow.cli.target import Where, open_reader

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from agentflow.cli.session import Interrupts
    from agentflow.events.log import EventLog

__all__ = ["show_run", "ui"]

_START_TIMEOUT_S = 20.0
_STOP_TIMEOUT_S = 40.0


@click.command("ui", cls=Command)
@click.option(
    "--url", metavar="URL", help="The daemon: http://HOST:PORT or unix:PATH. Default: as for other commands."
)
@click.option(
    "--store", metavar="URL", help="Look at this store without a daemon, read only: sqlite:FILE or file:DIR."
)
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port of this process, on 127.0.0.1.")
@click.option("--no-browser", is_flag=True, help="Print the link and open no browser.")
def ui(url: str | None, store: str | None, port: int, no_browser: bool) -> Exit:
    """Open the dashboard in the browser.

    That of the daemon which runs; without one, a daemon is started and ends with this command. The link
    works once, for five minutes.
    """
    if url is not None and store is not None:
        raise click.UsageError("--url names a daemon, --store a store of this machine: give one")
    from agentflow.cli.session import run_async

    async def work(interrupts: Interrupts) -> Exit:
        if store is not None:
            where = Where(store, None, False, read_only=True)
            async with open_reader(where) as target:
                return await _look(target.log, port, no_browser, interrupts)  # type: ignore[union-attr]
        daemon = Where(None, url, False).daemon()
        if daemon is None:
            async with _started_daemon() as daemon:
                return await _forward(daemon, port, no_browser, interrupts)
        if daemon.startswith("unix:"):
            return await _forward(daemon, port, no_browser, interrupts)
        return await _link(daemon, no_browser)

    return run_async(work)


async def show_run(run_id: str, interrupts: Interrupts) -> Exit:
    """Open the page of a run of an exported file, until the command is interrupted."""
    async with open_reader(Where(None, None, True), run_id=run_id) as target:
        return await _look(target.log, 0, False, interrupts, f"/runs/{run_id}")  # type: ignore[union-attr]


async def _link(url: str, no_browser: bool) -> Exit:
    """Open the page of a daemon that browsers can reach."""
    from agentflow.client import Client

    async with Client(url) as client:
        code = await client.session_code()
    _open(f"{url.rstrip('/')}{code.path}", no_browser)
    return Exit.DONE


async def _look(log: EventLog, port: int, no_browser: bool, interrupts: Interrupts, place: str = "") -> Exit:
    """Show an open store until the command is interrupted."""
    from agentflow.server.looking import listening, read_only_application

    async with read_only_application(log) as (app, code), listening(app, port) as url:
        _open(f"{url}/ui/#code={code}", no_browser, place)
        await interrupts.guard(_wait())
    return Exit.DONE


async def _forward(daemon: str, port: int, no_browser: bool, interrupts: Interrupts) -> Exit:
    """Serve a port that forwards to the daemon's socket, until the command is interrupted."""
    from agentflow.server.looking import forwarder, listening

    async with forwarder(daemon.removeprefix("unix:")) as (app, code), listening(app, port) as url:
        _open(f"{url}/ui/#code={code}", no_browser)
        await interrupts.guard(_wait())
    return Exit.DONE


@asynccontextmanager
async def _started_daemon() -> AsyncGenerator[str]:
    """Run a daemon on the default socket, and end it, which parks its runs."""
    import asyncio
    import os

    from agentflow.config import default_socket

    say("no daemon runs: one is started, and ends with this command")
    command = (sys.executable, "-m", "agentflow", "serve")
    process = await asyncio.create_subprocess_exec(*command, start_new_session=True)
    try:
        where = Where(None, None, False)
        async with asyncio.timeout(_START_TIMEOUT_S):
            while where.daemon() is None:
                if process.returncode is not None:
                    raise CommandError(Exit.UNREACHABLE, "daemon_not_started", "the daemon has ended")
                await asyncio.sleep(0.05)
        yield f"unix:{default_socket(os.environ)}"
    finally:
        if process.returncode is None:
            process.terminate()
            await asyncio.wait_for(process.wait(), _STOP_TIMEOUT_S)


async def _wait() -> None:
    import asyncio

    await asyncio.Event().wait()


def _open(link: str, no_browser: bool, place: str = "") -> None:
    """Print the link and open it. `place`: the view in which the page begins."""
    link += f"&place={place}" if place else ""
    emit(link)
    sys.stdout.flush()  # it is read while the command goes on
    if not no_browser:
        import webbrowser

        webbrowser.open(link)
