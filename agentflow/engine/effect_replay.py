"""Replayer: answers the effects of a run from the records of another one (page 003 §9). Pure.

With `Always` the run lives in the time of its record: results come in the recorded order, each at the age at
which the recorded run had it, and a deadline or a backoff passes as soon as nothing that is earlier is left.
Real time does not count, so that a replay decides as its record did. With `Mixed` real time counts, and a
record serves as soon as it is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, cast

import msgspec
from msgspec import UNSET, UnsetType

from agentflow.definition.conversation import Usage, add_usage
from agentflow.definition.diagnostics import Diagnostic
from agentflow.definition.failure import ErrorInfo
from agentflow.definition.ir import canonical_json, decode_ir
from agentflow.definition.kinds import kind_of
from agentflow.engine.bindings import BoundGraph, StepBinding
from agentflow.engine.bounding_steps import bounding_steps
from agentflow.engine.caching import CacheHit, Lookup
from agentflow.engine.call_results import model_failed, tool_failed
from agentflow.engine.decisions import Decisions
from agentflow.engine.effect_records import WORK_EVENTS, Effect, EffectFold, Record
from agentflow.engine.graph import Graph
from agentflow.engine.kinds.kind import BindGraph, Looked, Probe
from agentflow.engine.replay import BaseEvent
from agentflow.engine.shared_store import (
    Arrive,
    CacheRecord,
    Claim,
    Operation,
    Read,
    StoreAccess,
    Take,
    Touch,
    Write,
)
from agentflow.engine.state import RunState
from agentflow.events import catalogue as ev
from agentflow.events.envelope import iso, micros
from agentflow.events.families.base import Reference

__all__ = ["Policy", "Recording", "Replayer", "Step", "call_of"]

Policy = Literal["Always", "Mixed"]

_MAX_DIFFERENCES = 10
_CANCELLED = "cancelled"
_BY_TIME = ("step_timeout", "step_deadline", "run_deadline", _CANCELLED, "input_timeout")
"""Codes of failures that the engine decides itself once their time has come."""
_MOVES = (ev.TimerFired, ev.InputReceived, ev.ApprovalGranted, ev.ApprovalDenied)
_RESUMED_PAUSES = ("quota", "budget", "recovery_limit")
"""Reasons of pauses that follow from results; an operator's pause is not repeated."""


class Recording(NamedTuple):
    """A recorded run: its effects, and the base that it began with if it is a fork."""

    workflow_id: str
    effects: EffectFold
    base: tuple[BaseEvent, ...] = ()
    saved: ev.SystemStateSaved | None = None
    """The event that names the base."""


class Step(NamedTuple):
    """What comes next: events from outside, or answers for `decide`; with neither, time has passed."""

    decisions: Decisions = []  # noqa: RUF012 - never changed
    found: Mapping[str, Any] = {}


class _Candidate(NamedTuple):
    """Something that the run waits for and that the record has."""

    offset: int
    age: int
    name: str
    record: Record


