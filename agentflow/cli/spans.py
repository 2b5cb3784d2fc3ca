"""`agentflow export-spans`: the OpenTelemetry spans of a run, sent once more."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from agentflow.cli.app import Command
from agentflow.cli.errors import CommandError, Exit
from agentflow.cli.options import json_option, run_id
from agentflow.cli.output import emit, emit_json
from agentflow.cli.target import Where, target_options

if TYPE_CHECKING:
    from agentflow.telemetry.export import Exported

__all__ = ["export_spans"]


@click.command("export-spans", cls=Command)
@click.argument("id", type=run_id)
@json_option("Print {workflow_id, trace_id, spans, open, endpoint} as JSON.")
@target_options
def export_spans(id: str, as_json: bool, where: Where) -> Exit:
    """Send the OpenTelemetry spans of the run ID again.

    They go where OTEL_EXPORTER_OTLP_ENDPOINT says here, also those of a run of the daemon, with the ids that
    they always have. What is still open in a run that has not ended is left out.
    """
    from agentflow.cli.copies import open_copy
    from agentflow.cli.session import Interrupts, run_async
    from agentflow.errors import ConfigurationError
    from agentflow.telemetry import read_settings

    settings = read_settings()
    if settings.traces == "none":
        raise ConfigurationError(
            "no exporter of spans is configured",
            hint="set OTEL_EXPORTER_OTLP_ENDPOINT=http://localhost:4318, or OTEL_TRACES_EXPORTER=console",
        )

    async def work(interrupts: Interrupts) -> Exit:
        from agentflow.logs import redacted
        from agentflow.telemetry.export import export_run
        from agentflow.telemetry.projector import NotSent

        async with open_copy(where, id) as log:
            try:
                sent = await interrupts.guard(export_run(log, id, settings))
            except NotSent as error:
                raise CommandError(
                    Exit.UNREACHABLE,
                    "spans_not_sent",
                    redacted(f"{settings.endpoint} did not take the spans: {error}"),
                    "is the collector running? spans may be sent again at any time",
                ) from error
        if as_json:
            emit_json(sent)
        else:
            emit(_line(sent))
        return Exit.DONE

    return run_async(work)


def _line(sent: Exported) -> str:
    facts = [f"{sent.spans} spans of {sent.workflow_id} sent to {sent.endpoint}"]
    if sent.refused:
        facts.append(f"{sent.refused} refused")
    if sent.open:
        facts.append(f"{sent.open} still open")
    return f"{', '.join(facts)}; trace {sent.trace_id}"
