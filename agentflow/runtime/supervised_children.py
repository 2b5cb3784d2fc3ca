"""SupervisedChildren: the child runs of one run, as its supervisor knows them. It decides nothing.

Used by that actor alone, so it needs no mailbox of its own.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import UNSET

from agentflow import engine
from agentflow.engine import ChildReport, PassOn, RunState
from agentflow.events import catalogue as ev
from agentflow.events.tracing import RunTracer
from agentflow.runtime.child_runs import ChildLinks, pass_on_command
from agentflow.runtime.command_messages import Cancel

__all__ = ["SupervisedChildren"]


class SupervisedChildren:
    """Starts, answers and cancels the child runs of `state`, and tells its own parent where it stands.

    `on_gone` is called with the id of a child whose cancel is over; `is_served` says of an activation that no
    child is to be started for it.
    """

    def __init__(
        self,
        state: RunState,
        tracer: RunTracer,
        links: ChildLinks,
        on_gone: Callable[[str], None],
        is_served: Callable[[str], bool],
    ) -> None:
        self._is_served = is_served
        self._state = state
        self._tracer = tracer
        self._links = links
        self._on_gone = on_gone
        self._awaited: dict[str, str] = {}
        self._leaving: dict[str, None] = {}

    @property
    def are_leaving(self) -> bool:
        """True while a child that was cancelled has not ended: its parent ends after it."""
        return bool(self._leaving)

    def find(self) -> None:
        """Take note of the children that the log says are awaited."""
        self._awaited = engine.open_children(self._state)

    def start_all(self) -> None:
        """Start or take up every child that is awaited, because the run goes on in this process."""
        for key in list(self._awaited):
            self.start(key)

    def start(self, key: str) -> None:
        """Start the child of an activation, or take it up."""
        request = engine.child_request(self._state, key)
        if request is not None and self._is_served(key):
            self._awaited.pop(key, None)
        elif request is not None:
            self._awaited[key] = request.workflow_id
            self._links.start(request, self._tracer.step(key))

    def reported(self, report: ChildReport) -> None:
        """Take note of a report: a child that has ended need not be cancelled. What the child still asks and
        was answered here, as before a crash, is answered once more."""
        if report.is_over:
            self._awaited.pop(report.key, None)
            return
        for data in report.requests:
            value = self._state.decided.get(data.request_id)
            if value is None:
                continue
            closed: ev.RunEvent
            if isinstance(data, ev.ApprovalRequested):
                kind = ev.ApprovalGranted if value == "granted" else ev.ApprovalDenied
                closed = kind(
                    request_id=data.request_id,
                    digest=data.digest,
                    by="parent",
                    via="parent",
                    step_id=data.step_id,
                    iteration=data.iteration,
                    activation=data.activation,
                )
            else:
                closed = ev.InputReceived(request_id=data.request_id, value=value, by="parent", via="parent")
            self._links.send(report.workflow_id, pass_on_command(closed, "parent"))

    def release(self, key: str) -> None:
        """Cancel the child of an activation that has ended without it."""
        child_id = self._awaited.pop(key, None)
        if child_id is not None:
            reason = f"the step of {self._state.workflow_id} has ended"
            self._cancel(child_id, Cancel(reason=reason, by=self._state.workflow_id))

    def cancel_all(self, cancel: Cancel) -> bool:
        """Cancel every child as the run itself is cancelled; return whether there is one."""
        awaited, self._awaited = self._awaited, {}
        own = {"by": self._state.workflow_id, "mode": cancel.mode, "grace": cancel.grace}
        for child_id in awaited.values():
            self._cancel(child_id, Cancel(reason=cancel.reason, **own))  # type: ignore[arg-type]
        return self.are_leaving

    def _cancel(self, child_id: str, command: Cancel) -> None:
        self._leaving[child_id] = None
        self._links.cancel(child_id, command, lambda: self._on_gone(child_id))

    def gone(self, child_id: str) -> None:
        """Take note that a cancelled child has ended."""
        self._leaving.pop(child_id, None)

    def leave(self) -> None:
        """Wait for no cancelled child any more, because the Runtime is closed."""
        self._leaving.clear()

    def pass_on(self, effect: PassOn) -> None:
        """Tell the child of a request that was answered here, and the parent of one that is closed."""
        child_id, data = self._awaited.get(effect.activation_key), effect.data
        if child_id is not None and getattr(data, "by", None) != child_id:
            self._links.send(child_id, pass_on_command(data, "parent"))
        begin = self._state.begin
        if begin is not None and begin.parent is not UNSET:
            report = engine.report_of(self._state)
            if report is not None and not report.is_over:
                self._links.report(begin.parent.workflow_id, report)
