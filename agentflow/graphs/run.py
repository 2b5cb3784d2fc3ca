"""GraphRun: the handle of one run of a graph, with Python values in and out (page 002 §3)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Literal

from agentflow.definition.ir import Workflow as Graph
from agentflow.events import catalogue as ev
from agentflow.events.catalogue import TERMINAL_TYPES
from agentflow.events.envelope import Event
from agentflow.graphs.results import decoded, result_of_handle
from agentflow.graphs.views import View, is_in_view, typed_event
from agentflow.records.checkpoints import Checkpoint, checkpoint_id
from agentflow.records.runs import FoldedState, RunResult
from agentflow.runtime import RunHandle, Runtime
from agentflow.runtime.other_definition import check_same_graph

if TYPE_CHECKING:
    from agentflow.graphs.checkpoints import Edits
    from agentflow.graphs.workflow import Workflow

__all__ = ["GraphRun"]

_RESTS = TERMINAL_TYPES | {"workflow.waiting", "workflow.paused"}


class GraphRun:
    """One run of a graph. Dropping the handle changes nothing for the run; commands return when they are
    durable."""

    def __init__(self, workflow: Workflow, runtime: Runtime, handle: RunHandle[Any]) -> None:
        self._workflow = workflow
        self._runtime = runtime
        self._handle = handle

    @property
    def workflow_id(self) -> str:
        """The id of the run."""
        return self._handle.workflow_id

    @property
    def created(self) -> bool:
        """True if the call that returned this handle began the run."""
        return self._handle.created

    async def result(self, *, raise_on_failure: bool = True) -> RunResult[Any]:
        """Wait until the run has ended, waits or is paused. Raises WorkflowFailed or WorkflowCancelled."""
        payloads = self._workflow.callables.payloads
        return await result_of_handle(
            self._handle, self._runtime, payloads, raise_on_failure=raise_on_failure
        )

    async def events(self, after: int | None = None, view: View = "all") -> AsyncGenerator[Event[Any], None]:
        """Yield the events behind offset `after` (None: from the start), until the terminal one."""
        async with aclosing(self._runtime.events(self.workflow_id, after)) as found:
            async for event in found:
                if is_in_view(event.type, view):
                    yield self._typed(event)

    async def stream(
        self, *, after: int | None = None, view: View = "all"
    ) -> AsyncGenerator[Event[Any], None]:
        """Yield events as `events`, until the run has ended, waits or is paused."""
        async with aclosing(self._runtime.events(self.workflow_id, after)) as found:
            async for event in found:
                if is_in_view(event.type, view):
                    yield self._typed(event)
                if event.type in _RESTS:
                    return

    def _typed(self, event: Event[Any]) -> Event[Any]:
        payloads, data = self._workflow.callables.payloads, event.data
        if isinstance(data, ev.Output):
            return typed_event(event, value=decoded(payloads, data.type, data.value))
        if isinstance(data, ev.InputRequested):
            return typed_event(event, request=payloads.unpack(data.request))
        return typed_event(event)

    # -- commands ----------------------------------------------------------------------------------

    async def respond(self, responses: Mapping[str, Any]) -> GraphRun:
        """Answer open requests, all or none of them. An answer is a value of its type, or its JSON."""
        if not responses:
            return self
        values = {request_id: self._plain(value) for request_id, value in responses.items()}
        return self._with(await self._handle.answer_all(values))

    def _plain(self, value: Any) -> Any:
        """Return an answer as JSON that the schema of its request judges."""
        return self._workflow.callables.payloads.encode(value).value

    async def cancel(self, reason: str | None = None, mode: Literal["soft", "hard"] = "soft") -> GraphRun:
        """Cancel the run: `soft` lets handlers end within their grace."""
        return self._with(await self._handle.cancel(reason=reason, mode=mode))

    async def pause(self) -> GraphRun:
        """Let nothing new begin until the run is resumed."""
        return self._with(await self._handle.pause())

    async def resume(self) -> GraphRun:
        """Go on with a paused run, or with one that no process works on."""
        return self._with(await self._handle.resume())

    async def signal(self, name: str, data: Any = None, signal_id: str | None = None) -> GraphRun:
        """Send the run a signal; one of a known `signal_id` is taken once."""
        return self._with(await self._handle.signal(name, data, signal_id=signal_id))

    def _with(self, handle: RunHandle[Any]) -> GraphRun:
        return GraphRun(self._workflow, self._runtime, handle)

    # -- the past ----------------------------------------------------------------------------------

    async def state(self, *, at: int | None = None) -> FoldedState:
        """Return the state of the run as of offset `at`, by default the present one."""
        return await self._handle.state(at)

    async def fork(self, *, at: int | None = None, edits: Edits | None = None) -> GraphRun:
        """Begin a new run that goes on from offset `at` of this one, by default its end."""
        from agentflow.graphs.checkpoints import fork_at

        offset = (await self._runtime.log.run(self.workflow_id)).last_offset if at is None else at
        return await fork_at(self._workflow, checkpoint_id(self.workflow_id, offset), edits=edits)

    async def checkpoints(self) -> list[Checkpoint]:
        """Return the checkpoints of the run, in the order of its log."""
        return await self._runtime.checkpoints(self.workflow_id)

    async def graph(self) -> Graph:
        """Return the graph that the run is pinned to."""
        return (await self._runtime.definition(self.workflow_id)).ir

    async def check_signature(self) -> None:
        """Raise GraphSignatureMismatch if the run is pinned to a graph that is joined in another way."""
        check_same_graph(self.workflow_id, await self.graph(), self._workflow.to_ir())
