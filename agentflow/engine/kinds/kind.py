"""What a kind of node does: the interface of its half in the engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from agentflow.definition.conversation import ToolCall, Usage
from agentflow.definition.failure import ErrorInfo
from agentflow.definition.ir import canonical_json, decode_ir
from agentflow.definition.policy import RetryPolicy
from agentflow.engine.agents.conversation import read_answer
from agentflow.engine.agents.progress import ToolRecord
from agentflow.engine.messages import Outgoing, type_of
from agentflow.events import catalogue as ev

if TYPE_CHECKING:
    from agentflow.definition.ir import NodeBase, Workflow
    from agentflow.engine.activation import Activation
    from agentflow.engine.agents.progress import AgentProgress, ToolRecord
    from agentflow.engine.bindings import ToolInfo
    from agentflow.engine.child_runs import ChildReport
    from agentflow.engine.decisions import Decisions
    from agentflow.engine.graph import Graph, Node
    from agentflow.engine.joins import Join
    from agentflow.engine.path import NodeState, Path
    from agentflow.engine.shared_store import StoreAccess
    from agentflow.engine.state import RunState

__all__ = ["CALL_EVENTS", "TIMER_EVENTS", "BindGraph", "Kind", "Looked", "Prepared", "Probe"]

CALL_EVENTS: frozenset[type] = frozenset(
    {
        ev.ToolCallStarted,
        ev.ToolCallCompleted,
        ev.ToolCallFailed,
        ev.ApprovalRequested,
        ev.InputRequested,
    }
)
"""What happens to a call of a function: it is begun and ends, and a person is asked about it."""

TIMER_EVENTS: frozenset[type] = frozenset({ev.TimerScheduled, ev.TimerFired, ev.TimerCancelled})


_NO_FIELDS: dict[str, Any] = {}


class Prepared(NamedTuple):
    """What an activation will start with, evaluated once: its input, and the rest of what a person agrees to
    (`subject` names all of it)."""

    input: Any
    subject: dict[str, Any]


class Probe(NamedTuple):
    """What the runtime looks at before an activation starts: files of a workspace, whether services can be
    used, and whether the delegate answers. See `Looked`."""

    activation_key: str
    workspace: str | None
    names: tuple[str, ...]
    services: tuple[str, ...] = ()
    delegate: str | None = None


class Looked(NamedTuple):
    """What came of a Probe: files by name, services that are down, whether the delegate answered."""

    files: dict[str, Any] = {}  # noqa: RUF012  (never changed)
    down: tuple[str, ...] = ()
    delegate: bool = False


class BindGraph(NamedTuple):
    """A graph that became known in the run, as JSON, or the name of a registered one: the runtime finds it
    and binds its nodes before it starts."""

    activation_key: str
    graph: dict[str, Any] | str

    def definition(self) -> Workflow | str:
        """Return the graph as a definition, or its name."""
        return self.graph if isinstance(self.graph, str) else decode_ir(canonical_json(self.graph))


class Kind:
    """A kind that does nothing but pass its token on. Kinds override what differs.

    `prepare`, `start`, `next` and `abort` read the state and return events, they change nothing; `compile`
    and `link` are called once a graph; the methods that fold are called by the folds and alone change the
    activation.
    """

    name = ""
    is_start = False
    is_end = False
    takes_slot = False
    """True if its work takes one of the `max_parallel` slots of the run."""
    is_passive = False
    """True if an open activation does nothing by itself: it waits for a timer, a signal or child paths."""
    moves_tokens_only = False
    """True for starts and ends, which the front ends add to graphs that have none (ids that begin with `__`):
    those move tokens and leave no trace in the log."""
    events: frozenset[type] = frozenset()
    """The events of its work that are legal while it is open, beside those of every step."""
    sends = False
    """True if a handler does its work, which begins with `workflow.step_started`; its messages are what that
    sent, and not its output."""
    yields = False
    """True if what it gives out while it runs is the output of the run (page 002 §12)."""
    one_at_a_time = False
    """True for an actor: one message at a time, first come first served (page 002 §1)."""
    join: Join | None = None
    """The join of its nodes, whatever they state."""
    iterates = False
    """True if its work is done by an iteration for each of its items."""
    shows_more = False
    """True if expressions see more of its ends than that of other kinds: `view` is asked then."""
    takes_calls = False
    """True if it decides by itself what follows from the end of its call (`call_settled`)."""
    has_agent_events = True
    """False if its agent is only the form in which it asks a model: it leaves no `agent.*` events."""
    starts_run = False
    """True if its work is a run of its own: `child_definition` says of which graph."""
    brings_graph = False
    """True if the graph that it runs becomes known in the run."""
    tells_time = False
    """True if its output says when a timer fired or an answer came. A replay that the record serves gives the
    recorded time, so that what follows asks for the same."""
    takes_answers = False
    """True if the answers to its requests are its own business (`answered`), and no call's or budget's."""
    ends_itself = False
    """True if `end` makes the end of its step of what its work came to."""
    announces_end = False
    """True if `before_end` has events that stand directly before `workflow.step_completed`."""
    admits = False
    """True if `refusal` may end an activation before it is asked about, and again before it starts."""
    approves = False
    """True if `approval_subject` says what a person decides about, and its digest."""
    judges_calls = False
    """True if the answer of its call is judged (`judge_answer`), tells what follows from its failure, and may
    say what it has used (`usage_of`)."""
    said: str | None = None
    """The root of expressions that has its last output: `last_llm_output`, `last_tool_output`."""

    def form_of(self, spec: NodeBase) -> Kind:
        """Return the kind itself, or another with the work of this form of the node."""
        return self

    def link(self, graph: Graph, node: Node) -> None:
        """Compile what depends on the nodes around this one, once the edges of the graph are known."""

    def makes_plain_call(self, node: Node) -> bool:
        """Return whether all that the node does is one call of a function, or of its handler: `plain_calls`
        and `plain_handlers` fold it then."""
        return False

    def is_bare(self, node: Node) -> bool:
        """Return whether a node has no gate, limit, cache or write of its own."""
        spec = node.spec
        return not (
            node.has_gate
            or node.iterates
            or node.writes is not None
            or node.timeout is not None
            or node.retry.timeout is not None
            or spec.cache is not None
            or spec.approval is not None
            or spec.budget is not None
        )

    def stops(self, node: Node) -> bool:
        """Return whether a token that comes to this node ends its path although others are still live."""
        return False

    uses_store = False
    """True if `access` may ask the store that runs share."""
    remembers = False
    """True if `remember` keeps something of its completions for the rest of the run."""

    def access(self, state: RunState, activation: Activation) -> StoreAccess | None:
        """Return what an open activation asks the store before it goes on; None: nothing."""
        return None

    def store_answered(self, state: RunState, activation: Activation, answer: Any, now: int) -> Decisions:
        """Return what follows from the answer of the store."""
        return []

    def remember(self, state: RunState, activation: Activation, data: Any, ts: int) -> None:
        """Fold `workflow.step_completed`: what the run keeps of it for later activations."""

    def fails(self, node: Node) -> bool:
        """Return whether a path that comes to this node fails."""
        return False

    def path_failure(self, state: RunState, path: Path, node: Node) -> ErrorInfo | None:
        """Return the error of a path that has come to this node last; None: it has not failed."""
        return None

    adds_to_start = folds_start = folds_end = keeps_end = False
    """True for kinds that override `started_fields`, `started`, `closed` and `ended`; the hooks of the others
    are not called."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.adds_to_start = cls.started_fields is not Kind.started_fields
        cls.keeps_end = cls.ended is not Kind.ended
        cls.folds_start = cls.started is not Kind.started
        cls.folds_end = cls.closed is not Kind.closed

    def compile(self, node: Node) -> Any:
        """Return the node's parsed expressions and templates, kept in `node.program`."""
        return None

    def prepare(self, state: RunState, activation: Activation) -> Prepared | ErrorInfo:
        """Evaluate what the activation starts with, or return why that cannot be done."""
        value = activation.input if activation.snapshot is None else activation.snapshot["input"]
        return Prepared(value, {"input": value})

    def started_fields(self, state: RunState, activation: Activation, prepared: Prepared) -> dict[str, Any]:
        """Return what its `workflow.step_started` says beside the fields of every kind."""
        return _NO_FIELDS

    def start(self, state: RunState, activation: Activation, prepared: Prepared, now: int) -> Decisions:
        """Return the events that follow `workflow.step_started` at once, before it is folded."""
        return []

    def started(self, state: RunState, activation: Activation, data: Any, ts: int) -> None:
        """Fold `workflow.step_started`: what only this kind keeps."""

    def fold(self, state: RunState, activation: Activation, data: Any, ts: int) -> None:
        """Fold an event that no family of events folds by itself: of its timers, and that it waits."""

    def next(self, state: RunState, activation: Activation, now: int) -> Decisions:
        """Return what follows for an open activation after an event that concerns it; empty: it waits."""
        return []

    def answered(self, state: RunState, activation: Activation, data: Any, ts: int) -> None:
        """Fold the answer to a request of the activation, or that it was withdrawn or expired."""

    def end(self, state: RunState, activation: Activation, now: int) -> Decisions:
        """Return the end of the step when its work is done."""
        raise NotImplementedError

    def before_end(self, state: RunState, activation: Activation, output: Any, now: int) -> Decisions:
        """Return what is said directly before the step completes with this output."""
        return []

    def refusal(self, state: RunState, activation: Activation, looked: Looked | None, now: int) -> Decisions:
        """Return the end of an activation that must not start; empty: it may."""
        return []

    def known_result(self, state: RunState, activation: Activation) -> dict[str, Any] | None:
        """Return the StepResult of a step of a plan that came with the run; None: the step has work to do."""
        return None

    def probe(self, state: RunState, activation: Activation) -> Probe | BindGraph | None:
        """Return what must be known outside before the activation is asked about or starts; None: nothing."""
        return None

    def with_probe(
        self, state: RunState, activation: Activation, prepared: Prepared, looked: Any
    ) -> Prepared | ErrorInfo:
        """Return what the activation starts with, given the answer to its probe (None: there was none), or
        why it must not start."""
        return prepared

    def approval_subject(self, state: RunState, activation: Activation) -> tuple[dict[str, Any], str, Any]:
        """Return what a person decides about, the digest of it, and the policy that asks."""
        raise NotImplementedError

    # -- of a kind whose work is a conversation with a model

    def open_conversation(self, state: RunState, activation: Activation) -> AgentProgress:
        """Return the conversation of a kind without `agent.initialized`, as its first turn begins."""
        raise NotImplementedError

    def begin_turn(self, state: RunState, activation: Activation, progress: AgentProgress) -> Any:
        """Return the event that begins the next turn."""
        raise NotImplementedError

    def answered_with(self, state: RunState, activation: Activation, value: Any, now: int) -> Decisions:
        """Return what follows when the answer of the model is `value`."""
        raise NotImplementedError

    def read_answer(self, activation: Activation, progress: AgentProgress) -> tuple[Any, Decisions]:
        """Return the value of its model's last answer, and the events of reading it. Raises BadAnswer."""
        spec = activation.node.agent
        assert spec is not None
        return read_answer(spec, progress.answer), []

    def failure(self, activation: Activation, error: ErrorInfo) -> ErrorInfo:
        """Return the failure of the node for that of its last attempt."""
        return error

    def call_policy(self, activation: Activation) -> RetryPolicy:
        """Return the policy by which the present call of a function is repeated."""
        return activation.node.retry

    def judge_answer(self, activation: Activation, answer: Any) -> ErrorInfo | None:
        """Return why the answer of its call is no result; None if it is one."""
        return None

    def usage_of(self, activation: Activation, answer: Any) -> Usage | None:
        """Return what the answer of its call, or the details of its error, say of its usage."""
        return None

    def classified(self, error: ErrorInfo) -> ErrorInfo:
        """Return a failure of its call with the category that decides what follows."""
        return error

    def is_unknown(self, activation: Activation, error: ErrorInfo) -> bool:
        """Return whether its call may have had effects that another attempt would repeat."""
        return False

    def repairs(self, activation: Activation, error: ErrorInfo) -> bool:
        """Return whether its call is made again with what was wrong with the answer."""
        return False

    def info_of(self, data: ev.ToolCallStarted) -> ToolInfo | None:
        """Return what a call is that its delegate has made and reported."""
        return None

    def call_settled(self, state: RunState, activation: Activation, record: ToolRecord) -> None:
        """Fold the end of a call that is not repeated."""

    def signalled(self, state: RunState, activation: Activation, data: ev.SignalReceived) -> bool:
        """Fold a signal while the activation is awaited; return whether it takes it."""
        return False

    def child_definition(self, state: RunState, activation: Activation) -> Workflow | str:
        """Return the graph of the run that does its work, or the name of a registered one."""
        raise NotImplementedError

    def child_options(self, state: RunState, activation: Activation) -> dict[str, Any]:
        """Return the options of the run that does its work, beside those that every child run has."""
        return {}

    def child_completed(
        self, state: RunState, activation: Activation, report: ChildReport, now: int
    ) -> Decisions:
        """Return the end of the step when the run that does its work has completed."""
        raise NotImplementedError

    def is_idle(self, activation: Activation) -> bool:
        """Return True if nothing follows until something outside answers: it need not be asked."""
        return False

    def waits_until(self, activation: Activation) -> bool:
        """Return True if its timer is due at a time of day, which a step of the wall clock does not move."""
        return False

    def items(self, state: RunState, activation: Activation) -> list[Any] | ErrorInfo:
        """Return the items of a kind that iterates by itself, or why there are none."""
        return []

    def end_of_items(self, state: RunState, activation: Activation, now: int) -> Decisions | None:
        """Return the end of a kind that iterates by itself; None: as that of a for_each."""
        return None

    def item_ended(self, state: RunState, activation: Activation, item: Activation) -> bool:
        """Fold the end of an item; return True if the others are not waited for."""
        return False

    def entered(self, activation: Activation, sender: Activation) -> None:
        """Fold the arrival of the token of a node that had opened child paths."""

    def gather(self, state: RunState, path: Path, node: Node, payload: Any) -> None:
        """Fold the arrival of a token at a node whose join gathers them."""

    def close_window(self, state: RunState, activation: Activation) -> None:
        """Fold that nothing can reach an activation any more that gathers tokens."""

    def stalled(self, state: RunState, activation: Activation, now: int) -> Decisions:
        """Return what an open activation does when nothing else can move the run on."""
        return []

    def ended(self, activation: Activation, place: NodeState, data: Any) -> None:
        """Fold `workflow.step_completed` or `_failed`: what the node keeps from visit to visit."""

    def view(self, activation: Activation, place: NodeState) -> dict[str, Any]:
        """Return what expressions see of an end beside output, status, error and visits."""
        return {}

    def shown_as(self, activation: Activation) -> Literal["text", "lines", "nothing"]:
        """Return how deltas show the answer of its model."""
        return "text"

    def calls_settled(self, progress: AgentProgress) -> None:
        """Fold the end of the last of the calls that a model asked for in one answer."""

    def path_ended(self, state: RunState, activation: Activation, path: Path) -> None:
        """Fold the end of a child path that the activation opened."""

    # -- of a kind that closes the groups of a node before it (merge)

    closes_groups = False

    def sources_of(self, node: Node) -> frozenset[str]:
        """Return the ids of the nodes whose outputs it reads."""
        return frozenset()

    def judge(self, program: Any, group: Any) -> tuple[bool, bool]:
        """Return whether the paths that have ended decide the group, and whether the rest is cancelled."""
        return False, True

    def counted(self, program: Any, group: Any) -> list[int]:
        """Return the indexes of the paths that it reads, in the order in which they finished."""
        return []

    def failing(self, node: Node, default: str) -> str:
        """Return `fail` if a failure on a path fails the group; `default` is what the opener states."""
        return default

    def time_limit(self, node: Node) -> float | None:
        """Return the seconds that a group may take."""
        return None

    def path_failed(self, state: RunState, path: Path, error: ErrorInfo) -> None:
        """Fold a failure on a child path that no node on it bears."""

    def abort(self, state: RunState, activation: Activation, error: ErrorInfo, now: int) -> Decisions:
        """Return the ends of what is open below the activation; the end of the step itself follows."""
        return []

    def add_call(self, activation: Activation, call_id: str, name: str) -> ToolRecord:
        """Fold the start of a call that is none of an agent's turn: the one call of a tool node."""
        record = activation.tool = ToolRecord(ToolCall(id=call_id, name=name, arguments=""), name)
        return record

    def call(self, activation: Activation, call_id: str) -> ToolRecord | None:
        """Return a call of a function by its id: that of a tool node, or one of an agent's turn."""
        if activation.tool is not None and activation.tool.call.id == call_id:
            return activation.tool
        return activation.agent.tools.get(call_id) if activation.agent is not None else None

    def retried(self, state: RunState, activation: Activation, data: Any, ts: int) -> None:
        """Fold `workflow.step_retrying`: what only this kind keeps of the next attempt."""

    def closed(self, state: RunState, activation: Activation) -> None:
        """Fold the end of the activation: let go of what only this kind keeps for it outside."""

    def cache_parts(self, state: RunState, activation: Activation, prepared: Prepared) -> list[Any]:
        """Return what a result depends on when the document names no key for it. Raises EvaluationError."""
        return [activation.node.id, prepared.input]

    def context(self, state: RunState, activation: Activation) -> Any:
        """Return what its functions get beside their arguments; no model sees it and no event holds it."""
        return None

    def retry_of(self, node: Node) -> RetryPolicy:
        """Return the policy by which its attempts are repeated."""
        return node.retry

    def absorbs(self, node: Node) -> bool:
        """Return whether a failure of the node is none of the run: an error edge takes it."""
        return bool(node.targets("error"))

    def accepts(self, node: Node, tags: tuple[str, ...], *, element: bool = False) -> bool:
        """Return whether the node takes a message of these types, or (`element`) a list of such."""
        return True

    def is_typed(self, spec: NodeBase) -> bool:
        """Return whether its messages have types, by which every edge decides."""
        return self.sends

    def message(self, activation: Activation, output: Any) -> Outgoing:
        """Return what goes along its `edges[]` when it has ended with this output."""
        return Outgoing(type=type_of(output), payload=output)

    def payload(self, activation: Activation) -> Any:
        """Return what its token carries on: its output."""
        return activation.output
