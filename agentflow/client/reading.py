"""The reading half of a client: records, events, histories, states, as the Runtime has them."""

from __future__ import annotations

import builtins
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any, Literal
from urllib.parse import quote

import httpx
import msgspec
from msgspec.structs import replace

from agentflow.client.commands import Commands
from agentflow.client.errors import ProblemError
from agentflow.client.follow import RECONNECT_TIMEOUT_S, follow_lines
from agentflow.client.transport import Transport
from agentflow.definition.ir import Workflow
from agentflow.errors import OffsetTrimmed
from agentflow.events.deltas import ModelDelta
from agentflow.events.envelope import Event, decode
from agentflow.events.rows import Order, Page
from agentflow.records.answers import (
    CheckpointList,
    ClosedRequestList,
    RecordList,
    RunList,
    ToolList,
    ToolView,
)
from agentflow.records.checkpoints import Checkpoint
from agentflow.records.closed_requests import ClosedRequest
from agentflow.records.comparison import Comparison
from agentflow.records.executions import AgentContext, StepRecord
from agentflow.records.graph_results import gives_outputs, graph_result
from agentflow.records.model_calls import ModelCallView
from agentflow.records.pipeline import PlanView
from agentflow.records.runs import (
    DefinitionView,
    ExecutionRecord,
    FoldedState,
    RunRecord,
    RunResult,
    RunSummary,
    T,
    raise_for_failure,
    result_of,
)
from agentflow.records.timeline import NodeTimeline
from agentflow.records.trace import TraceClock, WorkflowTrace
from agentflow.typed_output import check_output_type, typed_result

__all__ = ["Reading"]

_RESTS = (
    "workflow.completed",
    "workflow.failed",
    "workflow.cancelled",
    "workflow.paused",
    "workflow.waiting",
)
_ENDS = _RESTS[:3]
_DELTA = b'{"type":"model.delta",'
_deltas = msgspec.json.Decoder(ModelDelta)
_EXPORT_SILENCE = 90.0
_MOVING = ("pending", "running")
_RESUMED_BY_ITSELF = ("drain", "storage")


