-- The SQLite event log, version 1. Times are microseconds since the epoch.

-- One row a run: what lists and fencing need without reading an event.
CREATE TABLE run (
    id INTEGER PRIMARY KEY AUTOINCREMENT, -- stands for the workflow id in every other table, never given twice
    workflow_id TEXT NOT NULL UNIQUE,
    name TEXT,
    definition_hash TEXT NOT NULL,
    state TEXT NOT NULL,
    labels TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    last_offset INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    owner TEXT
) STRICT;

CREATE INDEX run_by_time ON run (created_at, workflow_id);

CREATE INDEX run_by_state ON run (state, created_at, workflow_id);

CREATE INDEX run_by_name ON run (name, created_at, workflow_id);

CREATE TABLE event_type (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE
) STRICT;

-- `seq` is the order of commits over all runs; `body` is the JSON of the event, never changed.
CREATE TABLE event (
    seq INTEGER PRIMARY KEY,
    run INTEGER NOT NULL,
    offset INTEGER NOT NULL,
    ts INTEGER NOT NULL,
    type INTEGER NOT NULL,
    body BLOB NOT NULL,
    UNIQUE (run, offset)
) STRICT;

CREATE INDEX event_by_type ON event (type, seq);

CREATE INDEX event_by_time ON event (ts);

CREATE TABLE blob (
    name TEXT PRIMARY KEY,
    body BLOB NOT NULL
) STRICT;

CREATE TABLE definition (
    hash TEXT PRIMARY KEY,
    source BLOB NOT NULL
) STRICT;
