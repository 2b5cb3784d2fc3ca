"""Views of a run's stream: which events they show, and typed views of some of them (page 002 §12).

A view leaves events out and never renumbers those it shows.
"""

from __future__ import annotations

from typing import Any, Literal

from agentflow.definition.failure import ErrorInfo
from agentflow.events import catalogue as ev
from agentflow.events.envelope import Event

__all__ = [
    "RequestInfoEvent",
    "View",
    "WorkflowEvent",
    "WorkflowFailedEvent",
    "WorkflowOutputEvent",
    "WorkflowStartedEvent",
    "WorkflowStatusEvent",
    "is_in_view",
    "typed_event",
]

View = Literal["workflow", "all"]

_FAMILIES = ("superstep", "approval", "input", "custom")
_STEPS = "workflow.step_"
_SHOWN = frozenset({"output", "workflow.step_failed", "system.error"})


class WorkflowEvent(Event[Any], frozen=True):
    """An event of a run, with its data decoded."""


class WorkflowStartedEvent(WorkflowEvent, frozen=True):
    """The run began."""

    @property
    def input(self) -> Any:
        """The input as JSON."""
        return self.data.input


class WorkflowStatusEvent(WorkflowEvent, frozen=True):
    """The run came into another state: waiting, paused, resumed, completed or cancelled."""

    @property
    def state(self) -> str:
        """The state of the run from here on."""
        return _STATES.get(self.type, self.type.removeprefix("workflow."))


class WorkflowOutputEvent(WorkflowEvent, frozen=True):
    """A node gave something out. `data.value` is JSON."""

    value: Any = None
    """The value, decoded."""

    @property
    def kind(self) -> str:
        """`output`, or `intermediate` for a node that is not in `output_from`."""
        return str(self.data.kind)

    @property
    def executor_id(self) -> str | None:
        """The node that gave it."""
        return self.step


class RequestInfoEvent(WorkflowEvent, frozen=True):
    """The run asks a person or another system."""

    request: Any = None
    """What is asked, decoded."""

    @property
    def request_id(self) -> str:
        """The id under which it is answered."""
        return str(self.data.request_id)


class WorkflowFailedEvent(WorkflowEvent, frozen=True):
    """The run failed."""

    @property
    def error(self) -> ErrorInfo:
        """Why."""
        error: ErrorInfo = self.data.error
        return error


_STATES = {"workflow.resumed": "running"}
_TYPES: dict[type, type[WorkflowEvent]] = {
    ev.WorkflowStarted: WorkflowStartedEvent,
    ev.WorkflowWaiting: WorkflowStatusEvent,
    ev.WorkflowPaused: WorkflowStatusEvent,
    ev.WorkflowResumed: WorkflowStatusEvent,
    ev.WorkflowCompleted: WorkflowStatusEvent,
    ev.WorkflowCancelled: WorkflowStatusEvent,
    ev.WorkflowFailed: WorkflowFailedEvent,
    ev.Output: WorkflowOutputEvent,
    ev.InputRequested: RequestInfoEvent,
}


def is_in_view(type: str, view: View) -> bool:
    """Return whether a view shows events of a type."""
    if view == "all" or type in _SHOWN:
        return True
    family = type.partition(".")[0]
    return family in _FAMILIES or (family == "workflow" and not type.startswith(_STEPS))


def typed_event(event: Event[Any], **more: Any) -> Event[Any]:
    """Return the typed view of an event; itself if its type has none. `more` are its decoded values."""
    kind = _TYPES.get(event.data.__class__)
    if kind is None:
        return event
    fields = {name: getattr(event, name) for name in Event.__struct_fields__}
    known = {name: value for name, value in more.items() if name in kind.__struct_fields__}
    return kind(**fields, **known)
