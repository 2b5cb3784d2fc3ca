"""Child runs: ordinary runs of the same Runtime, each linked to a step of its parent (page 003 §4, 002 §11).

A parent's supervisor asks for a start, an answer or a cancel; a child's supervisor reports where it stands,
whenever it comes to rest or one of its requests is closed. Reports and answers are commands: they start the
other run's supervisor if it is passivated, and are durable before they count. A child takes no slot of its
own, because its parent has one: with a queue between them both would wait for ever.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from msgspec import UNSET

from agentflow.definition.dynamic_graph import fitted_graph
from agentflow.definition.failure import ErrorInfo
from agentflow.definition.ir import Capabilities, Workflow
from agentflow.definition.loader import Definition, Submission, check_inputs
from agentflow.definition.registered_agents import with_agents
from agentflow.errors import (
    AgentflowError,
    CommandRefused,
    DefinitionError,
    InvalidAnswer,
    RunExists,
    RunGone,
    RunNotFound,
    RunTerminal,
    StorageUnavailable,
    UnknownRequest,
)
from agentflow.events import catalogue as ev
from agentflow.events.catalogue import TERMINAL_TYPES
from agentflow.events.log import RunRow
from agentflow.runtime.child_forks import answers_of_child, fork_of_child, origin_of_child
from agentflow.runtime.command_messages import (
    Answer,
    Attach,
    Cancel,
    Command,
    DecideRequest,
    ReportChild,
    Resume,
    Withdraw,
)
from agentflow.runtime.run_launch import GRAPH_DEPTH, shares_slot
from agentflow.runtime.submission import load_aside, started_event, with_options
from agentflow.runtime.submit import SubmitCommand
from agentflow.runtime.workflow_code import RegisteredAgent, WorkflowWithCode
from agentflow.tools import ToolContext, ToolError

if TYPE_CHECKING:
    from agentflow.engine.child_runs import ChildReport, ChildRequest
    from agentflow.executors.callables import Callables
    from agentflow.records.runs import RunResult
    from agentflow.runtime.bound import Bound

__all__ = ["ChildLinks", "ChildRunCommands", "GraphSource", "RegisteredGraph", "pass_on_command"]

_log = logging.getLogger("agentflow.runtime")
_RETRY_INTERVAL_S = 1.0
_MAX_CALLED = 10_000
_CALLED_BY = "called_by"
"""Label of a run that a function began for a model, with the id of the run that called it."""
_INHERITED = (
    *("model", "healing", "node_llm_streaming", "workflow_streaming"),
    *("llm_node_policy", "tool_node_policy", "telemetry"),
    *("tracestate", "baggage"),
)
"""Options of a run that hold for its child runs too."""

_GOES_ON = ("drain", "storage")
"""Reasons of a pause that no operator asked for: a parent that goes on takes its child with it."""


class RegisteredGraph(NamedTuple):
    """A registered graph, and whether that client was trusted."""

    submission: Submission
    trusted: bool = True


GraphSource = Callable[[str], Awaitable[RegisteredGraph | None]]


class ChildLinks(NamedTuple):
    """What a supervisor asks of the Runtime about child runs. Every call returns at once."""

    start: Callable[[ChildRequest, str | None], None]
    """Begin a child run in the trace of this `traceparent`, or take up the one that was begun."""
    report: Callable[[str, ChildReport], None]
    """Tell the parent of this id where its child stands."""
    send: Callable[[str, Command], None]
    """Send a command to another run. One that does not fit any more is dropped."""
    cancel: Callable[[str, Cancel, Callable[[], None]], None]
    """Cancel a child run; the last argument is called once it has ended, or cannot be moved here."""


def pass_on_command(data: Any, via: str) -> Command:
    """Return the command that closes a request in the other run as this event did."""
    if isinstance(data, ev.InputReceived):
        return Answer(responses={data.request_id: data.value}, by=data.by, via=via)
    if isinstance(data, ev.InputCancelled):
        return Withdraw(request_id=data.request_id, reason=data.reason, by="parent")
    return DecideRequest(
        granted="grant" if isinstance(data, ev.ApprovalGranted) else "deny",
        request_id=data.request_id,
        reason=None if data.reason is UNSET else data.reason,
        response=None if data.response is UNSET else data.response,
        by=data.by,
        via=via,
    )


class ChildRunCommands(SubmitCommand):
    """The part of a Runtime that begins child runs and carries messages between them and their parents."""

    def __init__(self) -> None:
        super().__init__()
        self._graphs_by_name: dict[str, Submission] = {}
        self._called: OrderedDict[str, None] = OrderedDict()  # calls whose runs draw on a budget
        self.graph_source: GraphSource | None = None
        """Where graphs are found that were not registered here, such as the definitions of a daemon."""

    def register(
        self, workflow: WorkflowWithCode | RegisteredAgent | str, submission: Submission | None = None
    ) -> None:
        """Register a workflow that was built in Python, an Agent, or a definition under a name.

        A node of kind `agent` may state the name of an Agent; a run keeps the one that it began with. Runs of
        the workflow that another process left go on here, and `graph` of a subgraph may state its name or the
        given one; the last registration of a name counts. A run that goes on after a restart needs its
        workflow and its subgraphs registered again: without its code it pauses,
        `definition_unavailable`.
        """
        if isinstance(workflow, RegisteredAgent):
            agent = msgspec.structs.replace(workflow.spec(), exchanges="values")
            self._agents[agent.name] = agent
        elif not isinstance(workflow, str):
            self._code.add(workflow)
            self._graphs_by_name[workflow.definition.name] = workflow.definition
        elif submission is None:
            raise TypeError("register takes a workflow built in Python, an Agent, or a name and a definition")
        else:
            self._graphs_by_name[workflow] = submission

    async def _registered(self, name: str, *, trusted: bool) -> RegisteredGraph | None:
        """Return the graph of a name; None if there is none. A trusted run takes none of an untrusted client:
        a client that may register a name must not decide what it does. An untrusted run stays untrusted."""
        if name in self._graphs_by_name:
            return RegisteredGraph(self._graphs_by_name[name])
        found = None if self.graph_source is None else await self.graph_source(name)
        return None if found is None or (trusted and not found.trusted) else found

    async def _has_graph(self, name: str, *, trusted: bool) -> bool:
        return await self._registered(name, trusted=trusted) is not None

    async def _find_graph(self, graph: Workflow | str, *, trusted: bool) -> Workflow | None:
        """Return a graph that is to run in the log of another: see `binding.FindsGraph`."""
        if isinstance(graph, str):
            found = await self._registered(graph, trusted=trusted)
            if found is None:
                return None
            graph = (await load_aside(found.submission, UNSET))[0].workflow
        return with_agents(graph, self._agents)

    # -- workflows that models run ------------------------------------------------------------------

    async def _begin_graph(
        self, graph: Definition | str, input: Any, run_id: str, call: ToolContext, max_depth: int
    ) -> None:
        """Begin the run of a definition, or of a registered workflow, for a call of a function, or find the
        one that was begun.

        Raises ToolError: `subgraph_not_found`, `depth_exceeded`, `invalid_tool_input`.
        """
        if await self._is_begun(run_id):
            self._called[call.call_id] = None
            return
        parent_id = call.workflow_id
        parent = await self._begin(parent_id)
        trusted = parent.options.get("trusted", True)
        depth = parent.options.get(GRAPH_DEPTH, 0) + 1
        name = graph if isinstance(graph, str) else graph.name
        if depth > max_depth:
            message = f"{name} would be run {depth} deep, the limit is {max_depth}"
            raise ToolError.of("policy", "depth_exceeded", message, executed=False)
        definition = await self._registered_definition(graph, trusted) if isinstance(graph, str) else graph
        if definition is None:
            message = f'no workflow "{name}" is registered'
            raise ToolError.of("policy", "subgraph_not_found", message, executed=False)
        definition = with_options(definition, inherited := _inherited(parent))
        value, problems = check_inputs(definition, input)
        own = self._code.find(definition.name, definition.ir_hash, definition.hash)
        injected = self._code.of_run(parent_id, parent)
        code = own if injected is None else injected.injected(own)
        bound = await self.bind(definition, trusted=trusted, code=code)
        errors = [one for one in (*problems, *bound.diagnostics) if one.severity == "error"]
        if errors:
            message = "; ".join(f"{one.code}: {one.message}" for one in errors)
            raise ToolError.of("invalid_input", "invalid_tool_input", message, executed=False)
        options = {**inherited, GRAPH_DEPTH: depth, **({} if trusted else {"trusted": False})}
        if call.traceparent is not None:
            options["traceparent"] = call.traceparent
        labels = {_CALLED_BY: parent_id}
        started = started_event(
            definition, bound, value, labels, options, list(definition.warnings), "parent"
        )
        budget = await self._left_for(call)
        started = msgspec.structs.replace(started, budget=budget or UNSET)
        with suppress(RunExists):  # another attempt of the same call has begun it
            await self._begin_run(run_id, definition, bound, started)

    async def _registered_definition(self, name: str, trusted: bool) -> Definition | None:
        found = await self._registered(name, trusted=trusted)
        return None if found is None else (await self._load_aside(found.submission, UNSET))[0]

    async def _left_for(self, call: ToolContext) -> dict[str, Any]:
        """Return what is left of the budgets that a call of a workflow draws on.

        Calls that draw on the same budget run one after another, since each may use all that is left.
        """
        from agentflow.engine.budgets import budget_left

        while True:
            state = await self.fold(call.workflow_id)
            known = state.calls.get(call.call_id)
            if known is None:
                return {}
            left = budget_left(state, known.activation)
            before = [
                c for c in state.calls.values() if c.offset < known.offset and c.call_id in self._called
            ]
            if not left.keys() - {"on_exceeded"} or not before:
                self._called[call.call_id] = None
                if len(self._called) > _MAX_CALLED:
                    self._called.popitem(last=False)
                return left
            await self._is_recorded(call.workflow_id, before[0].call_id)

    async def _is_recorded(self, workflow_id: str, call_id: str) -> None:
        """Wait until a call has its end in the log."""
        types = ("tool.call_completed", "tool.call_failed", *TERMINAL_TYPES)
        async for event in self.events(workflow_id, types=types):
            if getattr(event.data, "tool_call_id", call_id) == call_id:
                return

    async def _end_of(self, run_id: str) -> RunResult[Any]:
        """Wait until a run has ended, however long it waits for people; return its result."""
        async for _ in self.events(run_id, types=tuple(TERMINAL_TYPES)):
            pass
        return await self.rest(run_id)

    def _cancel_with(self, run_id: str, parent_id: str) -> None:
        """Cancel a run if the one that called for it is being cancelled or has ended."""
        if not self._registry.closed:
            self._registry.start_soon(self._cancel_called(run_id, parent_id))

    async def _cancel_called(self, run_id: str, parent_id: str) -> None:
        try:
            parent = await self.fold(parent_id)
            if parent.cancel_requested is not None or parent.terminal:
                await self._send_on(run_id, Cancel(reason=f"{parent_id} does not wait for it", by=parent_id))
        except AgentflowError as error:
            _log.warning("%s could not be cancelled with its caller: %s", run_id, error)

    def _child_links(self) -> ChildLinks:
        """Return what the supervisors of runs are given."""
        soon = self._registry.start_soon

        def start(request: ChildRequest, trace: str | None) -> None:
            soon(self._start_child(request, trace))

        def report(parent_id: str, report: ChildReport) -> None:
            soon(self._report(parent_id, report))

        def send(run_id: str, command: Command) -> None:
            soon(self._send_on(run_id, command))

        def cancel(run_id: str, command: Cancel, gone: Callable[[], None]) -> None:
            soon(self._cancel_child(run_id, command, gone))

        return ChildLinks(start, report, send, cancel)

    async def _send_on(self, workflow_id: str, command: Command) -> None:
        await self._deliver(workflow_id, command)

    async def _is_child(self, row: RunRow) -> bool:
        """Return whether a run works for a step of another one, whose slot it shares."""
        if row.parent is not None or _CALLED_BY not in row.labels:
            return row.parent is not None
        return shares_slot(await self._begin(row.workflow_id))

    # -- starting -------------------------------------------------------------------------------

    async def _start_child(self, request: ChildRequest, trace: str | None) -> None:
        """Begin a child or take it up. Retries every second while the store is unavailable."""
        while True:
            try:
                async with self._registry.exclusive(request.workflow_id):
                    begun = await self._is_begun(request.workflow_id)
                    if not begun:
                        await self._begin_child(request, trace)
                if begun:
                    await self._take_up(request.workflow_id)
                return
            except StorageUnavailable:
                await asyncio.sleep(_RETRY_INTERVAL_S)
            except RunExists:
                continue  # another process has begun it just now
            except (DefinitionError, CommandRefused, RunGone) as error:
                await self._report(request.parent.workflow_id, _not_begun(request, error))
                return

    async def _is_begun(self, workflow_id: str) -> bool:
        if self._registry.has(workflow_id):
            return True
        try:
            await self.log.run(workflow_id)
        except RunNotFound:
            return False
        return True

    async def _begin_child(self, request: ChildRequest, trace: str | None) -> None:
        parent = await self._begin(request.parent.workflow_id)
        submission = request.definition
        if isinstance(submission, str):
            found = await self._registered(submission, trusted=request.options.get("trusted", True))
            if found is None:
                raise CommandRefused(f'no graph "{submission}" is registered', code="subgraph_not_found")
            submission = found.submission
        definition, _, _ = await self._load_aside(submission, UNSET)
        if request.grants:
            definition = _granted(definition, request.grants)
        inherited = _inherited(parent)
        definition = with_options(definition, inherited)
        code = self._nested_code(parent, request, definition)
        folder = parent.options.get("folder")
        if definition.folder is None and folder:
            definition = msgspec.structs.replace(definition, folder=Path(folder))
        value, problems = check_inputs(definition, request.input)
        errors = [found for found in problems if found.severity == "error"]
        if errors:
            raise DefinitionError(errors)
        bound = await self.bind(definition, trusted=request.options.get("trusted", True), code=code)
        if any(found.severity == "error" for found in bound.diagnostics):
            raise DefinitionError(bound.diagnostics)
        options = {**inherited, **request.options}
        started = self._child_started(request, options, definition, bound, value, trace)
        origin = await origin_of_child(self.log, parent, request)
        if origin is None:
            await self._begin_run(request.workflow_id, definition, bound, started)
        else:
            await self._begin_forked_child(request, definition, bound, started, origin)

    async def _begin_forked_child(
        self,
        request: ChildRequest,
        definition: Definition,
        bound: Bound,
        started: ev.WorkflowStarted,
        origin: ev.ForkOrigin,
    ) -> None:
        """Begin a child with what the child of the parent's source had done, and with the answers that its
        parent has."""
        from agentflow.runtime.fork import fork_base
        from agentflow.runtime.fork_source import ForkSource

        run_id = request.workflow_id
        source = await ForkSource.read(self.log, origin.workflow_id, origin.offset)
        source.answer(await answers_of_child(self.log, request))
        begin, plan = source.begin, self._plan(definition.workflow, definition.ir_hash)
        base = await fork_base(self.log, source, plan, run_id=run_id)
        await self._put_definition(definition)
        if bound.code is not None:
            self._code.begin(run_id, bound.code)
        first = [await self._with_functions(fork_of_child(begin, origin, started), bound), base.saved]
        labels = dict(started.labels)
        await self._registry.begin(run_id, plan, bound, first, base=base.events, labels=labels)

    def _nested_code(
        self, parent: ev.WorkflowStarted, request: ChildRequest, definition: Definition
    ) -> Callables | None:
        """Return the code of the workflow that stands at the parent's step, for a child with its graph."""
        code = self._code.of_run(request.parent.workflow_id, parent)
        if code is None:
            return None
        nested = code.workflows.get(request.parent.step_id)
        found: Callables | None = None
        if isinstance(nested, WorkflowWithCode) and nested.definition.ir_hash == definition.ir_hash:
            found = nested.callables
        return code.injected(found)

    def _child_started(
        self,
        request: ChildRequest,
        options: dict[str, Any],
        definition: Definition,
        bound: Bound,
        value: Any,
        trace: str | None,
    ) -> ev.WorkflowStarted:
        if trace is not None:
            options["traceparent"] = trace
        found = [*definition.warnings, *bound.diagnostics]
        started = started_event(definition, bound, value, {}, options, found, "parent")
        return msgspec.structs.replace(
            started,
            parent=request.parent,
            budget=request.budget or UNSET,
            deadline=UNSET if request.deadline is None else request.deadline,
        )

    async def _take_up(self, workflow_id: str) -> None:
        """Go on with a child that was begun: it reports when it rests. One that has ended reports now."""
        row = await self.log.run(workflow_id)
        if row.ended:
            await self._report_of_log(workflow_id)
            return
        command: Command = Attach(by="parent")
        if row.state == "paused" and (await self.fold(workflow_id)).pause in _GOES_ON:
            command = Resume(by="parent", reason="drain")
        await self._deliver(workflow_id, command)

    async def _report_of_log(self, workflow_id: str) -> None:
        from agentflow.engine.child_runs import report_of

        state = await self.fold(workflow_id)
        report = report_of(state)
        if report is not None and state.begin is not None and state.begin.parent is not UNSET:
            await self._report(state.begin.parent.workflow_id, report)

    # -- messages between the runs ----------------------------------------------------------------

    async def _report(self, parent_id: str, report: ChildReport) -> None:
        if await self._deliver(parent_id, ReportChild(report=report, by=report.workflow_id)):
            return
        if not report.is_over:  # abandoned: its step has ended, or its parent has
            reason = f"{parent_id} does not wait for it any more"
            await self._deliver(report.workflow_id, Cancel(reason=reason, by=parent_id))

    async def _deliver(self, workflow_id: str, command: Command) -> bool:
        """Send a command to a run, starting it if needed; return whether it took it."""
        while True:
            try:
                await self._registry.command(workflow_id, command)
            except StorageUnavailable:
                await asyncio.sleep(_RETRY_INTERVAL_S)
            except (CommandRefused, InvalidAnswer, UnknownRequest, RunTerminal, RunNotFound, RunGone):
                return False
            except AgentflowError as error:
                # Another process has it, it cannot be bound, or this Runtime closes: it asks when it goes on.
                if not self._registry.closed:
                    _log.warning("%s could not be told of %s: %s", workflow_id, type(command).__name__, error)
                return True
            else:
                return True

    async def _cancel_child(self, workflow_id: str, command: Cancel, gone: Callable[[], None]) -> None:
        try:
            if await self._deliver(workflow_id, command):
                while not (await self.log.run(workflow_id)).ended:
                    await self._registry.rest(workflow_id, None)
        except (RunNotFound, RunGone):
            pass  # it never began
        except AgentflowError as error:
            _log.warning("%s could not be cancelled with its parent: %s", workflow_id, error)
        finally:
            gone()

    async def _cancel_orphans(self, rows: Sequence[RunRow]) -> None:
        """Cancel the child runs that a crash kept from being cancelled: their parents do not await them."""
        from agentflow.engine.child_runs import ChildReport, awaits

        for row in rows:
            if row.parent is None:
                continue
            try:
                begin = await self._begin(row.workflow_id)
                key = begin.options.get("parent_activation", "")
                parent = await self.fold(row.parent)
            except AgentflowError:
                continue  # its parent was deleted or is damaged: nothing says that it is abandoned
            report = ChildReport(workflow_id=row.workflow_id, key=key, status=row.state)
            if not awaits(parent, report):
                reason = f"{row.parent} does not wait for it any more"
                self._registry.start_soon(
                    self._send_on(row.workflow_id, Cancel(reason=reason, by=row.parent))
                )