class Replayer:
    """Serves one run from a recording."""

    def __init__(self, recording: Recording, policy: Policy, graph: Graph, run_id: str) -> None:
        self._recording = recording
        self._records = recording.effects
        self._always = policy == "Always"
        self._asked = EffectFold(graph, run_id, recording.base, self._records)
        self._work: dict[tuple[str, int | None], int] = {}
        """By place of a child run or handler that is served: how many of its records were delivered."""
        self._age = 0
        self._served: set[str] = set()  # calls that wait for their record
        self._late: set[str] = set()  # of them, those whose time has come and which are still open
        self._lookups: set[str] = set()
        self._accesses: dict[str, tuple[str, StoreAccess]] = {}
        self._served_tools = 0
        self._usage = {r.offset: r.end.usage for r in self._records.records.values() if _has_usage(r.end)}
        self._of_base = {origin: offset for offset, origin in self._records.origins.items()}
        self._moved: set[tuple[str | UnsetType, int | UnsetType | None]] = set()
        """Places whose answer or timer came from the record."""
        self._signals = 0
        self._resumes = 0
        self._marks: dict[tuple[str, int | None], int] = {}

    # -- following the run ----------------------------------------------------------------------

    def take(self, data: Any, offset: int, ts: int) -> None:
        """Take an event of the replaying run, live or from its log."""
        self._asked.take(data, offset, ts)
        served = self._served_by(data)
        if served is not None:
            self._age = max(self._age, self._records.ages.get(served, 0))
            if isinstance(data, _MOVES):
                self._moved.add((data.activation, data.iteration))
            if isinstance(data, WORK_EVENTS):
                self._follow_work(data, served)
        if isinstance(data, ev.SignalReceived):
            self._signals += 1
        elif isinstance(data, ev.WorkflowResumed):
            self._resumes += 1

    def _follow_work(self, data: Any, offset: int) -> None:
        """Take a served event of a child run or a handler; from a log it was served before a restart."""
        place = (data.activation, data.iteration)
        work = self._records.work.get(place)
        if work:
            self._work[place] = sum(record.offset <= offset for record in work)

    def align(self, state: RunState, now: int) -> None:
        """Move the times of the state, so that the run is as old as its record at this place."""
        if self._always and state.next_offset and not state.terminal:
            step = now - state.started_at - self._age
            if step:
                state.shift_times(step)

    def mark(self, state: RunState, data: Any) -> Any:
        """Return a decided event with the record that served it, if one did, and without costs that it did
        not have."""
        if isinstance(data, ev.WorkflowCompleted | ev.WorkflowFailed | ev.WorkflowCancelled):
            return msgspec.structs.replace(data, usage=self._cost(data.usage))
        if isinstance(data, ev.WorkflowStepCompleted):
            data = self._timed(state, data)
        if isinstance(data, ev.WorkflowStepCompleted | ev.WorkflowStepFailed) and data.replayed is UNSET:
            offset = self._marks.pop((data.activation, data.iteration), None)
            if offset is not None:
                return msgspec.structs.replace(data, replayed=self._reference(offset))
        return data

    def _cost(self, usage: Usage) -> Usage:
        """Return what a run cost of what its budgets count: results that were served cost nothing."""
        if self._always:
            return Usage(cost_usd=0.0)
        return msgspec.structs.replace(usage, tool_calls=usage.tool_calls - self._served_tools)

    def _timed(self, state: RunState, data: ev.WorkflowStepCompleted) -> ev.WorkflowStepCompleted:
        """Return the end of a step that reads the time as it was recorded: the time belongs to the record."""
        place = (data.activation, data.iteration)
        then, now = self._records.steps.get(place), self._asked.steps.get(place)
        kind = self._asked.node_of(data.activation, data.step_id).kind
        if self._always:
            timed = kind.tells_time or ev.TimerFired in kind.events
        else:
            timed = kind.tells_time and place in self._moved
        if not timed or then is None or now is None or then.end is None or then.effect.key != now.effect.key:
            return data
        end = then.end.end
        if not isinstance(end, ev.WorkflowStepCompleted):
            return data
        self._marks[place] = then.end.offset
        return msgspec.structs.replace(
            data, output=end.output, output_size=end.output_size, messages=end.messages, state=end.state
        )

    def credit(self, state: RunState, data: Any) -> None:
        """Count a served result against the budgets of the state as its record did, so that they decide
        alike with `Always`. Called with each event that was folded."""
        served = self._served_by(data)
        if served is None or not isinstance(data, _CALL_ENDS):
            return
        if isinstance(data, ev.ToolCallCompleted | ev.ToolCallFailed):
            self._served_tools += not getattr(data, "will_retry", False)
            return
        usage = self._usage.get(served)
        if self._always and usage is not None:
            state.usage = add_usage(state.usage, usage)
            key = data.activation if data.iteration is None else f"{data.activation}[{data.iteration}]"
            for step in bounding_steps(state, state.open[key]):
                state.step_usage[step] = add_usage(state.step_usage.get(step, Usage()), usage)

    def _reference(self, offset: int) -> Reference:
        """Return where a record stands; one of the base in the log that it came from."""
        workflow_id, at = self._records.origins.get(offset, (self._recording.workflow_id, offset))
        return Reference(workflow_id=workflow_id, offset=at)

    def _served_by(self, data: Any) -> int | None:
        """Return the offset of the record that an event was served from; None if it was not."""
        replayed = getattr(data, "replayed", UNSET)
        if replayed is UNSET:
            return None
        if replayed.workflow_id == self._recording.workflow_id:
            return replayed.offset
        return self._of_base.get((replayed.workflow_id, replayed.offset))

    # -- what is asked --------------------------------------------------------------------------

    def serves_call(self, call_id: str) -> bool | ErrorInfo:
        """Return whether an open call is answered from its record; an error if it must not be made."""
        asked = self._asked.open.get(call_id)
        if asked is not None and (asked.key.activation, asked.key.iteration) in self._work:
            return True  # its end is among what the served handler gives
        record = None if asked is None else self._records.records.get(asked.place)
        if asked is None or record is None:
            return _miss(asked) if self._always else False
        assert record.effect is not None
        if record.effect.key != asked.key:
            return _divergence(asked, record.effect) if self._always else False
        failed = isinstance(record.end, ev.ModelCallFailed | ev.ToolCallFailed)
        if failed and not self._always:
            return False
        self._served.add(call_id)
        return True

    def serves_work(self, key: str) -> bool | ErrorInfo:
        """Return whether a child run or a handler is not to be started, because its record says what came of
        it. `Mixed` serves child runs that completed, and lets handlers run."""
        place = _place_of(key)
        now, then = self._asked.steps.get(place), self._records.steps.get(place)
        work = self._records.work.get(place, [])
        if now is None or then is None or not work or not isinstance(work[-1].end, _STEP_ENDS):
            return _miss(None if now is None else now.effect) if self._always else False
        if now.effect.key != then.effect.key:
            return _divergence(now.effect, then.effect) if self._always else False
        if not self._always and not self._is_served_child(now.effect, work):
            return False
        self._work.setdefault(place, 0)
        return True

    def _is_served_child(self, effect: Effect, work: list[Record]) -> bool:
        """Return whether the end of a child run is all that the run needs of it: it completed, and other
        nodes did not answer what it asked."""
        asked = any(isinstance(r.end, ev.WorkflowStepWaiting) and r.end.messages for r in work)
        completed = isinstance(work[-1].end, ev.WorkflowStepCompleted)
        return kind_of(effect.spec).starts_run(effect.spec) and completed and not asked

    def serves_lookup(self, lookup: Lookup) -> bool:
        """Return whether the cache is not to be asked, because the record says what it said: a step that was
        no hit made a call, or ended by itself."""
        place = _place_of(lookup.activation_key)
        then, served = self._records.steps.get(place), self._always
        if not served and then is not None:
            spec = self._asked.node_of(lookup.activation_key, lookup.step_id).spec
            asked = self._asked.hash_of(spec, {"input": lookup.input})
            is_known = then.end is not None or ("call", *place, 0) in self._records.records
            served = is_known and asked == then.effect.key.input_hash
        if served:
            self._lookups.add(lookup.activation_key)
        return served

    def serves_probe(self, probe: Probe) -> Looked | None:
        """Return what a step of a plan found before it began; None if it is to be looked at."""
        if not self._always:
            return None
        place = _place_of(probe.activation_key)
        begun, refused = self._records.steps.get(place), self._records.refused.get(place)
        if begun is not None:
            files: Any = begun.input.get("before") or {}
            return Looked(files, (), begun.input.get("stage3_available") is not False)
        reason = refused.reason if isinstance(refused, ev.WorkflowStepSkipped) else None
        code = refused.error.code if isinstance(refused, ev.WorkflowStepFailed) else None
        down = probe.services if reason == "toolset_unavailable" else ()
        return Looked({}, down, code != "delegate_unavailable")

    def serves_graph(self, asked: BindGraph) -> BoundGraph | None:
        """Return what a graph was bound to that became known in the run; None if it is to be bound."""
        if not self._always:
            return None
        place = _place_of(asked.activation_key)
        begun, refused = self._records.steps.get(place), self._records.refused.get(place)
        if begun is not None and begun.child is not UNSET:
            graph = decode_ir(canonical_json(begun.child["graph"])) if isinstance(asked.graph, str) else None
            return BoundGraph(msgspec.convert(begun.child["bindings"], dict[str, StepBinding]), (), graph)
        if isinstance(refused, ev.WorkflowStepFailed):
            details = refused.error.details or {}
            return BoundGraph({}, msgspec.convert(details.get("diagnostics", ()), tuple[Diagnostic, ...]))
        return BoundGraph({})

    def serves_access(self, access: StoreAccess) -> bool | ErrorInfo:
        """Return whether the shared store is not to be asked."""
        key = access.answer_key.rpartition("?")[0]
        place = _place_of(key)
        now, then = self._asked.steps.get(place), self._records.steps.get(place)
        if now is None or then is None or _gate_of(then.gates, access) is None:
            if self._always and then is not None and then.is_cut:
                return True  # it ended before the store had answered, and will end so again
            return _miss(None if now is None else now.effect) if self._always else False
        if now.effect.key != then.effect.key:
            return _divergence(now.effect, then.effect) if self._always else False
        self._accesses[access.answer_key] = (key, access)
        return True

    # -- what is answered -----------------------------------------------------------------------

    def next(self, state: RunState, now: int) -> Step | ErrorInfo | None:
        """Return what the run is told next, once all that it decided is durable; None if it must wait."""
        if state.terminal or state.cancel_requested is not None:
            return None
        candidates = sorted(self._candidates(state), key=lambda c: c.offset)
        if state.status == "paused":  # what has begun comes to its end, and no time passes
            candidates = [
                c for c in candidates if c.name in state.calls or not c.name or c.name.startswith(_WORK_NAME)
            ]
            return self._deliver(state, candidates[0], now) if candidates else None
        if not self._always:
            return self._deliver(state, candidates[0], now) if candidates else None
        due = _next_due(state, now, {c.name for c in candidates})
        if candidates:
            first = candidates[0]
            if first.name in self._late and due is not None and first.name in state.calls:
                self._age = due - state.started_at  # its clock was set back: its deadline is still ahead
                return Step()
            if due is None or due - state.started_at > first.age:
                return self._arrive(state, first, now)
        if due is not None:
            self._age = due - state.started_at
            return Step()
        for request_id in state.requests:
            if (asked := self._asked.open.get(request_id)) is not None:
                return _miss(asked)
        return None

    def _candidates(self, state: RunState) -> list[_Candidate]:
        found: list[_Candidate] = []
        for name, asked in self._asked.open.items():
            record = self._records.records.get(asked.place)
            if record is None or not self._waits(state, name, asked, record):
                continue
            found.append(_Candidate(record.offset, record.age, name, record))
        for key in self._lookups:
            step = self._records.steps.get(_place_of(key))
            offset, age = (0, self._age) if step is None else (step.offset, step.age)
            end = None if step is None or step.end is None else step.end.end
            found.append(_Candidate(offset, age, key, Record(None, end, offset, age)))
        for answer_key, (key, access) in self._accesses.items():
            gate = _gate_of(self._records.steps[_place_of(key)].gates, access)
            assert gate is not None
            found.append(_Candidate(gate.offset, gate.age, answer_key, gate))
        for place in self._asked.open_work:
            record = self._next_work(place)
            if record is not None:
                found.append(_Candidate(record.offset, record.age, _work_name(place), record))
        paused = state.status == "paused"
        if paused and state.pause in _RESUMED_PAUSES and self._resumes < len(self._records.resumes):
            resumed = self._records.resumes[self._resumes]
            found.append(_Candidate(resumed.offset, resumed.age, "", resumed))
        if self._signals < len(self._records.signals):
            signal = self._records.signals[self._signals]
            found.append(_Candidate(signal.offset, signal.age, "", signal))
        return found

    def _next_work(self, place: tuple[str, int | None]) -> Record | None:
        """Return what a served child run or handler gives next; None if nothing is served here, or if it is
        the end that the engine gives itself once its time has come."""
        index = self._work.get(place)
        if index is None:
            return None
        work = self._records.work[place]
        if not self._always:  # what it asked is answered with its end
            return next((r for r in work[index:] if isinstance(r.end, (ev.Output, *_STEP_ENDS))), None)
        record = next((r for r in work[index:]), None)
        if record is not None and isinstance(record.end, ev.WorkflowStepFailed):
            error = record.end.error
            if error.code in _BY_TIME or error.category == "cancelled":
                return None
        return record

    def _waits(self, state: RunState, name: str, asked: Effect, record: Record) -> bool:
        """Return whether the record answers something that the run waits for."""
        if asked.kind == "call":
            return name in self._served and name in state.calls
        assert record.effect is not None
        if record.effect.key != asked.key:
            return False
        if asked.kind == "timer":
            return name in state.scheduled and isinstance(record.end, ev.TimerFired)
        if name not in state.requests:
            return False
        if isinstance(record.end, ev.InputCancelled):
            return self._always and record.end.reason not in _BY_TIME
        return record.end.via not in ("deadline", "policy")  # these the engine gives itself

    def _arrive(self, state: RunState, first: _Candidate, now: int) -> Step | ErrorInfo:
        """Let the age of a record come. What the engine closes by itself at that time needs no answer."""
        self._age = max(self._age, first.age)
        code = _code_of(first.record.end)
        if code in _BY_TIME and first.name not in self._late:
            self._late.add(first.name)
            return Step()
        if code == _CANCELLED:  # by a command, which is not repeated
            return _miss(first.record.effect)
        return self._deliver(state, first, now)

    def _deliver(self, state: RunState, chosen: _Candidate, now: int) -> Step:
        name, record = chosen.name, chosen.record
        if name in self._lookups:
            self._lookups.remove(name)
            return Step(found={name: self._hit(name, record)})
        if name in self._accesses:
            key, access = self._accesses.pop(name)
            activation = state.open[key]
            self._marks[_place_of(key)] = record.offset
            then = self._records.steps[_place_of(key)]
            answer = _answer_of(access.operation, record.end, activation.started, then.ts)
            return Step(found={name: answer})
        end, reference = record.end, self._reference(record.offset)
        if name.startswith(_WORK_NAME):
            more: dict[str, Any] = {"replayed": reference}
            if isinstance(end, ev.ModelCallCompleted | ev.ModelCallFailed):
                more |= {"duration_ms": 0, "usage": Usage(cost_usd=0.0)}
            elif isinstance(end, ev.WorkflowStepRetrying):
                more["due_at"] = iso(now + end.delay_ms * 1000)
            return Step([msgspec.structs.replace(end, **more)])
        if isinstance(end, ev.WorkflowResumed):
            return Step([msgspec.structs.replace(end, definition_hash=UNSET)])
        if isinstance(end, ev.ModelCallFailed | ev.ToolCallFailed):
            self._served.discard(name)
            return Step(self._failed(state, name, record, now))
        more = {"replayed": reference}
        if isinstance(end, ev.ModelCallCompleted):
            self._served.discard(name)
            more |= {"model_call_id": name, "duration_ms": 0, "usage": Usage(cost_usd=0.0)}
        elif isinstance(end, ev.ToolCallCompleted):
            self._served.discard(name)
            more |= {"tool_call_id": name, "duration_ms": 0}
        elif isinstance(end, ev.TimerFired):
            more["due_at"] = state.scheduled[name].due_at
        elif not isinstance(end, ev.SignalReceived):
            more["request_id"] = name
            data = state.requests[name].data
            if isinstance(data, ev.ApprovalRequested):
                more["digest"] = data.digest
        return Step([msgspec.structs.replace(end, **more)])

    def _failed(self, state: RunState, call_id: str, record: Record, now: int) -> Decisions:
        """Return a recorded failure, and what the engine makes of it."""
        end = record.end
        assert record.effect is not None
        if isinstance(end, ev.ModelCallFailed):
            delay = self._records.delays.get(record.effect.place)
            moves = model_failed(
                state,
                call_id,
                end.error,
                retry_after=None if delay is None else delay / 1000,
                duration_ms=0,
                now=now,
                draw=0.0,
                partial=None if end.partial is UNSET else end.partial,
                uncharged=True,
            )
        else:
            moves = tool_failed(
                state,
                call_id,
                end.error,
                executed=end.executed,
                unknown=end.outcome == "unknown",
                duration_ms=0,
                now=now,
                draw=0.0,
            )
        return [msgspec.structs.replace(moves[0], replayed=self._reference(record.offset)), *moves[1:]]

    def _hit(self, key: str, record: Record) -> CacheHit | None:
        end = record.end
        if not isinstance(end, ev.WorkflowStepCompleted) or end.cached is UNSET:
            return None
        self._marks[_place_of(key)] = record.offset
        return CacheHit(end.output, end.cached.workflow_id, end.cached.offset)


