"""The event log in one SQLite file (page 000 §7): the default store."""

from agentflow.events.sqlite.log import SqliteLog
from agentflow.events.sqlite.readonly import ReadOnlySqliteLog

__all__ = ["ReadOnlySqliteLog", "SqliteLog"]
