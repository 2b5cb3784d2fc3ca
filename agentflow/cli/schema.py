"""`agentflow schema`: the JSON Schemas that editors and other programs check documents and logs with."""

from __future__ import annotations

import sys

import click

from agentflow.cli.app import Command
from agentflow.cli.errors import CommandError, Exit

__all__ = ["schema"]


@click.command("schema", cls=Command)
@click.argument("name")
def schema(name: str) -> Exit:
    """Print the JSON Schema NAME: workflow, graph, yaml, ir or event.

    \b
    workflow   workflow documents, for editors:
               # yaml-language-server: $schema=workflow.schema.json
    graph      graph documents (ir/v0), for editors
    yaml       node-graph YAML, for editors
    ir         the graph that every document compiles to
    event      one event of the log of a run
    """
    from agentflow.schemas import SCHEMA_NAMES, json_schema

    if name not in SCHEMA_NAMES:
        from agentflow.definition.diagnostics import did_you_mean

        similar = did_you_mean(name, SCHEMA_NAMES)
        hint = f"{similar} known: " if similar else "known: "
        raise CommandError(
            Exit.USAGE, "usage", f'there is no schema "{name}"', hint + ", ".join(SCHEMA_NAMES)
        )
    sys.stdout.write(json_schema(name).decode())
    return Exit.DONE
