-- The schema of version 4: one row for each event.

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
    owner TEXT,
    parent TEXT, -- the workflow id of the run that this one is a step of
    earliest_offset INTEGER NOT NULL DEFAULT 0, -- events before it were trimmed
    bytes INTEGER NOT NULL DEFAULT 0 -- of the bodies of its events
, crc INTEGER NOT NULL DEFAULT 0) STRICT;

CREATE INDEX run_by_time ON run (created_at, workflow_id);

CREATE INDEX run_by_state ON run (state, created_at, workflow_id);

CREATE INDEX run_by_name ON run (name, created_at, workflow_id);

CREATE TABLE event_type (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE
, crc INTEGER NOT NULL DEFAULT 0) STRICT;

CREATE TABLE event (
    seq INTEGER PRIMARY KEY,
    run INTEGER NOT NULL,
    offset INTEGER NOT NULL,
    ts INTEGER NOT NULL,
    type INTEGER NOT NULL,
    body BLOB NOT NULL, crc INTEGER NOT NULL DEFAULT 0,
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
, crc INTEGER NOT NULL DEFAULT 0) STRICT;

CREATE TABLE consumer (
    name TEXT PRIMARY KEY,
    position TEXT NOT NULL
, crc INTEGER NOT NULL DEFAULT 0) STRICT;

CREATE TABLE tombstone (
    workflow_id TEXT PRIMARY KEY,
    state TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    ended_at INTEGER NOT NULL,
    deleted_at INTEGER NOT NULL
, crc INTEGER NOT NULL DEFAULT 0) STRICT;

CREATE TABLE doomed (
    run INTEGER PRIMARY KEY
) STRICT;

CREATE TABLE reference (
    run INTEGER NOT NULL,
    name TEXT NOT NULL,
    PRIMARY KEY (run, name)
) STRICT, WITHOUT ROWID;

CREATE INDEX reference_by_name ON reference (name);

CREATE TABLE inner_reference (
    blob TEXT NOT NULL,
    name TEXT NOT NULL,
    PRIMARY KEY (blob, name)
) STRICT, WITHOUT ROWID;

CREATE TABLE stored (
    name TEXT PRIMARY KEY,
    at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE snapshot (
    run INTEGER NOT NULL,
    kind TEXT NOT NULL,
    offset INTEGER NOT NULL,
    crc INTEGER NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (run, kind, offset)
) STRICT;

CREATE TABLE probe (
    id INTEGER PRIMARY KEY CHECK (id = 0),
    at INTEGER NOT NULL
) STRICT;

CREATE TABLE label (
    name TEXT NOT NULL,
    value TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    workflow_id TEXT NOT NULL,
    PRIMARY KEY (name, value, created_at, workflow_id)
) STRICT, WITHOUT ROWID;
