"""Streams of events: of one run, and of all of them (page 000 §8.1)."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from agentflow.server.event_streams import AllStream, RunStream, parse_place
from agentflow.server.frames import Frames, Ndjson, Sse
from agentflow.server.operations import Call, Operation, accept
from agentflow.server.positions import EventFilter, first_wanted, parse_heartbeat, parse_time, parse_types
from agentflow.server.problems import Refusal
from agentflow.server.queries import AllEventsQuery, EventsQuery
from agentflow.server.stream import Plan

__all__ = ["OPERATIONS"]

MEDIA = ("application/x-ndjson", "text/event-stream")


async def events(call: Call) -> Response:
    """Stream the events of a run."""
    query: EventsQuery = call.query
    frames = _frames(call, query.format, query.named)
    heartbeat, form = parse_heartbeat(query.heartbeat)
    wanted = EventFilter(
        types=parse_types(query.type),
        view=query.view,
        step=query.step,
        since=parse_time(query.since, "since"),
        until=parse_time(query.until, "until"),
    )
    workflow_id = call.id
    row = await call.service.log.run(workflow_id)
    first = first_wanted(
        offset=query.offset,
        after=query.after,
        from_=query.from_,
        last_event_id=call.header("last-event-id"),
        earliest=row.earliest_offset,
        last=row.last_offset,
    )
    headers = {
        "Agentflow-Earliest-Offset": str(row.earliest_offset),
        "Agentflow-Next-Offset": str(row.last_offset + 1),
        "Agentflow-State": row.state,
    }
    if row.ended and first > row.last_offset and isinstance(frames, Sse):
        # The one answer that keeps a browser from asking again.
        return Response(status_code=204, headers={"Cache-Control": "no-cache", **headers})
    plan = Plan(
        frames=frames,
        wanted=wanted,
        follow=query.follow,
        limit=query.limit,
        timeout=query.timeout,
        expand=query.expand,
        heartbeat=heartbeat,
        heartbeat_form=form,
        deltas=query.deltas,
        step=query.step,
    )
    call.service.streams.admit()
    return RunStream(call.service.streams, plan, headers, workflow_id, first)


async def all_events(call: Call) -> Response:
    """Stream the events of all runs, in the order of their commits."""
    query: AllEventsQuery = call.query
    heartbeat, form = parse_heartbeat(query.heartbeat)
    plan = Plan(
        frames=_frames(call, query.format, query.named),
        wanted=EventFilter(),
        follow=query.follow,
        limit=query.limit,
        timeout=query.timeout,
        heartbeat=heartbeat,
        heartbeat_form=form,
    )
    place = call.header("last-event-id") or query.cursor
    if place == "latest":
        place = f"{await call.service.log.latest_cursor()}.0"
    times = (parse_time(query.since, "since"), parse_time(query.until, "until"))
    types = parse_types(query.type)
    try:
        await call.service.log.query(types, since=times[0], until=times[1], cursor=_cursor(place), limit=1)
    except ValueError:
        raise Refusal("invalid_position", "the cursor is not one that a stream has given") from None
    call.service.streams.admit()
    return AllStream(call.service.streams, plan, parse_place(place), types, times)


def _cursor(place: str | None) -> str | None:
    return place.rpartition(".")[0] or None if place else None


def _frames(call: Call, format: str | None, named: bool) -> Frames:
    if format is None:
        format = "sse" if accept(call.header("accept"), MEDIA) == MEDIA[1] else "ndjson"
    return Sse(named) if format == "sse" else Ndjson()


def _stream(path: str, handler: Any, summary: str, answers: Any, **more: Any) -> Operation:
    return Operation(
        method="GET",
        path=path,
        handler=handler,
        summary=summary,
        tag="events",
        scope="read",
        answers=answers,
        produces=MEDIA,
        negotiates=True,
        **more,
    )


OPERATIONS = (
    _stream(
        "/workflows/{id}/events",
        events,
        "The events of a run, as they happen",
        {200: MEDIA, 204: None},
        query=EventsQuery,
        problems=(
            "invalid_position",
            "workflow_not_found",
            "offset_trimmed",
            "run_gone",
            "log_corrupt",
            "too_many_streams",
        ),
    ),
    _stream(
        "/events",
        all_events,
        "The events of all runs, as they happen",
        {200: MEDIA},
        query=AllEventsQuery,
        problems=("invalid_position", "too_many_streams"),
    ),
)
