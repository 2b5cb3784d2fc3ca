"""Workflow: a built graph with the code that its names mean, and what can be done with it (page 002 §3).

Immutable: any number of runs of one Workflow may be under way at once, each with its own actors and log.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from agentflow.definition.diagnostics import Diagnostic
from agentflow.definition.dot import to_dot
from agentflow.definition.ir import Workflow as Graph
from agentflow.definition.mermaid import to_mermaid
from agentflow.definition.signature import signature
from agentflow.errors import DefinitionError
from agentflow.events.envelope import Event
from agentflow.graphs.homes import Storage, runtime_of
from agentflow.graphs.run import GraphRun
from agentflow.graphs.types import names_of
from agentflow.graphs.views import View

if TYPE_CHECKING:
    from agentflow.definition.loader import Definition
    from agentflow.executors import Callables
    from agentflow.graphs.as_agent import WorkflowAgent
    from agentflow.graphs.checkpoints import Edits
    from agentflow.graphs.nodes import Placed
    from agentflow.records.checkpoints import Checkpoint
    from agentflow.records.runs import RunResult
    from agentflow.runtime import Runtime

__all__ = ["Workflow"]

OnConflict = Literal["queue", "reject", "cancel_previous"]


class Workflow:
    """A graph that `WorkflowBuilder.build()` accepted.

    `definition` and `callables` are what a Runtime takes: `Runtime.run(workflow, message)`. The methods here
    use the Runtime of the workflow's storage in the running event loop.
    """

    def __init__(
        self,
        *,
        definition: Definition,
        callables: Callables,
        description: str = "",
        starts: tuple[str, ...] = (),
        placed: Mapping[str, Placed] | None = None,
        shared_types: Mapping[str, Any] | None = None,
        storage: Storage = None,
    ) -> None:
        self._definition = definition
        self._callables = callables
        self._description = description
        self._starts = starts
        self._placed = dict(placed or {})
        self._shared_types = dict(shared_types or {})
        self._storage: Storage = storage

    # -- what it is --------------------------------------------------------------------------------

    @property
    def definition(self) -> Definition:
        """The definition: the graph, its source and hash."""
        return self._definition

    @property
    def callables(self) -> Callables:
        """The code that the names in the graph mean."""
        return self._callables

    @property
    def name(self) -> str:
        """Its name."""
        return self._definition.name

    @property
    def version(self) -> str:
        """Its version."""
        return self._definition.version or ""

    @property
    def description(self) -> str:
        """What it is for."""
        return self._description

    @property
    def diagnostics(self) -> list[Diagnostic]:
        """The warnings that `build()` found."""
        return list(self._definition.warnings)

    @property
    def signature(self) -> str:
        """The graph signature: runs go on with another definition of the same signature."""
        return signature(self.to_ir())

    @property
    def start_executor_ids(self) -> tuple[str, ...]:
        """The nodes that receive the input."""
        return self._starts

    @property
    def input_types(self) -> tuple[Any, ...]:
        """The types that all starts take."""
        return tuple(dict.fromkeys(t for i in self._starts for t in self._placed[i].takes))

    @property
    def output_types(self) -> tuple[Any, ...]:
        """The types that its nodes give out."""
        return tuple(dict.fromkeys(t for placed in self._placed.values() for t in placed.yields))

    @property
    def shared_types(self) -> dict[str, Any]:
        """The types of the declared keys of the shared state."""
        return dict(self._shared_types)

    def to_ir(self) -> Graph:
        """Return the graph of the IR."""
        return self._definition.workflow

    def to_mermaid(self, states: Mapping[str, str] | None = None) -> str:
        """Return the drawing as Mermaid text; with `states` (step to state) coloured by them."""
        return to_mermaid(self.to_ir(), states)

    def to_dot(self, states: Mapping[str, str] | None = None) -> str:
        """Return the drawing in the DOT language; with `states` (step to state) coloured by them."""
        return to_dot(self.to_ir(), states)

    def __repr__(self) -> str:
        return f"<Workflow {self.name} {self.version}>"

    # -- runs --------------------------------------------------------------------------------------

    async def run(
        self,
        message: Any,
        *,
        workflow_id: str | None = None,
        state_from: str | None = None,
        deadline: float | str | None = None,
        concurrency_key: str | None = None,
        on_conflict: OnConflict = "queue",
        raise_on_failure: bool = True,
    ) -> RunResult[Any]:
        """Start a run and wait until it has ended, waits or is paused.

        A repeated `workflow_id` with an equal message gives the run that there is. `deadline`: seconds, or
        "30s". `state_from`: the id of a checkpoint, of any run, whose private and shared state this run
        begins with. `concurrency_key`: of the runs of one key in the store, the oldest is at work until it
        has ended; if another run holds it, this one stays pending (`queue`), is not begun (`reject`), or
        cancels the others (`cancel_previous`). Raises DefinitionError (E_INPUT_INVALID) for a message that no
        start takes, CheckpointNotFound or ConcurrencyRejected, before anything is written; WorkflowFailed or
        WorkflowCancelled, whose `.result` has all that came of it.
        """
        run = await self.start(
            message,
            workflow_id=workflow_id,
            state_from=state_from,
            deadline=deadline,
            concurrency_key=concurrency_key,
            on_conflict=on_conflict,
        )
        return await run.result(raise_on_failure=raise_on_failure)

    async def start(
        self,
        message: Any,
        *,
        workflow_id: str | None = None,
        state_from: str | None = None,
        deadline: float | str | None = None,
        concurrency_key: str | None = None,
        on_conflict: OnConflict = "queue",
    ) -> GraphRun:
        """Start a run; return its handle once `workflow.started` is durable. Raises as `run`."""
        self._check_input(message)
        runtime = await self.runtime()
        budget = None if deadline is None else {"max_duration_s": _seconds(deadline)}
        options = (
            {}
            if concurrency_key is None
            else {"concurrency_key": concurrency_key, "on_conflict": on_conflict}
        )
        handle = await runtime.submit(
            self, message, workflow_id=workflow_id, budget=budget, state_from=state_from, options=options
        )
        return GraphRun(self, runtime, handle)

    async def run_stream(
        self,
        message: Any,
        *,
        view: View = "workflow",
        workflow_id: str | None = None,
        state_from: str | None = None,
        deadline: float | str | None = None,
        concurrency_key: str | None = None,
        on_conflict: OnConflict = "queue",
    ) -> AsyncGenerator[Event[Any], None]:
        """Start a run and yield its events until it has ended, waits or is paused.

        The stream only reads the log: one that is left changes nothing for the run.
        """
        run = await self.start(
            message,
            workflow_id=workflow_id,
            state_from=state_from,
            deadline=deadline,
            concurrency_key=concurrency_key,
            on_conflict=on_conflict,
        )
        async with aclosing(run.stream(view=view)) as events:
            async for event in events:
                yield event

    async def send_responses(
        self, workflow_id: str, responses: Mapping[str, Any], *, raise_on_failure: bool = True
    ) -> RunResult[Any]:
        """Answer open requests of a run, all or none of them, and wait until it rests.

        Raises UnknownRequest, InvalidAnswer, CommandRefused (`already_answered`); nothing was answered then.
        """
        run = await self.attach(workflow_id)
        return await (await run.respond(responses)).result(raise_on_failure=raise_on_failure)

    async def resume(self, workflow_id: str, *, raise_on_failure: bool = True) -> RunResult[Any]:
        """Go on with a run that is paused, or that no process works on, and wait until it rests.

        Raises GraphSignatureMismatch if the run began with a graph that is joined in another way.
        """
        run = await self.attach(workflow_id)
        await run.check_signature()
        return await (await run.resume()).result(raise_on_failure=raise_on_failure)

    async def attach(self, workflow_id: str) -> GraphRun:
        """Return the handle of a run of this store, without going on with it. Raises RunNotFound."""
        runtime = await self.runtime()
        return GraphRun(self, runtime, await runtime.attach(workflow_id))

    async def list_checkpoints(self, workflow_id: str) -> list[Checkpoint]:
        """Return the checkpoints of a run, read from its log. Raises RunNotFound."""
        return await (await self.attach(workflow_id)).checkpoints()

    async def run_from_checkpoint(
        self,
        id: str,
        *,
        edits: Edits | None = None,
        responses: Mapping[str, Any] | None = None,
        workflow_id: str | None = None,
        raise_on_failure: bool = True,
    ) -> RunResult[Any]:
        """Fork a run at a checkpoint and wait until the new run rests; the old one stays as it is.

        `edits` change the state that it begins with, `responses` answer requests that are open there, by
        their old ids. Raises CheckpointNotFound, GraphSignatureMismatch, InvalidEdit, UnknownRequest or
        InvalidAnswer; no run was begun then.
        """
        from agentflow.graphs.checkpoints import fork_at

        run = await fork_at(self, id, edits=edits, responses=responses, workflow_id=workflow_id)
        return await run.result(raise_on_failure=raise_on_failure)

    def as_agent(self, name: str) -> WorkflowAgent:
        """Return the workflow as an agent: `await agent.run(message) -> AgentResponse`.

        Raises WorkflowValidationError (E_TYPE_INCOMPATIBLE) if a start does not take list[Message].
        """
        from agentflow.graphs.as_agent import WorkflowAgent

        return WorkflowAgent(self, name)

    async def runtime(self) -> Runtime:
        """Return the open Runtime that keeps the runs of this workflow in the running event loop."""
        runtime = await runtime_of(self._storage)
        runtime.register(self)
        return runtime

    def placed(self, node_id: str) -> Placed | None:
        """Return a node with its types and its code; None if the builder added no such node."""
        return self._placed.get(node_id)

    def input_problem(self, message: Any) -> str | None:
        """Return why a start does not take a message; None if all do."""
        for node_id in self._starts:
            placed = self._placed[node_id]
            if placed.executor is not None and not placed.executor.can_handle(message):
                return f'"{node_id}" takes {names_of(placed.takes)}, not {type(message).__name__}'
        return None

    def read_input(self, value: Any) -> Any:
        """Return JSON as a message that the starts take: the value itself, or a value of the first input type
        that it fits. `{"$type": NAME, …}` names the type. Raises DefinitionError (E_INPUT_INVALID)."""
        message = value
        if self.input_problem(value) is not None:
            for read in (
                self._callables.payloads.unpack,
                *(partial(_convert_to, t) for t in self.input_types),
            ):
                try:
                    message = read(value)
                except (TypeError, ValueError, msgspec.MsgspecError):
                    continue
                if self.input_problem(message) is None:
                    return message
            message = value
        self._check_input(message)
        return message

    def _check_input(self, message: Any) -> None:
        """Raise DefinitionError if a start does not take a message."""
        problem = self.input_problem(message)
        if problem is not None:
            hint = f"pass {names_of(self.input_types)} to run(), or add a handler to the start"
            raise DefinitionError(
                [Diagnostic(code="E_INPUT_INVALID", severity="error", message=problem, hint=hint)]
            )


def _convert_to(annotation: Any, value: Any) -> Any:
    """Return JSON as a value of an annotated type. Raises ValueError."""
    from agentflow.executors.payloads import convert

    return convert(value, annotation)


def _seconds(deadline: float | str) -> float:
    from agentflow.executors.context import seconds

    return seconds(deadline, "deadline")