_WORK_NAME = "work "
_STEP_ENDS = (ev.WorkflowStepCompleted, ev.WorkflowStepFailed)


def _work_name(place: tuple[str, int | None]) -> str:
    activation, iteration = place
    return f"{_WORK_NAME}{activation}" if iteration is None else f"{_WORK_NAME}{activation}[{iteration}]"


_CALL_ENDS = (ev.ModelCallCompleted, ev.ModelCallFailed, ev.ToolCallCompleted, ev.ToolCallFailed)


# -- what the record says -----------------------------------------------------------------------


def call_of(data: Any) -> str:
    """Return the id of the call of an event."""
    is_model = isinstance(data, ev.ModelCallStarted | ev.ModelCallCompleted | ev.ModelCallFailed)
    return data.model_call_id if is_model else data.tool_call_id


def _place_of(key: str) -> tuple[str, int | None]:
    """Return the activation and the iteration of a key such as `/step#0[2]`."""
    if key.endswith("]"):
        head, _, index = key[:-1].rpartition("[")
        return head, int(index)
    return key, None


def _has_usage(end: Any) -> bool:
    return isinstance(end, ev.ModelCallCompleted | ev.ModelCallFailed) and end.usage is not UNSET


def _gate_of(gates: Mapping[int, Record], access: StoreAccess) -> Record | None:
    number = access.answer_key.rpartition("?")[2]
    return gates.get(int(number) if number.isdigit() else 0)


