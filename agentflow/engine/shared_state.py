"""The state that executors keep: private to each of them, and shared by all (page 002 §7).

Shared values have versions: each commit is one number higher than the last. A handler reads the values as
they were at the version at which it began. Only as many versions of a key are kept as handlers at work can
still read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from agentflow.definition.failure import ErrorInfo
from agentflow.definition.reducers import REDUCERS

if TYPE_CHECKING:
    from agentflow.engine.graph import Graph

__all__ = ["SharedState", "SharedView", "Writes"]


class _Version(NamedTuple):
    number: int
    step: str
    value: Any


class Writes(NamedTuple):
    """What one activation wrote, in order: its step, its place among others of a barrier, (key, value)."""

    step: str
    visit: int
    path: str
    pairs: tuple[tuple[str, Any], ...]

    def last(self) -> dict[str, Any]:
        """Return the last value of each key."""
        return dict(self.pairs)


class SharedView(Mapping[str, Any]):
    """The shared values as they were at one version, read only."""

    def __init__(self, state: SharedState, version: int) -> None:
        self._state = state
        self._version = version

    def __getitem__(self, key: str) -> Any:
        return self._state.at(key, self._version)

    def __iter__(self) -> Iterator[str]:
        for key in self._state.values:
            if key in self:
                yield key

    def __len__(self) -> int:
        return sum(1 for _ in self)


class SharedState:
    """Private values by step, shared values by key, and the writes that wait for the next barrier."""

    __slots__ = ("_history", "_reducers", "pending", "private", "values", "version")

    def __init__(self, graph: Graph) -> None:
        declared = graph.workflow.shared
        self.values: dict[str, Any] = {
            key: spec.default for key, spec in declared.items() if spec.default is not None
        }
        """As committed."""
        self.version = 0
        """How often something was committed."""
        self.private: dict[str, dict[str, Any]] = {}
        self.pending: list[Writes] = []
        self._reducers = {key: spec.reducer for key, spec in declared.items() if spec.reducer is not None}
        self._history: dict[str, list[_Version]] = {
            key: [_Version(0, "", value)] for key, value in self.values.items()
        }

    def at(self, key: str, version: int) -> Any:
        """Return a value as it was at a version. KeyError: it had none."""
        for found in reversed(self._history[key]):
            if found.number <= version:
                return found.value
        raise KeyError(key)

    def conflict_with_commits(self, writes: Writes, base: int) -> ErrorInfo | None:
        """Return the conflict of writes that began at version `base` with what others committed since."""
        for key, value in writes.last().items():
            latest = self._latest(key)
            if latest is None or key in self._reducers or latest.number <= base:
                continue
            if latest.step != writes.step and not _is_same(latest.value, value):
                return _conflict(key, (latest.step, writes.step))
        return None

    def conflict_at_barrier(self) -> ErrorInfo | None:
        """Return the first key without a reducer to which two steps want to give different values."""
        if not self.pending:
            return None
        wanted: dict[str, dict[str, Any]] = {}
        for writes in self._in_order():
            for key, value in writes.last().items():
                if key not in self._reducers:
                    wanted.setdefault(key, {})[writes.step] = value
        for key, by_step in wanted.items():
            values = list(by_step.values())
            if any(not _is_same(value, values[0]) for value in values[1:]):
                return _conflict(key, tuple(by_step))
        return None

    def commit_pending(self, bases: Iterable[int]) -> ErrorInfo | None:
        """Commit the writes that waited for the barrier, in the order of step ids."""
        if not self.pending:
            return None
        found = self._in_order()
        self.pending = []
        return self._commit(found, bases)

    def commit(self, writes: Writes, bases: Iterable[int]) -> ErrorInfo | None:
        """Commit what one activation wrote; `bases` are the versions that handlers at work began with."""
        return self._commit([writes], bases)

    def edit(self, key: str, value: Any) -> None:
        """Set a value of a fork, as if it had been there from the start."""
        self.values[key] = value
        self._history[key] = [_Version(0, "", value)]

    def next_version(self) -> int:
        """Return the version that the barrier will have."""
        return self.version + bool(self.pending)

    def _in_order(self) -> list[Writes]:
        return sorted(self.pending, key=lambda w: (w.step, w.path, w.visit))

    def _commit(self, found: list[Writes], bases: Iterable[int]) -> ErrorInfo | None:
        if not found:
            return None
        self.version += 1
        problem: ErrorInfo | None = None
        for writes in found:
            for key, update in writes.pairs:
                try:
                    value = self._reduced(key, update)
                except Exception as error:
                    problem = problem or _unfit(key, writes.step, error)
                    continue
                self._put(key, _Version(self.version, writes.step, value), bases)
        return problem

    def _reduced(self, key: str, update: Any) -> Any:
        name = self._reducers.get(key)
        return update if name is None else REDUCERS[name](self.values.get(key), update)

    def _put(self, key: str, version: _Version, bases: Iterable[int]) -> None:
        self.values[key] = version.value
        history = self._history.setdefault(key, [])
        if history and history[-1].number == version.number:
            history[-1] = version
            return
        oldest = min(bases, default=version.number)
        while len(history) > 1 and history[1].number <= oldest:
            del history[0]
        if history and oldest >= version.number:
            history.clear()
        history.append(version)

    def _latest(self, key: str) -> _Version | None:
        history = self._history.get(key)
        return history[-1] if history else None


def _is_same(a: Any, b: Any) -> bool:
    """Return whether two JSON values are equal; True is not 1, as it is to Python."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, dict) and isinstance(b, dict):
        ours, theirs = cast("dict[str, Any]", a), cast("dict[str, Any]", b)
        return ours.keys() == theirs.keys() and all(_is_same(ours[key], theirs[key]) for key in ours)
    if isinstance(a, list) and isinstance(b, list):
        items, others = cast("list[Any]", a), cast("list[Any]", b)
        return len(items) == len(others) and all(map(_is_same, items, others))
    return a == b


def _conflict(key: str, steps: tuple[str, ...]) -> ErrorInfo:
    names = " and ".join(steps)
    return ErrorInfo(
        category="agent",
        code="state_conflict",
        message=(
            f'{names} gave the shared key "{key}" different values, and it has no reducer;'
            " declare one: add_shared(key, type, reducer=…)"
        ),
        details={"key": key, "steps": list(steps)},
    )


def _unfit(key: str, step: str, error: Exception) -> ErrorInfo:
    return ErrorInfo(
        category="agent",
        code="reducer_failed",
        message=f'the reducer of the shared key "{key}" refuses what {step} wrote: {type(error).__name__}',
        details={"key": key, "steps": [step]},
    )
