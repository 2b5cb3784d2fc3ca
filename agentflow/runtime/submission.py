"""What is submitted: its options, checked before anything happens, and the event that begins its run."""

from __future__ import annotations

import hashlib
import math
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, cast

import msgspec
from msgspec import UNSET

from agentflow import __version__
from agentflow.aside import compute_aside, import_aside, is_small
from agentflow.definition.bound_nodes import bound_nodes
from agentflow.definition.diagnostics import Diagnostic, did_you_mean, sort_diagnostics
from agentflow.definition.ir import Budget, Workflow, canonical_json
from agentflow.definition.json_values import copy_json, is_broken_text
from agentflow.definition.loader import (
    Definition,
    Submission,
    check_inputs,
    definition_of,
    load_file,
    load_value,
)
from agentflow.definition.policy import MAX_SECONDS
from agentflow.definition.type_errors import explain
from agentflow.errors import ConfigurationError, InvalidOptions
from agentflow.events.catalogue import DefinitionInfo, WorkflowPaused, WorkflowStarted
from agentflow.events.envelope import SCHEMA_VERSION
from agentflow.events.tracing import baggage_problem, parse_traceparent, tracestate_problem
from agentflow.runtime.workflow_code import WorkflowWithCode, signature_of

if TYPE_CHECKING:
    from agentflow.runtime.bound import Bound

__all__ = [
    "FORMAT_LABEL",
    "LONG_SOURCE_BYTES",
    "body_hash",
    "checked_budget",
    "checked_labels",
    "checked_options",
    "import_loader",
    "is_repeat",
    "json_problem",
    "load",
    "load_aside",
    "opening_events",
    "started_event",
    "submission_digest",
    "with_deadline",
    "with_options",
]

FORMAT_LABEL = "agentflow.format"
"""Label of the store's index by which requests are found."""

_MAX_DEPTH = 200
_MAX_LABELS = 64
_MAX_LABEL_NAME = 256
_MAX_LABEL_VALUE = 4_096


def _one_of(*choices: str) -> Callable[[Any], str | None]:
    return lambda value: None if value in choices else f"is not one of {', '.join(choices)}"


def _count(value: Any) -> str | None:
    good = isinstance(value, int) and not isinstance(value, bool) and value >= 1
    return None if good else "is not a whole number from 1 on"


def _key(value: Any) -> str | None:
    good = isinstance(value, str) and 0 < len(value) <= _MAX_LABEL_VALUE and json_problem(value) is None
    return None if good else f"is not a text of 1 to {_MAX_LABEL_VALUE:,} characters"


def _traceparent(value: Any) -> str | None:
    return None if parse_traceparent(value) is not None else "is not a W3C traceparent"


_OPTIONS: dict[str, Callable[[Any], str | None]] = {
    "on_failure": _one_of("halt", "continue", "hold"),
    "on_unknown": _one_of("ask", "fail"),
    "max_parallel": _count,
    "concurrency_key": _key,
    "on_conflict": _one_of("queue", "reject", "cancel_previous"),
    "traceparent": _traceparent,
    "tracestate": tracestate_problem,
    "baggage": baggage_problem,
}


