"""Large values in every event log: stored once, named on the wire, whole for readers (page 000 §1, §7)."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from agentflow.events.blobs import LARGE_BYTES, blob_hash
from agentflow.events.catalogue import ToolCallCompleted, ToolCallStarted, WorkflowStepCompleted
from agentflow.events.envelope import Event, StoredEvent, encode, stored_event
from agentflow.events.log import Append, EventLog
from agentflow.events.open import open_log
from tests.conformance.test_event_log import BACK_ENDS, T0, batch, meta, url_of

LARGE = {"text": "é" * LARGE_BYTES, "small": 1}
NAME = blob_hash(msgspec.json.encode(LARGE["text"]))


@pytest.fixture(params=BACK_ENDS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
async def log(kind: str, tmp_path: Path):
    log = open_log(url_of(kind, tmp_path))
    yield log
    await log.close()


def output(offset: int, value: object, workflow_id: str = "wf_a") -> StoredEvent:
    """A `tool.call_completed` with this output."""
    data = ToolCallCompleted(
        step_id="s",
        activation="/s#0",
        tool_call_id="call_1",
        tool_name="t",
        duration_ms=1,
        success=True,
        status="success",
        output=value,
        output_size=1,
    )
    return sealed(offset, data, workflow_id)


def sealed(offset: int, data: ToolCallCompleted | ToolCallStarted, workflow_id: str = "wf_a") -> StoredEvent:
    event = Event(
        id="evt_1", offset=offset, timestamp="t", type=data.EVENT_TYPE, workflow_id=workflow_id, data=data
    )
    return stored_event(offset, T0 + offset, data.EVENT_TYPE, encode(event))


async def put(log: EventLog, *events: StoredEvent, workflow_id: str = "wf_a", state: str = "running") -> None:
    first = events[0].offset
    run = meta() if first == 0 else None
    await log.append(Append(workflow_id, 1, first, list(events), state, run))


async def end(log: EventLog, offset: int, workflow_id: str = "wf_a") -> None:
    await log.append(batch(workflow_id, offset, last_type="workflow.completed"))


async def test_a_large_value_is_whole_for_readers_and_named_on_the_wire(log: EventLog):
    event = output(0, LARGE)
    await put(log, event)
    (read,) = await log.read("wf_a")
    assert read == event
    assert msgspec.json.decode(read.body)["data"]["output"] == LARGE
    wire = msgspec.json.decode(read.wire)["data"]["output"]
    size = len(msgspec.json.encode(LARGE["text"]))
    assert wire == {"text": {"$blob": NAME, "size": size, "type": "json"}, "small": 1}
    assert await log.get_blob(NAME) == msgspec.json.encode(LARGE["text"])
    (found,) = (await log.query()).items
    assert found.event == event
    assert (await log.run("wf_a")).bytes == len(event.body)


async def test_a_value_of_256_kib_is_not_large(log: EventLog):
    value = "x" * (LARGE_BYTES - 2)  # with its quotes
    await put(log, output(0, value))
    (read,) = await log.read("wf_a")
    assert not read.blobs
    assert read.wire == read.body
    assert output(0, value + "x").blobs


async def test_a_value_that_looks_like_a_reference_stays_what_it_is(log: EventLog):
    forged = {"$blob": NAME, "size": 5, "type": "json"}
    await put(log, output(0, {"real": LARGE, "forged": forged}))
    await put(log, output(1, forged))
    first, second = await log.read("wf_a")
    assert msgspec.json.decode(first.body)["data"]["output"] == {"real": LARGE, "forged": forged}
    assert msgspec.json.decode(second.body)["data"]["output"] == forged


async def test_a_text_that_must_be_one_is_whole_on_the_wire(log: EventLog):
    event = msgspec.structs.replace(output(0, "x"))
    data = msgspec.json.decode(event.body, type=Event[ToolCallCompleted]).data
    long = msgspec.structs.replace(data, tool_name="n" * (LARGE_BYTES + 1))
    await put(log, sealed(0, long))
    (read,) = await log.read("wf_a")
    assert len(read.text) < 1_000
    assert read.wire == read.body
    assert msgspec.json.decode(read.wire, type=Event[ToolCallCompleted]).data == long


async def test_a_payload_is_stored_once(kind: str, tmp_path: Path):
    if kind == "memory":
        pytest.skip("it has no files")
    payload = list(range(200_000))  # 1.3 MB
    log = open_log(url_of(kind, tmp_path))
    await put(log, *(output(n, {"n": n, "payload": payload}) for n in range(4)))
    await put(log, output(4, {"payload": payload}))
    await put(log, output(0, payload, "wf_b"), workflow_id="wf_b")
    await log.close()
    assert bytes_in(tmp_path) < 1.1 * len(msgspec.json.encode(payload)) + 150_000


async def test_memory_holds_a_payload_once():
    log = open_log("memory:")
    await put(log, output(0, LARGE), output(1, LARGE))
    await put(log, output(0, LARGE, "wf_b"), workflow_id="wf_b")
    held = [e.blobs[0].data for run in ("wf_a", "wf_b") for e in await log.read(run)]
    held += [item.event.blobs[0].data for item in (await log.query()).items]
    assert len({id(data) for data in held}) == 1
    await log.close()


async def test_blobs_go_with_the_last_run_that_holds_them(log: EventLog):
    for run in ("wf_a", "wf_b"):
        await put(log, output(0, LARGE, run), workflow_id=run)
        await end(log, 1, run)
    await log.delete("wf_a", T0)
    assert (await log.sweep(1 << 62)).blobs == 0
    assert msgspec.json.decode((await log.read("wf_b"))[0].body)["data"]["output"] == LARGE
    await log.delete("wf_b", T0)
    assert (await log.sweep(1 << 62)).blobs == 1
    assert await log.get_blob(NAME) is None


async def test_trimming_keeps_the_blobs_of_the_events_that_stay(log: EventLog):
    if not log.trims:
        pytest.skip("it trims no runs")
    other = {"other": "o" * (LARGE_BYTES + 5)}
    await put(log, output(0, LARGE), output(1, other))
    await put(log, output(2, LARGE))
    await end(log, 3)
    await log.trim("wf_a", 2)
    assert (await log.sweep(1 << 62)).blobs == 1
    read = await log.read("wf_a", 2)
    assert msgspec.json.decode(read[0].body)["data"]["output"] == LARGE
    assert await log.get_blob(NAME) is not None


def bytes_in(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


async def test_a_batch_that_is_trimmed_in_part_stays_readable(log: EventLog):
    if not log.trims:
        pytest.skip("it trims no runs")
    await put(log, output(0, LARGE), output(1, 1))
    await end(log, 2)
    before = await log.read("wf_a")
    await log.trim("wf_a", 1)
    await log.sweep(1 << 62)
    assert await log.read("wf_a", 1) == before[1:]


# -- values that an earlier batch holds

SHARED = {"rows": [f"row {n} of a table" for n in range(300)]}


async def test_trimming_stores_the_values_that_what_stays_names(log: EventLog, kind: str):
    if not log.trims:
        pytest.skip("it trims no runs")
    await put(log, output(0, SHARED))
    await put(log, output(1, SHARED), output(2, {"own": SHARED["rows"][:100]}))
    await put(log, output(3, SHARED), output(4, {"own": SHARED["rows"][:100]}))
    await end(log, 5)
    before = await log.read("wf_a")
    for earliest in (1, 3, 4):
        await log.trim("wf_a", earliest)
        await log.sweep(1 << 62)
        assert await log.read("wf_a", earliest) == before[earliest:]


async def test_batches_share_their_values(tmp_path: Path):
    import sqlite3

    log = open_log(f"sqlite:{tmp_path}/log.db")
    value = {"noise": [hash(str(n)) for n in range(2_000)]}
    for n in range(20):
        await put(log, output(n, value))
    assert [msgspec.json.decode(e.body)["data"]["output"] for e in await log.read("wf_a")] == [value] * 20
    assert len((await log.query()).items) == 20
    await log.close()
    reopened = open_log(f"sqlite:{tmp_path}/log.db")
    await put(reopened, output(20, value))  # it does not know what was written before
    assert len(await reopened.read("wf_a", 19)) == 2
    await reopened.close()
    with sqlite3.connect(tmp_path / "log.db") as db:
        sizes = [size for (size,) in db.execute("SELECT length(body) FROM batch ORDER BY seq")]
    assert max(sizes[1:20]) < 300 < sizes[0]


async def test_a_damaged_blob_quarantines_the_runs_that_hold_it(kind: str, tmp_path: Path):
    if kind == "memory":
        pytest.skip("it has no files")
    from agentflow.errors import LogCorrupt

    url = url_of(kind, tmp_path)
    log = open_log(url)
    await put(log, output(0, LARGE))
    await put(log, output(0, 1, "wf_b"), workflow_id="wf_b")
    await log.close()
    damage_blob(kind, tmp_path)
    log = open_log(url)
    with pytest.raises(LogCorrupt):
        await log.read("wf_a")
    assert len(await log.read("wf_b")) == 1
    page = await log.query()
    assert page.damaged == ("wf_a",)
    assert [item.workflow_id for item in page.items] == ["wf_b"]
    if kind == "sqlite":  # a run of `file:` stays quarantined until the store is opened again
        await put(log, output(0, LARGE, "wf_c"), workflow_id="wf_c")  # the value heals the blob
        assert len(await log.read("wf_a")) == 1
    await log.close()


def damage_blob(kind: str, directory: Path) -> None:
    if kind == "file":
        (file,) = (directory / "log" / "blobs").iterdir()
        file.write_bytes(file.read_bytes().replace(b"\xc3", b"\xc2", 1))
        return
    import sqlite3

    with sqlite3.connect(directory / "log.db") as db:
        (body,) = db.execute("SELECT body FROM blob").fetchone()
        db.execute("UPDATE blob SET body = ?", (body.replace(b"\xc3", b"\xc2", 1),))
    db.close()


def test_the_step_that_completes_names_the_value_too():
    """The innermost large value is the blob, whatever holds it."""
    data = WorkflowStepCompleted(
        step_id="s",
        activation="/s#0",
        step_index=0,
        attempt=1,
        path="",
        visit=0,
        clock=0,
        duration_ms=1,
        output={"wrapped": LARGE},
        output_size=1,
    )
    event = Event(id="evt_1", offset=0, timestamp="t", type=data.EVENT_TYPE, workflow_id="wf_a", data=data)
    (blob,) = stored_event(0, T0, data.EVENT_TYPE, encode(event)).blobs
    assert blob.name == NAME


async def test_a_store_of_the_schema_before_is_read_and_goes_on_with_blobs(tmp_path: Path):
    import sqlite3
    from contextlib import closing

    path = tmp_path / "log.db"
    log = open_log(f"sqlite:{path}")
    await put(log, output(0, SHARED))
    await log.close()
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA user_version = 5")  # whose batches name neither blobs nor each other
    log = open_log(f"sqlite:{path}", read_only=True)
    before = await log.read("wf_a")
    await log.close()
    log = open_log(f"sqlite:{path}")
    await put(log, output(1, SHARED), output(2, LARGE))
    assert (await log.read("wf_a"))[:1] == before
    assert msgspec.json.decode((await log.read("wf_a", 2))[0].body)["data"]["output"] == LARGE
    await log.close()
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (6,)
