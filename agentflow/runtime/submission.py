"""What is submitted, and the event that begins its run."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Literal, cast

import msgspec
from msgspec import UNSET

from agentflow import __version__
from agentflow.aside import compute_aside, import_aside, is_small
from agentflow.definition.diagnostics import Diagnostic
from agentflow.definition.ir import AgentNode, Workflow
from agentflow.definition.loader import (
    Definition,
    Submission,
    check_inputs,
    definition_of,
    load_file,
    load_value,
)
from agentflow.definition.schemas import is_costly
from agentflow.events.catalogue import DefinitionInfo, WorkflowStarted
from agentflow.events.envelope import SCHEMA_VERSION
from agentflow.runtime.binding import Bound
from agentflow.runtime.options import body_hash

__all__ = [
    "LONG_SOURCE_BYTES",
    "import_loader",
    "is_repeat",
    "load",
    "load_aside",
    "started_event",
    "submission_digest",
]

# What may differ when the same request is sent again: what binding found, and where it came in.
_UNSAID = ("models", "folder", "traceparent", "tracestate", "trusted")

LONG_SOURCE_BYTES: Final = 8 * 1024
"""A longer source is loaded in a thread."""

_LOADING: Final = (
    "agentflow.definition.agent_list",
    "agentflow.definition.document_lints",
    "agentflow.definition.schemas",
    "agentflow.definition.step_document",
)


def load(submission: Submission) -> Definition:
    """The definition of a submission. Raises DefinitionError with every diagnostic."""
    if isinstance(submission, Definition):
        return submission
    if isinstance(submission, Workflow):
        return definition_of(submission)
    if isinstance(submission, Mapping):
        return load_value(submission)
    return load_file(submission)


async def load_aside(submission: Submission, input: Any) -> tuple[Definition, Any, list[Diagnostic]]:
    """Load a submission and check its input; in a thread if that may hold the event loop for long.

    Returns the definition, the input with its defaults, and what is wrong with the input; UNSET is no input,
    and not checked. Raises DefinitionError.
    """
    await import_loader(_media_of(submission))
    definition = await compute_aside(load, submission) if _is_long(submission) else load(submission)
    if _has_schemas(definition.workflow):
        await import_aside("jsonschema_rs")
    if input is UNSET:
        return definition, input, []
    if _is_costly_input(definition, input):
        return definition, *await compute_aside(check_inputs, definition, input)
    return definition, *check_inputs(definition, input)


def _has_schemas(workflow: Workflow) -> bool:
    """Return whether a run may judge a value: an input, an answer, or the arguments of a call."""
    if workflow.inputs:
        return True
    agents = (node.agent for node in workflow.nodes if isinstance(node, AgentNode))
    return any(agent.output_schema is not None or agent.functions != () for agent in agents)


def _media_of(submission: Submission) -> Literal["json", "yaml"] | None:
    """Return what a file is read as, None if nothing is to be read."""
    if not isinstance(submission, str | Path):
        return None
    return "json" if Path(submission).suffix == ".json" else "yaml"


async def import_loader(media: Literal["json", "yaml"] | None) -> None:
    """Import what loads a document in a thread: up to 100 ms of CPU, once.

    `media` is that of a text which is still to be read.
    """
    await import_aside(*_LOADING, *([f"agentflow.definition.{media}_source"] if media else []))


def _is_long(submission: Submission) -> bool:
    if isinstance(submission, Mapping):
        return not is_small(submission) or _length(submission) > LONG_SOURCE_BYTES
    if isinstance(submission, str | Path):
        with suppress(OSError, ValueError):
            return Path(submission).stat().st_size > LONG_SOURCE_BYTES
    return False


def _is_costly_input(definition: Definition, input: Any) -> bool:
    """True if checking the input may take more than some 20 ms."""
    if input is None:
        return False
    if not is_small(input):
        return True
    if not isinstance(input, Mapping):
        return False
    values = cast("Mapping[str, Any]", input)
    declared = definition.workflow.inputs or {}
    return any(is_costly(spec.schema, values[name]) for name, spec in declared.items() if name in values)


def _length(value: Any) -> int:
    try:
        return len(msgspec.json.encode(value))
    except (RecursionError, TypeError, ValueError):  # no JSON: what is wrong with it is said quickly
        return 0


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


def submission_digest(started: WorkflowStarted) -> str:
    """Return the digest that all repeats of a submission share; actor and listener are no part of it."""
    return _digest(started)


def is_repeat(started: WorkflowStarted, first: WorkflowStarted) -> bool:
    """Return whether `started` repeats the submission that began a run with `first`.

    The digests of agentflow 0.1.0 held the actor and its trust as well.
    """
    if first.body_hash == _digest(started):
        return True
    trust = {"trusted": first.options["trusted"]} if "trusted" in first.options else {}
    return first.body_hash == _digest(started, trust, first.by)


def _digest(started: WorkflowStarted, more: Mapping[str, Any] | None = None, *actor: str) -> str:
    said = {key: value for key, value in started.options.items() if key not in _UNSAID}
    said.update(more or {})
    return body_hash(
        started.definition.hash, started.input, started.labels, started.budget or None, said, *actor
    )