def _answer_of(operation: Operation, end: Any, started: int, then: int) -> Any:
    """Return what the store must have answered, from the event that followed."""
    output: dict[str, Any] = end.output if isinstance(end, ev.WorkflowStepCompleted) else {}
    match operation:
        case Read():
            return CacheRecord(output["value"], 0, None) if output.get("hit") else None
        case Write() | Arrive():
            return None
        case Touch() | Claim():
            return bool(output.get("suppressed"))
        case Take():
            if isinstance(end, ev.TimerScheduled):
                return started + micros(end.due_at) - then
            return None if output.get("throttled") else 0


def _next_due(state: RunState, now: int, but: set[str]) -> int | None:
    """Return the next deadline ahead that no record answers."""
    return min((due for name, due in state.timers.items() if due > now and name not in but), default=None)


def _code_of(end: Any) -> str:
    if isinstance(end, ev.InputCancelled):
        return end.reason
    error = getattr(end, "error", None)
    return error.code if isinstance(error, ErrorInfo) else ""


def _named(effect: Effect) -> dict[str, Any]:
    return {"effect": effect.kind, **effect.key._asdict()}


def _miss(asked: Effect | None) -> ErrorInfo:
    if asked is None:
        return ErrorInfo(category="system", code="replay_miss", message="the recorded run has no such effect")
    where = _where(asked)
    return ErrorInfo(
        category="system",
        code="replay_miss",
        message=f"the recorded run has no complete result of {where}; nothing was sent",
        details={"key": _named(asked)},
    )


