"""RunLaunch: what a run needs before its supervisor exists, and the outcomes that its callers wait for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from agentflow.aside import is_small
from agentflow.events.catalogue import WorkflowStarted
from agentflow.events.owner import Owner
from agentflow.records.runs import CONCURRENCY_KEY_LABEL
from agentflow.runtime.alarm_index import AlarmIndex
from agentflow.runtime.clock import Timeline
from agentflow.runtime.outcome import Outcome

if TYPE_CHECKING:
    from actors import Ref
    from agentflow import engine
    from agentflow.engine.state import RunState
    from agentflow.events.envelope import StoredEvent
    from agentflow.runtime.agent_actor import Directory
    from agentflow.runtime.bound import ReplaySource
    from agentflow.runtime.child_runs import ChildLinks
    from agentflow.runtime.command_messages import Command, Done, Refusal
    from agentflow.runtime.crash_ledger import Trial
    from agentflow.runtime.log_replay import Fold

__all__ = ["GRAPH_DEPTH", "QueuedLaunches", "RunLaunch", "RunTable", "shares_slot"]

GRAPH_DEPTH = "graph_depth"
"""The option of a run that a function began for a model: how many such calls are around it."""


def shares_slot(started: WorkflowStarted) -> bool:
    """Return whether a run works for a step or a call of another one, which keeps its slot meanwhile.

    With a slot of its own it could wait for ever for the run that waits for it. Nothing waits for a fork or a
    replay of such a run.
    """
    if started.parent is not UNSET:
        return True
    is_copy = started.forked_from is not UNSET or started.replay_of is not UNSET
    return GRAPH_DEPTH in started.options and not is_copy


class RunLaunch:
    """All that a run needs to begin or to go on, prepared before its supervisor exists.

    `first_events` begin a new run (`workflow.started`, and for a fork what it begins with, whose events are
    `base`); there are none for a run that is in the log already. `command`: what the run was taken up for.
    `queued`: its log may begin, its work not yet. `notices`: what the store had to mend when it was opened,
    for the log of a run that may be concerned. `accepted` is done once the run's first append (or the
    fold of its log) is; `rested` when the run is terminal, paused or waits, with its state; `reply` with
    the answer to the command. `alarm` is the next deadline (µs) of a run that was left waiting. `fold` is
    what is known of its log before it is read, and what its supervisor leaves behind when it rests;
    `fold_is_whole`: the log holds no more than that. `trial`
    is told which units the supervisor takes up and which of them end. `timeline`: steps of the wall clock.
    `owner`: the owner of the run once it has begun. `replay`: the recorded run that serves its effects.
    `page`: the first events of its log, which were read before it was claimed.
    """

    def __init__(
        self,
        workflow_id: str,
        plan: engine.Graph,
        bindings: engine.Bindings,
        directory: Directory,
        *,
        epoch: int,
        first_events: Sequence[Any] = (),
        base: Sequence[engine.BaseEvent] = (),
        labels: Mapping[str, str] | None = None,
        command: Command | None = None,
        queued: bool = False,
        notices: Sequence[str] = (),
        fold: Fold | None = None,
        fold_is_whole: bool = False,
        trial: Trial | None = None,
        timeline: Timeline | None = None,
        owner: Owner | None = None,
        is_child: bool = False,
        replay: ReplaySource | None = None,
        page: Sequence[StoredEvent] = (),
    ) -> None:
        self.workflow_id = workflow_id
        self.plan = plan
        self.bindings = bindings
        self.directory = directory
        self.epoch = epoch
        self.first_events = list(first_events)
        self.base = list(base)
        self.labels = dict(labels or {})
        self.command = command
        self.queued = queued
        self.notices = list(notices)
        self.alarm: int | None = None
        self.fold = fold
        self.fold_is_whole = fold_is_whole
        self.trial = trial
        self.timeline = timeline or Timeline()
        self.owner = owner
        self.is_child = is_child
        """True if it works for a step of another run, whose slot it shares."""
        self.child_links: ChildLinks | None = None
        self.replay = replay
        self._page = page
        self.first_batch_sent = False
        """Whether a supervisor has sent the first events: they may be in the log though it died since."""
        self.kills = 0
        """How often its supervisor was killed; it is started again 5 times."""
        self.accepted: Outcome[None] = Outcome()
        self.reply: Outcome[Done | Refusal] = Outcome()
        self.rested: Outcome[RunState] = Outcome()
        self.ended: Outcome[None] = Outcome()

    @property
    def started(self) -> WorkflowStarted | None:
        """First event of a new run."""
        return self.first_events[0] if self.first_events else None

    @property
    def is_new(self) -> bool:
        """True if the supervisor has to write the first events; an earlier one may have done so and died."""
        return bool(self.first_events) and not self.accepted.done()

    @property
    def takes_slot(self) -> bool:
        """True unless it is a child run, which shares its parent's slot, or begins its log and queues."""
        return not (self.queued or self.is_child)

    @property
    def is_leaving(self) -> bool:
        """True if the supervisor is about to end, so that a new one must start for the next command."""
        return self.rested.done() or self.queued

    @property
    def rest_state(self) -> RunState | None:
        """State of the run if it rests, else None."""
        rested = self.rested
        return rested.result() if rested.done() and rested.exception() is None else None

    def take_fold(self) -> Fold | None:
        """Return the cached state once; the caller changes it."""
        fold, self.fold = self.fold, None
        return fold

    @property
    def is_as_submitted(self) -> bool:
        """True if the run queues for a slot since it was submitted here, and its log holds no more than its
        fold."""
        fold = self.fold
        if fold is None or not self.queued or not self.first_events or self.replay is not None:
            return False
        if CONCURRENCY_KEY_LABEL in self.labels:
            return False  # whether it holds its key is read from the store
        return fold.state.next_offset == fold.events and not fold.state.base

    def take_page(self) -> Sequence[StoredEvent]:
        """Return the events that were read already, once."""
        page, self._page = self._page, ()
        return page

    def set_reply(self, answer: Done | Refusal) -> None:
        """Reply to the command. Until then a restarted supervisor applies it again."""
        self.command = None
        if not self.reply.done():
            self.reply.set_result(answer)

    def reopen(self) -> None:
        """Replace `rested`, because the run moves again: later callers wait for its next rest."""
        if self.rested.done():
            self.rested = Outcome()

    def reject(self, error: BaseException) -> None:
        """Fail all outcomes but `ended`: the run cannot go on here and the supervisor is about to end."""
        self._settle_all(error, self.accepted, self.rested, self.reply)

    def end(self, error: BaseException) -> None:
        """Resolve `ended` and fail what is still open. A queued run may still rest by its next supervisor."""
        self._settle_all(error, self.accepted, self.reply)
        if not self.queued:
            self._settle_all(error, self.rested)
        if not self.ended.done():
            self.ended.set_result(None)

    def fail(self, error: BaseException) -> None:
        """Fail all outcomes: the Runtime is closed, so no supervisor will follow."""
        self.reject(error)
        self.end(error)

    @staticmethod
    def _settle_all(error: BaseException, *outcomes: Outcome[Any]) -> None:
        for outcome in outcomes:
            if not outcome.done():
                outcome.set_exception(error)


