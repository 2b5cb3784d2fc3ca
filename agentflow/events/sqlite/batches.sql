-- What version 5 has beside version 4; `schema.sql` says what it is for. The table `event` is dropped when its rows
-- are in `batch`.

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

CREATE TABLE place (
    run INTEGER NOT NULL,
    first INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    PRIMARY KEY (run, first)
) STRICT, WITHOUT ROWID;

CREATE TABLE block (
    stop INTEGER PRIMARY KEY,
    start INTEGER NOT NULL,
    batches INTEGER NOT NULL, -- without those that were swept
    types BLOB NOT NULL,
    since INTEGER NOT NULL,
    until INTEGER NOT NULL,
    crc INTEGER NOT NULL
) STRICT
