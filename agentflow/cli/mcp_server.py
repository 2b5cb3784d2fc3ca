"""`agentflow mcp-server`: workflows as tools of the Model Context Protocol, over stdio or HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from agentflow.cli.app import Command
from agentflow.cli.errors import Exit
from agentflow.cli.output import say
from agentflow.cli.python_workflows import load_option
from agentflow.cli.target import Where, target_options

if TYPE_CHECKING:
    from agentflow.cli.mcp_tools import WorkflowTools
    from agentflow.cli.session import Interrupts

__all__ = ["mcp_server"]

_LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})


@click.command("mcp-server", cls=Command)
@click.argument("files", nargs=-1, required=True, type=click.Path())
@click.option(
    "--listen",
    metavar="HOST:PORT",
    help="Serve HTTP at http://HOST:PORT/mcp instead of stdio; HOST is of this machine.",
)
@target_options
@load_option
def mcp_server(files: tuple[str, ...], listen: str | None, where: Where) -> Exit:
    """Offer the workflow FILES as tools to MCP clients.

    A call of a tool is a durable run: its steps are the progress of the call, cancelling the call cancels the
    run, and a run whose caller or server is gone goes on with `agentflow resume ID`, or by itself with a
    daemon.
    """
    from dataclasses import replace

    from agentflow import __version__
    from agentflow.cli.python_workflows import definition_of_subject, is_python_workflow, load_subject
    from agentflow.cli.session import run_async
    from agentflow.cli.target import open_target
    from agentflow.errors import ConfigurationError

    try:
        from agentflow.cli.mcp_tools import WorkflowTools
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] not in ("mcp", "mcp_types"):
            raise
        hint = 'install it: pip install "agentflow[mcp]"'
        raise ConfigurationError("the MCP server needs the extra mcp", hint=hint) from None
    address = None if listen is None else _address(listen)
    subjects = [(definition_of_subject(subject), subject) for subject in map(load_subject, files)]
    python = tuple(file for file in files if is_python_workflow(file))
    if python and where.daemon() is None:
        where = replace(where, load=(*where.load, *python))

    async def work(interrupts: Interrupts) -> Exit:
        async with open_target(where) as target:
            tools = WorkflowTools(
                target, subjects, version=__version__, cancels_when_gone=address is not None
            )
            try:
                await interrupts.guard(
                    _serve_stdio(tools) if address is None else _serve_http(tools, address)
                )
            finally:
                await tools.close()
        return Exit.DONE

    return run_async(work)


def _address(listen: str) -> str:
    """Return the address if it can be reached from this machine alone."""
    from agentflow.server.sockets import split_address

    host, _ = split_address(listen)
    if host not in _LOOPBACK:
        raise click.BadParameter(
            f"{host} is no address of this machine alone, and the server asks for no token:"
            " listen on 127.0.0.1 and put a proxy that authenticates before it",
            param_hint="--listen",
        )
    return listen


async def _serve_stdio(tools: WorkflowTools) -> None:
    from mcp.server.stdio import stdio_server

    async with stdio_server() as (received, sent):
        await tools.server.run(received, sent, tools.server.create_initialization_options())


async def _serve_http(tools: WorkflowTools, address: str) -> None:
    import asyncio

    from agentflow.server.http_server import HttpServer
    from agentflow.server.sockets import Listeners

    listeners = Listeners()
    listeners.add_tcp(address)
    app: Any = tools.server.streamable_http_app()
    async with app.router.lifespan_context(app):
        server = HttpServer(app, listeners)
        serving = asyncio.ensure_future(server.serve())
        try:
            await server.started_event.wait()
            say(f"listening on {next(iter(listeners)).name}/mcp")
            await asyncio.shield(serving)
        finally:
            server.stop()
            await asyncio.wait({serving})
            listeners.close()
