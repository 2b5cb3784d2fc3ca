"""From a URL to the log behind it (page 000 §7)."""

from __future__ import annotations

from agentflow.errors import ConfigurationError
from agentflow.events.log import EventLog
from agentflow.events.memory import MemoryLog

__all__ = ["open_log"]


def open_log(url: str) -> EventLog:
    """The log that `url` names: `memory:`, `sqlite:FILE` or `file:DIR`. Blocks for some ms.

    `sqlite:runs.db` is relative to the working directory, `sqlite:/var/runs.db` and `sqlite:///var/runs.db`
    are the same absolute file. ConfigurationError when there can be no store of that name.
    """
    scheme, colon, rest = url.partition(":")
    if colon and scheme == "memory":
        if rest:
            raise ConfigurationError(f"{url!r}: nothing may follow `memory:`")
        return MemoryLog()
    if colon and scheme in ("sqlite", "file"):
        path = rest[2:] if rest.startswith("///") else rest
        if not path or path.startswith(("//", ":")):
            raise ConfigurationError(
                f"{url!r} names no path", hint=f"write {scheme}:PATH or {scheme}:///PATH"
            )
        # Imported when wanted: a log in memory needs neither.
        if scheme == "sqlite":
            from agentflow.events.sqlite import SqliteLog

            return SqliteLog(path)
        from agentflow.events.segments import SegmentLog

        return SegmentLog(path)
    raise ConfigurationError(
        f"{url!r} is not the URL of a store",
        hint="the known stores are `memory:`, `sqlite:FILE` and `file:DIR`",
    )
