"""Progress of a run: a fold of its events, and a line for a log for each.

Pure: it reads events and writes nothing; `plain` and `live` show it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar, cast

from agentflow.definition.conversation import Usage
from agentflow.definition.failure import ErrorInfo
from agentflow.definition.ir import Workflow
from agentflow.definition.kinds import kind_of
from agentflow.events import catalogue as ev
from agentflow.events.envelope import Event, micros

__all__ = ["Progress", "StepProgress", "clock_time", "cost_text", "count", "duration", "token_text"]

_MAX_ITEM_PROBLEMS = 10


@dataclass(slots=True)
class StepProgress:
    """A step as it stands."""

    step_id: str
    state: str = "pending"
    attempt: int = 0
    started: int | None = None  # µs since the epoch
    duration_ms: int | None = None
    total: int | None = None  # items of a for_each; None for other steps
    done: int = 0
    failed: int = 0
    tokens: int = 0
    cost_usd: float | None = 0.0  # None once a call had no known price
    detail: str = ""
    reason: str = ""  # why it failed or was skipped, whole
    error: ErrorInfo | None = None
    item_problems: list[str] = field(default_factory=list[str])  # of the first items that failed
    asked: set[str] = field(default_factory=set[str])  # ids of open requests


class Progress:
    """The steps of one run, in declared order, and the run itself."""

    def __init__(self, workflow: Workflow) -> None:
        nodes = [n for n in workflow.nodes if not kind_of(n).is_border]
        nodes.sort(key=lambda node: node.index)
        maps = {node.id for node in nodes if node.for_each is not None}
        self._begin(workflow.name, [node.id for node in nodes], maps)

    @classmethod
    def of_steps(cls, name: str, step_ids: Sequence[str]) -> Progress:
        """Return the progress of a run of which only the names of its steps are known."""
        made = cls.__new__(cls)
        made._begin(name, step_ids, set())
        return made

    @classmethod
    def event_types(cls) -> list[str]:
        """Return the types of the events that `take` reads."""
        return sorted(kind.EVENT_TYPE for kind in cls._HANDLERS)

    def _begin(self, name: str, step_ids: Sequence[str], maps: set[str]) -> None:
        self.run_id = ""
        self.name = name
        self.state = "pending"
        self.pause = ""
        self.paused: ev.WorkflowPaused | None = None  # the latest one
        self.waiting: ev.WorkflowWaiting | None = None  # the latest one
        self.waiting_at = -1  # its offset
        self.started: int | None = None
        self.duration_ms: int | None = None
        self.steps = {step_id: StepProgress(step_id) for step_id in step_ids}
        self._maps = maps

    @property
    def tokens(self) -> int:
        """Tokens of all steps so far."""
        return sum(step.tokens for step in self.steps.values())

    @property
    def cost_usd(self) -> float | None:
        """Cost of all steps so far; None if a price is not known."""
        costs = [step.cost_usd for step in self.steps.values()]
        return None if None in costs else sum(cost or 0.0 for cost in costs)

    def take(self, event: Event[Any]) -> list[str]:
        """Fold one event; what it says to a person, as no, one or more lines."""
        self.run_id = event.workflow_id
        handler = self._HANDLERS.get(event.data.__class__)
        return [] if handler is None else list(handler(self, event))

    def step(self, event: Event[Any]) -> StepProgress:
        """Return the step that an event is about."""
        step_id: str = event.data.step_id
        return self.steps.setdefault(step_id, StepProgress(step_id))

    # -- the run --------------------------------------------------------------------------------

    def _started(self, event: Event[ev.WorkflowStarted]) -> Iterable[str]:
        self.started = micros(event.timestamp)
        yield f"{event.workflow_id} started: {self.name}"

    def _rests(self, event: Event[ev.WorkflowWaiting]) -> Iterable[str]:
        self.state = "waiting"
        data = event.data
        self.waiting, self.waiting_at = data, event.offset
        waited = ((data.requests, "answer"), (data.timers, "timer"), (data.signals, "signal"))
        named = ", ".join(count(len(found), noun) for found, noun in waited if found)
        yield f"{event.workflow_id} waits for {named or 'nothing'}"

    def _paused(self, event: Event[ev.WorkflowPaused]) -> Iterable[str]:
        self.state = "paused"
        self.paused = event.data
        self.pause = event.data.reason + (f": {event.data.detail}" if event.data.detail else "")
        yield f"{event.workflow_id} paused: {self.pause}"

    def _resumed(self, event: Event[ev.WorkflowResumed]) -> Iterable[str]:
        self.state = "running"
        yield f"{event.workflow_id} resumed"

    def _cancelling(self, event: Event[ev.WorkflowCancelRequested]) -> Iterable[str]:
        yield f"{event.workflow_id} is being cancelled" + _because(event.data.reason)

    def _ended(self, event: Event[Any]) -> Iterable[str]:
        self.state = event.type.partition(".")[2]
        self.duration_ms = event.data.duration_ms
        usage = event.data.usage
        cost = "" if usage.cost_usd is None else f", ${usage.cost_usd:.4f}"
        yield (
            f"{event.workflow_id} {self.state} in {duration(event.data.duration_ms)},"
            f" {token_text(usage)}{cost if usage.model_calls else ''}"
        )

    # -- steps ----------------------------------------------------------------------------------

    def _step_started(self, event: Event[ev.WorkflowStepStarted]) -> Iterable[str]:
        step, data = self.step(event), event.data
        self.state = "running"
        step.state, step.detail = "running", ""
        if data.iteration is not None:
            return
        again = data.attempt > 1 and step.attempt > 0
        step.attempt = data.attempt
        step.started = micros(event.timestamp) if step.started is None else step.started
        if step.step_id in self._maps:
            step.total = len(cast("list[Any]", data.input))  # not an array: the step had failed before
        items = "" if step.total is None else f" with {count(step.total, 'item')}"
        yield f"{step.step_id} started{items}" + (f" (attempt {data.attempt})" if again else "")

    def _step_completed(self, event: Event[ev.WorkflowStepCompleted]) -> Iterable[str]:
        step, data = self.step(event), event.data
        if data.iteration is not None:
            step.done += 1
            yield f"{step.step_id}[{data.iteration}] completed in {duration(data.duration_ms)}{_share(step)}"
            return
        step.state, step.duration_ms, step.detail = "succeeded", data.duration_ms, ""
        tokens = f", {count(step.tokens, 'token')}" if step.tokens else ""
        yield f"{step.step_id} completed in {duration(data.duration_ms)}{tokens}"

    def _step_failed(self, event: Event[ev.WorkflowStepFailed]) -> Iterable[str]:
        step, data = self.step(event), event.data
        ended = "cancelled" if data.error.category == "cancelled" else "failed"
        if data.iteration is not None:
            step.done, step.failed = step.done + 1, step.failed + 1
            if ended == "failed" and len(step.item_problems) < _MAX_ITEM_PROBLEMS:
                step.item_problems.append(f"{_place(data)} {ended}: {_told(data.error)}")
            yield f"{step.step_id}[{data.iteration}] {ended}: {_told(data.error)}{_share(step)}"
            return
        step.state, step.duration_ms, step.detail = ended, data.duration_ms, _told(data.error)
        step.reason, step.error = step.detail, data.error
        yield f"{step.step_id} {ended}: {step.detail}"

    def _step_skipped(self, event: Event[ev.WorkflowStepSkipped]) -> Iterable[str]:
        step, data = self.step(event), event.data
        because = data.reason + (f" ({', '.join(data.caused_by)})" if data.caused_by else "")
        if data.iteration is not None:
            step.done += 1
            yield f"{step.step_id}[{data.iteration}] skipped: {because}{_share(step)}"
            return
        step.state, step.detail = "skipped", because
        step.reason = because + _because(data.detail)
        yield f"{step.step_id} skipped: {because}"

    def _retrying(self, event: Event[ev.AgentRetrying | ev.WorkflowStepRetrying]) -> Iterable[str]:
        step, data = self.step(event), event.data
        wait = f" in {duration(data.delay_ms)}" if data.delay_ms else ""
        step.detail = f"retrying ({data.kind}){wait}: {_told(data.error)}"
        yield f"{_place(data)} {step.detail}"

    def _tool_failed(self, event: Event[ev.ToolCallFailed]) -> Iterable[str]:
        data = event.data
        if data.error.category != "cancelled":
            yield f"{_place(data)} tool {data.tool_name} failed: {_told(data.error)}"

    def _asked(self, event: Event[ev.InputRequested | ev.ApprovalRequested]) -> Iterable[str]:
        data = event.data
        if not isinstance(data.step_id, str):
            yield f"{event.workflow_id} asks: {data.request_id}"
            return
        step = self.step(event)
        step.asked.add(data.request_id)
        asks = isinstance(data, ev.InputRequested)
        step.state = "waiting"
        step.detail = f"{'answer' if asks else 'approval'} {data.request_id}"
        yield f"{_place(data)} {'asks' if asks else 'waits for approval'}: {data.request_id}"

    def _closed(self, event: Event[Any], said: str) -> Iterable[str]:
        self.state = "running" if self.state == "waiting" else self.state  # a paused run stays so
        if isinstance(event.data.step_id, str):
            step = self.step(event)
            step.asked.discard(event.data.request_id)
            if not step.asked:
                step.state, step.detail = "running" if step.attempt else "pending", ""
            yield f"{_place(event.data)} {said}: {event.data.request_id}"

    def _answered(self, event: Event[ev.InputReceived]) -> Iterable[str]:
        return self._closed(event, "was answered")

    def _granted(self, event: Event[ev.ApprovalGranted]) -> Iterable[str]:
        return self._closed(event, f"was approved by {event.data.by}")

    def _denied(self, event: Event[ev.ApprovalDenied]) -> Iterable[str]:
        reason = event.data.reason
        because = f" ({reason})" if isinstance(reason, str) else ""
        return self._closed(event, f"was denied by {event.data.by}{because}")

    def _taken_back(self, event: Event[ev.InputCancelled]) -> Iterable[str]:
        return self._closed(event, "is not asked any more")

    def _model_answered(self, event: Event[ev.ModelCallCompleted]) -> Iterable[str]:
        step = self.step(event)
        _add_usage(step, event.data.usage)
        step.detail = ""
        return ()

    def _model_failed(self, event: Event[ev.ModelCallFailed]) -> Iterable[str]:
        if isinstance(event.data.usage, Usage):
            _add_usage(self.step(event), event.data.usage)
        return ()

    def _system_error(self, event: Event[ev.SystemError]) -> Iterable[str]:
        yield f"{event.data.component}: {event.data.severity}: {_told(event.data.error)}"

    _HANDLERS: ClassVar[dict[type[ev.RunEvent], Callable[[Progress, Event[Any]], Iterable[str]]]] = {
        ev.WorkflowStarted: _started,
        ev.WorkflowWaiting: _rests,
        ev.WorkflowPaused: _paused,
        ev.WorkflowResumed: _resumed,
        ev.WorkflowCancelRequested: _cancelling,
        ev.WorkflowCompleted: _ended,
        ev.WorkflowFailed: _ended,
        ev.WorkflowCancelled: _ended,
        ev.WorkflowStepStarted: _step_started,
        ev.WorkflowStepCompleted: _step_completed,
        ev.WorkflowStepFailed: _step_failed,
        ev.WorkflowStepSkipped: _step_skipped,
        ev.WorkflowStepRetrying: _retrying,
        ev.AgentRetrying: _retrying,
        ev.ToolCallFailed: _tool_failed,
        ev.InputRequested: _asked,
        ev.InputReceived: _answered,
        ev.InputCancelled: _taken_back,
        ev.ApprovalRequested: _asked,
        ev.ApprovalGranted: _granted,
        ev.ApprovalDenied: _denied,
        ev.ModelCallCompleted: _model_answered,
        ev.ModelCallFailed: _model_failed,
        ev.SystemError: _system_error,
    }


def _add_usage(step: StepProgress, usage: Usage) -> None:
    step.tokens += usage.input_tokens + usage.output_tokens
    priced = step.cost_usd is not None and usage.cost_usd is not None
    step.cost_usd = (step.cost_usd or 0.0) + (usage.cost_usd or 0.0) if priced else None


def _place(data: Any) -> str:
    return data.step_id if data.iteration is None else f"{data.step_id}[{data.iteration}]"


def _share(step: StepProgress) -> str:
    return "" if step.total is None else f" ({step.done}/{step.total})"


def _told(error: ErrorInfo) -> str:
    return f"{error.code}: {error.message}"


def _because(reason: str | None) -> str:
    return f": {reason}" if reason else ""


def count(number: int, noun: str) -> str:
    """Format `1 token`, `2,000 tokens`."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def token_text(usage: Usage) -> str:
    """Return the tokens of a usage; at most so many, if a provider did not report all of them."""
    text = count(usage.input_tokens + usage.output_tokens, "token")
    return f"at most {text}" if usage.estimated is True else text


def cost_text(usd: float | None) -> str:
    """Format `$0.0012`; nothing for a cost that is not known."""
    return "" if usd is None else f"${usd:.4f}"


def duration(ms: float) -> str:
    """Format milliseconds for reading."""
    if ms < 1_000:
        return f"{ms:.0f} ms"
    seconds = ms / 1_000
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {seconds:02} s"


def clock_time(timestamp: str) -> str:
    """Return the time of day of an RFC 3339 time, where the user is."""
    return datetime.fromisoformat(timestamp).astimezone().strftime("%H:%M:%S")
