"""OutsideLookups: what `decide` has to know from outside of the log, asked for and kept until it is used.

That is the result cache, what steps of a plan need, bindings of graphs, the shared store, and code on
edges. An answer comes back to the RunSupervisor as a message, so that it decides again. Used by that actor
alone.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from agentflow import engine
from agentflow.events import catalogue as ev
from agentflow.runtime.result_cache import KeepResult, ResultCache
from agentflow.runtime.shared_store import SharedStore
from agentflow.runtime.supervisor_messages import Answered, AskAgain, LookedUp

if TYPE_CHECKING:
    from agentflow.events.log import EventLog
    from agentflow.runtime.run_stepper import RunStepper
    from agentflow.runtime.step_probes import StepProbes

__all__ = ["OutsideLookups"]

_STORE_RETRY_S = 0.5

Question = engine.Lookup | engine.Probe | engine.BindGraph | engine.StoreAccess | engine.Judgement


class OutsideLookups:
    """`found` is handed to `decide`: the answers by key, `asked` while one is under way."""

    __slots__ = ("_judged", "_probes", "_results", "_run", "_store", "accesses", "found", "keeps_results")

    def __init__(self, run: RunStepper, log: EventLog, store: SharedStore | None) -> None:
        self._run = run
        self._store = SharedStore(log) if store is None else store
        self._results = ResultCache(log, run.clock)
        self.accesses: deque[tuple[int, engine.StoreAccess]] = deque()  # made once the offset is durable
        self._judged: list[str] = []
        self._probes: StepProbes | None = None
        self.found: dict[str, Any] = {}
        self.keeps_results = run.state.graph.keeps_results

    def ask(self, question: Question) -> None:
        """Ask for what a decision needs."""
        if isinstance(question, engine.Judgement):
            self._judge(question)
        elif isinstance(question, engine.Lookup):
            self._look_up(question)
        elif isinstance(question, engine.Probe):
            self._probe(question)
        elif isinstance(question, engine.BindGraph):
            self._bind_graph(question)
        else:
            self.found[question.answer_key] = "asked"
            self.accesses.append((self._run.state.next_offset - 1, question))

    def _judge(self, asked: engine.Judgement) -> None:
        """Evaluate the code on the edges of a message; the next decision records the routes."""
        run = self._run
        self.found[asked.key] = "asked"

        def found(_: int, messages: tuple[engine.Outgoing, ...]) -> None:
            self.found[asked.key] = messages[0]
            self._judged.append(asked.key)
            run.advance([])

        run.edges.ask(asked.node, [asked.message], found)

    def forget_judgements(self) -> None:
        """Forget the routes that the last decision has recorded."""
        while self._judged:
            del self.found[self._judged.pop()]

    def _look_up(self, lookup: engine.Lookup) -> None:
        key = lookup.activation_key
        self.found[key] = "asked"
        recorded = self._run.recorded
        if recorded is not None and recorded.replayer.serves_lookup(lookup):
            return

        def found(hit: engine.CacheHit | None) -> LookedUp:
            return LookedUp(activation_key=key, hit=hit)

        def failed(error: BaseException) -> LookedUp:
            return LookedUp(activation_key=key, hit=None)  # an unreadable cache is a miss

        self._run.ctx.pipe(self._results.find(lookup.key), found, failed)

    def _probe(self, probe: engine.Probe) -> None:
        """Look at what a step of a plan needs before it is asked about or starts."""
        run = self._run
        if run.recorded is not None and (looked := run.recorded.replayer.serves_probe(probe)) is not None:
            self.found[probe.activation_key] = looked
            return
        if self._probes is None:
            from agentflow.runtime.step_probes import StepProbes

            pipeline = run.state.pipeline
            known = None if pipeline is None or not run.launch.is_new else pipeline.execution
            self._probes = StepProbes(run.state.workflow_id, run.launch.directory, known)
        key = probe.activation_key
        self.found[key] = "asked"

        def found(looked: engine.Looked) -> LookedUp:
            return LookedUp(activation_key=key, hit=looked)

        def failed(error: BaseException) -> LookedUp:
            return LookedUp(activation_key=key, hit=engine.Looked())

        run.ctx.pipe(self._probes.look(probe), found, failed)

    def forget_mode(self) -> None:
        """Find out anew how the steps of a plan are worked on: a person has just moved the run on."""
        if self._probes is not None:
            self._probes.forget_mode()

    def _bind_graph(self, asked: engine.BindGraph) -> None:
        """Bind the nodes of a graph before its step starts."""
        key, recorded = asked.activation_key, self._run.recorded
        if recorded is not None and (served := recorded.replayer.serves_graph(asked)) is not None:
            self.found[key] = served
            return
        self.found[key] = "asked"

        def found(bound: engine.BoundGraph) -> LookedUp:
            return LookedUp(activation_key=key, hit=bound)

        def failed(error: BaseException) -> LookedUp:
            from agentflow.runtime.bound import unbound_graph

            return LookedUp(activation_key=key, hit=unbound_graph(error))

        self._run.ctx.pipe(self._run.launch.directory.bind_graph(asked.definition()), found, failed)

    def ask_store(self, offset: int) -> None:
        """Make the accesses of decisions that are durable up to `offset`."""
        run = self._run
        while self.accesses and self.accesses[0][0] <= offset:
            _, access = self.accesses.popleft()
            key = access.answer_key
            if run.recorded is not None and run.recorded.serves_access(access):
                continue
            answered = partial(_answered, key)
            run.ctx.pipe(self._store.access(access), answered, partial(_unanswered, key))

    def answered(self, message: Answered) -> None:
        """Keep the answer of the store and go on; ask again after 0.5 s if there was none."""
        if message.failed:
            again = AskAgain(answer_key=message.answer_key)
            self._run.ctx.timers.start(f"store {message.answer_key}", _STORE_RETRY_S, again)
            return
        self.found[message.answer_key] = message.answer
        self._run.advance([])

    def result_to_keep(self, data: ev.WorkflowStepCompleted) -> KeepResult | None:
        """Return what the result cache keeps of a step once its event is durable; forget its answers."""
        state = self._run.state
        name = data.activation if data.iteration is None else f"{data.activation}[{data.iteration}]"
        activation = state.open.get(name)
        self.found.pop(name, None)
        for answer in [key for key in self.found if key.startswith(engine.answer_prefix(name))]:
            del self.found[answer]
        cache = None if activation is None else activation.node.spec.cache
        if activation is None or cache is None or data.cached is not UNSET:
            return None
        key = engine.result_key(state, activation)
        if key is None:
            return None
        return KeepResult(key=key, workflow_id=state.workflow_id, offset=state.next_offset, ttl=cache.ttl)


def _answered(key: str, answer: Any) -> Answered:
    return Answered(answer_key=key, answer=answer)


def _unanswered(key: str, error: BaseException) -> Answered:
    return Answered(answer_key=key, answer=None, failed=True)