def _granted(definition: Definition, grants: tuple[Capabilities, ...]) -> Definition:
    """Return the definition of a child run as its caller may run it. Raises DefinitionError."""
    from agentflow.definition.ir import ir_hash

    found = fitted_graph(definition.workflow, grants)
    if isinstance(found, list):
        raise DefinitionError(found)
    return msgspec.structs.replace(definition, workflow=found, ir_hash=ir_hash(found))


def _inherited(parent: ev.WorkflowStarted) -> dict[str, Any]:
    """Return the options of a run that hold for the runs that it begins."""
    return {name: parent.options[name] for name in _INHERITED if name in parent.options}


def _not_begun(request: ChildRequest, error: AgentflowError) -> ChildReport:
    """Return the report of a child that could not begin."""
    from agentflow.engine.child_runs import ChildReport

    code, details = error.code, None
    if isinstance(error, DefinitionError):
        first = next((d for d in error.diagnostics if d.severity == "error"), error.diagnostics[0])
        code = first.code
        details = {"diagnostics": [msgspec.to_builtins(found) for found in error.diagnostics]}
    info = ErrorInfo(category="invalid_input", code=code, message=str(error), details=details)
    key: str = request.options["parent_activation"]
    return ChildReport(workflow_id=request.workflow_id, key=key, status="failed", error=info)
