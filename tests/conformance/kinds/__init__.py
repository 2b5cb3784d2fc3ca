"""Conformance of the node kinds: the rows of page 003 §4, each whole and after a crash at every event."""
