"""The exception tree of `agentflow`.

    AgentflowError
    ├── DefinitionError        a document, its bindings or its inputs were refused; carries every diagnostic
    │   ├── WorkflowValidationError   a graph was refused by `build()`, or given as one
    │   └── InvalidOptions     options of a run were refused; a ConfigurationError too
    ├── ConfigurationError     the environment does not allow it (store path, model, unknown option)
    ├── StoreError             the event log cannot do what was asked
    │   ├── CommitUnknown      the answer to an append was lost: the log tells whether it holds the batch
    │   ├── OffsetConflict     the log is not at the offset that the writer expected
    │   ├── Fenced             another process owns the run now
    │   ├── StorageUnavailable a full, busy or read-only store: it may take the same append later
    │   ├── LogClosed          the log was closed
    │   │   └── LogFailed      the log stopped for good after a failed write or sync
    │   └── LogCorrupt         stored bytes are not what was written
    ├── RunNotFound            no run of that id
    ├── RunGone                the run was deleted; carries what is left of it
    ├── OffsetTrimmed          the run's first events were taken away; carries the earliest that is left
    ├── RunNotTerminal         the run has not ended, so nothing of it may be taken away
    ├── Unsupported            this kind of store cannot do what was asked
    ├── InvalidExport          a file is not an exported log; carries the line
    ├── RunExists              the id is taken by a run with another input
    ├── RunTerminal            the run has ended; its log takes no more events
    ├── IdempotencyConflict    the idempotency key was used with another submission
    ├── OutputNotReady         the run whose output is wanted has none yet
    ├── QueueFull              too many runs wait for a place
    ├── InvalidOutput          the output of a completed run does not fit the type that was asked for
    ├── CommandRefused         a command does not fit the state of its run; `.code` says why
    │   ├── UnknownRequest     no open request of that id
    │   ├── InvalidAnswer      the answer does not satisfy what the request asks for
    │   ├── CheckpointNotFound no checkpoint of that id
    │   ├── ConcurrencyRejected another run holds the concurrency key
    │   ├── GraphSignatureMismatch  the run began with a graph that is joined in another way
    │   └── InvalidEdit        a fork cannot begin with what an edit says
    ├── HandlerMisuse          a handler of an executor did what it did not declare; carries details
    │   ├── MessageTypeUndeclared, UnknownTarget, NoResponseHandler, MessageNotEncodable
    │   ├── ScopeAccessDenied
    ├── OutcomeUnknown         a recorded call may have been executed, and its result is lost
    └── WorkflowFailed         a run ended without success; carries its result
        ├── WorkflowCancelled
        └── ExecutorFailed, RoutingFailed, MessageUndelivered, JoinIncomplete, StateConflict, InputTimeout,
            MaxIterationsExceeded, StepLimitExceeded, PendingLimitExceeded, MessageLimitExceeded

Actor errors stand in `actors.errors`; errors *inside* a run are data (`definition.failure.ErrorInfo`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentflow.definition.diagnostics import Diagnostic
    from agentflow.events.tombstone import Tombstone
    from agentflow.records.runs import RunResult

__all__ = [
    "AgentflowError",
    "CheckpointNotFound",
    "CommandRefused",
    "CommitUnknown",
    "ConcurrencyRejected",
    "ConfigurationError",
    "DefinitionError",
    "ExecutorFailed",
    "Fenced",
    "GraphSignatureMismatch",
    "HandlerMisuse",
    "IdempotencyConflict",
    "InputTimeout",
    "InvalidAnswer",
    "InvalidEdit",
    "InvalidExport",
    "InvalidOptions",
    "InvalidOutput",
    "JoinIncomplete",
    "LogClosed",
    "LogCorrupt",
    "LogFailed",
    "MaxIterationsExceeded",
    "MessageLimitExceeded",
    "MessageNotEncodable",
    "MessageTypeUndeclared",
    "MessageUndelivered",
    "NoResponseHandler",
    "OffsetConflict",
    "OffsetTrimmed",
    "OutcomeUnknown",
    "OutputNotReady",
    "PendingLimitExceeded",
    "QueueFull",
    "RoutingFailed",
    "RunExists",
    "RunGone",
    "RunNotFound",
    "RunNotTerminal",
    "RunTerminal",
    "ScopeAccessDenied",
    "StateConflict",
    "StepLimitExceeded",
    "StorageUnavailable",
    "StoreError",
    "UnknownRequest",
    "UnknownSpeaker",
    "UnknownTarget",
    "Unsupported",
    "WorkflowCancelled",
    "WorkflowFailed",
    "WorkflowValidationError",
    "failure_of_run",
    "refused",
]


class AgentflowError(Exception):
    """Something went wrong in agentflow."""

    code: str = "agentflow_error"
    hint: str | None = None

    def __init__(self, message: str | None = None, *, hint: str | None = None) -> None:
        super().__init__(message or type(self).__doc__)
        if hint is not None:
            self.hint = hint


class DefinitionError(AgentflowError):
    """The workflow was refused; see `.diagnostics`. No run was made and no event written."""

    code = "validation_failed"

    def __init__(self, diagnostics: Sequence[Diagnostic]) -> None:
        self.diagnostics = list(diagnostics)
        super().__init__("\n".join(d.render() for d in self.diagnostics) or None)


class WorkflowValidationError(DefinitionError):
    """The graph was refused; see `.diagnostics`, which name the places or calls that are wrong."""


class ConfigurationError(AgentflowError):
    """The configuration does not allow this; the message names the setting."""

    code = "configuration"


class InvalidOptions(DefinitionError, ConfigurationError):
    """The options of the run were refused; see `.diagnostics`. No run was made and no event written."""

    code = "validation_failed"


class StoreError(AgentflowError):
    """The store cannot do this; nothing was acknowledged."""

    code = "storage_unavailable"
    transient: ClassVar[bool] = False
    """Whether the same call may succeed later, on this log or on the store once it is open again."""


class StorageUnavailable(StoreError):
    """The store takes nothing now: nothing was acknowledged and no offset used. Try again later."""

    transient = True


class CommitUnknown(StoreError):
    """The store's answer to an append was lost: ask `EventLog.holds` whether the batch is in the log."""

    code = "commit_unknown"


