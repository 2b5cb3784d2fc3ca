"""Structs of query parameters, from which the OpenAPI document is made."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from agentflow.records.fields import Count, Name, Offset, Position, RunId, Text
from agentflow.records.trace import TraceClock

__all__ = [
    "AllEventsQuery",
    "CompareQuery",
    "DefinitionGraphQuery",
    "DefinitionQuery",
    "EventsQuery",
    "ExpandQuery",
    "GraphQuery",
    "ListQuery",
    "OffsetQuery",
    "RequestQuery",
    "StepQuery",
    "SubmitQuery",
    "TraceQuery",
]


class _Query(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Query parameters: text on the wire."""


class SubmitQuery(_Query, frozen=True, kw_only=True):
    """`wait`: seconds to wait for the run to come to rest before the answer."""

    wait: Annotated[float, Meta(ge=0, le=600)] | None = None


class ListQuery(_Query, frozen=True, kw_only=True):
    """`state` may name several with commas; `label` is KEY=VALUE; `prefix` is of the id; times are RFC 3339,
    `until` excluded."""

    state: Text | None = None
    name: Text | None = None
    label: Text | None = None
    prefix: Text | None = None
    since: Text | None = None
    until: Text | None = None
    limit: Count = 50
    cursor: Text | None = None
    order: Literal["asc", "desc"] = "desc"
    full: bool = False
    usage: bool = False


class OffsetQuery(_Query, frozen=True, kw_only=True):
    """`offset`: the state as of this event."""

    offset: Offset | None = None


class ExpandQuery(_Query, frozen=True, kw_only=True):
    """`expand`: values that are stored beside the log are put in their place."""

    expand: bool = False


class CompareQuery(_Query, frozen=True, kw_only=True, rename={"with_": "with"}):
    """`with`: the run to compare with."""

    with_: RunId


class TraceQuery(_Query, frozen=True, kw_only=True):
    """`clock`: times of the wall clock, or counted events."""

    clock: TraceClock = "wall"


class StepQuery(_Query, frozen=True, kw_only=True):
    """Which execution of a step; the last one that fits."""

    iteration: Offset | None = None
    attempt: Annotated[int, Meta(ge=1, le=2**31)] | None = None


class GraphQuery(_Query, frozen=True, kw_only=True):
    """The drawing's language; `layout` gives the positions of nodes and edges as JSON. `states`: the drawing
    shows the states of the steps."""

    format: Literal["json", "layout", "mermaid", "dot", "svg"] = "json"
    states: bool = False


class RequestQuery(_Query, frozen=True, kw_only=True):
    """`kind`: step, tool, human or input; `open=false` lists the closed ones. `since`, RFC 3339: of all runs,
    those that were closed since then; by default within the last day, and 200 at most."""

    kind: Literal["step", "tool", "human", "input"] | None = None
    open: bool = True
    since: Text | None = None


class DefinitionGraphQuery(_Query, frozen=True, kw_only=True):
    """`version`: the newest one when absent. `format`: as of the graph of a run."""

    version: Name | None = None
    format: Literal["json", "layout", "mermaid", "dot", "svg"] = "layout"


class DefinitionQuery(_Query, frozen=True, kw_only=True):
    """`version`: the newest one when absent."""

    version: Name | None = None


class EventsQuery(_Query, frozen=True, kw_only=True):
    """Where a stream begins, what it shows and when it ends (page 000 §8.1). `deltas`: the text of
    model calls while they are made comes between the events."""

    offset: Position | None = None
    after: Position | None = None
    from_: Position | None = msgspec.field(default=None, name="from")
    type: Text | None = None
    view: Literal["workflow", "all"] = "all"
    step: Text | None = None
    since: Text | None = None
    until: Text | None = None
    follow: bool = True
    limit: Annotated[int, Meta(ge=1, le=2**53)] | None = None
    timeout: Annotated[float, Meta(gt=0, le=86_400)] | None = None
    expand: bool = False
    heartbeat: Text | None = None
    format: Literal["ndjson", "sse"] | None = None
    named: bool = True
    deltas: bool = False


class AllEventsQuery(_Query, frozen=True, kw_only=True):
    """The events of all runs in the order of their commits; `cursor` continues behind an earlier one."""

    cursor: Text | None = None
    type: Text | None = None
    since: Text | None = None
    until: Text | None = None
    follow: bool = True
    limit: Annotated[int, Meta(ge=1, le=2**53)] | None = None
    timeout: Annotated[float, Meta(gt=0, le=86_400)] | None = None
    heartbeat: Text | None = None
    format: Literal["ndjson", "sse"] | None = None
    named: bool = True
