"""The event log in a directory of NDJSON files (page 000 §7): to be read with any tool, for one process."""

from agentflow.events.segments.log import SegmentLog

__all__ = ["SegmentLog"]
