"""Client: the runs of a daemon, through the methods of the embedded Runtime.

    async with Client() as client:                      # instead of: Runtime("sqlite:runs.db")
        result = await client.run("triage.yaml", {"ticket": "..."})

Method names, arguments, results and exceptions are those of `agentflow.Runtime`; what is more is what only
the daemon can tell. Who asks is the daemon's knowledge, so nothing here takes `by`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote

import msgspec

from agentflow.client.errors import ProblemError
from agentflow.client.follow import RECONNECT_TIMEOUT_S
from agentflow.client.reading import Reading
from agentflow.client.registered import RegisteredDefinition
from agentflow.client.run import RemoteRun
from agentflow.client.transport import Transport
from agentflow.definition.ir import Workflow
from agentflow.definition.stage_schemas import Activation
from agentflow.events.tracing import submitter_options
from agentflow.records.answers import (
    Health,
    RequestAnswer,
    SessionCode,
    TemplateList,
    ToolsetList,
    ToolsetView,
    Validation,
    Version,
)
from agentflow.records.runs import RunRecord, RunResult, T
from agentflow.records.upkeep import Upkeep
from agentflow.typed_output import check_output_type

if TYPE_CHECKING:
    from agentflow.definition.loader import Submission

__all__ = ["Client", "Health", "Validation", "Version"]


class Client(Reading):
    """A daemon. `url`: `http://HOST:PORT`, `https://…` or `unix:PATH`; default `AGENTFLOW_URL`, else the
    default socket. `token` defaults to `AGENTFLOW_TOKEN`. `reconnect_timeout`: seconds for which a stream
    that broke tries to come back. For one event loop.

    Every method raises Unreachable if no daemon answers, NotAuthorised, and Unavailable when the daemon is
    stopping.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        token: str | None = None,
        reconnect_timeout: float = RECONNECT_TIMEOUT_S,
    ) -> None:
        super().__init__(Transport(url, token=token), reconnect_timeout)

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
        submission: Submission | RegisteredDefinition,
        input: Any = None,
        *,
        workflow_id: str | None = None,
        labels: Mapping[str, str] | None = None,
        options: Mapping[str, Any] | None = None,
        budget: Mapping[str, Any] | None = None,
        input_from: Mapping[str, str] | None = None,
        state_from: str | None = None,
        idempotency_key: str | None = None,
        output_type: type[T] | None = None,
    ) -> RemoteRun[T]:
        """Begin a run; returns once it is durable. As `Runtime.submit`; a path is read here. The trace around
        it goes along in headers.

        Raises DefinitionError (nothing was written), RunExists, IdempotencyConflict, OutputNotReady,
        CheckpointNotFound, InvalidEdit, QueueFull, StoreError, ConfigurationError.
        """
        if output_type is not None:
            check_output_type(output_type)
        body = {
            **self._document(submission),
            "input": input,
            "workflow_id": workflow_id,
            "labels": labels,
            "options": options,
            "budget": budget,
            "input_from": input_from,
            "state_from": state_from,
        }
        headers = {} if idempotency_key is None else {"Idempotency-Key": idempotency_key}
        if "traceparent" not in (options or {}):
            headers |= submitter_options()
        record = await self._ask("POST", "/workflows", RunRecord, body=_given(body), headers=headers)
        return RemoteRun(self, record.workflow_id, output_type=output_type)

    async def run(
        self,
        submission: Submission | RegisteredDefinition,
        input: Any = None,
        *,
        raise_on_failure: bool = True,
        output_type: type[T] | None = None,
        **more: Any,
    ) -> RunResult[T]:
        """Submit and wait: `submit`, which takes `more`, and `result` of its handle."""
        handle = await self.submit(submission, input, output_type=output_type, **more)
        return await handle.result(raise_on_failure=raise_on_failure)

    async def validate(
        self, submission: Submission | RegisteredDefinition, input: Any = msgspec.UNSET
    ) -> Validation:
        """Return all that the daemon finds wrong with a submission; with `input` that is checked too."""
        body = {**self._document(submission), "input": input}
        if input is msgspec.UNSET:
            del body["input"]
        return await self._ask("POST", "/validate", Validation, body=body)

    def _document(self, submission: Submission | RegisteredDefinition) -> dict[str, Any]:
        # Only who submits pays for the loader.
        from agentflow.definition.loader import Definition, definition_of, load_file

        if isinstance(submission, Workflow):
            submission = definition_of(submission)
        if isinstance(submission, RegisteredDefinition):
            return {"definition_ref": submission.reference}
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
        """Return the folder of a document, where a daemon on this machine finds the modules beside it."""
        found: dict[str, Any] = {} if file is None else {"file": file}
        if folder is not None and self._transport.local:
            found["folder"] = str(folder.absolute())
        return found

    async def attach(self, workflow_id: str, *, output_type: type[T] | None = None) -> RemoteRun[T]:
        """Return the handle of a run. Raises RunNotFound."""
        if output_type is not None:
            check_output_type(output_type)
        await self.record(workflow_id)
        return RemoteRun(self, workflow_id, output_type=output_type)

    def _handle(self, workflow_id: str) -> RemoteRun:
        return RemoteRun(self, workflow_id)

    # -- requests

    async def request(
        self,
        message: str,
        *,
        mode: Literal["auto", "workflow", "direct"] = "auto",
        review: bool = False,
        answer: bool = False,
        workspace: str | None = None,
        options: Mapping[str, Any] | None = None,
        budget: Mapping[str, Any] | None = None,
        labels: Mapping[str, str] | None = None,
        workflow_id: str | None = None,
        idempotency_key: str | None = None,
    ) -> RequestAnswer:
        """Let the daemon judge a text, and begin its run if it asks for one.

        Raises ProblemError (`message_length`), and as `submit`.
        """
        body = {
            "message": message,
            "mode": mode,
            "review": review,
            "answer": answer,
            "workspace": workspace,
            "options": options,
            "budget": budget,
            "labels": labels,
            "workflow_id": workflow_id,
        }
        headers = {} if idempotency_key is None else {"Idempotency-Key": idempotency_key}
        return await self._ask("POST", "/requests", RequestAnswer, body=_given(body), headers=headers)

    async def run_template(
        self,
        name: str,
        inputs: Mapping[str, Any] | None = None,
        *,
        review: bool = False,
        workspace: str | None = None,
        options: Mapping[str, Any] | None = None,
        budget: Mapping[str, Any] | None = None,
        labels: Mapping[str, str] | None = None,
        idempotency_key: str | None = None,
    ) -> str:
        """Bind a template of the daemon and begin its run; return its id."""
        body = {
            "inputs": dict(inputs or {}),
            "review": review,
            "workspace": workspace,
            "options": options,
            "budget": budget,
            "labels": labels,
        }
        path = f"/templates/{quote(name, safe='')}/runs"
        headers = {} if idempotency_key is None else {"Idempotency-Key": idempotency_key}
        return (await self._ask("POST", path, RunRecord, body=_given(body), headers=headers)).workflow_id

    async def templates(self) -> TemplateList:
        """The templates of the daemon, and what is wrong with files that are none."""
        return await self._ask("GET", "/templates", TemplateList)

    async def classify(self, message: str) -> Activation:
        """What a text asks for; nothing is stored."""
        return await self._ask("POST", "/requests/classify", Activation, body={"message": message})

    async def toolsets(self) -> list[ToolsetView]:
        """The toolsets that plans may name, enabled or not."""
        return (await self._ask("GET", "/toolsets", ToolsetList)).items

    # -- the daemon

    async def health(self) -> Health:
        """Return how the daemon is; a failed store is an answer, not an exception."""
        try:
            return await self._ask("GET", "/healthz", Health)
        except ProblemError as error:
            if error.status == 503:
                return msgspec.convert(error.problem, Health)
            raise

    async def version(self) -> Version:
        """Return what the daemon runs."""
        return await self._ask("GET", "/version", Version)

    async def gc(self, *, dry_run: bool = False) -> Upkeep:
        """Take the ended runs that the daemon's retention takes; `dry_run` only says which."""
        return await self._ask("POST", "/admin/gc", Upkeep, body={"dry_run": dry_run})

    async def session_code(self) -> SessionCode:
        """Return a one-time code for a link to the dashboard."""
        return await self._ask("POST", "/session/codes", SessionCode)

    async def drain(self) -> None:
        """Let the daemon park its runs and end."""
        await self._transport.send("POST", "/admin/drain")


def _given(body: dict[str, Any]) -> dict[str, Any]:
    """Members that are null are those that are absent; only `input` may be null and meant."""
    return {name: value for name, value in body.items() if value is not None or name == "input"}