def checked_options(given: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the options without those that are null. Raises InvalidOptions with every problem, each at its
    place below `/options`."""
    options = {key: value for key, value in (given or {}).items() if value is not None}
    if not options:
        return options
    if not is_small(options):
        message = "options hold more than 2,000 values or 64 Ki characters"
        raise InvalidOptions([Diagnostic(code="E_LIMIT", severity="error", message=message, path="/options")])
    found = [_wrong_option(key, value) for key, value in options.items() if key in _OPTIONS]
    problems = [problem for problem in found if problem is not None]
    if "on_conflict" in options and "concurrency_key" not in options:
        message = "on_conflict says what happens between runs of one concurrency_key, and there is none"
        problems.append(
            Diagnostic(code="E_VALUE", severity="error", message=message, path="/options/on_conflict")
        )
    more = {key: value for key, value in options.items() if key not in _OPTIONS}
    if more:
        from agentflow.definition.run_options import check_run_options

        problems += check_run_options(more, known=tuple(_OPTIONS))
    if problems:
        raise InvalidOptions(sort_diagnostics(problems))
    return options


def _wrong_option(key: str, value: Any) -> Diagnostic | None:
    problem = _OPTIONS[key](value)
    if problem is None:
        return None
    message = f"option {key}: {value!r} {problem}"
    return Diagnostic(code="E_VALUE", severity="error", message=message, path=f"/options/{key}")


def checked_labels(given: Mapping[str, str] | None) -> dict[str, str]:
    """Return the labels: at most 64, names of up to 256 and values of up to 4,096 characters.

    Raises ConfigurationError if there are more, one is longer or is not a string.
    """
    labels = dict(given or {})
    if len(labels) > _MAX_LABELS:
        raise ConfigurationError(f"a run has at most {_MAX_LABELS} labels, not {len(labels):,}")
    for key, value in labels.items():
        if not isinstance(key, str) or not isinstance(value, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(f"label {key!r}: names and values of labels are strings")
        if len(key) > _MAX_LABEL_NAME or len(value) > _MAX_LABEL_VALUE:
            limits = f"a name has at most {_MAX_LABEL_NAME} characters, a value {_MAX_LABEL_VALUE:,}"
            raise ConfigurationError(f"label {key[:50]!r} is too long: {limits}")
    problem = json_problem(labels)
    if problem is not None:
        raise ConfigurationError(f"labels: {problem}")
    return labels


def json_problem(value: Any) -> str | None:
    """Return why no event can hold a Python value, or None. Does not recurse."""
    todo: list[tuple[Any, int]] = [(value, 0)]
    while todo:
        item, depth = todo.pop()
        if depth > _MAX_DEPTH:
            return f"nested deeper than {_MAX_DEPTH}"
        if isinstance(item, str):
            if is_broken_text(item):
                return "a string holds half a surrogate pair"
        elif isinstance(item, Mapping):
            for key, member in cast("Mapping[Any, Any]", item).items():
                if not isinstance(key, str):
                    return f"the key {key!r} is not a string"
                todo += [(key, depth), (member, depth + 1)]
        elif isinstance(item, list | tuple):
            todo += [(member, depth + 1) for member in cast("list[Any]", item)]
        elif isinstance(item, float):
            if not math.isfinite(item):
                return f"{item} is no JSON number"
        elif item is not None and not isinstance(item, bool | int):
            return f"{type(item).__name__} is no JSON type"
    return None


def checked_budget(given: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return the limits of a budget. Raises ConfigurationError naming the wrong key."""
    if given is None:
        return None
    from agentflow.engine.budgets import LIMITS

    known = [*LIMITS, "max_depth", "on_exceeded"]
    for key in given:
        if key not in known:
            hint = did_you_mean(key, known) or f"known: {', '.join(known)}"
            raise ConfigurationError(f"unknown key {key!r} of the budget", hint=hint)
    try:
        msgspec.convert(dict(given), Budget)
    except msgspec.ValidationError as error:
        problem = explain(error, Budget)
        raise ConfigurationError(f"budget: {problem.sentence()}", hint=problem.hint) from None
    for key in LIMITS:
        value = given.get(key)
        if value is not None and (isinstance(value, bool) or not value >= 0):
            raise ConfigurationError(f"budget: {key} is {value}, below 0")
    seconds = given.get("max_duration_s")
    if seconds is not None and seconds > MAX_SECONDS:
        raise ConfigurationError(f"budget: max_duration_s is {seconds:g}, above {MAX_SECONDS:g}")
    return {key: value for key, value in given.items() if value is not None}


def with_deadline(limits: dict[str, Any] | None, options: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the limits with the `deadline` of options that were checked, if that is tighter."""
    if "deadline" not in options:
        return limits
    from agentflow.definition.run_options import deadline_of

    seconds = deadline_of(options)
    given = (limits or {}).get("max_duration_s")
    return {**(limits or {}), "max_duration_s": seconds if given is None else min(given, seconds)}


def body_hash(*parts: Any) -> str:
    """Return the digest of a submission, by which reuse of an idempotency key for another one is found."""
    return "sha256:" + hashlib.sha256(canonical_json(parts)).hexdigest()


# What may differ when the same request is sent again: what binding found, and where it came in.
_UNSAID = ("models", "folder", "traceparent", "tracestate", "baggage", "trusted")

LONG_SOURCE_BYTES: Final = 8 * 1024
"""A longer source is loaded in a thread."""

_LOADING: Final = (
    "agentflow.definition.agent_list",
    "agentflow.definition.document_lints",
    "agentflow.definition.schemas",
    "agentflow.definition.step_document",
)


def load(submission: Submission | WorkflowWithCode) -> Definition:
    """Return the definition of a submission. Raises DefinitionError with every diagnostic."""
    if isinstance(submission, Definition):
        return submission
    if isinstance(submission, WorkflowWithCode):
        return submission.definition
    if isinstance(submission, Workflow):
        return definition_of(submission)
    if isinstance(submission, Mapping):
        return load_value(submission)
    return load_file(submission)


async def load_aside(
    submission: Submission | WorkflowWithCode, input: Any
) -> tuple[Definition, Any, list[Diagnostic]]:
    """Load a submission and check its input; in a thread if that may hold the event loop for long.

    Returns the definition, the input with its defaults, and what is wrong with the input; UNSET is no input,
    and not checked. Raises DefinitionError.
    """
    await import_loader(_media_of(submission))
    definition = await compute_aside(load, submission) if _is_long(submission) else load(submission)
    if "jsonschema_rs" not in sys.modules and _has_schemas(definition):
        await import_aside("jsonschema_rs")
    if input is UNSET:
        return definition, input, []
    if _is_costly_input(definition, input):
        return definition, *await compute_aside(_check_input, definition, input)
    return definition, *_check_input(definition, input)


def _check_input(definition: Definition, input: Any) -> tuple[Any, list[Diagnostic]]:
    """Do as `check_inputs`; the value is the run's own, because the caller may change theirs later."""
    value, problems = check_inputs(definition, input)
    is_wrong = any(problem.severity == "error" for problem in problems)
    return value if is_wrong else copy_json(value), problems


def with_options(definition: Definition, options: Mapping[str, Any]) -> Definition:
    """Return a definition with the graph as it runs with these options, which were checked."""
    if options.keys() <= _OPTIONS.keys():
        return definition
    from agentflow.definition.ir import ir_hash
    from agentflow.definition.run_options import graph_with_options

    workflow = graph_with_options(definition.workflow, options)
    if workflow is definition.workflow:
        return definition
    return msgspec.structs.replace(definition, workflow=workflow, ir_hash=ir_hash(workflow))


_MAX_KNOWN = 256
_without_schemas: dict[str, None] = {}
"""Hashes of graphs that were found to judge nothing, the latest last."""


def _has_schemas(definition: Definition) -> bool:
    """Return whether a run may judge a value: an input, an answer, or the arguments of a call."""
    if definition.workflow.inputs:
        return True
    if definition.ir_hash in _without_schemas:
        return False
    agents = [node.agent for node in bound_nodes(definition.workflow) if node.agent is not None]
    if any(agent.output_schema is not None or agent.functions != () for agent in agents):
        return True
    _without_schemas[definition.ir_hash] = None
    if len(_without_schemas) > _MAX_KNOWN:
        _without_schemas.pop(next(iter(_without_schemas)), None)
    return False


def _media_of(submission: Submission | WorkflowWithCode) -> Literal["json", "yaml"] | None:
    """Return what a file is read as, None if nothing is to be read."""
    if not isinstance(submission, str | Path):
        return None
    return "json" if Path(submission).suffix == ".json" else "yaml"


async def import_loader(media: Literal["json", "yaml"] | None) -> None:
    """Import what loads a document in a thread: up to 100 ms of CPU, once.

    `media` is that of a text which is still to be read.
    """
    await import_aside(*_LOADING, *([f"agentflow.definition.{media}_source"] if media else []))


def _is_long(submission: Submission | WorkflowWithCode) -> bool:
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
    from agentflow.definition.schemas import is_costly

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
    """Return `workflow.started`: everything that is needed to run, here or in another process."""
    kept = dict(options)
    kept["models"] = bound.models
    if definition.folder is not None:
        kept["folder"] = str(definition.folder.absolute())  # resumed from another working directory too
    return WorkflowStarted(
        definition=DefinitionInfo(
            id=definition.name,
            name=definition.name,
            version=definition.version,
            format=definition.format,
            hash=definition.hash,
            signature=UNSET if bound.code is None else signature_of(definition),
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


def opening_events(started: WorkflowStarted) -> list[Any]:
    """Return what stands directly behind `workflow.started`, in the same append."""
    if started.definition.format != "pipeline":
        return []
    from agentflow.engine.pipeline import activated_event

    opening: list[Any] = [activated_event(started.input)]
    imported: str | None = started.input.get("imported")
    if imported is not None:
        detail = f"imported from the state of {imported}"
        opening.append(WorkflowPaused(reason="operator", detail=detail, by=started.by))
    return opening


def submission_digest(started: WorkflowStarted) -> str:
    """Return the digest that all repeats of a submission share; actor and listener are no part of it."""
    return _digest(started) if started.body_hash is UNSET else started.body_hash


def is_repeat(started: WorkflowStarted, first: WorkflowStarted) -> bool:
    """Return whether `started` repeats the submission that began a run with `first`.

    The digests of agentflow 0.1.0 held the actor and its trust as well.
    """
    if first.body_hash == submission_digest(started):
        return True
    trust = {"trusted": first.options["trusted"]} if "trusted" in first.options else {}
    return first.body_hash == _digest(started, trust, first.by)


def _digest(started: WorkflowStarted, more: Mapping[str, Any] | None = None, *actor: str) -> str:
    said = {key: value for key, value in started.options.items() if key not in _UNSAID}
    if started.state_from is not UNSET:
        said["state_from"] = started.state_from
    said.update(more or {})
    return body_hash(
        started.definition.hash, started.input, started.labels, started.budget or None, said, *actor
    )
