"""What is submitted, and the event that begins its run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import UNSET

from agentflow import __version__
from agentflow.definition.diagnostics import Diagnostic
from agentflow.definition.ir import Workflow
from agentflow.definition.loader import Definition, definition_of, load_file, load_value
from agentflow.events.catalogue import DefinitionInfo, WorkflowStarted
from agentflow.events.envelope import SCHEMA_VERSION
from agentflow.runtime.binding import Bound

__all__ = ["Submission", "load", "started_event"]

Submission = Definition | Workflow | Mapping[str, Any] | str | Path
"""A loaded definition, a graph built in Python, a document as a mapping, or the path of a file."""


def load(submission: Submission) -> Definition:
    """The definition of a submission. Raises DefinitionError with every diagnostic."""
    if isinstance(submission, Definition):
        return submission
    if isinstance(submission, Workflow):
        return definition_of(submission)
    if isinstance(submission, Mapping):
        return load_value(submission)
    return load_file(submission)


def started_event(
    definition: Definition,
    bound: Bound,
    value: Any,
    labels: Mapping[str, str],
    options: Mapping[str, Any],
    found: list[Diagnostic],
    by: str,
) -> WorkflowStarted:
    """`workflow.started`: everything that is needed to run, here or in another process."""
    kept = dict(options)
    kept["models"] = bound.models
    if definition.folder is not None:
        kept["folder"] = str(definition.folder)
    return WorkflowStarted(
        definition=DefinitionInfo(
            id=definition.name,
            name=definition.name,
            version=definition.version,
            format=definition.format,
            hash=definition.hash,
        ),
        ir_hash=definition.ir_hash,
        source=definition.source,
        input=value,
        options=kept,
        labels=dict(labels),
        schema_version=SCHEMA_VERSION,
        runtime_version=__version__,
        by=by,
        grants=bound.grants,
        diagnostics=tuple(found) if found else UNSET,
    )
