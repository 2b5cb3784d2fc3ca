"""Children in flight of a run that is forked: their logs, up to the last offset that the parent's log names.

A parent's log names its child by the requests that the child asked and that were answered (page 002 §9). A
child that the log does not name is begun anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET

from agentflow.errors import OffsetTrimmed, RunGone, RunNotFound
from agentflow.events import catalogue as ev
from agentflow.events.envelope import decode
from agentflow.events.log import EventLog

if TYPE_CHECKING:
    from agentflow.engine.child_runs import ChildRequest
    from agentflow.events.envelope import Event

__all__ = ["answers_of_child", "fork_of_child", "origin_of_child"]

_PAGE_EVENTS = 1_000
_REQUESTS = (
    ev.ApprovalRequested,
    ev.ApprovalGranted,
    ev.ApprovalDenied,
    ev.InputRequested,
    ev.InputReceived,
    ev.InputCancelled,
)
_ASKED = (ev.ApprovalRequested, ev.InputRequested)
_ANSWERS = (ev.ApprovalGranted, ev.ApprovalDenied, ev.InputReceived)
_RESTS = (ev.WorkflowWaiting, ev.WorkflowPaused)


async def origin_of_child(
    log: EventLog, parent: ev.WorkflowStarted, request: ChildRequest
) -> ev.ForkOrigin | None:
    """Return where the child of a forked parent goes on; None if it is begun anew."""
    from agentflow.engine.ids import named

    if parent.forked_from is UNSET:
        return None
    source, key = parent.forked_from, request.options["parent_activation"]
    events = await _events(log, source.workflow_id, source.offset)
    named_there = {
        (event.data.request_id, isinstance(event.data, _ASKED))
        for event in events
        if isinstance(event.data, _REQUESTS) and event.data.activation == key
    }
    if not named_there:  # the source may be a fork whose child was forked from that of its own source
        begin = events[0].data if events else None
        return await origin_of_child(log, begin, request) if isinstance(begin, ev.WorkflowStarted) else None
    child_id = named("wf_", "child", source.workflow_id, key, request.attempt)
    events = await _events(log, child_id)
    offset = _last_named(events, named_there, await _base(log, events))
    return None if offset is None else ev.ForkOrigin(workflow_id=child_id, offset=offset)


async def answers_of_child(log: EventLog, request: ChildRequest) -> dict[str, Any]:
    """Return the answers, by request, that the base of a forked parent has for the child that it begins. The
    child of its source may not have had them when the parent was forked: they were on their way."""
    key = request.options["parent_activation"]
    base = await _base(log, await _events(log, request.parent.workflow_id, 1))
    return {data.request_id: data for data in base if isinstance(data, _ANSWERS) and data.activation == key}


async def _base(log: EventLog, events: list[Event[Any]]) -> list[Any]:
    """Return the events that a fork begins with; none if the run is no fork."""
    from agentflow.records.read_model import base_of_fork
    from agentflow.runtime.log_replay import decode_base

    saved = events[1].data if len(events) > 1 else None
    if not isinstance(saved, ev.SystemStateSaved) or saved.kind != "fork_base":
        return []
    return [event.data for event in decode_base(await base_of_fork(log, saved.ref))]


def _last_named(events: list[Event[Any]], named: set[tuple[str, bool]], base: list[Any]) -> int | None:
    """Return the offset of the last event that asks or closes one of these requests, each (id, is asked).

    Of a question it is that of the rest behind it, because the child has told its parent no sooner. What is
    asked in the base of a fork is not asked again in its log.
    """
    last = None
    if any(isinstance(data, _ASKED) and (data.request_id, True) in named for data in base):
        last = events[1]
    for event in events:
        data = event.data
        if isinstance(data, _REQUESTS) and (data.request_id, isinstance(data, _ASKED)) in named:
            last = event
    if last is None or (isinstance(last.data, _REQUESTS) and not isinstance(last.data, _ASKED)):
        return None if last is None else last.offset
    behind = (e.offset for e in events[last.offset :] if isinstance(e.data, _RESTS))
    return next(behind, last.offset)


async def _events(log: EventLog, workflow_id: str, upto: int | None = None) -> list[Event[Any]]:
    """Return the events of a run up to an offset; none if it is not there."""
    found: list[Event[Any]] = []
    try:
        while rows := await log.read(workflow_id, len(found), _PAGE_EVENTS):
            found += [decode(row.body) for row in rows if upto is None or row.offset <= upto]
            if upto is not None and rows[-1].offset >= upto:
                break
    except (RunNotFound, RunGone, OffsetTrimmed):
        return []
    return found


def fork_of_child(
    begin: ev.WorkflowStarted, origin: ev.ForkOrigin, started: ev.WorkflowStarted
) -> ev.WorkflowStarted:
    """Return the first event of the fork of a child that began with `begin`; `started`: of a new one."""
    return msgspec.structs.replace(
        begin,
        forked_from=origin,
        parent=started.parent,
        options=started.options,
        budget=started.budget,
        deadline=started.deadline,
        by=started.by,
        edits=UNSET,
        idempotency_key=UNSET,
        body_hash=UNSET,
    )
