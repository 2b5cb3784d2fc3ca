-- The SQLite event log, version 6. Times are microseconds since the epoch; `crc` is described in `checks`.

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
    owner TEXT,
    parent TEXT, -- the workflow id of the run that this one is a step of
    earliest_offset INTEGER NOT NULL DEFAULT 0, -- events before it were trimmed
    bytes INTEGER NOT NULL DEFAULT 0, -- of the bodies of its events
    last_seq INTEGER NOT NULL DEFAULT 0, -- the newest of its batches
    crc INTEGER NOT NULL DEFAULT 0 -- of what does not change with every batch: see `checks`
) STRICT;

CREATE INDEX run_by_time ON run (created_at, workflow_id);

CREATE INDEX run_by_state ON run (state, created_at, workflow_id);

CREATE INDEX run_by_name ON run (name, created_at, workflow_id);

CREATE TABLE event_type (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    crc INTEGER NOT NULL
) STRICT;

-- One row a batch. `seq` counts the events of all runs in the order of their commits, so a batch of three takes
-- three numbers: its own is that of its first event. A batch of more than 256 events takes several rows, and batches
-- of one run that are committed together share one, of about 64 KiB of text. The row of
-- the greatest `seq` is never deleted, so that no number is given twice: cursors of consumers rest on it.
--
-- A run's batches are a chain: `run.last_seq` names the newest one, `prev` the one before (0: none). A commit
-- writes one page of this table and one of `run`; the other two tables follow later.
CREATE TABLE batch (
    seq INTEGER PRIMARY KEY,
    run INTEGER NOT NULL,
    first INTEGER NOT NULL, -- offset of the first event
    count INTEGER NOT NULL,
    prev INTEGER NOT NULL,
    ts INTEGER NOT NULL, -- of the last event
    types BLOB NOT NULL, -- their numbers, as MessagePack
    crc INTEGER NOT NULL,
    body BLOB NOT NULL -- see `packing`
) STRICT;

-- Where the batches of a run lie; of all batches before the end of the last block.
CREATE TABLE place (
    run INTEGER NOT NULL,
    first INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    PRIMARY KEY (run, first)
) STRICT, WITHOUT ROWID;

-- Batches that follow each other: what a query may pass over, and how many rows there must be. `stop` is the
-- `seq` behind the last one and the `start` of the next block. Times are those of the events.
CREATE TABLE block (
    stop INTEGER PRIMARY KEY,
    start INTEGER NOT NULL,
    batches INTEGER NOT NULL, -- without those that were swept
    types BLOB NOT NULL,
    since INTEGER NOT NULL,
    until INTEGER NOT NULL,
    crc INTEGER NOT NULL
) STRICT;

CREATE TABLE blob (
    name TEXT PRIMARY KEY,
    body BLOB NOT NULL
) STRICT;

CREATE TABLE definition (
    hash TEXT PRIMARY KEY,
    source BLOB NOT NULL,
    crc INTEGER NOT NULL
) STRICT;

-- Where each consumer of all events stands.
CREATE TABLE consumer (
    name TEXT PRIMARY KEY,
    position TEXT NOT NULL,
    crc INTEGER NOT NULL
) STRICT;

-- What is left of a run that was deleted. Its id is never used again.
CREATE TABLE tombstone (
    workflow_id TEXT PRIMARY KEY,
    state TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    ended_at INTEGER NOT NULL,
    deleted_at INTEGER NOT NULL,
    crc INTEGER NOT NULL
) STRICT;

-- Runs that are gone but whose events may still take space; nobody sees those.
CREATE TABLE doomed (
    run INTEGER PRIMARY KEY
) STRICT;

-- Which blobs and definitions a run names.
CREATE TABLE reference (
    run INTEGER NOT NULL,
    name TEXT NOT NULL,
    PRIMARY KEY (run, name)
) STRICT, WITHOUT ROWID;

CREATE INDEX reference_by_name ON reference (name);

-- What a blob names itself: that with which a fork begins holds events.
CREATE TABLE inner_reference (
    blob TEXT NOT NULL,
    name TEXT NOT NULL,
    PRIMARY KEY (blob, name)
) STRICT, WITHOUT ROWID;

-- When a blob or definition was last put: a young one may not have been named by an event yet.
CREATE TABLE stored (
    name TEXT PRIMARY KEY,
    at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Caches of what the events say; `crc` is that of `body`.
CREATE TABLE snapshot (
    run INTEGER NOT NULL,
    kind TEXT NOT NULL,
    offset INTEGER NOT NULL,
    crc INTEGER NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (run, kind, offset)
) STRICT;

-- One row, written to see whether the store takes writes.
CREATE TABLE probe (
    id INTEGER PRIMARY KEY CHECK (id = 0),
    at INTEGER NOT NULL
) STRICT;

-- The labels of runs, so that a list by label reads no other run.
CREATE TABLE label (
    name TEXT NOT NULL,
    value TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    workflow_id TEXT NOT NULL,
    PRIMARY KEY (name, value, created_at, workflow_id)
) STRICT, WITHOUT ROWID
