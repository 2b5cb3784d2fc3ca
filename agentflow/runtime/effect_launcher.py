"""EffectLauncher: executes the effects of durable batches by the dispatcher, child runs and the crash ledger.

Used by one RunSupervisor alone. It decides nothing; while the run is being parked no call begins. Only a call
of a function without effects may begin before its batch is durable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentflow import engine

if TYPE_CHECKING:
    from agentflow.runtime.call_dispatcher import CallDispatcher
    from agentflow.runtime.run_outbox import Batch
    from agentflow.runtime.run_stepper import RunStepper
    from agentflow.runtime.supervised_children import SupervisedChildren

__all__ = ["EffectLauncher"]

_MAX_AHEAD = 32


class EffectLauncher:
    """`children` is None where no child run can be started."""

    __slots__ = ("_children", "_dispatcher", "_run")

    def __init__(
        self, run: RunStepper, dispatcher: CallDispatcher, children: SupervisedChildren | None
    ) -> None:
        self._run = run
        self._dispatcher = dispatcher
        self._children = children

    def launch_early(self, batch: Batch) -> None:
        """Begin the calls of this batch whose functions have no effect, once it is appended.

        A crash before it is durable repeats them, which `side_effect: none` allows (page 000 §6). Everything
        else waits: a model call, any other function, a reply and the end of the run follow what is durable.
        At most 32 batches are on their way to the log meanwhile, none while the store takes nothing.
        """
        run = self._run
        if run.outbox.stalled or len(run.outbox) > _MAX_AHEAD or run.suspending is not None:
            return
        launch = run.launch
        if run.recorded is not None or launch.trial is not None or not launch.accepted.done():
            return
        early = [e for e in batch.effects if isinstance(e, engine.StartCall) and self._is_harmless(e)]
        if early:
            batch.effects = [effect for effect in batch.effects if effect not in early]
            for effect in early:
                self._dispatcher.execute(effect)

    def _is_harmless(self, effect: engine.StartCall) -> bool:
        call = self._run.state.calls.get(effect.call_id)
        if call is None or call.kind != "tool" or call.activation.node.kind.sends:
            return False
        record = call.activation.node.kind.call(call.activation, effect.call_id)
        return record is not None and record.info is not None and record.info.side_effect == "none"

    def execute(self, effect: engine.Effect) -> None:
        """Execute the effect of a durable event."""
        if isinstance(effect, engine.StartCall | engine.StartHandler):
            if self._run.suspending is None:
                self._begin(effect)
        elif isinstance(effect, engine.StartChild | engine.PassOn):
            self._execute_for_child(effect)
        else:
            self._dispatcher.execute(effect)
            if isinstance(effect, engine.Release):
                self._released(effect.activation_key)

    def _begin(self, effect: engine.StartCall | engine.StartHandler) -> None:
        """Begin a call or a handler, unless it is answered from the record of another run."""
        if isinstance(effect, engine.StartHandler):
            self.start_handler(effect)
            return
        if effect.call_id not in self._run.state.calls:
            return
        recorded = self._run.recorded
        if recorded is None or not recorded.serves_call(effect.call_id):
            self._dispatcher.execute(effect)

    def start_handler(self, effect: engine.StartHandler) -> None:
        """Begin a handler, unless a record says what comes of it."""
        recorded = self._run.recorded
        if recorded is None or not recorded.serves_work(effect.activation_key):
            self._dispatcher.execute(effect)

    def _execute_for_child(self, effect: engine.StartChild | engine.PassOn) -> None:
        if self._children is None:
            return
        if isinstance(effect, engine.PassOn):
            self._children.pass_on(effect)
        elif self._run.suspending is None:
            self._children.start(effect.activation_key)

    def _released(self, activation_key: str) -> None:
        if self._children is not None:
            self._children.release(activation_key)
        trial = self._run.launch.trial
        if trial is not None and activation_key not in self._run.state.open:
            trial.end(activation_key)
