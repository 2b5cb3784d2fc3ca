"""`agentflow template`: list, show, check, run, install, change and remove templates of plans."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agentflow.cli.app import Command
from agentflow.cli.errors import Exit
from agentflow.cli.options import json_option, settings_of
from agentflow.cli.output import columns, emit, emit_json
from agentflow.cli.target import Where, target_options

if TYPE_CHECKING:
    from agentflow.pipeline.template_store import TemplateStore

__all__ = ["template"]


@click.group("template")
def template() -> None:
    """List, run, install and remove templates of plans."""


def _store() -> TemplateStore:
    """Return the templates of the working directory, of the user and of the product."""
    from agentflow.config import data_folder
    from agentflow.pipeline.template_store import TemplateStore

    return TemplateStore(data_folder() / "templates", Path.cwd() / "workflows")


@template.command("list", cls=Command)
@json_option("Print the templates as JSON.")
def list_templates(as_json: bool) -> None:
    """List the templates: of ./workflows, of the user, of the product."""
    found, problems = _store().list()
    if as_json:
        emit_json([{"name": one.template.name, "origin": one.origin, "path": one.path} for one in found])
    else:
        rows = [(one.template.name, one.origin, one.template.description) for one in found]
        emit(columns(("name", "origin", "description"), rows))
    _tell(problems)


def _pairs(given: tuple[str, ...]) -> dict[str, str]:
    """Return the texts of `k=v` arguments. Raises click.UsageError."""
    found: dict[str, str] = {}
    for pair in given:
        name, equals, value = pair.partition("=")
        if not equals:
            raise click.UsageError(f'"{pair}" is not written as k=v')
        found[name] = value
    return found


def _tell(problems: Any) -> None:
    from agentflow.cli.excerpt import render_diagnostics
    from agentflow.cli.output import say

    if problems:
        say(render_diagnostics(list(problems)))


@template.command("show", cls=Command)
@click.argument("name")
def show_template(name: str) -> None:
    """Print the text of the template NAME."""
    emit(_store().get(name).template.source.rstrip("\n"))


@template.command("check", cls=Command)
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
def check_template(file: str) -> Exit:
    """Check the template in FILE."""
    from agentflow.pipeline.templates import media_of_path, read_template

    path = Path(file)
    found = read_template(path.read_bytes(), media_of_path(path) or "yaml", file=file)
    _tell(found.warnings)
    emit(f"{file} is the template {found.name}")
    return Exit.DONE


@template.command("run", cls=Command)
@click.argument("name")
@click.argument("pairs", metavar="K=V…", nargs=-1)
@click.option("--review", is_flag=True, help="Stop before the plan is executed.")
@click.option("--workspace", metavar="DIR", help="The folder that the steps work in.")
@json_option("Print the result of the run as JSON, as `run --json` does.")
@target_options
def run_template(
    name: str, pairs: tuple[str, ...], review: bool, workspace: str | None, as_json: bool, where: Where
) -> Exit:
    """Run the template NAME with these inputs, and follow it.

    An input is a text, or JSON where its schema is none of a string.
    """
    import msgspec

    from agentflow.cli.follow import Follower
    from agentflow.cli.requests import requests_of
    from agentflow.cli.session import Interrupts, run_async
    from agentflow.cli.target import RemoteTarget, open_target
    from agentflow.pipeline.templates import Input, command_line_inputs

    config = where.config()
    folder = None if workspace is None else str(Path(workspace).absolute())

    async def work(interrupts: Interrupts) -> Exit:
        follower = Follower(interrupts, as_json=as_json, where=where)
        async with open_target(where, config=config) as target:
            if isinstance(target, RemoteTarget):
                client = target.client
                shown = next((one for one in (await client.templates()).items if one.name == name), None)
                declared = {} if shown is None else msgspec.convert(shown.inputs, dict[str, Input])
                inputs = command_line_inputs(declared, pairs)  # of no template the daemon says that itself
                id = await client.run_template(name, inputs, review=review, workspace=folder)
            else:
                requests = requests_of(target, config)
                inputs = command_line_inputs(requests.templates.get(name).template.inputs, pairs)
                run = requests.run_template(name, inputs, review=review, workspace=folder, by="cli")
                id = target.keep(await interrupts.guard(run))
            await follower.follow(target, id, await target.reader.graph(id))
        return await follower.conclude()

    return run_async(work)


@template.command("install", cls=Command)
@click.argument("source", metavar="PATH|URL")
@click.option("--sha256", metavar="H", help="The hash that the text must have; required for a URL.")
@click.option("--overwrite", is_flag=True, help="Replace a template of that name.")
def install_template(source: str, sha256: str | None, overwrite: bool) -> None:
    """Check the template at PATH or URL and keep it for this user."""
    if "://" in source:
        import asyncio

        hosts = tuple(settings_of(None, None).pipeline.get("allowed_hosts", ()))
        work = _store().install_url(source, sha256=sha256, overwrite=overwrite, allowed_hosts=hosts)
        found = asyncio.run(work)
    else:
        found = _store().install(Path(source), sha256=sha256, overwrite=overwrite)
    emit(f"{found.template.name} is installed: {found.path}")


@template.command("set", cls=Command)
@click.argument("name")
@click.argument("pairs", metavar="K=V…", nargs=-1, required=True)
def set_template(name: str, pairs: tuple[str, ...]) -> None:
    """Change description or summary of the template NAME."""
    found = _store().set(name, _pairs(pairs))
    emit(f"{name} is changed: {found.path}")


@template.command("rm", cls=Command)
@click.argument("name")
def remove_template(name: str) -> None:
    """Remove the template NAME of this user."""
    _store().remove(name)
    emit(f"{name} is removed")
