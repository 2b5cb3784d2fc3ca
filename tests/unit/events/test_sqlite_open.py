"""Opening a store: what is refused is refused with a hint, and nothing is left half made."""

from __future__ import annotations

import asyncio
import sqlite3
import stat

import pytest

from agentflow.errors import AgentflowError, ConfigurationError
from agentflow.events.sqlite import SqliteLog, database
from agentflow.events.sqlite.database import network_file_system


def open_and_close(path):
    async def both():
        await SqliteLog(path).close()

    asyncio.run(both())


def refused(path, match):
    with pytest.raises(ConfigurationError, match=match) as caught:
        SqliteLog(path)
    assert caught.value.hint
    return caught.value


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_store_is_for_its_owner_alone(tmp_path):
    path = tmp_path / "data" / "agentflow" / "runs.db"

    async def check():
        log = SqliteLog(path)
        await log.put_blob(b"x")
        for file in path.parent.iterdir():
            assert mode(file) == 0o600, file
        await log.close()

    asyncio.run(check())
    assert mode(path.parent) == mode(path.parent.parent) == 0o700
    assert [p.name for p in path.parent.iterdir()] == ["runs.db"]  # closing folds the WAL in


def test_a_directory_that_is_there_keeps_its_mode(tmp_path):
    directory = tmp_path / "shared"
    directory.mkdir(mode=0o755)
    open_and_close(directory / "runs.db")
    assert mode(directory) == 0o755


def test_the_settings_are_those_that_durability_rests_on(tmp_path):
    db = database.open_database(tmp_path / "runs.db")
    found = {
        name: db.execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("journal_mode", "synchronous", "wal_autocheckpoint", "user_version", "application_id")
    }
    db.close()
    assert found == {
        "journal_mode": "wal",
        "synchronous": 2,
        "wal_autocheckpoint": 0,
        "user_version": database._SCHEMA_VERSION,
        "application_id": 0x61666C77,
    }


def test_a_file_that_is_no_database_is_left_as_it_is(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("these are my notes, not a database")
    refused(path, "not an SQLite database")
    assert path.read_text() == "these are my notes, not a database"


def test_a_database_of_another_program_is_left_as_it_is(tmp_path):
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE mine (x)")
    db.close()
    before = path.read_bytes()
    refused(path, "another program")
    assert path.read_bytes() == before


def test_a_store_of_a_later_release_is_left_as_it_is(tmp_path):
    path = tmp_path / "runs.db"
    open_and_close(path)
    db = sqlite3.connect(path)
    db.execute("PRAGMA user_version = 99")
    db.close()
    before = path.read_bytes()
    refused(path, r"newer agentflow \(schema 99")
    assert path.read_bytes() == before


def test_a_store_of_an_earlier_release_is_migrated(tmp_path, monkeypatch):
    path = tmp_path / "runs.db"
    open_and_close(path)
    version = database._SCHEMA_VERSION
    monkeypatch.setattr(database, "_SCHEMA_VERSION", version + 2)
    monkeypatch.setattr(
        database,
        "_MIGRATIONS",
        {
            version: lambda db: db.execute("CREATE TABLE added (x)"),
            version + 1: lambda db: db.execute("ALTER TABLE added ADD COLUMN y"),
        },
    )
    open_and_close(path)
    db = sqlite3.connect(path)
    assert db.execute("PRAGMA user_version").fetchone() == (version + 2,)
    db.execute("SELECT x, y FROM added")
    db.close()


def test_a_migration_that_fails_changes_nothing(tmp_path, monkeypatch):
    path = tmp_path / "runs.db"
    open_and_close(path)
    version = database._SCHEMA_VERSION
    monkeypatch.setattr(database, "_SCHEMA_VERSION", version + 2)
    monkeypatch.setattr(
        database,
        "_MIGRATIONS",
        {
            version: lambda db: db.execute("CREATE TABLE added (x)"),
            version + 1: lambda db: db.execute("ALTER TABLE no_such ADD y"),
        },
    )
    with pytest.raises(AgentflowError):
        SqliteLog(path)
    db = sqlite3.connect(path)
    assert db.execute("PRAGMA user_version").fetchone() == (version,)
    assert db.execute("SELECT count(*) FROM sqlite_schema WHERE name = 'added'").fetchone() == (0,)
    db.close()


def test_a_path_below_a_file_and_a_directory_are_refused(tmp_path):
    (tmp_path / "file").write_text("")
    refused(tmp_path / "file" / "runs.db", "cannot be opened")
    refused(tmp_path, "cannot be opened")


def test_a_new_store_that_cannot_be_set_durable_leaves_no_file(tmp_path, monkeypatch):
    path = tmp_path / "runs.db"

    def refuse(db, path):
        raise ConfigurationError("no WAL here", hint="another disk")

    monkeypatch.setattr(database, "_set_durable", refuse)
    refused(path, "no WAL here")
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_header_is_said(tmp_path):
    path = tmp_path / "runs.db"
    open_and_close(path)
    data = bytearray(path.read_bytes())
    data[100:200] = b"\xff" * 100
    path.write_bytes(data)
    with pytest.raises(AgentflowError, match="damaged"):
        SqliteLog(path)


MOUNTS = """\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
40 22 0:35 / /mnt/nas rw shared:9 - nfs4 nas:/export rw
41 22 0:36 / /mnt/nas/local rw - xfs /dev/vdb rw
42 22 0:37 / /mnt/my\\040share rw - cifs //host/share rw
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/home/me/runs.db", None),
        ("/mnt/nas/runs.db", "nfs4"),
        ("/mnt/nas/local/runs.db", None),
        ("/mnt/nasty/runs.db", None),
        ("/mnt/my share/a/runs.db", "cifs"),
    ],
)
def test_network_file_systems_are_known_by_the_mount_table(path, kind, tmp_path):
    assert network_file_system(type(tmp_path)(path), MOUNTS) == kind


def test_opening_a_store_writes_nothing_to_it(tmp_path):
    path = tmp_path / "runs.db"
    open_and_close(path)
    db = sqlite3.connect(path)
    counter = db.execute("PRAGMA data_version").fetchone()
    before = path.read_bytes()
    open_and_close(path)
    assert db.execute("PRAGMA data_version").fetchone() == counter
    db.close()
    assert path.read_bytes() == before


def test_a_schema_that_cannot_be_read_is_said(tmp_path):
    """Not even SQLite's message is text then."""
    path = tmp_path / "runs.db"
    open_and_close(path)
    data = path.read_bytes()
    path.write_bytes(data.replace(b"CREATE TABLE batch (", b"CREATE TABLE \xef\xa0tch (", 1))
    with pytest.raises(AgentflowError):
        SqliteLog(path)
