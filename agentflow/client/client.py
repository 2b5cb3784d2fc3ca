"""Client: the runs of a daemon, through the methods of the embedded Runtime.

    async with Client() as client:                      # instead of: Runtime("sqlite:runs.db")
        result = await client.run("triage.yaml", {"ticket": "..."})

Method names, arguments, results and exceptions are those of `agentflow.Runtime`; what is more is what only
the daemon can tell. Who asks is the daemon's knowledge, so nothing here takes `by`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, TypeVar
from urllib.parse import quote

import msgspec

from agentflow.client.commands import Commands
from agentflow.client.errors import ProblemError
from agentflow.client.follow import PATIENCE, follow_lines
from agentflow.client.run import RemoteRun
from agentflow.client.transport import Transport
from agentflow.definition.diagnostics import Diagnostic
from agentflow.definition.ir import Workflow
from agentflow.definition.loader import Definition, definition_of, load_file
from agentflow.errors import WorkflowCancelled, WorkflowFailed
from agentflow.events.envelope import Event, decode, micros
from agentflow.events.rows import Order, Page
from agentflow.runtime.executions import AgentContext, StepRecord
from agentflow.runtime.records import RunRecord, RunResult
from agentflow.runtime.retention import Upkeep
from agentflow.runtime.submission import Submission
from agentflow.runtime.views import DefinitionView, ExecutionRecord, FoldedState, RunSummary

__all__ = ["Client", "Health", "Validation", "Version"]

T = TypeVar("T")

_RESTS = (
    "workflow.completed",
    "workflow.failed",
    "workflow.cancelled",
    "workflow.paused",
    "workflow.waiting",
)
_MOVING = ("pending", "running")
_RESUMED_BY_ITSELF = ("drain", "storage")


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """`status`: ok, draining or failed."""

    status: str
    durable: bool
    store: str
    detail: str | None = None


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """What the daemon runs."""

    name: str
    version: str
    python: str
    schema_version: int


class Validation(msgspec.Struct, frozen=True, kw_only=True):
    """What the daemon finds wrong with a submission."""

    valid: bool
    diagnostics: list[Diagnostic]
    ir_hash: str | None


class Client(Commands):
    """A daemon. `url`: `http://HOST:PORT`, `https://…` or `unix:PATH`; default `AGENTFLOW_URL`, else the
    default socket. `token` defaults to `AGENTFLOW_TOKEN`. `patience`: seconds for which a stream that broke
    tries to come back. For one event loop.

    Every method raises Unreachable when nobody answers, NotAuthorised, and Unavailable when the daemon is
    stopping.
    """

    def __init__(
        self, url: str | None = None, *, token: str | None = None, patience: float = PATIENCE
    ) -> None:
        super().__init__(Transport(url, token=token))
        self._patience = patience

    @property
    def url(self) -> str:
        """Where the daemon is."""
        return self._transport.url

    async def __aenter__(self) -> Client:
        await self._transport.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._transport.aclose()

    # -- submitting

    async def submit(
        self,
        submission: Submission,
        input: Any = None,
        *,
        workflow_id: str | None = None,
        labels: Mapping[str, str] | None = None,
        options: Mapping[str, Any] | None = None,
        budget: Mapping[str, Any] | None = None,
        input_from: Mapping[str, str] | None = None,
        idempotency_key: str | None = None,
    ) -> RemoteRun:
        """Begin a run; returns once it is durable. As `Runtime.submit`; a path is read here.

        Raises DefinitionError (nothing was written), RunExists, IdempotencyConflict, OutputNotReady,
        QueueFull, StoreError, ConfigurationError.
        """
        body = {
            **self._document(submission),
            "input": input,
            "workflow_id": workflow_id,
            "labels": labels,
            "options": options,
            "budget": budget,
            "input_from": input_from,
        }
        headers = {} if idempotency_key is None else {"Idempotency-Key": idempotency_key}
        record = await self._ask("POST", "/workflows", RunRecord, body=_given(body), headers=headers)
        return RemoteRun(self, record.workflow_id)

    async def run(
        self,
        submission: Submission,
        input: Any = None,
        *,
        raise_on_failure: bool = True,
        **more: Any,
    ) -> RunResult:
        """Submit and wait. Raises WorkflowFailed or WorkflowCancelled unless told otherwise."""
        handle = await self.submit(submission, input, **more)
        result = await handle.result()
        if raise_on_failure and result.state in ("failed", "cancelled"):
            kind = WorkflowFailed if result.state == "failed" else WorkflowCancelled
            raise kind(result.error.message if result.error else None, result=result)
        return result

    async def validate(self, submission: Submission, input: Any = msgspec.UNSET) -> Validation:
        """All that the daemon finds wrong with a submission; with `input` that is checked too."""
        body = {**self._document(submission), "input": input}
        if input is msgspec.UNSET:
            del body["input"]
        return await self._ask("POST", "/validate", Validation, body=body)

    def _document(self, submission: Submission) -> dict[str, Any]:
        if isinstance(submission, Workflow):
            submission = definition_of(submission)
        if isinstance(submission, Definition):
            folder = None if submission.folder is None else submission.folder
            found: dict[str, Any] = {"definition": submission.source, "format": submission.format}
            return found | self._place(submission.file, folder)
        if isinstance(submission, Mapping):
            return {"definition": dict(submission)}
        path = Path(submission)
        try:
            text = path.read_bytes().decode()
        except (OSError, UnicodeDecodeError):
            return self._document(load_file(path))  # which says what is wrong with it
        return {"definition": text, **self._place(str(path), path.parent)}

    def _place(self, file: str | None, folder: Path | None) -> dict[str, Any]:
        """A daemon on this machine finds the modules that lie beside the document."""
        found: dict[str, Any] = {} if file is None else {"file": file}
        if folder is not None and self._transport.local:
            found["folder"] = str(folder.absolute())
        return found

    async def attach(self, workflow_id: str) -> RemoteRun:
        """The handle of a run. Raises RunNotFound."""
        await self.record(workflow_id)
        return RemoteRun(self, workflow_id)

    async def rest(self, workflow_id: str) -> RunResult:
        """Wait until a run is terminal, paused or waits, and say where it stands."""
        record = await self.record(workflow_id)
        while record.state in _MOVING or record.pause in _RESUMED_BY_ITSELF:
            lines = self.event_lines(workflow_id, record.last_offset, types=_RESTS, limit=1)
            async with aclosing(lines):
                async for _ in lines:
                    pass
            record = await self.record(workflow_id)
        return result_of(record)

    # -- reading

    async def result(self, workflow_id: str) -> RunResult:
        """Where the run stands now."""
        return result_of(await self.record(workflow_id))

    async def record(self, workflow_id: str) -> RunRecord:
        """The run record. Raises RunNotFound, RunGone."""
        return await self._ask("GET", _path(workflow_id), RunRecord)

    async def list(self, *, limit: int = 50, state: str | None = None) -> list[RunRecord]:
        """The records of the newest runs, newest first."""
        query = {"limit": limit, "state": state, "full": True}
        return (await self._ask("GET", "/workflows", _Records, query=query)).items

    async def summaries(
        self,
        *,
        state: str | Sequence[str] | None = None,
        name: str | None = None,
        label: tuple[str, str] | None = None,
        since: str | None = None,
        until: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
        order: Order = "desc",
    ) -> Page[RunSummary]:
        """A page of runs as the store lists them; times are RFC 3339, `until` excluded."""
        query = {
            "state": state if isinstance(state, str) or state is None else ",".join(state),
            "name": name,
            "label": None if label is None else "=".join(label),
            "since": since,
            "until": until,
            "limit": limit,
            "cursor": cursor,
            "order": order,
        }
        found = await self._ask("GET", "/workflows", _Summaries, query=query)
        return Page(found.items, found.next_cursor)

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
        lines = self.event_lines(workflow_id, after, follow=follow, types=types, step=step)
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
    ) -> AsyncGenerator[bytes]:
        """The events as the bytes that are stored, one a line, without line ends."""
        return follow_lines(
            self._transport,
            _path(workflow_id, "events"),
            after,
            follow=follow,
            types=types,
            step=step,
            limit=limit,
            patience=self._patience,
        )

    async def history(self, workflow_id: str) -> ExecutionRecord:
        """The execution record."""
        return await self._ask("GET", _path(workflow_id, "history"), ExecutionRecord)

    async def state(self, workflow_id: str, offset: int | None = None) -> FoldedState:
        """The folded state, as of `offset` when given."""
        return await self._ask("GET", _path(workflow_id, "state"), FoldedState, query={"offset": offset})

    async def step(
        self, workflow_id: str, step_id: str, iteration: int | None = None, attempt: int | None = None
    ) -> StepRecord:
        """The state record of a step. StepNotFound."""
        query = {"iteration": iteration, "attempt": attempt}
        return await self._ask("GET", _path(workflow_id, "state", step_id), StepRecord, query=query)

    async def context(
        self, workflow_id: str, step_id: str, iteration: int | None = None, attempt: int | None = None
    ) -> AgentContext:
        """The context of a step's agent. StepNotFound."""
        query = {"iteration": iteration, "attempt": attempt}
        return await self._ask("GET", _path(workflow_id, "context", step_id), AgentContext, query=query)

    async def definition(self, workflow_id: str) -> DefinitionView:
        """The definition that the run is pinned to."""
        return await self._ask("GET", _path(workflow_id, "definition"), DefinitionView)

    async def graph(self, workflow_id: str) -> Workflow:
        """The graph that the run is pinned to."""
        return await self._ask("GET", _path(workflow_id, "graph"), Workflow)

    async def drawing(self, workflow_id: str, format: Literal["mermaid", "dot"] = "mermaid") -> str:
        """The graph as text of Mermaid or Graphviz."""
        path = _path(workflow_id, "graph")
        response = await self._transport.send("GET", path, query={"format": format})
        return response.text

    async def blob(self, name: str) -> bytes | None:
        """The bytes of a value that an event names, or None."""
        try:
            response = await self._transport.send("GET", f"/blobs/{quote(name, safe=':')}")
        except ProblemError as error:
            if error.code == "blob_not_found":
                return None
            raise
        return response.content

    # -- the daemon

    async def health(self) -> Health:
        """How the daemon is; a failed store is an answer, not an exception."""
        try:
            return await self._ask("GET", "/healthz", Health)
        except ProblemError as error:
            if error.status == 503:
                return msgspec.convert(error.problem, Health)
            raise

    async def version(self) -> Version:
        """What the daemon runs."""
        return await self._ask("GET", "/version", Version)

    async def gc(self, *, dry_run: bool = False) -> Upkeep:
        """Take the ended runs that the daemon's retention takes; `dry_run` only says which."""
        return await self._ask("POST", "/admin/gc", Upkeep, body={"dry_run": dry_run})

    async def drain(self) -> None:
        """Let the daemon park its runs and end."""
        await self._transport.send("POST", "/admin/drain")


class _Records(msgspec.Struct):
    items: list[RunRecord]


class _Summaries(msgspec.Struct):
    items: list[RunSummary]
    next_cursor: str | None


def result_of(record: RunRecord) -> RunResult:
    """The result that a record holds."""
    duration = record.duration_ms
    if duration is None:
        duration = max(0, micros(record.updated_at) - micros(record.created_at)) // 1000
    return RunResult(
        workflow_id=record.workflow_id,
        state=record.state,
        output=record.output,
        steps=record.steps,
        usage=record.usage,
        duration_ms=duration,
        error=record.error,
        pause=record.pause,
    )


def _path(workflow_id: str, *parts: str) -> str:
    names = [quote(part, safe="") for part in (workflow_id, *parts)]
    return "/workflows/" + "/".join(names)


def _given(body: dict[str, Any]) -> dict[str, Any]:
    """Members that are null are those that are absent; only `input` may be null and meant."""
    return {name: value for name, value in body.items() if value is not None or name == "input"}
