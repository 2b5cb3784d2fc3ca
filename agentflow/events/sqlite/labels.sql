-- What version 4 has beside version 3: the labels of runs, so that a list by label reads no other run.

CREATE TABLE IF NOT EXISTS label (
    name TEXT NOT NULL,
    value TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    workflow_id TEXT NOT NULL,
    PRIMARY KEY (name, value, created_at, workflow_id)
) STRICT, WITHOUT ROWID;
