-- What version 2 has beside version 1: consumers, retention, snapshots.

-- Where each consumer of all events stands.
CREATE TABLE consumer (
    name TEXT PRIMARY KEY,
    position TEXT NOT NULL
) STRICT;

-- What is left of a run that was deleted. Its id is never used again.
CREATE TABLE tombstone (
    workflow_id TEXT PRIMARY KEY,
    state TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    ended_at INTEGER NOT NULL,
    deleted_at INTEGER NOT NULL
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
