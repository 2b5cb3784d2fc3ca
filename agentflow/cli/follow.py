"""Following a run to where it comes to rest, and telling how it ended (page 000 §12).

A run that waits only for a timer of the next minute is followed across it.
"""

from __future__ import annotations

import asyncio
import shlex
import sys
from collections.abc import Callable, Coroutine, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, TypeVar

from agentflow.cli.errors import Exit, exit_of_final, exit_of_state
from agentflow.cli.excerpt import render_diagnostics
from agentflow.cli.live import TableView, View, view_on
from agentflow.cli.output import emit_json, emit_value, error_line, say
from agentflow.cli.pauses import command_line
from agentflow.cli.progress import Progress, count
from agentflow.cli.prompt import ask, can_ask
from agentflow.cli.report import RunReport
from agentflow.cli.run_reports import child_reports, goes_on_soon
from agentflow.cli.session import Interrupted, Interrupts
from agentflow.cli.target import Target, Where
from agentflow.definition.ir import Workflow
from agentflow.definition.pipeline_nodes import PIPELINE
from agentflow.errors import AgentflowError, CommandRefused, InvalidAnswer
from agentflow.events.catalogue import WorkflowStarted
from agentflow.events.envelope import decode
from agentflow.records.runs import RunResult

if TYPE_CHECKING:
    from agentflow.cli.decisions import Instruction
    from agentflow.definition.diagnostics import Diagnostic
    from agentflow.records.requests import RequestRecord

__all__ = ["Follower", "resume_command"]

T = TypeVar("T")