class OffsetConflict(StoreError):
    """The log is not at the expected offset: another writer appended. Fold the log again."""

    code = "offset_mismatch"

    def __init__(self, workflow_id: str, expected: int, actual: int) -> None:
        super().__init__(f"{workflow_id}: expected to append at offset {expected}, the log is at {actual}")
        self.workflow_id, self.expected, self.actual = workflow_id, expected, actual


class Fenced(StoreError):
    """Another process owns this run now; stop working on it."""

    code = "fenced"


class LogClosed(StoreError):
    """The event log is closed; open the store again."""

    transient = True


class LogFailed(LogClosed):
    """The event log stopped for good after a failed write or sync; check the disk, then open it again."""

    transient = False


class LogCorrupt(StoreError):
    """Stored bytes are damaged; the run is quarantined. Restore the store from a copy."""

    code = "log_corrupt"


class RunNotFound(AgentflowError):
    """No run has this id; `agentflow list` shows the runs of a store."""

    code = "workflow_not_found"


class RunGone(AgentflowError):
    """The run was deleted. Its id is never used again."""

    code = "run_gone"

    def __init__(self, tombstone: Tombstone) -> None:
        super().__init__(tombstone.describe())
        self.tombstone = tombstone


class OffsetTrimmed(AgentflowError):
    """The first events of the run were taken away by retention."""

    code = "offset_trimmed"

    def __init__(self, workflow_id: str, earliest_offset: int, requested: int) -> None:
        super().__init__(
            f"{workflow_id} begins at offset {earliest_offset}, {requested} was asked for; "
            "retention took the events before it"
        )
        self.workflow_id, self.earliest_offset, self.requested = workflow_id, earliest_offset, requested