class Reading(Commands):
    """Each raises RunNotFound, RunGone, OffsetTrimmed or LogCorrupt as the Runtime does."""

    def __init__(self, transport: Transport, reconnect_timeout: float = RECONNECT_TIMEOUT_S) -> None:
        super().__init__(transport)
        self._reconnect_timeout = reconnect_timeout

    async def rest(self, workflow_id: str) -> RunResult:
        """Wait until a run is terminal, paused or waiting, and return where it stands, however it ended.

        A run that the daemon paused when it stopped goes on with the next daemon, so it is waited for.
        """
        record = await self.record(workflow_id)
        while record.state in _MOVING or record.pause in _RESUMED_BY_ITSELF:
            lines = self.event_lines(workflow_id, record.last_offset, types=_RESTS, limit=1)
            async with aclosing(lines):
                async for _ in lines:
                    pass
            record = await self.record(workflow_id)
        pending = await self.requests(workflow_id) if record.waiting.requests else ()
        return result_of(record, tuple(pending))

    async def result(
        self, workflow_id: str, *, raise_on_failure: bool = True, output_type: type[T] | None = None
    ) -> RunResult[T]:
        """Wait until a run rests, and return its result; as `Runtime.result`.

        Raises WorkflowFailed or WorkflowCancelled unless `raise_on_failure` is false, InvalidOutput if the
        output does not fit `output_type`, RunNotFound and RunGone.
        """
        if output_type is not None:
            check_output_type(output_type)
        result = await self._with_outputs(await self.rest(workflow_id))
        if raise_on_failure:
            raise_for_failure(result)
        return typed_result(result, output_type)

    async def _with_outputs(self, result: RunResult) -> RunResult:
        """Return the result of a graph run with its outputs, events and checkpoint; values are JSON."""
        view = await self.definition(result.workflow_id)
        if not gives_outputs(view.ir, view.definition):
            return result
        try:
            events = [event async for event in self.events(result.workflow_id, follow=False)]
        except OffsetTrimmed:
            return result
        found = graph_result(result, view.ir, events)
        if not found.forked_from:
            return found
        given = (await self.state(result.workflow_id)).outputs  # with those of the base
        outputs = tuple(one.value for one in given if one.kind == "output")
        return msgspec.structs.replace(
            found,
            outputs=outputs,
            intermediate_outputs=tuple(one.value for one in given if one.kind != "output"),
            output=outputs[-1] if outputs else result.output,
        )

    async def record(self, workflow_id: str) -> RunRecord:
        """Return the run record. Raises RunNotFound, RunGone."""
        return await self._ask("GET", _path(workflow_id), RunRecord)

    async def plan(self, workflow_id: str) -> PlanView:
        """The plan of a request as it stands. CommandRefused (`no_plan`) before there is one."""
        return await self._ask("GET", f"{_path(workflow_id)}/plan", PlanView)

    async def compact(self, workflow_id: str) -> dict[str, Any]:
        """What a request came to so far, without internal traces."""
        return await self._ask("GET", f"{_path(workflow_id)}/compact", dict[str, Any])

    async def final(self, workflow_id: str) -> dict[str, Any]:
        """The final output of a request. OutputNotReady before there is one."""
        return await self._ask("GET", f"{_path(workflow_id)}/final", dict[str, Any])

    async def list(self, *, limit: int = 50, state: str | None = None) -> list[RunRecord]:
        """Return the records of the newest runs, newest first."""
        return (await self.records(limit=limit, state=state)).items

    async def records(self, *, limit: int = 50, state: str | None = None) -> Page[RunRecord]:
        """Return the same, with the runs that cannot be shown because the store is damaged."""
        query = {"limit": limit, "state": state, "full": True}
        found = await self._ask("GET", "/workflows", RecordList, query=query)
        return Page(found.items, found.next_cursor, tuple(found.damaged))

    async def summaries(
        self,
        *,
        state: str | Sequence[str] | None = None,
        name: str | None = None,
        label: tuple[str, str] | None = None,
        prefix: str | None = None,
        since: str | None = None,
        until: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
        order: Order = "desc",
        usage: bool = False,
    ) -> Page[RunSummary]:
        """Return a page of runs as the store lists them; times are RFC 3339, `until` excluded.

        With `usage`, what each run that has ended has used.
        """
        query = {
            "state": state if isinstance(state, str) or state is None else ",".join(state),
            "name": name,
            "label": None if label is None else "=".join(label),
            "prefix": prefix,
            "since": since,
            "until": until,
            "limit": limit,
            "cursor": cursor,
            "order": order,
            "usage": usage or None,
        }
        found = await self._ask("GET", "/workflows", RunList, query=query)
        return Page(found.items, found.next_cursor, tuple(found.damaged))

    async def events(
        self,
        workflow_id: str,
        after: int | None = None,
        *,
        follow: bool = True,
        types: Sequence[str] | None = None,
        step: str | None = None,
    ) -> AsyncIterator[Event[Any]]:
        """Events behind offset `after` (None: all that are left), each once and in order, however often the
        connection breaks. Raises RunNotFound at the first step, OffsetTrimmed."""
        lines = self.event_lines(workflow_id, after, follow=follow, types=types, step=step, whole=True)
        async with aclosing(lines):
            async for line in lines:
                yield decode(line)

    def event_lines(
        self,
        workflow_id: str,
        after: int | None = None,
        *,
        follow: bool = True,
        types: Sequence[str] | None = None,
        step: str | None = None,
        limit: int | None = None,
        deltas: bool = False,
        whole: bool = False,
    ) -> AsyncGenerator[bytes]:
        """Return the events as the bytes that are sent, one a line, without line ends; `whole` with the
        values above 256 KiB in place of their references. With `deltas` also
        the text of model calls and the progress of functions while they are made, as lines of type
        model.delta and tool.progress that have no offset."""
        return follow_lines(
            self._transport,
            _path(workflow_id, "events"),
            after,
            follow=follow,
            types=types,
            step=step,
            limit=limit,
            deltas=deltas,
            whole=whole,
            reconnect_timeout=self._reconnect_timeout,
        )

    async def export(self, workflow_id: str) -> AsyncGenerator[bytes]:
        """Yield the file that `agentflow log` writes and `agentflow open` reads, in pieces: the stored events
        up to now, one a line, and what they name. Raises Unreachable if the connection breaks: it is not
        complete then."""
        path = _path(workflow_id, "log")
        try:
            async with self._transport.stream(path, query={}, timeout=_EXPORT_SILENCE) as response:
                async for piece in response.aiter_bytes():
                    yield piece
        except httpx.HTTPError as error:
            raise self._transport.unreachable(error) from error

    async def deltas(self, workflow_id: str) -> AsyncIterator[ModelDelta]:
        """Yield the text of the run's model calls while they are made: first what there is of those that are
        open now, then what comes, no character twice. Ends when the run has ended. Raises RunNotFound at the
        first step."""
        record = await self.record(workflow_id)
        if record.ended_at is not None:
            return
        seen: dict[tuple[str, str], int] = {}
        lines = self.event_lines(workflow_id, record.last_offset, types=_ENDS, deltas=True)
        async with aclosing(lines):
            async for line in lines:
                if not line.startswith(_DELTA):
                    continue
                found = _deltas.decode(line)
                data = found.data
                key = (data.model_call_id, data.token_kind)
                known = seen.get(key, 0) - data.index
                seen[key] = max(seen.get(key, 0), data.index + len(data.text))
                if known > 0:  # it came before the connection broke
                    data = replace(data, index=data.index + known, text=data.text[known:])
                    found = replace(found, data=data)
                if data.text:
                    yield found

    async def history(self, workflow_id: str) -> ExecutionRecord:
        """Return the execution record."""
        return await self._ask("GET", _path(workflow_id, "history"), ExecutionRecord, query={"expand": True})

    async def state(self, workflow_id: str, offset: int | None = None) -> FoldedState:
        """Return the folded state, as of `offset` when given."""
        return await self._ask("GET", _path(workflow_id, "state"), FoldedState, query={"offset": offset})

    async def step(
        self, workflow_id: str, step_id: str, iteration: int | None = None, attempt: int | None = None
    ) -> StepRecord:
        """Return the state record of a step. StepNotFound."""
        query = {"iteration": iteration, "attempt": attempt}
        return await self._ask("GET", _path(workflow_id, "state", step_id), StepRecord, query=query)

    async def context(
        self, workflow_id: str, step_id: str, iteration: int | None = None, attempt: int | None = None
    ) -> AgentContext:
        """Return the context of a step's agent. StepNotFound."""
        query = {"iteration": iteration, "attempt": attempt}
        return await self._ask("GET", _path(workflow_id, "context", step_id), AgentContext, query=query)

    async def compare(self, workflow_id: str, other: str) -> Comparison:
        """Return where this run and the run `other` part."""
        return await self._ask("GET", _path(workflow_id, "compare"), Comparison, query={"with": other})

    async def trace(self, workflow_id: str, clock: TraceClock = "wall") -> WorkflowTrace:
        """Return the trace of a run up to now, with times of the wall clock or counted events."""
        return await self._ask("GET", _path(workflow_id, "trace"), WorkflowTrace, query={"clock": clock})

    async def closed_requests(self, workflow_id: str) -> builtins.list[ClosedRequest]:
        """Return the closed questions of a run, in the order in which they were closed."""
        path = _path(workflow_id, "requests")
        return (await self._ask("GET", path, ClosedRequestList, query={"open": False})).items

    async def model_call(self, workflow_id: str, model_call_id: str) -> ModelCallView:
        """Return a model call with all messages that were sent. Raises CallNotFound too."""
        return await self._ask("GET", _path(workflow_id, "calls", model_call_id), ModelCallView)

    async def timeline(self, workflow_id: str) -> NodeTimeline:
        """Return what happened to the nodes of a run up to now, and how often what was tried again."""
        return await self._ask("GET", _path(workflow_id, "timeline"), NodeTimeline)

    async def checkpoints(self, workflow_id: str) -> builtins.list[Checkpoint]:
        """Return the checkpoints of a run up to now, in the order of its log."""
        return (await self._ask("GET", _path(workflow_id, "checkpoints"), CheckpointList)).items

    async def definition(self, workflow_id: str) -> DefinitionView:
        """Return the definition that the run is pinned to."""
        return await self._ask("GET", _path(workflow_id, "definition"), DefinitionView)

    async def graph(self, workflow_id: str) -> Workflow:
        """Return the graph that the run is pinned to."""
        return await self._ask("GET", _path(workflow_id, "graph"), Workflow)

    async def drawing(self, workflow_id: str, format: Literal["mermaid", "dot"] = "mermaid") -> str:
        """Return the graph as text of Mermaid or Graphviz."""
        path = _path(workflow_id, "graph")
        response = await self._transport.send("GET", path, query={"format": format})
        return response.text

    async def tools(self) -> builtins.list[ToolView]:
        """Return the functions that are registered with the daemon, by service and name."""
        return (await self._ask("GET", "/tools", ToolList)).items

    async def blob(self, name: str) -> bytes | None:
        """Return the bytes of a value that an event names, or None."""
        try:
            response = await self._transport.send("GET", f"/blobs/{quote(name, safe=':')}")
        except ProblemError as error:
            if error.code == "blob_not_found":
                return None
            raise
        return response.content


def _path(workflow_id: str, *parts: str) -> str:
    names = [quote(part, safe="") for part in (workflow_id, *parts)]
    return "/workflows/" + "/".join(names)
