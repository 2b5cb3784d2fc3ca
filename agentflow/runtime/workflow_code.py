"""The Python code of workflows: what a Runtime knows of it, and what it evaluates of it for the engine.

Code belongs to a graph by name and hash, so that a run goes on with the code that it began with, in this
process or in another one that has registered the same workflow.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from agentflow.definition.loader import Definition
from agentflow.errors import ConfigurationError
from agentflow.executors.callables import Callables
from agentflow.executors.calls import in_thread
from agentflow.executors.context import Sent
from agentflow.executors.payloads import Payloads

if TYPE_CHECKING:
    from agentflow.engine import Outgoing
    from agentflow.engine.graph import Edge, Node
    from agentflow.engine.shared_state import SharedView

__all__ = ["CodeTable", "WorkflowWithCode", "encode_input", "judge", "judged"]

_MAX_RUNS = 100_000


@runtime_checkable
class WorkflowWithCode(Protocol):
    """A workflow that was built in Python: its graph, and the code that the names in it mean."""

    @property
    def definition(self) -> Definition: ...

    @property
    def callables(self) -> Callables: ...


class CodeTable:
    """The code that a Runtime knows, by name and hash of the graph, and by run."""

    def __init__(self) -> None:
        self._by_graph: dict[tuple[str, str], Callables] = {}
        self._by_run: OrderedDict[str, Callables] = OrderedDict()

    def add(self, workflow: WorkflowWithCode) -> Callables:
        """Register a workflow and those that are nested in it. Raises ConfigurationError if one of its
        reducers has the name of another one."""
        from agentflow.engine.reducers import register

        definition, code = workflow.definition, workflow.callables
        for name, fn in code.reducers.items():
            try:
                register(name, fn)
            except ValueError as error:
                raise ConfigurationError(str(error), hint="give the reducer another name") from None
        self._by_graph[definition.name, definition.ir_hash] = code
        for nested in code.workflows.values():
            if isinstance(nested, WorkflowWithCode) and nested.callables is not code:
                self.add(nested)
        return code

    def begin(self, workflow_id: str, code: Callables) -> None:
        """Keep the code of one run: another workflow with an equal graph may have other functions."""
        self._by_run[workflow_id] = code
        if len(self._by_run) > _MAX_RUNS:
            self._by_run.popitem(last=False)

    def end(self, workflow_id: str) -> None:
        """Let go of the code of a run that has ended."""
        self._by_run.pop(workflow_id, None)

    def find(self, name: str | None, ir_hash: str, workflow_id: str | None = None) -> Callables | None:
        """Return the code of a run, or of a graph; None if it is not registered here."""
        known = None if workflow_id is None else self._by_run.get(workflow_id)
        return known or self._by_graph.get((name or "", ir_hash))


def encode_input(code: Callables, value: Any) -> tuple[Any, str]:
    """Return the JSON of an input and its type tag. Raises MessageNotEncodable."""
    payload = code.payloads.encode(value)
    return payload.value, payload.tag


# -- predicates and selections ----------------------------------------------------------------------


class Shared(Mapping[str, Any]):
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


def judged(
    node: Node,
    sent: Sent,
    code: Callables,
    shared: Mapping[str, Any] | SharedView,
    judging: Judging | None = None,
) -> Outgoing:
    """Return a message with the results of all predicates and selections that its routing asks for.

    The text that stands for a result says why the code raised. They run here, once; replay reads the routes.
    """
    from agentflow.engine import Outgoing

    payload = sent.payload
    plain = Outgoing(type=payload.tag, payload=payload.value, target=sent.target, bases=payload.bases)
    return judge(node, plain, code, shared, judging)


class Judging:
    """How far the judgement of a message has come: for its caller, if it does not end in time."""

    def __init__(self) -> None:
        self.edge: str | None = None
        self.verdicts: dict[str, bool | str] = {}
        self.selections: dict[str, Any] = {}


async def judged_aside(
    node: Node, sent: Sequence[Sent], code: Callables, shared: Mapping[str, Any], limit: float
) -> tuple[Outgoing, ...]:
    """Return messages as `judged` does, in a worker thread: code of users must not hold the event loop up.

    Code that does not return within `limit` seconds gives a result that fails the routing and names its edge.
    """
    from agentflow.engine import Outgoing

    done: list[Outgoing] = []
    state = [Judging()]

    def work() -> None:
        for one in sent:
            state[0] = Judging()
            done.append(judged(node, one, code, shared, state[0]))

    try:
        async with asyncio.timeout(limit):
            await in_thread(work)
    except TimeoutError:
        stuck = state[0]
        why = f"it did not return within {limit:g} s"
        found = [*done]
        for one in sent[len(found) :]:
            name, payload = stuck.edge or "", one.payload
            found.append(
                Outgoing(
                    type=payload.tag,
                    payload=payload.value,
                    target=one.target,
                    bases=payload.bases,
                    verdicts={**stuck.verdicts, name: why},
                    selections={**stuck.selections, name: why},
                )
            )
        return tuple(found)
    return tuple(done)


def reads_shared(node: Node, code: Callables) -> bool:
    """Return whether a predicate on an edge of a node reads the shared state."""
    names = [edge.predicate for route in node.routes for edge in route.edges if edge.predicate is not None]
    return any(_takes_shared(code.predicates[name]) for name in names if name in code.predicates)


def judge(
    node: Node,
    plain: Outgoing,
    code: Callables,
    shared: Mapping[str, Any] | SharedView,
    judging: Judging | None = None,
) -> Outgoing:
    """Return a message of the engine as `judged` does one of a handler."""
    from agentflow.engine import Outgoing, acceptance, offered

    judging = judging or Judging()
    verdicts, selections = judging.verdicts, judging.selections
    values: list[Any] = []

    def data() -> Any:
        if not values:
            values.append(code.payloads.decode(plain.type, plain.payload, plain.bases))
        return values[0]

    view = Shared(shared, code.payloads)
    for route in node.routes:
        for edge in route.edges:
            name = edge.predicate
            if name is None or acceptance(edge, plain) is not None:
                continue
            judging.edge = edge.name
            verdicts[edge.name] = found = _verdict(code, edge, name, data, view)
            if found is True and route.kind == "switch":
                break
    for name, targets in offered(node, plain).items():
        if targets:
            judging.edge = name
            selections[name] = _selected(code, name, data, targets)
    if not verdicts and not selections:
        return plain
    return Outgoing(
        type=plain.type,
        payload=plain.payload,
        target=plain.target,
        bases=plain.bases,
        verdicts=verdicts,
        selections=selections,
    )


def _verdict(
    code: Callables, edge: Edge, name: str, data: Callable[[], Any], shared: Mapping[str, Any]
) -> bool | str:
    predicate = code.predicates.get(name)
    if predicate is None:
        return f"no predicate is registered as {name}"
    try:
        found: Any = predicate(data(), shared) if _takes_shared(predicate) else predicate(data())
    except Exception as error:
        return f"{name} raised {type(error).__name__}: {error}"
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
    except Exception as error:
        return f"{name} raised {type(error).__name__}: {error}"
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
