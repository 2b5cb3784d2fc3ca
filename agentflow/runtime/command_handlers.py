"""From a command to the events that carry it out, by the engine."""

from __future__ import annotations

from agentflow.engine import RunState, commands
from agentflow.engine.decisions import Decisions
from agentflow.runtime.messages import (
    Answer,
    Attach,
    Command,
    DecideRequest,
    Pause,
    Resume,
    RetryStep,
    Signal,
    Withdraw,
)

__all__ = ["check_offset", "decide_command"]


def check_offset(state: RunState, command: Command) -> None:
    """Raises `commands.Refused` when the log has gone on since whoever commands saw it."""
    last = state.next_offset - 1
    if command.expected_offset is not None and last > command.expected_offset:
        raise commands.Refused(
            "offset_mismatch",
            f"{state.workflow_id} is at offset {last}, not at {command.expected_offset}",
            last_offset=last,
        )


def decide_command(state: RunState, command: Command, now: int) -> Decisions:
    """The events of a command; none when its effect holds. Raises `commands.Refused`."""
    check_offset(state, command)
    match command:
        case Attach():
            return []
        case Pause():
            return commands.pause(
                state,
                now,
                reason=command.reason,
                detail=command.detail,
                in_flight=command.in_flight,
                by=command.by,
            )
        case Resume():
            return commands.resume(state, now, reason=command.reason, budget=command.budget, by=command.by)
        case RetryStep():
            return commands.retry(
                state, now, command.step_id, action=command.action, output=command.output, by=command.by
            )
        case DecideRequest():
            return commands.decide_request(
                state,
                request_id=command.request_id,
                step_id=command.step_id,
                granted=command.granted,
                by=command.by,
                via=command.via,
                reason=command.reason,
                digest=command.digest,
                claimed_actor=command.claimed_actor,
            )
        case Answer():
            return commands.answer(
                state,
                command.responses,
                by=command.by,
                via=command.via,
                claimed_actor=command.claimed_actor,
            )
        case Withdraw():
            return commands.withdraw(state, command.request_id, reason=command.reason, by=command.by)
        case Signal():
            return commands.signal(state, command.signal_id, command.name, command.data)
        case _:
            raise TypeError(f"{type(command).__name__} is not a command of the engine")
