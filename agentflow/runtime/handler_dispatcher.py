"""Begins, repeats and cancels the handlers of a run's executors, one ExecutorActor for each node.

Used by the RunSupervisor's CallDispatcher alone, so it needs no mailbox of its own. It decides nothing: which
handler begins is an effect of the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import cached_property, partial
from typing import Any

from actors import Context, Ref
from agentflow.definition.reducers import REDUCERS, is_built_in
from agentflow.engine import Activation, RunState, StartHandler, request_id_of, shared_of
from agentflow.engine.grants import grants_of
from agentflow.events.catalogue import MessageRef
from agentflow.events.envelope import micros
from agentflow.events.tracing import RunTracer
from agentflow.executors.executor import Executor
from agentflow.runtime.agent_actor import Directory
from agentflow.runtime.executor_actor import ExecutorActor, Place, RunPlace
from agentflow.runtime.handler_calls import Handle
from agentflow.runtime.messages import Message

__all__ = ["BeginHandler", "HandlerDispatcher"]

_MAX_LOST = 3
"""Deaths of its actor in a row after which an attempt has failed."""

_Node = tuple[str, str]  # path and id: a node of a child path works on each of them


class BeginHandler(Message, frozen=True, kw_only=True):
    """The backoff of an attempt is over."""

    activation: str
    attempt: int


class HandlerDispatcher:
    """The ExecutorActors of one RunSupervisor, by path and node."""

    def __init__(
        self,
        ctx: Context,
        state: RunState,
        directory: Directory,
        tracer: RunTracer,
        now: Callable[[], int],
        parked: Callable[[], Collection[str]],
    ) -> None:
        self._ctx = ctx
        self._state = state
        self._directory = directory
        self._tracer = tracer
        self._now = now
        self._actors: dict[_Node, Ref[Any]] = {}
        self._nodes: dict[Ref[Any], _Node] = {}
        self._work: dict[_Node, tuple[str, int]] = {}  # activation and attempt in the hands of the actor
        self._places: dict[str, _Node] = {}  # of `_work`, by activation
        self._begun: dict[str, int] = {}  # by activation: the latest attempt that was begun
        self._ending: dict[Ref[Any], _Node] = {}  # killed, and not gone yet
        self._next: dict[_Node, StartHandler] = {}  # waits until the actor before it is gone
        self._lost: dict[str, int] = {}
        self._delayed: dict[str, None] = {}  # activations whose handler begins after a backoff
        self._parked = parked  # the activations whose handlers only wait for a larger budget

    @cached_property
    def _run_place(self) -> RunPlace:
        state, code = self._state, self._directory.code
        assert code is not None  # binding refuses a graph whose executors are not registered
        reducers = {key: spec.reducer for key, spec in state.graph.workflow.shared.items() if spec.reducer}
        return RunPlace(
            workflow_id=state.workflow_id,
            code=code,
            reducers={key: REDUCERS[name] for key, name in reducers.items()},
            own_reducers=frozenset(key for key, name in reducers.items() if not is_built_in(name)),
            shared=partial(shared_of, state),
            committed=state.shared,
            directory=self._directory,
        )

    @property
    def is_busy(self) -> bool:
        """True while a handler ends, or is at work and does not only wait for a larger budget."""
        if self._ending or not self._work:
            return bool(self._ending)
        parked = self._parked()
        return any(key not in parked for key, _ in self._work.values())

    @property
    def is_ending(self) -> bool:
        """True while a cancelled handler has not ended."""
        return bool(self._ending)

    def begin(self, effect: StartHandler, *, alone: bool = False) -> None:
        """Begin an attempt, once, when its backoff is over; cancel the attempt before it.

        One that begins `alone` begins in this turn; several begin by the run queue, which keeps their order.
        """
        activation = self._state.mail.open.get(effect.activation_key)
        if activation is None or activation.attempt != effect.attempt:
            return  # it was closed meanwhile
        if self._begun.get(activation.key) == effect.attempt:
            return
        if effect.due_at is not None and (wait := (micros(effect.due_at) - self._now()) / 1e6) > 0:
            self.release(activation.key)
            later = BeginHandler(activation=activation.key, attempt=effect.attempt)
            self._delayed[activation.key] = None
            self._ctx.timers.start(f"begin {activation.key}", wait, later)
            return
        self._delayed.pop(activation.key, None)
        self._begun[activation.key] = effect.attempt
        node = activation.path.key, activation.node.id
        if node in self._work:
            self._kill(node)
        if self._ending and node in self._ending.values():
            self._next[node] = effect
        else:
            self._tell(node, activation, alone)

    def _tell(self, node: _Node, activation: Activation, alone: bool) -> None:
        self._work[node] = (activation.key, activation.attempt)
        self._places[activation.key] = node
        ref = self._actors.get(node)
        if ref is None:
            name = f"{activation.node.id}.{len(self._nodes)}@{activation.key[1:]}".replace("/", ":")
            factory = partial(ExecutorActor, self._ctx.self, self._place(activation))
            ref = self._ctx.spawn_now(factory, name, restart="temporary")
            self._actors[node], self._nodes[ref] = ref, node  # a parent is told of the end of its children
        send = ref.tell_now if alone else ref.tell
        send(self._message(activation), self._tracer.handler(activation.key))

    def _place(self, activation: Activation) -> Place:
        node, run = activation.node, self._run_place
        template = run.code.executors[node.spec.executor]  # type: ignore[attr-defined]
        make = template.copy_for_run if isinstance(template, Executor) else template
        return Place(run, node, make, grants_of(activation))

    def _message(self, activation: Activation) -> Handle:
        state, taken = self._state, activation.taken
        types: tuple[str, ...] = ()
        is_round = False
        if taken is None:
            types = self._input_type(activation)
        elif taken.request_id is not None:
            types = taken.types
        else:
            is_round = taken.type == "list" and bool(taken.types)
            types = taken.types if is_round else (taken.type,)
        senders = () if taken is None or taken.request_id is not None else taken.sources
        return Handle(
            activation=activation.key,
            attempt=activation.attempt,
            value=activation.input,
            types=types,
            is_round=is_round,
            request_id=None if taken is None else taken.request_id,
            request=None if taken is None else taken.request,
            sources=_nodes_of(senders),
            missing=() if taken is None else taken.missing,
            superstep=activation.superstep or None,
            private=state.shared.private.get(activation.node.id, {}),
            request_ids=partial(request_id_of, state, activation),
        )

    def _input_type(self, activation: Activation) -> tuple[str, ...]:
        """Return the type tag of the run's input, if that is what the activation got."""
        begin = self._state.begin
        tag = None if begin is None else begin.options.get("input_type")
        return (tag,) if isinstance(tag, str) and activation.input == self._state.input else ()

    # -- ends -----------------------------------------------------------------------------------------

    def forget(self, activation_key: str) -> None:
        """Do as `release` for an activation whose handler has returned: nothing of it is at work."""
        self._begun.pop(activation_key, None)

    def ended(self, activation_key: str, attempt: int) -> None:
        """Take note that a handler has returned or raised."""
        self._lost.pop(activation_key, None)
        node = self._places.get(activation_key)
        if node is not None and self._work.get(node) == (activation_key, attempt):
            self._take(node)

    def release(self, activation_key: str) -> None:
        """Cancel the handler of an activation that has ended, if it is at work or waits."""
        self._begun.pop(activation_key, None)
        if activation_key in self._delayed:
            del self._delayed[activation_key]
            self._ctx.timers.cancel(f"begin {activation_key}")
        if self._next:
            self._next = {n: e for n, e in self._next.items() if e.activation_key != activation_key}
        node = self._places.get(activation_key)
        if node is not None:
            self._kill(node)

    def release_all(self, but: Collection[str] = ()) -> None:
        """Cancel all handlers, except those of the activations in `but`."""
        for key in [*self._begun, *(key for key, _ in self._work.values())]:
            if key not in but:
                self.release(key)

    def _take(self, node: _Node) -> tuple[str, int] | None:
        """Take what a node works on out of its hands."""
        work = self._work.pop(node, None)
        if work is not None:
            self._places.pop(work[0], None)
        return work

    def _kill(self, node: _Node) -> None:
        self._take(node)
        ref = self._actors.pop(node, None)
        if ref is not None:
            self._ending[ref] = node
            ref.kill()

    def gone(self, ref: Ref[Any], *, is_closing: bool) -> str | None:
        """Take note that an actor has ended; return the activation that it left without an end for good.

        An actor that died by itself is replaced and its attempt begins again, up to 3 times in a row.
        `is_closing`: it ended with the system. Nothing begins any more, and the log keeps the attempt open.
        """
        node = self._nodes.pop(ref, None)
        if node is None:
            return None
        was_killed = self._ending.pop(ref, None) is not None
        if not was_killed:
            self._actors.pop(node, None)
        if is_closing:
            return None
        following = self._next.pop(node, None)
        if following is not None:
            self._begun.pop(following.activation_key, None)
            self.begin(following)
            return None
        work = None if was_killed else self._take(node)
        if work is None:
            return None
        key, attempt = work
        self._begun.pop(key, None)
        lost = self._lost[key] = self._lost.get(key, 0) + 1
        if lost >= _MAX_LOST:
            return key
        self.begin(StartHandler(key, attempt))
        return None

    def knows(self, ref: Ref[Any]) -> bool:
        """Return whether an actor is one of these."""
        return ref in self._nodes


def _nodes_of(senders: tuple[MessageRef, ...]) -> tuple[str, ...]:
    """Return the nodes that sent messages, each once."""
    if len(senders) == 1:
        return (_sender(senders[0].activation),)
    return tuple(dict.fromkeys(_sender(source.activation) for source in senders))


def _sender(activation_key: str) -> str:
    """Return the node of an activation key: `/assess#2` is of `assess`."""
    return activation_key.rpartition("#")[0].rpartition("/")[2]