class RunNotTerminal(AgentflowError):
    """The run has not ended; cancel it first."""

    code = "run_not_terminal"


class Unsupported(AgentflowError):
    """This store cannot do that; nothing changed."""

    code = "unsupported"


class InvalidExport(AgentflowError):
    """The file is not an exported log; `line` counts from 1."""

    code = "invalid_export"

    def __init__(self, path: str, line: int | None, problem: str, *, hint: str | None = None) -> None:
        super().__init__(f"{path}:{line}: {problem}" if line is not None else f"{path}: {problem}", hint=hint)
        self.path, self.line, self.problem = path, line, problem


class RunExists(AgentflowError):
    """A run with this id was begun by another submission; choose another id."""

    code = "run_exists"


class RunTerminal(AgentflowError):
    """The run has ended; its log takes no more events."""

    code = "run_terminal"


class IdempotencyConflict(AgentflowError):
    """The idempotency key was used before with another submission."""

    code = "idempotency_conflict"


class OutputNotReady(AgentflowError):
    """The run whose output is to be the input has none yet; wait until it is completed."""

    code = "output_not_ready"


class QueueFull(AgentflowError):
    """Too many runs wait for a place; try again later."""

    code = "queue_full"


class CommandRefused(AgentflowError):
    """The command does not fit the state of the run; nothing changed."""

    code = "invalid_transition"

    def __init__(
        self,
        message: str | None = None,
        *,
        code: str | None = None,
        details: dict[str, Any] | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        if code is not None:
            self.code = code
        self.details = details or {}


class UnknownRequest(CommandRefused):
    """There is no open request of that id; `agentflow show ID` lists them."""

    code = "unknown_request"


class InvalidAnswer(CommandRefused):
    """The answer does not satisfy the request's schema."""

    code = "invalid_response"


class ConcurrencyRejected(CommandRefused):
    """Another run holds the `concurrency_key`; `.details` names it. Wait for its end, or state `on_conflict:
    queue` or `cancel_previous`."""

    code = "concurrency_rejected"


class CheckpointNotFound(CommandRefused):
    """There is no checkpoint of that id; `list_checkpoints` shows those of a run."""

    code = "checkpoint_not_found"


class GraphSignatureMismatch(CommandRefused):
    """The run began with a graph that is joined in another way; `.details` names what differs."""

    code = "graph_signature_mismatch"


class InvalidEdit(CommandRefused):
    """The fork cannot begin with this; `.details` names the edit."""

    code = "invalid_edit"


_REFUSED: Final = (
    UnknownRequest,
    InvalidAnswer,
    CheckpointNotFound,
    ConcurrencyRejected,
    GraphSignatureMismatch,
    InvalidEdit,
)


def refused(code: str, message: str, details: dict[str, Any] | None = None) -> AgentflowError:
    """The error of a refused command, by its code in page 000 §8.2."""
    if code == RunTerminal.code:
        return RunTerminal(message)
    for kind in _REFUSED:
        if code == kind.code:
            return kind(message, details=details)
    return CommandRefused(message, code=code, details=details)


class InvalidOutput(AgentflowError):
    """The output of the run does not fit its `output_type`; `.result` holds it as the log does."""

    code = "invalid_output"

    def __init__(self, message: str | None = None, *, result: Any = None) -> None:
        super().__init__(message, hint="state the same shape as the `outputs` of the workflow")
        self.result = result


class HandlerMisuse(AgentflowError):
    """A handler of an executor did what it did not declare. Uncaught, its step fails with this code, without
    another attempt; `.details` names types and targets."""

    code = "handler_misuse"

    def __init__(
        self, message: str | None = None, *, hint: str | None = None, details: dict[str, Any] | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.details = details or {}


class MessageTypeUndeclared(HandlerMisuse):
    """The handler's WorkflowContext does not declare this type; add it there."""

    code = "message_type_undeclared"


class ScopeAccessDenied(HandlerMisuse):
    """The capabilities of the node do not allow what its handler does; add the area to them."""

    code = "scope_access_denied"


class UnknownTarget(HandlerMisuse):
    """No edge leads from this node to the target."""

    code = "unknown_target"


class UnknownSpeaker(HandlerMisuse):
    """A manager picked a speaker who does not take part."""

    code = "unknown_speaker"


class NoResponseHandler(HandlerMisuse):
    """No response handler of the executor takes this request and this answer."""

    code = "no_response_handler"


class MessageNotEncodable(HandlerMisuse):
    """The value has no JSON form; see agentflow.register_type."""

    code = "message_not_encodable"


class OutcomeUnknown(AgentflowError):
    """A recorded call may have been executed and its result is lost; it is not made again."""

    code = "outcome_unknown"


class WorkflowFailed(AgentflowError):
    """The run failed; `.result` holds what it reached.

    `workflow_id` is the id of the run, `error` its ErrorInfo and `failed_steps` the ids of the steps that
    failed, in the order of the definition; without a result they are empty.
    """

    code = "workflow_failed"

    def __init__(self, message: str | None = None, *, result: RunResult | None = None) -> None:
        self.result = result
        self.workflow_id = "" if result is None else result.workflow_id
        self.error = None if result is None else result.error
        self.failed_steps = () if result is None else result.failed_steps
        hint = f"`agentflow show {self.workflow_id}` says more" if self.workflow_id else None
        fix = None if self.error is None else (self.error.details or {}).get("hint")
        super().__init__(message, hint=hint if not isinstance(fix, str) else f"{fix}; {hint}")


class ExecutorFailed(WorkflowFailed):
    """A handler of an executor raised an exception."""

    code = "executor_failed"


class RoutingFailed(WorkflowFailed):
    """A predicate or a selection gave a message no way."""

    code = "routing_failed"


class MessageUndelivered(WorkflowFailed):
    """No edge took a message, and `on_undelivered` is fail."""

    code = "message_undelivered"


class JoinIncomplete(WorkflowFailed):
    """A fan-in lacks a source that cannot arrive, and its `on_missing` is fail."""

    code = "join_incomplete"


class StateConflict(WorkflowFailed):
    """Two nodes gave a shared key without a reducer different values."""

    code = "state_conflict"


class MaxIterationsExceeded(WorkflowFailed):
    """The run went through as many supersteps as it may."""

    code = "max_iterations_exceeded"


class StepLimitExceeded(WorkflowFailed):
    """The run began as many activations as it may."""

    code = "step_limit_exceeded"


class PendingLimitExceeded(WorkflowFailed):
    """More messages wait than a run may have."""

    code = "pending_limit_exceeded"


class MessageLimitExceeded(WorkflowFailed):
    """An activation sent more messages than it may."""

    code = "message_limit_exceeded"


class InputTimeout(WorkflowFailed):
    """A request had no answer in time, and states none for that case."""

    code = "input_timeout"


_FAILURES: dict[str, type[WorkflowFailed]] = {
    kind.code: kind
    for kind in (
        ExecutorFailed,
        RoutingFailed,
        MessageUndelivered,
        JoinIncomplete,
        StateConflict,
        MaxIterationsExceeded,
        StepLimitExceeded,
        PendingLimitExceeded,
        MessageLimitExceeded,
        InputTimeout,
    )
}


def failure_of_run(code: str | None) -> type[WorkflowFailed]:
    """Return the exception for a run that failed with this code."""
    return _FAILURES.get(code or "", WorkflowFailed)


class WorkflowCancelled(WorkflowFailed):
    """The run was cancelled; `.result` holds what it reached."""

    code = "cancelled"