_MAX_QUEUED_LAUNCHES = 1_024


class QueuedLaunches:
    """Launches of runs that queue since they were submitted here, so that nothing is read at their turn.

    1,024 at most, of small inputs: the logs of others are read and folded when they get a slot.
    """

    def __init__(self) -> None:
        self._kept: dict[str, RunLaunch] = {}

    def keep(self, launch: RunLaunch) -> bool:
        """Keep a launch whose supervisor has ended, if it is as it was submitted; return whether it is."""
        if not launch.is_as_submitted or len(self._kept) >= _MAX_QUEUED_LAUNCHES:
            return False
        if not is_small(launch.first_events[0].input):
            return False
        self._kept[launch.workflow_id] = launch
        return True

    def take(self, workflow_id: str) -> RunLaunch | None:
        """Remove and return the launch of a run."""
        return self._kept.pop(workflow_id, None)

    def clear(self) -> None:
        """Remove all."""
        self._kept.clear()


class RunTable:
    """The runs at work in this process, and the alarms of those that wait, by run id.

    RunRegistry owns the table and adds launches; RunsSupervisor records the starts and ends of supervisors.
    Both change it by these methods alone, on one event loop. The table outlives an instance of
    RunsSupervisor, so that its successor goes on with the same runs.
    """

    def __init__(self) -> None:
        self._launches: dict[str, RunLaunch] = {}
        self._supervisors: dict[str, Ref[Any]] = {}
        self.alarms = AlarmIndex()
        """The next deadlines of waiting runs without a supervisor; RunsSupervisor alone changes it."""
        self.launches: Mapping[str, RunLaunch] = MappingProxyType(self._launches)
        """The launch of each run that has, or is about to get, a supervisor; read-only."""
        self.supervisors: Mapping[str, Ref[Any]] = MappingProxyType(self._supervisors)
        """The supervisor of each run that has one; read-only."""
        self.running = 0
        """How many runs take a slot; counted, because each start and end of a run asks."""

    def add(self, launch: RunLaunch) -> None:
        """Add a run that is about to get a supervisor."""
        earlier = self._launches.get(launch.workflow_id)
        self._launches[launch.workflow_id] = launch
        self.running += launch.takes_slot - (earlier is not None and earlier.takes_slot)

    def remove(self, workflow_id: str) -> RunLaunch | None:
        """Remove a run whose supervisor has ended for good; return its launch."""
        launch = self._launches.pop(workflow_id, None)
        if launch is not None:
            self.running -= launch.takes_slot
        return launch

    def set_supervisor(self, workflow_id: str, ref: Ref[Any]) -> None:
        """Record the supervisor that was started for a run."""
        self._supervisors[workflow_id] = ref

    def remove_supervisor(self, workflow_id: str) -> None:
        """Record that the supervisor of a run has ended; a restart may follow."""
        self._supervisors.pop(workflow_id, None)

    def remove_all_supervisors(self) -> None:
        """Record that all supervisors ended with the RunsSupervisor that held them."""
        self._supervisors.clear()
