"""The child process of a local model: how it starts, dies, is replaced, and never outlives its parent."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from agentflow.models import ModelError
from agentflow.models.local.process import Endpoint, LocalServer
from agentflow.models.local.weights import require

from . import local_model

pytestmark = [pytest.mark.local_model, pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")]

PARENT = """
import asyncio, sys
from pathlib import Path
from agentflow.models.local.process import LocalServer

async def main():
    server = LocalServer(Path(sys.argv[1]), "m", threads=1, context=256)
    await server.ensure()
    print(server.pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return require(local_model.NAME, local_model.environment(tmp_path_factory.mktemp("data")))


@pytest_asyncio.fixture
async def server(weights: Path) -> AsyncIterator[LocalServer]:
    server = LocalServer(weights, "m", threads=1, context=256)
    yield server
    await server.aclose()


async def request(endpoint: Endpoint, key: str | None) -> bytes:
    """The status line and body of GET /v1/models."""
    host, _, port = endpoint.url.removeprefix("http://").removesuffix("/v1").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    authorization = f"Authorization: Bearer {key}\r\n" if key else ""
    writer.write(f"GET /v1/props HTTP/1.1\r\nHost: x\r\n{authorization}Connection: close\r\n\r\n".encode())
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer


async def gone(pid: int) -> None:
    """Returns when the process has ended, whoever its parent is."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(descriptor, ended.set)
    try:
        async with asyncio.timeout(10):
            await ended.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


def shown(pid: int | None) -> str:
    """What any user of the machine may read of a process: its arguments, and its environment beside."""
    return Path(f"/proc/{pid}/cmdline").read_text() + Path(f"/proc/{pid}/environ").read_text()


async def test_one_process_for_all_and_its_key_is_nowhere(server: LocalServer) -> None:
    first, second = await asyncio.gather(server.ensure(), server.ensure())
    assert first == second
    pid = server.pid
    assert pid is not None
    assert first.key not in shown(pid)
    assert b" 401 " in (await request(first, None)).split(b"\r\n")[0]
    assert b" 401 " in (await request(first, "wrong")).split(b"\r\n")[0]
    assert b" 401 " not in (await request(first, first.key)).split(b"\r\n")[0]
    await server.aclose()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert server.pid is None


async def test_provider_keys_do_not_reach_the_child(
    server: LocalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-not-for-children")
    await server.ensure()
    assert "sk-not-for-children" not in shown(server.pid)


async def test_a_killed_process_is_replaced(server: LocalServer) -> None:
    first = await server.ensure()
    pid = server.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    assert "SIGKILL" in str(await server.died())
    second = await server.ensure()
    assert (second.number, server.pid != pid) == (first.number + 1, True)
    assert second.key != first.key


async def test_a_file_that_is_no_model(tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(b"GGUF" + bytes(100))
    server = LocalServer(path, "bad", threads=1)
    for _ in range(5):
        with pytest.raises(ModelError) as caught:
            await server.ensure()
        assert (caught.value.info.category, caught.value.info.retryable) == ("agent", False)
        assert "did not start: exit status 1" in str(caught.value)
    with pytest.raises(ModelError, match="was started 5 times within 60 s"):
        await server.ensure()
    await server.aclose()


async def test_cancelling_the_start_leaves_no_process(weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    spawn = asyncio.create_subprocess_exec

    async def spy(*command: str, **options: object) -> asyncio.subprocess.Process:
        process = await spawn(*command, **options)  # type: ignore[arg-type]
        started.set_result(process.pid)
        return process

    monkeypatch.setattr(asyncio, "create_subprocess_exec", spy)
    server = LocalServer(weights, "m", threads=1, context=256)
    task = asyncio.create_task(server.ensure())
    pid = await started
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await gone(pid)
    await server.aclose()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
async def test_the_child_dies_with_its_parent(weights: Path, how: signal.Signals) -> None:
    parent = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        PARENT,
        str(weights),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert parent.stdout is not None
    child = None
    while (line := await parent.stdout.readline()) and child is None:
        if line.strip().isdigit():
            child = int(line)
            break
    assert child is not None
    parent.send_signal(how)
    await parent.wait()
    await gone(child)
