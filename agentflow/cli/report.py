"""The report of one run: below `run` and `resume`, in `show` and in `open`.

A line for each step; below the lines each step that failed, was skipped or waits, with its whole reason, and
the command that moves the run on. Pure: made of a result and of the fold of the run's events.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentflow.cli.output import columns, error_line, printable
from agentflow.cli.pauses import command_line, pause_hint
from agentflow.cli.progress import Progress, StepProgress, cost_text, count, duration, token_text
from agentflow.cli.questions import question_text
from agentflow.cli.waits import waits_of, waits_text

if TYPE_CHECKING:
    from agentflow.cli.target import Where
    from agentflow.records.requests import RequestRecord
    from agentflow.records.runs import RunResult

__all__ = ["RunReport", "failure_hint"]

_AT_WORK = ("pending", "running")


@dataclass(frozen=True)
class RunReport:
    """What is known of one run at rest, or where it stands now."""

    result: RunResult
    progress: Progress
    where: Where
    is_local: bool  # True if no daemon works on the run
    questions: Sequence[RequestRecord] = ()
    is_left: bool = False  # True if no process works on a run that is not at rest
    is_export: bool = False  # True if the run is in a file, where no command can move it
    children: Sequence[RunReport] = ()  # of the child runs that it waits for

    def head(self) -> str:
        """Return the first line: id, state, duration and usage."""
        result, usage = self.result, self.result.usage
        cost = f", {cost_text(usage.cost_usd)}" if usage.cost_usd is not None and usage.model_calls else ""
        state = f"is {result.state}" if result.state in ("waiting", "paused") else result.state
        return f"{result.workflow_id} {state} after {duration(result.duration_ms)}, {token_text(usage)}{cost}"

    def table(self) -> str:
        """Return the line of each step, in declared order."""
        header = ("STEP", "STATE", "DURATION", "TOKENS", "COST", "ATTEMPT")
        rows = [self._row(step_id) for step_id in self.result.steps]
        return columns(header, rows)

    def _row(self, step_id: str) -> tuple[str, ...]:
        step, summary = self._step(step_id), self.result.steps[step_id]
        waits = bool(step.asked) and summary.state in _AT_WORK
        called = step.tokens > 0
        return (
            step_id,
            "waiting" if waits else summary.state,
            "" if step.duration_ms is None else duration(step.duration_ms),
            f"{step.tokens:,}" if called else "",
            cost_text(step.cost_usd) if called else "",
            str(summary.attempt) if summary.attempt else "",
        )

    def _step(self, step_id: str) -> StepProgress:
        return self.progress.steps.get(step_id) or StepProgress(step_id)

    def reasons(self) -> str:
        """Return why steps failed or were skipped, what the run waits for, and what moves it on."""
        lines: list[str] = []
        for step_id, summary in self.result.steps.items():
            step = self._step(step_id)
            if step.reason and summary.state in ("failed", "skipped", "cancelled"):
                tries = f" after {count(step.attempt, 'attempt')}" if step.attempt > 1 else ""
                lines.append(printable(f"{step_id} {summary.state}{tries}: {step.reason}"))
            lines += [printable(f"  {problem}") for problem in step.item_problems]
            if step.failed > len(step.item_problems):
                lines.append(f"  and {count(step.failed - len(step.item_problems), 'more failed item')}")
        return "\n".join([*lines, *self.moves()])

    def moves(self) -> list[str]:
        """Return what the run waits for or why it stopped, and the commands that move it on."""
        result, run_id = self.result, self.result.workflow_id
        if result.state in ("failed", "cancelled"):
            return self._ended()
        if result.state == "waiting":
            return self._waits()
        if result.state == "paused":
            lines = [f"{run_id} is paused: {printable(self.progress.pause or result.pause or '')}"]
            if not self.is_export:
                hint = pause_hint(self.progress.paused, run_id, self.where, is_local=self.is_local)
                lines += [question_text(question, self.where) for question in self.questions]
                lines.append(f"  hint: {hint}")
            return lines
        if self.is_left:
            resume = command_line("resume", run_id, self.where)
            return [f"no process works on {run_id}\n  hint: go on with `{resume}`"]
        return []

    def _waits(self) -> list[str]:
        run_id, lines = self.result.workflow_id, list[str]()
        if self.questions:
            lines.append(f"{run_id} waits for {count(len(self.questions), 'answer')}")
            lines += [question_text(question, self.where) for question in self.questions]
        waits = waits_of(self.progress.waiting)
        if self.questions:  # the next time is that of another step, or a deadline that the question names
            waits = waits._replace(due=None)
        if not self.is_export:
            lines += waits_text(waits, run_id, self.where, is_local=self.is_local)
        for child in self.children:
            lines.append(f"{run_id} waits for the run {child.result.workflow_id}")
            lines += child.moves()
        if self.children and self.is_local and not self.is_export:
            resume = command_line("resume", run_id, self.where)
            lines.append(f"  {run_id} goes on after it; if it does not, `{resume}`")
        return lines or [f"{run_id} waits"]

    def _ended(self) -> list[str]:
        result, run_id = self.result, self.result.workflow_id
        hint = None if self.is_export else failure_hint(result, self.where, self._preparation())
        if result.state == "failed" and result.error is not None:
            return [error_line(result.error.code, result.error.message, hint)]
        told = f"{run_id} is {result.state}"
        return [told if hint is None else f"{told}\n  hint: {hint}"]

    def _preparation(self) -> str:
        """Return what a person does before the failed steps are tried again."""
        errors = [step.error for step in self.progress.steps.values() if step.error is not None]
        refused = [e.provider for e in errors if e.code == "authentication_failed" and e.provider]
        if refused:
            return f"put a valid key into {refused[0].upper()}_API_KEY, then "
        if any(error.category == "invalid_input" for error in errors):
            return "mend the input or the document in a run of its own, or "
        return ""


def failure_hint(result: RunResult, where: Where, preparation: str = "") -> str:
    """Return what tries an ended run again, as a new run that keeps the results of the old one."""
    run_id = result.workflow_id
    states = {step_id: step.state for step_id, step in result.steps.items()}
    if "failed" in states.values():
        command = command_line("fork", run_id, where, "--from-failure")
        return f"{preparation}try the failed steps again in a new run: `{command}`"
    stopped = [step_id for step_id, state in states.items() if state != "succeeded"]
    if stopped:
        command = command_line("fork", run_id, where, "--from", stopped[0])
        return f"go on from {stopped[0]} in a new run: `{command}`"
    return f"try it again from the beginning: `{command_line('fork', run_id, where, '--offset', '0')}`"
