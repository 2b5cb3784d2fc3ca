"""Frames: the values that expressions see on a path, and on the child paths below it (page 003 §3).

A child path reads the values of its parent as they were when it was opened, and writes into a frame of its
own. Nothing is copied at an opening: while child paths are open, the parent keeps the old value of what it
changes, and drops it when no child path can read it any more.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, Literal

__all__ = ["ABSENT", "Frame", "Root"]

Root = Literal["nodes", "steps", "globals", "last"]

ABSENT: Final[Any] = object()
"""What `get` gives for a name that has no value."""


class Frame:
    """The values of one path by root and name: `nodes`, `steps`, `globals`, and what was said `last`.

    `is_isolated`: a subgraph, whose nodes see those of their own graph alone; global values belong to the
    run.
    """

    __slots__ = (
        "_kept",
        "_opened",
        "_openings",
        "_since",
        "globals",
        "is_isolated",
        "last",
        "nodes",
        "parent",
        "steps",
    )

    def __init__(self, parent: Frame | None = None, since: int = 0, *, is_isolated: bool = False) -> None:
        self.nodes: dict[str, Any] = {}
        self.steps: dict[str, Any] = {}
        self.globals: dict[str, Any] = {}
        self.last: dict[str, Any] = {}
        self.parent = parent
        self.is_isolated = is_isolated
        self._since = since
        """The opening of the parent as of which this one reads it."""
        self._opened: dict[int, None] = {}
        """The openings that child paths can still read, oldest first."""
        self._openings = 0
        self._kept: dict[tuple[Root, str], list[tuple[int, Any]]] = {}
        """By name: (opening, what it had then); readers of earlier openings see it too."""

    @property
    def is_read(self) -> bool:
        """True while child paths are open that read it: a write keeps the old value then."""
        return bool(self._opened)

    def open(self) -> int:
        """Let child paths read the values as they are now; return the number of this opening."""
        self._openings += 1
        self._opened[self._openings] = None
        return self._openings

    def close(self, opening: int) -> None:
        """Let go of what was kept for the child paths of this opening."""
        self._opened.pop(opening, None)
        if not self._opened:
            self._kept.clear()

    def set(self, root: Root, name: str, value: Any) -> None:
        """Write a value, and keep the old one while a child path may read it."""
        values: dict[str, Any] = getattr(self, root)
        if self._opened:
            latest, oldest = next(reversed(self._opened)), next(iter(self._opened))
            kept = self._kept.setdefault((root, name), [])
            if not kept or kept[-1][0] < latest:
                kept.append((latest, values.get(name, ABSENT)))
            while kept[0][0] < oldest:
                del kept[0]
        values[name] = value

    def get(self, root: Root, name: str) -> Any:
        """Return a value as this path sees it, or ABSENT."""
        frame: Frame | None = self
        since: int | None = None
        while frame is not None:
            found = frame._own(root, name, since)
            if found is not ABSENT or (frame.is_isolated and root != "globals"):
                return found
            since, frame = frame._since, frame.parent
        return ABSENT

    def names(self, root: Root) -> Iterator[str]:
        """Yield every name that may have a value here, each once."""
        seen: set[str] = set()
        frame: Frame | None = self
        while frame is not None:
            for name in getattr(frame, root):  # a name that was kept for children has a value too
                if name not in seen:
                    seen.add(name)
                    yield name
            frame = None if frame.is_isolated and root != "globals" else frame.parent

    def all(self, root: Root) -> dict[str, Any]:
        """Return all values of a root in a dict of their own: for expressions that read them by computed
        names."""
        return {name: value for name in self.names(root) if (value := self.get(root, name)) is not ABSENT}

    def _own(self, root: Root, name: str, since: int | None) -> Any:
        if since is not None and self._kept:
            for opening, value in self._kept.get((root, name), ()):
                if opening >= since:
                    return value
        return getattr(self, root).get(name, ABSENT)
