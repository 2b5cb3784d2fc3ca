"""How the events of a run change what is shown of it. `projection` gives it as records.

Pure, and never decides: it takes any prefix of a log with the graph that the run is pinned to. Models,
functions and prices are not needed, so a run stays readable whatever has become of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import msgspec
from msgspec import UNSET

from agentflow.definition.conversation import Usage, add_usage
from agentflow.definition.delegates import usage_of
from agentflow.definition.failure import ErrorInfo
from agentflow.definition.ir import Workflow, canonical_json, decode_ir
from agentflow.definition.kinds import kind_of
from agentflow.definition.limits import Limits, asked_by_runtime, asks_for_budget, limits_of, merged
from agentflow.definition.node import handles_error
from agentflow.errors import LogCorrupt
from agentflow.events import catalogue as ev
from agentflow.events.envelope import Event
from agentflow.events.ids import micros
from agentflow.records.clocks import RESUME, RUN, Clocks
from agentflow.records.folded_work import Call, Step, Work, group_of, items_of, key_of, nodes_of, timer_of
from agentflow.records.kept_state import KeptState
from agentflow.records.outputs import OutputFold
from agentflow.records.pipeline import PLAN_STEPS, PipelineFold
from agentflow.records.requests import RequestRecord, request_record
from agentflow.records.slots import Slots

__all__ = ["RunFold"]

_NO_USAGE = Usage()
_ONE_TOOL_CALL = Usage(tool_calls=1, cost_usd=0.0)


class RunFold:
    """The state of a run as its events tell it; `take` them in order. It never suspends."""

    def __init__(self, workflow_id: str, workflow: Workflow) -> None:
        self.workflow_id = workflow_id
        self.next_offset = 0
        """Offset of the event that `take` expects."""
        self._workflow = workflow
        self._steps = {
            step_id: Step(node, workflow.options, has_error_edge=has_error_edge)
            for step_id, node, has_error_edge in nodes_of(workflow)
        }
        self._items: dict[str, dict[int, Work]] = {}  # of steps at work, by activation and index
        self._begin: ev.WorkflowStarted | None = None
        self._state = "pending"
        self._pause: str | None = None  # why the run is paused
        self._is_cancelling = False
        self._holds_failures = False
        self._given = OutputFold()  # what executors yielded
        self._kept = KeptState(workflow)  # shared and private state
        self._output: Any = None
        self._error: ErrorInfo | None = None
        self._usage = _NO_USAGE
        self._clock = 0  # steps begun
        self._limits: Limits = {}
        self._step_limits: dict[str, Limits] = {}
        self._clocks = Clocks()
        self._open: dict[str, Work] = {}  # activations at work, by key
        self._slots = Slots(workflow.options.max_parallel)
        self._calls: dict[str, Call] = {}  # begun and not ended, by id
        self._requests: dict[str, RequestRecord] = {}
        self._waits: dict[str, str] = {}  # id of an open request to the key of the work that waits for it
        self._children: list[str] = []  # ids of child runs, in the order of their start
        self._routed: dict[str, str] = {}  # id of a request of a child to the step whose edges took it
        self._linked: set[str] = set()  # keys of open work that child runs do
        self._started_at = 0
        self._dispatched_at: int | None = None  # when the first work began
        self._ended_at: int | None = None
        self._last_ts = 0
        self.pipeline: PipelineFold | None = None
        """Of a run of format `pipeline`."""

    def _shown(self) -> list[tuple[str, Step]]:
        """Return the steps that do work: starts and ends are shown by what the run came to."""
        return [(i, step) for i, step in self._steps.items() if not kind_of(step.node).is_border]

    # -- events ---------------------------------------------------------------------------------

    def take(self, event: Event[Any], base: Sequence[Event[Any]] = ()) -> None:
        """Fold the next event; `base` are the events that a fork begins with, if this one names them.

        Types that it does not know change nothing. Raises LogCorrupt if the event names a step or an
        activation that the run does not have.
        """
        ts, data = micros(event.timestamp), event.data
        if ts < self._last_ts:
            self._shift(ts - self._last_ts)
        self.next_offset = event.offset + 1
        try:
            if base:
                self._take_base(base, event.offset, ts)
            else:
                self._project(data, event.offset, ts)
            if isinstance(data, ev.SystemStateSaved) and data.kind == "fork_base":
                self._kept.edit((self._begin.edits if self._begin is not None else None) or {})
        except KeyError as error:
            where = f"{event.type} at offset {event.offset} of {self.workflow_id}"
            raise LogCorrupt(f"{where} names {error}, which is not there") from None
        self._last_ts = ts
        if isinstance(data, ev.WorkflowStepStarted) and isinstance(data.child, dict):
            child = data.child.get("workflow_id")
            if isinstance(child, str):
                self._children.append(child)

    def _project(self, data: Any, offset: int, ts: int) -> None:
        self._given.take(data, offset)
        self._kept.take(data)
        project = self._PROJECTIONS.get(data.__class__)
        if project is not None:
            project(self, data, offset, ts)
        if self.pipeline is not None:
            self.pipeline.take(data)

    def _take_base(self, base: Sequence[Event[Any]], offset: int, ts: int) -> None:
        """Take what a fork begins with: what the other run reached, without what it cost."""
        self._last_ts = micros(base[0].timestamp)
        for event in base:
            at = micros(event.timestamp)
            if at < self._last_ts:
                self._shift(at - self._last_ts)
            self._last_ts = at
            if not isinstance(event.data, ev.WorkflowStarted):
                self._project(event.data, offset, at)
            elif event.data.edits is not UNSET:  # of a fork that was forked again
                self._kept.edit(event.data.edits)
        self._clocks.shift(ts - self._last_ts, but=RUN)
        self._usage = _NO_USAGE

    def _shift(self, step: int) -> None:
        """Move every time by a step of the wall clock (µs), so that durations stay what they were."""
        self._clocks.shift(step)
        self._started_at += step
        self._last_ts += step
        if self._dispatched_at is not None:
            self._dispatched_at += step
        for work in self._open.values():
            if work.asked_at is not None:
                work.asked_at += step

    # -- the run

    def _started(self, data: ev.WorkflowStarted, offset: int, ts: int) -> None:
        options = self._workflow.options
        self._begin, self._started_at = data, ts
        if data.state_from is not UNSET and data.edits is not UNSET:
            self._kept.edit(data.edits)
        if data.definition.format == "pipeline":
            self.pipeline = PipelineFold()
        self._slots.limit = data.options.get("max_parallel") or self._slots.limit
        self._holds_failures = (data.options.get("on_failure") or options.on_failure) == "hold"
        given = {} if data.budget is UNSET else limits_of(data.budget)
        self._limits = merged(limits_of(options.budget), given)
        by_step = {step_id: limits_of(step.node.budget) for step_id, step in self._steps.items()}
        self._step_limits = {step_id: limits for step_id, limits in by_step.items() if limits}
        limit = _shortest(options.timeout, self._limits.get("max_duration_s"))
        if limit is not None:
            self._clocks.start(RUN, ts, limit)
        if data.deadline is not UNSET:  # of the parent run
            due = micros(data.deadline)
            self._clocks.due[RUN] = min(due, self._clocks.due.get(RUN, due))

    def _waiting(self, data: ev.WorkflowWaiting, offset: int, ts: int) -> None:
        self._state = "waiting"

    def _paused(self, data: ev.WorkflowPaused, offset: int, ts: int) -> None:
        self._state, self._pause = "paused", data.reason
        for work in self._open.values():
            self._extend_attempt(work, ts)
        self._clocks.pause(ts)
        if data.resume_after is not UNSET:
            self._clocks.due[RESUME] = micros(data.resume_after)

    def _resumed(self, data: ev.WorkflowResumed, offset: int, ts: int) -> None:
        self._state, self._pause = "running", None
        if data.budget is not UNSET:
            self._limits = {**self._limits, **limits_of(data.budget)}
            steps: dict[str, Any] = data.budget.get("steps") or {}
            for step_id, limits in steps.items():
                self._step_limits[step_id] = {**self._step_limits.get(step_id, {}), **limits_of(limits)}
        self._clocks.resume(ts)
        for work in self._open.values():
            if work.asked_at is not None:
                work.asked_at = ts

    def _cancelling(self, data: ev.WorkflowCancelRequested, offset: int, ts: int) -> None:
        self._is_cancelling = True

    def _completed(self, data: ev.WorkflowCompleted, offset: int, ts: int) -> None:
        self._state, self._output, self._ended_at = "completed", data.output, ts

    def _failed(self, data: ev.WorkflowFailed, offset: int, ts: int) -> None:
        self._state, self._error, self._ended_at = "failed", data.error, ts
        self._output = None if data.partial_output is UNSET else data.partial_output

    def _cancelled(self, data: ev.WorkflowCancelled, offset: int, ts: int) -> None:
        self._state, self._ended_at = "cancelled", ts

    def _moves(self, ts: int) -> None:
        """Note that the run begins to move, or moves again."""
        if self._state in ("pending", "waiting"):
            self._state = "running"
            self._dispatched_at = ts if self._dispatched_at is None else self._dispatched_at

    # -- steps

    def _step_started(self, data: ev.WorkflowStepStarted, offset: int, ts: int) -> None:
        self._moves(ts)
        step = self._steps[data.step_id]
        step.attempt = data.attempt
        key = key_of(data)
        if data.iteration is None:
            work = Work(key, step)
            step.visits = max(step.visits, data.visit + 1)
            step.state, step.held = "running", 0
            self._clock = data.clock + 1
            if step.is_map:
                self._items[key] = step.items = items_of(step, data, key)
        else:
            work = self._items[data.activation][data.iteration]
        work.state = "running"
        self._open[key] = work
        if step.takes_slot and not (step.is_map and work.index is None):
            self._slots.take(key, *group_of(work))
        if data.child is not UNSET and "workflow_id" in data.child:
            self._linked.add(key)
        elif data.child is not UNSET and "graph" in data.child:
            self._take_graph(decode_ir(canonical_json(data.child["graph"])), f"{data.step_id}/")
        limit = _shortest(
            step.node.policy.timeout if step.node.policy else None,
            self._step_limits.get(data.step_id, {}).get("max_duration_s"),
        )
        if limit is not None:
            self._clocks.start(f"deadline {key}", ts, limit)
        if step.has_handler and step.retry.timeout is not None:
            self._clocks.start(f"attempt {key}", ts, step.retry.timeout)

    def _step_completed(self, data: ev.WorkflowStepCompleted, offset: int, ts: int) -> None:
        if self._state == "waiting":
            self._moves(ts)  # a child run has ended
        if data.usage is not UNSET and key_of(data) in self._linked:
            self._usage = add_usage(self._usage, data.usage)
        step = self._close(data, "succeeded", ts)
        if data.iteration is None:
            step.state, step.output, step.error = "succeeded", data.output, None

    def _step_failed(self, data: ev.WorkflowStepFailed, offset: int, ts: int) -> None:
        self._moves(ts)
        details = data.error.details or {}
        if key_of(data) in self._linked and "usage" in details:
            self._usage = add_usage(self._usage, msgspec.convert(details["usage"], Usage))
        was_held = self._steps[data.step_id].held > 0 and key_of(data) not in self._open
        state = "cancelled" if data.error.category == "cancelled" else "failed"
        step = self._close(data, state, ts)
        if data.iteration is not None:
            return
        step.state = state
        is_held = state == "failed" and step.node.required and self._holds_failures and not was_held
        is_held = is_held and not data.path and not step.absorbs
        if is_held and not handles_error(step.node, data.error.code):
            step.held += 1  # a person decides what follows from it
        else:
            step.output, step.error = None, data.error

    def _step_skipped(self, data: ev.WorkflowStepSkipped, offset: int, ts: int) -> None:
        self._moves(ts)
        step = self._close(data, "skipped", ts)
        if data.iteration is None:
            step.state, step.output, step.error = "skipped", None, None

    def _step_waiting(self, data: ev.WorkflowStepWaiting, offset: int, ts: int) -> None:
        if data.for_ == "child":
            self._stand_still(self._open[key_of(data)], ts)
        if data.messages is not UNSET:
            self._moves(ts)
            for message in data.messages:  # a request of the child that a node of this graph answers
                self._waits[message.payload["request_id"]] = key_of(data)
                self._routed[message.payload["request_id"]] = data.step_id
        if data.iteration is None:
            self._steps[data.step_id].state = "waiting"

    def _step_retrying(self, data: ev.WorkflowStepRetrying, offset: int, ts: int) -> None:
        step = self._steps[data.step_id]
        if data.iteration is None and step.held and key_of(data) not in self._open:
            step.held, step.state = step.held - 1, "pending"  # as before it was dispatched
            return
        if data.path:  # a step of several child paths is shown as the last event left it
            step.state = "running"
        self._restart(self._open[key_of(data)], step, data, ts)

    def _restart(
        self, work: Work, step: Step, data: ev.WorkflowStepRetrying | ev.AgentRetrying, ts: int
    ) -> None:
        step.attempt = data.next_attempt
        self._clocks.stop(f"attempt {work.key}")
        if step.has_handler:  # which waits for the end of the backoff by itself
            if step.retry.timeout is not None:
                self._clocks.start(f"attempt {work.key}", ts, data.delay_ms / 1000 + step.retry.timeout)
            return
        if data.kind != "repair":  # a repair goes on at once, in the same conversation
            self._clocks.start(f"retry {work.key}", ts, data.delay_ms / 1000)

    def _close(self, data: Any, state: str, ts: int) -> Step:
        """Take what ends out of the open work, and return its step; it may end without having begun."""
        step, key = self._steps[data.step_id], key_of(data)
        work = self._open.pop(key, None)
        self._linked.discard(key)
        if work is not None:
            self._clocks.stop(f"deadline {key}", f"attempt {key}", f"retry {key}")
            self._free_slot(key, ts)
        elif data.iteration is None:
            step.visits, step.held = max(step.visits, data.visit + 1), max(step.held - 1, 0)
        else:
            work = self._items[data.activation][data.iteration]
        if data.iteration is None:
            self._items.pop(key, None)
            if data.path and work is not None:
                step.attempt = data.attempt
        if work is not None:
            work.state = state
        return step

    # -- timers

    def _timer_scheduled(self, data: ev.TimerScheduled, offset: int, ts: int) -> None:
        self._clocks.due[timer_of(data)] = micros(data.due_at)

    def _timer_over(self, data: ev.TimerFired | ev.TimerCancelled, offset: int, ts: int) -> None:
        self._clocks.stop(timer_of(data))
        self._moves(ts)

    # -- requests

    def _asked(self, data: ev.ApprovalRequested | ev.InputRequested, offset: int, ts: int) -> None:
        if isinstance(data, ev.ApprovalRequested):
            self._moves(ts)
            if data.supersedes is not UNSET:
                self._requests.pop(data.supersedes, None)
                self._clocks.stop(f"approval {data.supersedes}")
        if isinstance(data, ev.InputRequested) and self._asks_by_message(
            data.step_id, data.request_type, data.request
        ):
            if data.deadline is not UNSET:  # its activation ends, and the answer is a message
                self._clocks.due[f"input {data.request_id}"] = micros(data.deadline)
        elif isinstance(data, ev.ApprovalRequested) and data.kind == "step" and not self._is_linked(data):
            self._steps[data.step_id].state = "waiting"
        else:
            work = self._open[key_of(data)]
            self._stand_still(work, ts)
            if (
                isinstance(data, ev.InputRequested)
                and data.deadline is not UNSET
                and not self._is_linked(data)
            ):
                self._clocks.due[f"input {data.request_id}"] = micros(data.deadline)
            self._waits[data.request_id] = work.key
            self._routed.pop(data.request_id, None)  # forwarded to the caller
        if (
            isinstance(data, ev.ApprovalRequested)
            and data.deadline is not UNSET
            and not self._is_linked(data)
        ):
            self._clocks.due[f"approval {data.request_id}"] = micros(data.deadline)
        self._requests[data.request_id] = request_record(self.workflow_id, data, offset, ts)

    def _is_linked(self, data: Any) -> bool:
        """Return whether a child run asks."""
        return key_of(data) in self._linked

    def _stand_still(self, work: Work, ts: int) -> None:
        """Let work wait for a person or a child run: that counts against no limit of the step."""
        if work.state == "running":
            work.state = "waiting"
            work.left = self._clocks.hold([f"attempt {work.key}", f"deadline {work.key}"], ts)
        self._free_slot(work.key, ts)

    def _free_slot(self, key: str, ts: int) -> None:
        for waiting in self._slots.give_back(key):
            self._go_on(self._open[waiting], ts)

    def _go_on(self, work: Work, ts: int) -> None:
        """Put work to work again, and its clocks."""
        work.state = "running"
        if work.index is None:
            work.step.state = "running"
        if self._state == "paused":
            self._clocks.paused |= work.left
        else:
            self._clocks.release(work.left, ts)
        work.left = {}

    def _insist(self, work: Work, ts: int) -> None:
        """Let queued work go on without a free slot, because the log says that it did."""
        if self._slots.is_queued(work.key):
            self._slots.take(work.key, *group_of(work))
            self._go_on(work, ts)

    def _decided(self, data: ev.ApprovalGranted | ev.ApprovalDenied, offset: int, ts: int) -> None:
        self._clocks.stop(f"approval {data.request_id}")
        request = self._close_request(data.request_id, ts)
        is_start = request is not None and request.kind == "step" and not self._is_linked(data)
        if request is not None and is_start and isinstance(data, ev.ApprovalGranted):
            self._steps[request.step_id].state = "pending"

    def _answered(self, data: ev.InputReceived | ev.InputCancelled, offset: int, ts: int) -> None:
        self._clocks.stop(f"input {data.request_id}")
        request = self._close_request(data.request_id, ts)
        if request is None or isinstance(data, ev.InputCancelled) or self._is_linked(data):
            return
        if not asks_for_budget(request.request_type, request.subject):
            return
        if data.value["choice"] != "fail":
            scope, limit = request.subject["scope"], request.subject["limit"]
            limits = self._limits if scope == RUN else self._step_limits[scope]
            raised = {**limits, limit: max(limits[limit], data.value["limit"])}
            if scope == RUN:
                self._limits = raised
            else:
                self._step_limits[scope] = raised

    def _asks_by_message(self, step_id: Any, request_type: Any, request: Any) -> bool:
        return self._steps[step_id].has_handler and not asked_by_runtime(request_type, request)

    def _plan_compiled(self, data: ev.PlanCompiled, offset: int, ts: int) -> None:
        """Take in the steps of a plan, which become known in the run."""
        graph = decode_ir(canonical_json(data.ir))
        for step_id, node, has_error_edge in nodes_of(graph, PLAN_STEPS):
            self._steps.setdefault(step_id, Step(node, self._workflow.options, has_error_edge=has_error_edge))
            if limits := limits_of(node.budget):
                self._step_limits.setdefault(step_id, limits)

    def _take_graph(self, graph: Workflow, prefix: str) -> None:
        """Take in the nodes of a graph that became known with the start of its step."""
        for step_id, node, has_error_edge in nodes_of(graph, prefix):
            self._steps[step_id] = Step(node, self._workflow.options, has_error_edge=has_error_edge)
            self._step_limits |= {step_id: limits} if (limits := limits_of(node.budget)) else {}

    def _superstep_started(self, data: ev.SuperstepStarted, offset: int, ts: int) -> None:
        self._moves(ts)

    def _close_request(self, request_id: str, ts: int) -> RequestRecord | None:
        """Take a request out of the open ones; work whose last request it was goes on, and its clocks do."""
        request, key = self._requests.pop(request_id, None), self._waits.pop(request_id, "")
        routed_by = self._routed.pop(request_id, None)
        if request is None and routed_by is None:
            return None
        if self._state == "waiting":
            self._state = "running"
        work = self._open.get(key)
        if work is None or work.state != "waiting" or key in self._waits.values():
            return request
        if not work.step.takes_slot or self._slots.take_again(key, *group_of(work)):
            self._go_on(work, ts)
        return request

    # -- agents and calls

    def _agent_initialized(self, data: ev.AgentInitialized, offset: int, ts: int) -> None:
        work, retry = self._open[key_of(data)], self._steps[data.step_id].retry
        work.has_agent, work.asked_at = True, None
        self._clocks.stop(f"retry {work.key}")
        if retry.timeout is not None:
            self._clocks.start(f"attempt {work.key}", ts, retry.timeout)

    def _agent_processing(self, data: ev.AgentProcessing, offset: int, ts: int) -> None:
        self._open[key_of(data)].asked_at = ts

    def _input_resolved(self, data: ev.NodeLlmInputResolved, offset: int, ts: int) -> None:
        work = self._open[key_of(data)]
        work.has_agent, work.asked_at = True, ts

    def _agent_retrying(self, data: ev.AgentRetrying, offset: int, ts: int) -> None:
        work = self._open[key_of(data)]
        if data.kind == "restart":
            self._restart(work, self._steps[data.step_id], data, ts)
        elif data.kind == "model":
            self._clocks.start(f"retry {work.key}", ts, data.delay_ms / 1000)
            work.asked_at = ts + round(data.delay_ms * 1000)
        elif data.kind == "fallback":
            work.asked_at = ts

    def _model_started(self, data: ev.ModelCallStarted, offset: int, ts: int) -> None:
        work = self._open[key_of(data)]
        self._clocks.stop(f"retry {work.key}")
        self._extend_attempt(work, ts)
        work.asked_at = None
        work.tool_calls.clear()
        self._insist(work, ts)
        self._calls[data.model_call_id] = Call("model", data.reserved.tokens, data.reserved.cost_usd)

    def _model_completed(self, data: ev.ModelCallCompleted, offset: int, ts: int) -> None:
        self._calls.pop(data.model_call_id, None)
        self._usage = add_usage(self._usage, data.usage)

    def _model_failed(self, data: ev.ModelCallFailed, offset: int, ts: int) -> None:
        self._calls.pop(data.model_call_id, None)
        self._open[key_of(data)].asked_at = ts
        self._interrupted(data.error, ts)
        if data.usage is not UNSET:
            self._usage = add_usage(self._usage, data.usage)

    def _tool_started(self, data: ev.ToolCallStarted, offset: int, ts: int) -> None:
        work, timeout = self._open[key_of(data)], self._steps[data.step_id].retry.timeout
        if data.tool_call_id not in work.tool_calls:  # not a repetition of the same call
            work.tool_calls.add(data.tool_call_id)
            self._usage = add_usage(self._usage, _ONE_TOOL_CALL)
            work.delegated = work.delegated or data.tool_call_id
        self._clocks.stop(f"retry {work.key}")
        if not work.has_agent and timeout is not None:
            self._clocks.start(f"attempt {work.key}", ts, timeout)
        self._insist(work, ts)
        self._calls[data.tool_call_id] = Call("tool")

    def _tool_ended(self, data: ev.ToolCallCompleted | ev.ToolCallFailed, offset: int, ts: int) -> None:
        self._calls.pop(data.tool_call_id, None)
        is_over = isinstance(data, ev.ToolCallCompleted) or not data.will_retry
        if data.replayed is not UNSET and is_over:  # nothing was called
            self._usage = msgspec.structs.replace(self._usage, tool_calls=self._usage.tool_calls - 1)
        work = self._open.get(key_of(data))
        if (
            work is not None
            and work.step.bills_calls
            and work.delegated == data.tool_call_id
            and data.replayed is UNSET
        ):
            answer = data.output if isinstance(data, ev.ToolCallCompleted) else data.error.details
            usage = usage_of(answer, reported_calls=len(work.tool_calls) - 1)
            self._usage = self._usage if usage is None else add_usage(self._usage, usage)
        if data.usage is not UNSET:
            self._usage = add_usage(self._usage, data.usage)
        if isinstance(data, ev.ToolCallFailed):
            self._interrupted(data.error, ts)

    def _interrupted(self, error: ErrorInfo, ts: int) -> None:
        """Extend running limits by the time for which no process worked on the run, if that lost the call."""
        gap = ts - self._last_ts
        if error.category == "interrupted" and error.code == "interrupted" and gap > 0:
            self._clocks.extend(gap)

    def _extend_attempt(self, work: Work, ts: int) -> None:
        """Extend the limit of an attempt by the time for which its model call waited for room in a budget."""
        key = f"attempt {work.key}"
        if work.asked_at is not None and (self._limits or self._step_limits) and key in self._clocks.due:
            self._clocks.due[key] += max(0, ts - work.asked_at)

    _PROJECTIONS: ClassVar[dict[type, Callable[[RunFold, Any, int, int], None]]] = {
        ev.WorkflowStarted: _started,
        ev.WorkflowWaiting: _waiting,
        ev.WorkflowPaused: _paused,
        ev.WorkflowResumed: _resumed,
        ev.WorkflowCancelRequested: _cancelling,
        ev.WorkflowCompleted: _completed,
        ev.WorkflowFailed: _failed,
        ev.WorkflowCancelled: _cancelled,
        ev.WorkflowStepStarted: _step_started,
        ev.WorkflowStepCompleted: _step_completed,
        ev.WorkflowStepFailed: _step_failed,
        ev.WorkflowStepSkipped: _step_skipped,
        ev.WorkflowStepWaiting: _step_waiting,
        ev.WorkflowStepRetrying: _step_retrying,
        ev.TimerScheduled: _timer_scheduled,
        ev.TimerFired: _timer_over,
        ev.TimerCancelled: _timer_over,
        ev.ApprovalRequested: _asked,
        ev.InputRequested: _asked,
        ev.ApprovalGranted: _decided,
        ev.ApprovalDenied: _decided,
        ev.InputReceived: _answered,
        ev.InputCancelled: _answered,
        ev.AgentInitialized: _agent_initialized,
        ev.AgentProcessing: _agent_processing,
        ev.AgentRetrying: _agent_retrying,
        ev.NodeLlmInputResolved: _input_resolved,
        ev.ModelCallStarted: _model_started,
        ev.ModelCallCompleted: _model_completed,
        ev.ModelCallFailed: _model_failed,
        ev.ToolCallStarted: _tool_started,
        ev.ToolCallCompleted: _tool_ended,
        ev.ToolCallFailed: _tool_ended,
        ev.SuperstepStarted: _superstep_started,
        ev.PlanCompiled: _plan_compiled,
    }


def _shortest(*limits: float | None) -> float | None:
    return min((limit for limit in limits if limit is not None), default=None)
