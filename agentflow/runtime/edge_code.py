"""Predicates, selections and reducers that users wrote: called in a thread, for a limited time (page 002 §4).

Code that does not return in time fails the step that waits for it; the thread is left behind. Its results are
recorded as routes, so that replay calls nothing.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from agentflow.definition.failure import describe_exception
from agentflow.engine.judging import has_code
from agentflow.executors.callables import Callables
from agentflow.executors.payloads import Payloads
from agentflow.threads import in_thread

if TYPE_CHECKING:
    from agentflow.engine import Outgoing
    from agentflow.engine.graph import Node
    from agentflow.engine.shared_state import SharedState

__all__ = ["EDGE_CODE_LIMIT_S", "call_in_time", "evaluate", "has_code", "is_stale"]

EDGE_CODE_LIMIT_S = 5.0
"""How long the code on the edges of a node may take for the messages of one activation, and its reducers."""

T = TypeVar("T")


async def call_in_time(function: Callable[[], T], name: str) -> T:
    """Call a function of users in a thread. Raises TimeoutError if it takes longer than EDGE_CODE_LIMIT_S."""
    async with asyncio.timeout(EDGE_CODE_LIMIT_S):
        return await in_thread(function, name)


async def evaluate(
    node: Node, messages: Sequence[Outgoing], code: Callables, shared: SharedState
) -> tuple[int, tuple[Outgoing, ...]]:
    """Return the version of the shared state that the code read, and the messages with its results.

    A text in place of a result says why there is none: the code raised or did not return in time. Its edge is
    the one that fails.
    """
    version = shared.version
    if not messages or not has_code(node):
        return version, tuple(messages)
    values = dict(shared.values) if _reads_shared(node, code) else {}
    view = _Shared(values, code.payloads)
    done: list[Outgoing] = []
    state = [_Progress()]

    def work() -> None:
        for one in messages:
            state[0] = _Progress()
            done.append(_judged(node, one, code, view, state[0]))

    try:
        await call_in_time(work, f"edges of {node.id}")
    except TimeoutError:
        stuck, found = state[0], list(done)
        edge, why = stuck.edge or "", f"it did not return within {EDGE_CODE_LIMIT_S:g} s"
        for one in messages[len(found) :]:
            verdicts, selections = {**stuck.verdicts, edge: why}, {**stuck.selections, edge: why}
            found.append(msgspec.structs.replace(one, verdicts=verdicts, selections=selections))
        return version, tuple(found)
    return version, tuple(done)


def is_stale(node: Node, code: Callables, shared: SharedState, version: int) -> bool:
    """Return whether results that were found at a version have to be found anew: the shared state has been
    written since, and a predicate reads it."""
    return shared.version != version and _reads_shared(node, code)


class _Progress:
    """How far the code on the edges of one message has come: for its caller, if it does not end in time."""

    def __init__(self) -> None:
        self.edge: str | None = None
        self.verdicts: dict[str, bool | str] = {}
        self.selections: dict[str, Any] = {}


class _Shared(Mapping[str, Any]):
    """The committed shared state as predicates see it: values are decoded when they are read."""

    def __init__(self, values: Mapping[str, Any], payloads: Payloads) -> None:
        self._values = values
        self._payloads = payloads

    def __getitem__(self, key: str) -> Any:
        return self._payloads.unpack(self._values[key])

    def __iter__(self) -> Any:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


def _reads_shared(node: Node, code: Callables) -> bool:
    names = [edge.predicate for route in node.routes for edge in route.edges if edge.predicate is not None]
    return any(_takes_shared(code.predicates[name]) for name in names if name in code.predicates)


def _judged(
    node: Node, message: Outgoing, code: Callables, shared: Mapping[str, Any], progress: _Progress
) -> Outgoing:
    """Return a message with the results of all predicates and selections that its routing asks for."""
    from agentflow.engine import acceptance, offered

    verdicts, selections = progress.verdicts, progress.selections
    values: list[Any] = []

    def data() -> Any:
        if not values:
            values.append(code.payloads.decode(message.type, message.payload, message.bases))
        return values[0]

    for route in node.routes:
        for edge in route.edges:
            name = edge.predicate
            if name is None or acceptance(edge, message) is not None:
                continue
            progress.edge = edge.name
            verdicts[edge.name] = found = _verdict(code, name, data, shared)
            if found is True and route.kind == "switch":
                break
    for name, targets in offered(node, message).items():
        if targets:
            progress.edge = name
            selections[name] = _selected(code, name, data, targets)
    if not verdicts and not selections:
        return message
    return msgspec.structs.replace(message, verdicts=verdicts, selections=selections)


def _verdict(code: Callables, name: str, data: Callable[[], Any], shared: Mapping[str, Any]) -> bool | str:
    predicate = code.predicates.get(name)
    if predicate is None:
        return f"no predicate is registered as {name}"
    try:
        found: Any = predicate(data(), shared) if _takes_shared(predicate) else predicate(data())
    except BaseException as error:
        return f"{name} raised {describe_exception(error)}"
    if inspect.isawaitable(found):
        _close(found)
        return f"{name} is asynchronous; a predicate must be a plain function"
    return bool(found)


def _selected(code: Callables, name: str, data: Callable[[], Any], targets: list[str]) -> list[str] | str:
    selection = code.selections.get(name)
    if selection is None:
        return f"no selection is registered as {name}"
    try:
        found: Any = selection(data(), list(targets))
    except BaseException as error:
        return f"{name} raised {describe_exception(error)}"
    if inspect.isawaitable(found):
        _close(found)
        return f"{name} is asynchronous; a selection must be a plain function"
    if isinstance(found, str) or not hasattr(found, "__iter__"):
        return f"{name} returned {found!r}, and must return a list of node ids"
    chosen = list(found)
    wrong = next((item for item in chosen if not isinstance(item, str)), None)
    return chosen if wrong is None else f"{name} returned {wrong!r}, which is no node id"


def _close(found: Any) -> None:
    close = getattr(found, "close", None)
    if callable(close):
        close()  # a coroutine that never ran


@lru_cache(maxsize=4_096)
def _takes_shared(predicate: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(predicate).parameters.values()
    except (TypeError, ValueError):
        return False
    positional = [
        p
        for p in parameters
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty
    ]
    return len(positional) >= 2
