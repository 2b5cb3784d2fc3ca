"""The rules of page 002 as rows: a graph, a message, what comes of it; a crash behind every event."""