class Follower:
    """One run, from where this command took it up to its result.

    `follow` while the target is open, then `conclude` when it is closed: an interrupted run of this process
    is parked by then.
    """

    def __init__(
        self,
        interrupts: Interrupts,
        *,
        as_json: bool,
        where: Where,
        warned: Sequence[Diagnostic] = (),
        quiet: bool = False,
    ) -> None:
        """Take the warnings that `agentflow check` shows. `quiet`: no progress, no table of steps."""
        self._is_quiet = quiet
        self._may_ask = not quiet and not as_json and can_ask()
        self._seen = -1  # offset of the last event that was shown
        self._put_off = set[str]()  # decisions that the person leaves for later
        self._left = False  # True if the person left at a question
        self._interrupts = interrupts
        self._as_json = as_json
        self._where = where
        self._warned = warned
        self._target: Target | None = None
        self._run_id = ""
        self._result: RunResult | None = None
        self._progress: Progress | None = None
        self._is_table = False
        self._questions: list[RequestRecord] = []
        self._children: list[RunReport] = []
        self._is_request = False
        self._compact: dict[str, Any] | None = None  # what a program gets of a request

    async def follow(self, target: Target, run_id: str, workflow: Workflow, *, since: int = -1) -> None:
        """Show the run until it rests or the user leaves; on a terminal, ask for what it waits for.

        Events up to offset `since` happened before this command. Raises what the Runtime raises.
        """
        self._target, self._run_id = target, run_id
        if since < 0:
            await _naming(run_id, self._warn(target, run_id), self._where)
        self._is_request = PIPELINE in workflow.metadata
        self._progress = progress = Progress(workflow)
        try:
            while True:
                with view_on(sys.stderr, progress, quiet=self._is_quiet) as view:
                    self._is_table = isinstance(view, TableView)
                    work = _naming(run_id, self._watch(view, since), self._where)
                    self._result = await self._interrupts.guard(work)
                if self._result.state in ("waiting", "paused"):
                    self._questions = await target.reader.requests(run_id)
                    self._children = await child_reports(target, progress, self._where)
                if not (self._may_ask and await self._decide(progress, self._result.state)):
                    break
                self._result = None  # it has gone on
            if self._is_request and not self._as_json and not sys.stdout.isatty():
                self._compact = await self._interrupts.guard(target.reader.compact(run_id))
        except Interrupted:
            if target.parks:
                say(f"parking {run_id}: work in flight is given a moment; Ctrl-C again stops at once")

    async def _decide(self, progress: Progress, state: str) -> bool:
        """Ask the person at the terminal; return True once the run was told something, False if it rests."""
        from agentflow.cli.decisions import open_decisions

        for decision in open_decisions(self._questions, progress, state):
            if decision.key in self._put_off:
                continue
            try:
                while (given := await self._interrupts.guard(ask(decision))) is not None:
                    if await self._told(given):
                        return True
            except (EOFError, Interrupted) as left:
                self._left = isinstance(left, Interrupted)
                return False
            self._put_off.add(decision.key)
        return False

    async def _told(self, given: Instruction) -> bool:
        """Tell the run; return False, and say why, if the answer does not satisfy what is asked for."""
        assert self._target is not None
        try:
            work = self._target.tell(given.command, self._run_id, **given.arguments)
            await _naming(self._run_id, work, self._where)
        except CommandRefused as error:
            say(error_line(error.code, str(error), error.hint))
            return not isinstance(error, InvalidAnswer)  # what was decided elsewhere meanwhile is looked up
        return True

    async def _watch(self, view: View, since: int) -> RunResult:
        """Show events while the run goes; then all that are left, so that nothing is lost at the end."""
        assert self._target is not None
        target, run_id = self._target, self._run_id

        async def show(follow: bool) -> None:
            async with aclosing(target.lines(run_id, self._seen, follow=follow)) as lines:
                async for line in lines:
                    event = decode(line)
                    self._seen = event.offset
                    view.take(event, old=self._seen <= since)
                    shown.set()

        shown = asyncio.Event()
        while True:
            reader, result = asyncio.ensure_future(show(True)), asyncio.ensure_future(target.rest(run_id))
            try:
                await asyncio.wait({reader, result}, return_when=asyncio.FIRST_COMPLETED)
                if reader.done():
                    reader.result()  # the reader of stdout may have gone
                outcome = await result
            finally:
                reader.cancel()
                result.cancel()
                await asyncio.gather(reader, result, return_exceptions=True)
            await show(False)
            if outcome.state != "waiting" or not await self._goes_on_soon():
                return outcome
            await self._next_event(show, shown)

    async def _goes_on_soon(self) -> bool:
        """Return whether the run goes on within a minute, and no person is asked."""
        assert self._target is not None
        assert self._progress is not None
        children = await child_reports(self._target, self._progress, self._where)
        return goes_on_soon(self._progress, children)

    async def _next_event(
        self, show: Callable[[bool], Coroutine[Any, Any, None]], shown: asyncio.Event
    ) -> None:
        """Wait until the run has gone on."""
        shown.clear()
        reader, first = asyncio.ensure_future(show(True)), asyncio.ensure_future(shown.wait())
        try:
            await asyncio.wait({reader, first}, return_when=asyncio.FIRST_COMPLETED)
            if reader.done():
                reader.result()
        finally:
            reader.cancel()
            first.cancel()
            await asyncio.gather(reader, first, return_exceptions=True)

    async def _warn(self, target: Target, run_id: str) -> None:
        """Print the warnings that come of binding and of the inputs; those of the text alone are only
        counted."""
        async with aclosing(target.lines(run_id, follow=False)) as lines:
            first = await anext(lines, None)
        if first is None:
            return  # the daemon drains: it ends streams before it sent anything
        begin = decode(first).data
        if isinstance(begin, WorkflowStarted) and isinstance(begin.diagnostics, tuple):
            new = [d for d in begin.diagnostics if d not in self._warned]
            if new:
                say(render_diagnostics(new))
        if self._warned:
            file = shlex.quote(self._warned[0].file or "FILE")
            say(f"{count(len(self._warned), 'warning')} about the document: agentflow check {file}")

    async def conclude(self) -> Exit:
        """Print how the run ended, or how to go on with it, and give the exit code."""
        assert self._target is not None
        run_id = self._run_id
        interrupted = self._result is None
        if interrupted and not self._target.parks:
            say(f"{run_id} goes on with the daemon\n  hint: {command_line('events', run_id, self._where)}")
            return Exit.INTERRUPTED
        result = self._result if not interrupted else await _parked(self._target, run_id)
        at_rest = result is not None and exit_of_state(result.state) is not Exit.WAITING
        if self._as_json and result is not None:
            emit_json(_as_object(result))
        if interrupted and not at_rest:
            say(f"{run_id} is parked\n  hint: go on with `{resume_command(run_id, self._where)}`")
            return Exit.INTERRUPTED
        assert result is not None
        self._tell(result)
        if self._is_request and not self._left and result.state == "completed":
            return exit_of_final(result.output["final_output"])
        return Exit.INTERRUPTED if self._left else exit_of_state(result.state)

    def _tell(self, result: RunResult) -> None:
        assert self._progress is not None
        assert self._target is not None
        report = RunReport(
            result,
            self._progress,
            self._where,
            is_local=self._target.parks,
            questions=self._questions,
            children=self._children,
        )
        completed = result.state == "completed"
        if not (self._is_table or self._is_quiet or (self._as_json and completed)):
            say(f"{report.head()}\n{report.table()}")
        reasons = report.reasons()
        if reasons and not (self._is_quiet and completed):
            say(reasons)
        if self._compact is not None:
            emit_json(self._compact)
        elif completed and not self._as_json:
            emit_value(result.output["final_output"] if self._is_request else result.output)


def _as_object(result: RunResult) -> dict[str, Any]:
    """Return the object of `--json`: `error` stands there only when there is one."""
    found: dict[str, Any] = {
        "workflow_id": result.workflow_id,
        "state": result.state,
        "output": result.output,
        "steps": result.steps,
        "usage": result.usage,
        "duration_ms": result.duration_ms,
    }
    if result.error is not None:
        found["error"] = result.error
    return found


async def _naming(run_id: str, work: Coroutine[Any, Any, T], where: Where) -> T:
    """Do the work; if the daemon goes away meanwhile, the error names the run, which is in its store."""
    try:
        return await work
    except AgentflowError as error:
        if error.code in ("unreachable", "draining"):
            show = command_line("show", run_id, where)
            error.hint = f"{run_id} goes on when the daemon is back; then `{show}` shows it"
        raise


async def _parked(target: Target, run_id: str) -> RunResult | None:
    """Return where the run was parked; None when its work did not stop within the grace."""
    try:
        return await asyncio.wait_for(target.rest(run_id), 1)
    except (TimeoutError, AgentflowError):
        return None


def resume_command(run_id: str, where: Where) -> str:
    """Return the command line that goes on with a run."""
    return command_line("resume", run_id, where)
