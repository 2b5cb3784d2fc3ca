-- What version 5 has instead of the table `event`: one row a batch. `seq` counts the events of all runs in the
-- order of their commits, so a batch of three takes three numbers: its own is that of its first event. The row of
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
) STRICT