def _divergence(asked: Effect, recorded: Effect) -> ErrorInfo:
    then = {"request": recorded.request, "node": msgspec.to_builtins(recorded.spec)}
    new = {"request": asked.request, "node": msgspec.to_builtins(asked.spec)}
    found = list(_differences(then, new, ""))
    return ErrorInfo(
        category="system",
        code="replay_divergence",
        message=f"{_where(asked)} asks for something else than the recorded run: {found[0]['path']}",
        details={"key": _named(asked), "diff": found[:_MAX_DIFFERENCES]},
    )


def _where(effect: Effect) -> str:
    key = effect.key
    item = "" if key.iteration is None else f"[{key.iteration}]"
    return f"{effect.kind} {key.ordinal} of {key.activation}{item}"


def _differences(then: Any, new: Any, path: str) -> list[dict[str, Any]]:
    """Return the places where two JSON values differ, by JSON pointer."""
    if isinstance(then, dict) and isinstance(new, dict):
        before, after = cast("dict[str, Any]", then), cast("dict[str, Any]", new)
        names = [*before, *(name for name in after if name not in before)]
        return [d for n in names for d in _differences(before.get(n), after.get(n), f"{path}/{n}")]
    if isinstance(then, list | tuple) and isinstance(new, list | tuple):
        old, now = cast("list[Any]", then), cast("list[Any]", new)
        if len(old) == len(now):
            pairs = enumerate(zip(old, now, strict=True))
            return [d for i, (a, b) in pairs for d in _differences(a, b, f"{path}/{i}")]
    return [] if then == new else [{"path": path, "recorded": then, "asked": new}]
