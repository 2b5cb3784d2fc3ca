"""Runs the cases of a suite and judges them (page 003 §13). Every case is an ordinary run, which is kept."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec
from msgspec import UNSET

from agentflow.definition.loader import Definition, load_file
from agentflow.definition.paths import ABSENT, parse_value_path
from agentflow.errors import AgentflowError, InvalidOptions
from agentflow.evals.evaluators import CustomEvalFailed, Evaluator, bind_handlers, evaluate, evaluate_case
from agentflow.evals.judgement import Mismatch, compare_paths, compare_subset, node_at
from agentflow.evals.report import CaseError, CaseResult, EvalReport, Evaluation, report_of
from agentflow.evals.suite import Case, EvalError, EvalSuite, load_dataset, load_suite
from agentflow.records.requests import RequestRecord
from agentflow.records.runs import RunResult
from agentflow.runtime.node_output import RunSource, workflow_output
from agentflow.runtime.submission import checked_options

__all__ = ["EvalRuns", "run_eval"]

Progress = Callable[[CaseResult], None]


class EvalRuns(RunSource, Protocol):
    """Where the runs of an eval are: a Runtime, or a Client of a daemon."""

    async def submit(self, submission: Any, input: Any = None, /, **more: Any) -> Any:
        """Begin a run and return its handle."""
        ...

    async def replay(self, workflow_id: Any, policy: Any, *, input: Any = None) -> Any:
        """Begin a new run of a recorded one and return its handle."""
        ...

    async def rest(self, workflow_id: str) -> RunResult:
        """Wait until a run has ended, is paused or waits."""
        ...

    async def decide(self, workflow_id: str, *, granted: bool, **more: Any) -> Any:
        """Grant or deny an approval."""
        ...

    async def answer_all(self, workflow_id: str, responses: Mapping[str, Any]) -> Any:
        """Answer open requests."""
        ...

    async def cancel(self, workflow_id: str, reason: str | None = None) -> Any:
        """End a run."""
        ...


async def run_eval(
    suite: str | os.PathLike[str],
    runs: EvalRuns,
    *,
    evaluators: Mapping[str, Evaluator] | Sequence[Evaluator] = (),
    progress: Progress | None = None,
) -> EvalReport:
    """Run the suite of a file and return its report, cases in the order of the dataset.

    `evaluators` judge beside those of the suite: `evaluator(case) -> bool | dict`, where `case` is {id,
    input, expected, actual, custom, metadata, workflow_id}. `progress` is called as each case ends. At most
    `max_concurrency` cases run at once. Raises EvalError, or DefinitionError if the workflow is refused,
    before any case is run.
    """
    file = Path(suite)
    loaded = load_suite(file)
    _check_options(loaded)
    definition = load_file(file.parent / loaded.workflow_path)
    named = evaluators if isinstance(evaluators, Mapping) else {_name(e): e for e in evaluators}
    is_judged = bool(loaded.custom_evals or named)
    cases = load_dataset(file.parent / loaded.dataset_path, replay=loaded.replay, is_judged=is_judged)
    handlers = bind_handlers(loaded.custom_evals, file.parent)
    return await _Eval(loaded, definition, runs, handlers, dict(named), progress).run(cases)


def _check_options(suite: EvalSuite) -> None:
    try:
        checked_options(suite.workflow_options)
    except InvalidOptions as refused:
        first = refused.diagnostics[0]
        place = (first.path or "").replace("/options", "/workflow_options", 1)
        message = f"{place}: {first.message}"
        raise EvalError("invalid_suite", message, hint=first.hint) from None


def _name(evaluator: Evaluator) -> str:
    return getattr(evaluator, "__name__", type(evaluator).__name__)


class _Unanswered(Exception):
    pass


class _Eval:
    def __init__(
        self,
        suite: EvalSuite,
        definition: Definition,
        runs: EvalRuns,
        handlers: Mapping[str, Evaluator],
        evaluators: Mapping[str, Evaluator],
        progress: Progress | None,
    ) -> None:
        self._suite = suite
        self._definition = definition
        self._runs = runs
        self._handlers = handlers
        self._evaluators = evaluators
        self._progress = progress
        self._paths = [parse_value_path(path) for path in suite.comparison.paths]
        self._stopped = False

    async def run(self, cases: list[Case]) -> EvalReport:
        places = asyncio.Semaphore(self._suite.max_concurrency)
        results: dict[str, CaseResult] = {}

        async def one(case: Case) -> None:
            async with places:
                if self._stopped:
                    return
                result = results[case.id] = await self._timed(case)
                self._stopped |= self._suite.execution.fail_fast and result.status != "passed"
                if self._progress is not None:
                    self._progress(result)

        async with asyncio.TaskGroup() as group:
            for case in cases:
                group.create_task(one(case))
        return report_of(self._suite.id, [results[case.id] for case in cases if case.id in results])

    async def _timed(self, case: Case) -> CaseResult:
        begin = time.monotonic()
        result = await self._case(case)
        return msgspec.structs.replace(result, duration_ms=round((time.monotonic() - begin) * 1000))

    async def _case(self, case: Case) -> CaseResult:
        expected = None if case.expected_output is UNSET else case.expected_output
        run_id: str | None = None

        def error(code: str, message: str, node: str | None = None, actual: Any = None) -> CaseResult:
            return CaseResult(
                case_id=case.id,
                status="error",
                first_failed_node=node,
                expected=expected,
                actual=actual,
                workflow_id=run_id,
                error=CaseError(code=code, message=message),
            )

        try:
            run_id = await self._begin(case)
            async with asyncio.timeout(self._suite.execution.timeout):
                result = await self._answered(run_id, case)
        except _Unanswered as unanswered:
            await self._end(run_id, "the case answers nothing")
            return error("human_input_unanswered", str(unanswered))
        except TimeoutError:
            await self._end(run_id, "the case took too long")
            return error("workflow_run_failed", f"it took more than {self._suite.execution.timeout:g} s")
        except AgentflowError as refused:
            return error("workflow_run_failed", f"{refused.code}: {refused}")
        if result.state != "completed":
            if result.state not in ("failed", "cancelled"):
                await self._end(run_id, "the case ends here")
            failed = result.failed_steps
            said = "" if result.error is None else f": {result.error.code}: {result.error.message}"
            message = f"the run is {result.state}{said}"
            return error("workflow_run_failed", message, failed[0] if failed else None, result.output)
        actual = result.output
        try:
            if self._definition.format == "yaml":
                actual = msgspec.to_builtins(await workflow_output(self._runs, run_id))
            return await self._judge(case, run_id, expected, actual)
        except CustomEvalFailed as failure:
            return error("custom_eval_failed", str(failure), actual=actual)
        except AgentflowError as refused:
            return error("workflow_run_failed", f"{refused.code}: {refused}", actual=actual)

    async def _begin(self, case: Case) -> str:
        options = self._suite.workflow_options
        labels = {"eval": self._suite.id, "case": case.id}
        given = None if case.input is UNSET else case.input
        if self._suite.replay is not None:
            handle = await self._runs.replay(case.recording, self._suite.replay, input=given)
        else:
            handle = await self._runs.submit(self._definition, given, options=options or None, labels=labels)
        return handle.workflow_id

    async def _answered(self, run_id: str, case: Case) -> RunResult:
        """Wait for the end of a run, and answer what it asks as the case says."""
        used: set[str] = set()
        while True:
            result = await self._runs.rest(run_id)
            asked = [r for r in result.pending_requests if r.request_id not in used]
            if result.state != "waiting" or not asked:
                return result
            for request in asked:
                await self._answer(run_id, request, case)
                used.add(request.request_id)

    async def _answer(self, run_id: str, request: RequestRecord, case: Case) -> None:
        if request.step_id not in case.responses:
            message = f'"{request.step_id}" asks a person, and the case has no response for it'
            raise _Unanswered(message)
        response = case.responses[request.step_id]
        if request.kind == "input":
            await self._runs.answer_all(run_id, {request.request_id: response})
            return
        granted = response if isinstance(response, bool) else _WORDS.get(str(response).strip().lower())
        if granted is None:
            raise _Unanswered(f'"{request.step_id}" asks for approval: respond true or false')
        await self._runs.decide(run_id, granted=granted, request_id=request.request_id)

    async def _end(self, run_id: str | None, reason: str) -> None:
        if run_id is not None:
            await self._runs.cancel(run_id, reason)
            await self._runs.rest(run_id)

    async def _judge(self, case: Case, run_id: str, expected: Any, actual: Any) -> CaseResult:
        evaluations: list[Evaluation] = []
        mismatch: Mismatch | None = None
        if case.expected_output is not UNSET:
            comparison = self._suite.comparison
            if comparison.mode == "exact":
                mismatch = compare_subset(expected, actual)
            else:
                mismatch = compare_paths(expected, actual, self._paths)
            reason = None if mismatch is None else mismatch.reason
            path = None if mismatch is None else mismatch.path
            evaluations.append(
                Evaluation(id=comparison.mode, passed=mismatch is None, reason=reason, path=path)
            )
        for custom in self._suite.custom_evals:
            payload = {
                "actual": _part(actual, custom.actual_path, custom.id, "actual"),
                "expected": _part(expected, custom.expected_path, custom.id, "expected"),
                "threshold": custom.threshold,
            }
            evaluations.append(await evaluate(custom, self._handlers[custom.id], payload))
        for name, evaluator in self._evaluators.items():
            given = {
                "id": case.id,
                "input": None if case.input is UNSET else case.input,
                "expected": expected,
                "actual": actual,
                "custom": case.custom,
                "metadata": case.metadata,
                "workflow_id": run_id,
            }
            evaluations.append(await evaluate_case(name, evaluator, given))
        path = mismatch.path if mismatch is not None else None
        return CaseResult(
            case_id=case.id,
            status="passed" if all(e.passed for e in evaluations) else "failed",
            first_failed_path=path,
            first_failed_node=None if path is None else node_at(path),
            expected=expected,
            actual=actual,
            evaluations=tuple(evaluations),
            workflow_id=run_id,
        )


_WORDS = {
    **dict.fromkeys(("approve", "approved", "yes", "true"), True),
    **dict.fromkeys(("reject", "rejected", "no", "false"), False),
}


def _part(value: Any, path: str | None, name: str, side: str) -> Any:
    if path is None:
        return value
    found = parse_value_path(path).read(value)
    if found is ABSENT:
        raise CustomEvalFailed(f"{name}: the {side} output has nothing at {path}")
    return found
