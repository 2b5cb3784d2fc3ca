"""`agentflow model`: install the embedded model, and list what can be used."""

from __future__ import annotations

import sys
from typing import Any

import click

from agentflow.cli.app import Command
from agentflow.cli.options import json_option, settings_of
from agentflow.cli.output import columns, emit, emit_json, is_terminal, say

__all__ = ["model"]


@click.group("model")
def model() -> None:
    """Install and list language models."""


@model.command("install", cls=Command)
@click.argument("name")
def install_model(name: str) -> None:
    """Fetch and check the local model NAME.

    It is usable as `local:NAME` then. The known one is smollm2-135m (about 100 MB). Does nothing when it is
    there and intact.
    """
    from agentflow.models.local import install

    progress = _Progress()
    try:
        installed = install(name, progress=progress)
    finally:
        progress.close()
    emit(f"local:{installed.name} is installed: {installed.path} ({installed.size / 1e6:.0f} MB)")


class _Progress:
    """One line on stderr: rewritten on a terminal, else one line for each stage."""

    def __init__(self) -> None:
        self._terminal = is_terminal(sys.stderr)
        self._stage = ""
        self._shown = ""

    def __call__(self, stage: str, done: int, total: int) -> None:
        if not self._terminal:
            if stage != self._stage:
                self._stage = stage
                say(stage)
            return
        share = f"{done / total:4.0%}" if total else f"{done / 1e6:.0f} MB"
        text = f"{stage} {share}"
        if text != self._shown:
            self._shown = text
            click.echo(f"\r\x1b[K{text}", err=True, nl=False)

    def close(self) -> None:
        if self._shown:
            click.echo("\r\x1b[K", err=True, nl=False)


@model.command("list", cls=Command)
@json_option("Print {default, providers, aliases, local} as JSON.")
def list_models(as_json: bool) -> None:
    """List the models that can be used.

    The default, the providers that are set up, aliases, local models.
    """
    from agentflow.models import ModelResolutionError, Models
    from agentflow.models.local import installed

    models = Models(config=settings_of(None).for_models())
    try:
        default, why = models.resolve(None).name, None
    except ModelResolutionError as error:
        default, why = None, str(error)
    found: dict[str, Any] = {
        "default": default,
        "providers": models.providers(),
        "aliases": {name: ref.name for name, ref in models.aliases().items()},
        "local": [{"name": m.name, "path": str(m.path), "size": m.size} for m in installed()],
    }
    if as_json:
        emit_json(found)
        return
    emit(f"default    {default or f'none: {why}'}")
    emit(f"providers  {', '.join(found['providers']) or 'none'}")
    if found["aliases"]:
        emit(columns(("ALIAS", "MODEL"), sorted(found["aliases"].items())))
    if found["local"]:
        rows = [(f"local:{m['name']}", f"{m['size'] / 1e6:.0f} MB", m["path"]) for m in found["local"]]
        emit(columns(("LOCAL", "SIZE", "FILE"), rows))
