"""What page 001 §5 says that a step document does, written from the page and not from the engine.

`interpret` plays a document whose models and people are scripted, on simulated time, and returns the end of
every step and of the run. It shares with the product the expression language alone, which has conformance
cases of its own. Page numbers in brackets are sections of page 001, those with 000 of page 000.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from agentflow.definition.expressions import EvaluationError, Expression, compile_template, parse
from agentflow.definition.schemas import validate

__all__ = ["Answer", "Decision", "Error", "Fail", "Outcome", "Script", "StepEnd", "Turn", "interpret"]

Unit = tuple[str, int | None]
"""A step, or one iteration of it."""
Waits = Generator[float, None, Any]
"""Work that waits for moments: it yields when it wants to go on."""


@dataclass(frozen=True)
class Answer:
    """A model call gives this JSON value."""

    value: Any


@dataclass(frozen=True)
class Fail:
    """A model call fails with this category; its code is `CATEGORY_error`."""

    category: str


@dataclass(frozen=True)
class Turn:
    """A model call: how long it takes, and what comes of it."""

    seconds: float
    result: Answer | Fail


@dataclass(frozen=True)
class Decision:
    """What a person says about an approval, after so many seconds; None: nothing."""

    seconds: float
    granted: bool


@dataclass
class Script:
    """All that comes from outside. The turns of a unit are used up over its attempts; then `last` serves."""

    turns: dict[Unit, list[Turn]] = field(default_factory=dict)
    decisions: dict[str, Decision] = field(default_factory=dict)
    last: Turn = Turn(1.0, Answer({"ok": True}))


@dataclass(frozen=True)
class Error:
    """Why a step, an iteration or a run failed. The code is None where the page gives none."""

    category: str
    code: str | None = None


@dataclass(frozen=True)
class StepEnd:
    """The end of a step or an iteration."""

    status: str
    result: Any = None
    error: Error | None = None
    reason: str | None = None
    caused_by: tuple[str, ...] = ()
    items: tuple[StepEnd, ...] | None = None


@dataclass
class Outcome:
    """What has become of a run. `started` holds the agents in the order in which they began."""

    state: str = ""
    output: Any = None
    error: Error | None = None
    steps: dict[str, StepEnd] = field(default_factory=dict)
    failed_steps: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    started: list[Unit] = field(default_factory=list)


@dataclass(frozen=True)
class Retry:
    """A retry policy [000 §9], without jitter."""

    max_attempts: int = 4
    initial: float = 1.0
    multiplier: float = 2.0
    longest: float = 30.0
    timeout: float = 300.0
    max_elapsed: float = 60.0
    retry_on: tuple[str, ...] = ("transient", "timeout", "rate_limited")

    @classmethod
    def of(cls, *levels: Any) -> Retry:
        """Return the policy of these levels, the last of which counts most; they merge key by key."""
        if levels[-1] is False:
            return cls(max_attempts=1)
        merged: dict[str, Any] = {}
        for level in levels:
            merged |= level or {}
        backoff = merged.get("backoff", {})
        if not isinstance(backoff, dict):
            backoff = {"initial": backoff, "multiplier": 1}
        return cls(
            max_attempts=merged.get("max_attempts", 4),
            initial=_seconds(backoff.get("initial", 1.0)),
            multiplier=backoff.get("multiplier", 2.0),
            longest=_seconds(backoff.get("max", 30.0)),
            timeout=_seconds(merged.get("timeout", 300.0)),
            max_elapsed=_seconds(merged.get("max_elapsed", 60.0)),
            retry_on=tuple(merged.get("retry_on", cls.retry_on)),
        )

    def delay(self, error: Error, failures: int, first: float, now: float) -> float | None:
        """Return how long to wait before the next try; None if there is none."""
        if error.category not in self.retry_on and error.code not in self.retry_on:
            return None
        if failures >= self.max_attempts:
            return None
        delay = min(self.longest, self.initial * self.multiplier ** (failures - 1))
        return delay if now + delay - first <= self.max_elapsed else None


class AgentFailed(Exception):
    """An agent came to nothing for good."""

    def __init__(self, error: Error) -> None:
        self.error = error


class AttemptFailed(Exception):
    """An attempt came to nothing; a fresh context may still succeed [§5.7]."""

    def __init__(self, error: Error) -> None:
        self.error = error


def _seconds(value: Any) -> float:
    if isinstance(value, str):
        for unit, factor in (("ms", 0.001), ("s", 1), ("m", 60), ("h", 3600), ("d", 86400)):
            if value.endswith(unit):
                return float(value[: -len(unit)]) * factor
    return float(value)


def _truth(value: Any) -> bool:
    """[§6.3] False are null, false, 0, 0.0 and ""."""
    return not (value is None or value is False or value == "" or (value == 0 and value is not True))


def _expression(text: Any) -> Expression:
    if isinstance(text, bool):
        text = "true" if text else "false"
    text = text.strip()
    return parse(text[3:-2] if text.startswith("${{") and text.endswith("}}") else text)


class _Step:
    """A step of the document, and how far it is."""

    def __init__(
        self, index: int, spec: Mapping[str, Any], workflow: Mapping[str, Any], defaults: Any
    ) -> None:
        self.index = index
        self.id: str = spec["id"]
        self.agent: Mapping[str, Any] = spec["agent"]
        self.deps: list[str] = list(dict.fromkeys(spec.get("depends_on", ())))
        self.guard = _expression(spec["if"]) if "if" in spec else None
        self.for_each = _expression(spec["for_each"]) if "for_each" in spec else None
        self.required: bool = spec.get("required", True)
        self.width: int = spec.get("max_parallel", workflow.get("max_parallel", 8))
        self.timeout: float | None = _seconds(spec["timeout"]) if "timeout" in spec else None
        self.retry = Retry.of(defaults.get("retry"), spec.get("retry"))
        approval = spec.get("approval")
        self.approval: Mapping[str, Any] | None = {} if approval is True else approval
        self.items: list[Any] | None = None
        self.ends: dict[int, StepEnd] = {}
        self.at_work = 0
        self.examined = False

    @property
    def guard_of_items(self) -> bool:
        """[§5.2] True if the guard names `item` or `index`, and is evaluated for each item."""
        return self.guard is not None and bool(self.guard.roots & {"item", "index"})


class _Interpreter:
    def __init__(self, document: Mapping[str, Any], inputs: Mapping[str, Any], script: Script) -> None:
        workflow: Mapping[str, Any] = document["workflow"]
        defaults = document.get("defaults", {})
        self.steps = {
            spec["id"]: _Step(i, spec, workflow, defaults) for i, spec in enumerate(workflow["steps"])
        }
        self.outputs: Mapping[str, Any] | None = document.get("outputs")
        self.slots: int = workflow.get("max_parallel", 8)
        self.fail_fast: bool = workflow.get("fail_fast", False)
        self.inputs = inputs
        self.script = script
        self.used: dict[Unit, int] = {}
        self.now = 0.0
        self.moments: list[tuple[float, int, Waits]] = []
        self.numbers = count()
        self.due: dict[str, deque[int | None]] = {}
        self.asking: set[str] = set()
        self.last_granted = -1
        self.busy = 0
        self.halted = False
        self.outcome = Outcome()

    # -- the run --------------------------------------------------------------------------------

    def run(self) -> Outcome:
        while True:
            self._examine_all()
            if self._grant():
                continue
            if not self.moments or (self.halted and not self._in_flight()):
                return self._end()
            self.now, _, work = heapq.heappop(self.moments)
            self._go_on(work)

    def _in_flight(self) -> bool:
        """[000 §2] With halt, steps in flight finish; one that waits for a person was not dispatched."""
        return self.busy > 0 or any(
            s.items is not None and s.id not in self.ends for s in self.steps.values()
        )

    @property
    def ends(self) -> dict[str, StepEnd]:
        return self.outcome.steps

    def _go_on(self, work: Waits) -> None:
        for moment in work:
            heapq.heappush(self.moments, (moment, next(self.numbers), work))
            return

    def _end(self) -> Outcome:
        """[§5.9] The end of the run."""
        outcome = self.outcome
        order = list(self.steps)
        outcome.failed_steps = [
            s for s in order if s in self.ends and self.ends[s].status == "failed" and self.steps[s].required
        ]
        if outcome.failed_steps:
            outcome.state = "failed"
            return outcome
        try:
            outcome.output = self._output()
            outcome.state = "completed"
            outcome.skipped = [name for name in order if self.ends[name].status == "skipped"]
        except EvaluationError:
            outcome.state, outcome.error = "failed", Error("expression", "expression_error")
        return outcome

    def _output(self) -> Any:
        if self.outputs is not None:
            return compile_template(self.outputs).evaluate(self._scope())
        inner = {dep for step in self.steps.values() for dep in step.deps}
        ends = {name: self.ends[name] for name in self.steps if name not in inner}
        return {name: end.result if end.status == "success" else None for name, end in ends.items()}

    # -- what expressions see -------------------------------------------------------------------

    def _scope(self, item: Any = None, index: int | None = None) -> dict[str, Any]:
        """[§5.3] Terminal steps alone."""
        scope = {"inputs": self.inputs, "steps": {name: _seen(end) for name, end in self.ends.items()}}
        return scope if index is None else scope | {"item": item, "index": index}

    def _ancestors(self, step: _Step) -> Iterator[str]:
        for dep in step.deps:
            yield dep
            yield from self._ancestors(self.steps[dep])

    def _status_of(self, step: _Step) -> Any:
        """[§5.2] What status functions see."""
        ends, near, far = self.ends, list(step.deps), set(self._ancestors(step))

        class Status:
            def success(self) -> bool:
                return all(ends[d].status == "success" for d in near)

            def failure(self) -> bool:
                return any(ends[d].status == "failed" for d in far)

            def cancelled(self) -> bool:
                return any(ends[d].status == "cancelled" for d in far)

        return Status()

    # -- dispatch -------------------------------------------------------------------------------

    def _examine_all(self) -> None:
        """[§5.1.1] Every step whose dependencies are terminal, in declared order, while there are any."""
        while not self.halted:
            ready = (s for s in self.steps.values() if not s.examined and all(d in self.ends for d in s.deps))
            step = next(ready, None)
            if step is None:
                return
            step.examined = True
            try:
                self._examine(step)
            except EvaluationError:
                self._finish(step, StepEnd("failed", error=Error("expression", "expression_error")))

    def _examine(self, step: _Step) -> None:
        guard = step.guard
        if guard is None or not guard.status_functions:
            for status, reason in (
                ("failed", "dependency_failed"),
                ("cancelled", "dependency_cancelled"),
                ("skipped", "dependency_skipped"),
            ):
                causes = tuple(d for d in step.deps if self.ends[d].status == status)
                if causes:
                    self._finish(step, StepEnd("skipped", reason=reason, caused_by=causes))
                    return
        if (
            guard is not None
            and not step.guard_of_items
            and not _truth(guard.evaluate(self._scope(), self._status_of(step)))
        ):
            self._finish(step, StepEnd("skipped", reason="condition_false"))
            return
        if step.for_each is not None:
            items = step.for_each.evaluate(self._scope())
            if not isinstance(items, list):
                self._finish(step, StepEnd("failed", error=Error("invalid_input", "for_each_type")))
                return
            if step.approval is not None:
                self._ask(step, items)
            else:
                self._begin_items(step, items)
            return
        self._payload(step, None)
        if step.approval is not None:
            self._ask(step, None)
        else:
            self.due[step.id] = deque([None])

    def _payload(self, step: _Step, index: int | None) -> None:
        """Evaluate all templates of a unit; raises EvaluationError."""
        item = None if index is None or step.items is None else step.items[index]
        scope = self._scope(item, index)
        for key in ("systemPrompt", "input", "tags", "context"):
            compile_template(step.agent.get(key)).evaluate(scope)

    def _begin_items(self, step: _Step, items: list[Any]) -> None:
        """[§5.4] An array without items succeeds at once."""
        step.items = items
        self.due[step.id] = deque(range(len(items)))
        if not items:
            self._end_of_items(step)

    def _grant(self) -> bool:
        """[§5.1.3] Slots go round over due steps in declared order. After fail_fast nothing new starts, but
        a for_each that has begun is in flight. Return whether a unit was given its turn."""
        step = self._next_due() if self.busy < self.slots else None
        if step is None:
            return False
        index = self.due[step.id].popleft()
        if index is None:
            del self.due[step.id]
        self._start(step, index)
        return True

    def _next_due(self) -> _Step | None:
        able = [
            step
            for name, waiting in self.due.items()
            if waiting
            and (step := self.steps[name]).at_work < step.width
            and not (self.halted and step.items is None)
        ]
        able.sort(key=lambda step: (step.index <= self.last_granted, step.index))
        return able[0] if able else None

    def _start(self, step: _Step, index: int | None) -> None:
        if index is not None:
            assert step.items is not None
            scope = self._scope(step.items[index], index)
            try:
                if step.guard_of_items and not _truth(_guard(step).evaluate(scope, self._status_of(step))):
                    self._end_of_item(step, index, StepEnd("skipped", reason="condition_false"))
                    return
                self._payload(step, index)
            except EvaluationError:
                error = Error("expression", "expression_error")
                self._end_of_item(step, index, StepEnd("failed", error=error))
                return
        self.last_granted = step.index  # what is skipped takes no slot, and no turn
        self.busy += 1
        step.at_work += 1
        self.outcome.started.append((step.id, index))
        self._go_on(self._work(step, index))

    # -- agents ---------------------------------------------------------------------------------

    def _work(self, step: _Step, index: int | None) -> Waits:
        """[§5.7] The attempts of a step or an iteration, each with a fresh context."""
        deadline = self.now + step.timeout if step.timeout is not None else None
        first = -1.0
        try:
            for failures in count(1):
                try:
                    value = yield from self._attempt(step, (step.id, index), deadline)
                    end = StepEnd("success", result=value)
                    break
                except AttemptFailed as failed:
                    first = self.now if failures == 1 else first
                    delay = step.retry.delay(failed.error, failures, first, self.now)
                    if delay is None:
                        raise AgentFailed(failed.error) from None
                    yield from self._wait(delay, deadline, None)
        except AgentFailed as failed:
            end = StepEnd("failed", error=failed.error)
        self.busy -= 1
        step.at_work -= 1
        if index is None:
            self._finish(step, end)
        else:
            self._end_of_item(step, index, end)

    def _attempt(self, step: _Step, unit: Unit, deadline: float | None) -> Waits:
        """[§5.5] The conversation: a breach of the schema is repaired twice at most."""
        limit = self.now + step.retry.timeout
        for _ in range(3):
            value = yield from self._call(step, unit, deadline, limit)
            schema = step.agent.get("resultSchema")
            if schema is None or not validate(schema, value):
                return value
        raise AttemptFailed(Error("invalid_output"))

    def _call(self, step: _Step, unit: Unit, deadline: float | None, limit: float) -> Waits:
        """[§5.7] A failed call is repeated in place; consecutive failures count."""
        first = -1.0
        for failures in count(1):
            turn = self._turn(unit)
            yield from self._wait(turn.seconds, deadline, limit)
            if isinstance(turn.result, Answer):
                return turn.result.value
            error = Error(turn.result.category, f"{turn.result.category}_error")
            first = self.now if failures == 1 else first
            delay = step.retry.delay(error, failures, first, self.now)
            if delay is None:
                raise AgentFailed(error)
            yield from self._wait(delay, deadline, limit)
        raise AssertionError

    def _turn(self, unit: Unit) -> Turn:
        number = self.used.get(unit, 0)
        self.used[unit] = number + 1
        turns = self.script.turns.get(unit, [])
        return turns[number] if number < len(turns) else self.script.last

    def _wait(self, seconds: float, deadline: float | None, limit: float | None) -> Waits:
        """Wait, or be cut off by the limit of the step (for good) or of the attempt."""
        until = self.now + seconds
        moment = min(x for x in (until, deadline, limit) if x is not None)
        yield moment
        if moment == until:
            return
        if moment == deadline:
            raise AgentFailed(Error("timeout", "step_deadline"))
        raise AttemptFailed(Error("timeout", "step_timeout"))

    # -- people ---------------------------------------------------------------------------------

    def _ask(self, step: _Step, items: list[Any] | None) -> None:
        """[§5.8] Once for each step, before it starts."""
        approval = step.approval or {}
        compile_template(approval.get("message")).evaluate(self._scope())
        self.asking.add(step.id)
        self._go_on(self._decided(step, items))

    def _decided(self, step: _Step, items: list[Any] | None) -> Waits:
        approval = step.approval or {}
        decision = self.script.decisions[step.id]
        limit = _seconds(approval["timeout"]) if "timeout" in approval else None
        expires = limit is not None and limit < decision.seconds
        yield self.now + (limit if expires and limit is not None else decision.seconds)
        if step.id not in self.asking:
            return
        self.asking.discard(step.id)
        if decision.granted and not expires:
            if items is None:
                self.due[step.id] = deque([None])
            else:
                self._begin_items(step, items)
        elif approval.get("on_denied") == "skip":
            self._finish(step, StepEnd("skipped", reason="approval_denied"))
        else:
            self._finish(step, StepEnd("failed", error=Error("policy", "approval_denied")))

    # -- ends -----------------------------------------------------------------------------------

    def _end_of_item(self, step: _Step, index: int, end: StepEnd) -> None:
        step.ends[index] = end
        if step.items is not None and len(step.ends) == len(step.items):
            self._end_of_items(step)

    def _end_of_items(self, step: _Step) -> None:
        """[§5.4] Slot i is that of item i; a failed iteration fails the step when all others have run."""
        del self.due[step.id]
        ends = tuple(step.ends[i] for i in range(len(step.items or ())))
        result = [end.result for end in ends]
        if any(end.status == "failed" for end in ends):
            error = Error("agent", "iteration_failed")
            self._finish(step, StepEnd("failed", result=result, error=error, items=ends))
        else:
            self._finish(step, StepEnd("success", result=result, items=ends))

    def _finish(self, step: _Step, end: StepEnd) -> None:
        self.ends[step.id] = end
        if end.status == "failed" and step.required and self.fail_fast:
            self.halted = True
            for name in self.asking:  # [000 §2] waiting → cancelled: nothing more is dispatched
                self.ends[name] = StepEnd("cancelled", error=Error("cancelled"))
            self.asking.clear()


def _guard(step: _Step) -> Expression:
    assert step.guard is not None
    return step.guard


def _seen(end: StepEnd) -> dict[str, Any]:
    """[§5.3] A terminal step in expressions."""
    outputs: Any = None
    if end.items is not None:
        items = [
            {"index": i, "status": item.status, "result": item.result, "error": _error(item)}
            for i, item in enumerate(end.items)
        ]
        outputs = {"status": end.status, "result": end.result, "items": items}
    elif end.status == "success":
        outputs = {"status": "success", "result": end.result}
    return {"outputs": outputs, "status": end.status, "error": _error(end)}


def _error(end: StepEnd) -> dict[str, Any] | None:
    if end.error is None:
        return None
    return {"category": end.error.category, "code": end.error.code, "message": ""}


def interpret(document: Mapping[str, Any], inputs: Mapping[str, Any], script: Script) -> Outcome:
    """Return what becomes of a run of this document with these inputs in this world."""
    return _Interpreter(document, inputs, script).run()
