"""EffectLauncher: executes the effects of durable batches by the dispatcher, child runs and the crash ledger.

Used by one RunSupervisor alone. It decides nothing; while the run is being parked no call begins. Only a
function or an executor without effects may begin before its batch is durable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias, cast

from agentflow import engine

if TYPE_CHECKING:
    from agentflow.runtime.call_dispatcher import CallDispatcher
    from agentflow.runtime.run_stepper import RunStepper
    from agentflow.runtime.supervised_children import SupervisedChildren

__all__ = ["Early", "EffectLauncher"]

Early: TypeAlias = engine.OpenCall | engine.StartHandler
"""What begins before its batch is durable."""

_MAX_AHEAD = 32
_StartCall = engine.StartCall
_StartHandler = engine.StartHandler


class EffectLauncher:
    """`children` is None where no child run can be started."""

    __slots__ = ("_children", "_dispatcher", "_run")

    def __init__(
        self, run: RunStepper, dispatcher: CallDispatcher, children: SupervisedChildren | None
    ) -> None:
        self._run = run
        self._dispatcher = dispatcher
        self._children = children

    def take_early(self, effects: list[engine.Effect]) -> list[Early]:
        """Remove and return what may begin once its batch is appended: what has no effect.

        A crash before it is durable repeats them, which `side_effect: none` allows (page 000 §6). Everything
        else waits: a model call, any other function, a reply and the end of the run follow what is durable.
        At most 32 batches are on their way to the log meanwhile, none while the store takes nothing.
        """
        if not effects:
            return []
        run = self._run
        outbox, launch = run.outbox, run.launch
        if outbox.stalled or outbox.count >= _MAX_AHEAD or run.suspending is not None:
            return []
        if run.recorded is not None or launch.trial is not None or not launch.accepted.done():
            return []
        if len(effects) == 1:  # as in a chain
            found = self._early(effects[0])
            if found is None:
                return []
            effects.clear()
            return [found]
        later: list[engine.Effect] = []
        early: list[Early] = []
        for effect in effects:
            found = self._early(effect)
            if found is None:
                later.append(effect)
            else:
                early.append(found)
        effects[:] = later
        return early

    def launch(self, early: list[Early]) -> None:
        """Begin these calls and handlers."""
        alone = len(early) == 1
        for begun in early:
            if isinstance(begun, engine.OpenCall):
                self._dispatcher.launch(begun)
            else:
                self._dispatcher.handlers.begin(begun, alone=alone)

    def _early(self, effect: engine.Effect) -> Early | None:
        if effect.__class__ is _StartHandler:
            handler = cast("engine.StartHandler", effect)
            return handler if self._is_harmless(handler) else None
        return _harmless_call(self._run.state, effect)

    def _is_harmless(self, effect: engine.StartHandler) -> bool:
        """Return whether an effect begins a handler that has no effect but what it asks this actor for, which
        is answered once all before it is durable."""
        run = self._run
        code, activation = run.launch.directory.code, run.state.mail.open.get(effect.activation_key)
        if code is None or activation is None:
            return False
        template: Any = code.executors.get(getattr(activation.node.spec, "executor", ""))
        return getattr(template, "side_effect", None) == "none"

    def execute_all(self, effects: list[engine.Effect]) -> None:
        """Execute the effects of durable events, in order."""
        alone = len(effects) == 1
        for effect in effects:
            if effect.__class__ is not _StartHandler:
                self._execute(effect)
            elif self._run.suspending is None:
                self.start_handler(cast("engine.StartHandler", effect), alone=alone)

    def _execute(self, effect: engine.Effect) -> None:
        if isinstance(effect, engine.Release):
            self._dispatcher.cancel_work(effect.activation_key)
            if self._children is not None:
                self._children.release(effect.activation_key)
            trial = self._run.launch.trial
            if trial is not None and effect.activation_key not in self._run.state.open:
                trial.end(effect.activation_key)
        elif isinstance(effect, engine.StartCall):
            if self._run.suspending is None:
                self._begin(effect)
        elif isinstance(effect, engine.StartChild | engine.PassOn):
            self._execute_for_child(effect)
            if isinstance(effect, engine.PassOn) and self._run.suspending is None:
                handler = engine.answered_handler(self._run.state, effect)
                if handler is not None:
                    self.start_handler(handler)
        else:
            self._dispatcher.execute(effect)

    def _begin(self, effect: engine.StartCall) -> None:
        """Begin a call, unless it is answered from the record of another run."""
        if effect.call_id not in self._run.state.calls:
            return
        recorded = self._run.recorded
        if recorded is None or not recorded.serves_call(effect.call_id):
            self._dispatcher.execute(effect)

    def start_handler(self, effect: engine.StartHandler, *, alone: bool = False) -> None:
        """Begin a handler, unless a record says what comes of it."""
        recorded = self._run.recorded
        if recorded is None or not recorded.serves_work(effect.activation_key):
            self._dispatcher.handlers.begin(effect, alone=alone)

    def _execute_for_child(self, effect: engine.StartChild | engine.PassOn) -> None:
        if self._children is None:
            return
        if isinstance(effect, engine.PassOn):
            self._children.pass_on(effect)
        elif self._run.suspending is None:
            self._children.start(effect.activation_key)


def _harmless_call(state: engine.RunState, effect: Any) -> engine.OpenCall | None:
    """Return the call that an effect begins, if its function has no effect."""
    if effect.__class__ is not _StartCall:
        return None
    call = state.calls.get(effect.call_id)
    if call is None or call.kind != "tool":
        return None
    activation = call.activation
    node, record = activation.node, activation.tool
    if node.plain_call and record is not None and record.info is not None:
        return call if record.info.side_effect == "none" else None
    kind = node.kind
    if kind.sends or record is None or record.call.id != effect.call_id:
        record = None if kind.sends else kind.call(activation, effect.call_id)
    is_harmless = record is not None and record.info is not None and record.info.side_effect == "none"
    return call if is_harmless else None
