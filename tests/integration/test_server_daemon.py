"""The daemon as a process: killed, drained, restarted, started twice, unsafely, or by systemd."""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from agentflow.client import Client, SyncClient, Unreachable
from agentflow.config import Config, ServerConfig
from agentflow.errors import ConfigurationError, StorageUnavailable
from agentflow.events.catalogue import TERMINAL_TYPES
from agentflow.server.daemon import Daemon
from tests.unit.server.daemon import document
from tests.unit.server.process import ROOT, Process, wait_until


@pytest.fixture
def daemon(tmp_path):
    with Process(tmp_path) as process:
        yield process


def agentflow(
    *words: str, env: dict[str, str] | None = None, cwd: Path = ROOT
) -> subprocess.CompletedProcess[str]:
    """The command line, in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "agentflow", *words],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=50,
        env={**os.environ, "OTEL_SDK_DISABLED": "true", "PYTHONPATH": str(ROOT), **(env or {})},
    )


async def settle(client: Client, workflow_id: str, done: set[str]) -> str:
    """Bring a run to its end: a call of which nobody knows whether it happened is settled by looking."""
    while True:
        result = await client.rest(workflow_id)
        if result.state != "waiting":
            return result.state
        for request in await client.requests(workflow_id):
            key = request.subject["parameters"]["key"]
            answer = {"choice": "done", "output": {"touched": key}} if key in done else {"choice": "retry"}
            await client.answer(workflow_id, request.request_id, answer)


class TestKilled:
    @pytest.mark.parametrize("count", [60, pytest.param(200, marks=pytest.mark.slow)])
    async def test_under_load_nothing_is_lost_and_nothing_is_done_twice(self, daemon, count):
        """Each run has two effects; the daemon is killed twice while they are at work."""
        followed = 10
        steps = document("one touch", "slow", "two touch")
        async with Client(daemon.socket, reconnect_timeout=40) as client:
            ids = [f"wf_run{i}" for i in range(count)]
            await asyncio.gather(
                *(client.submit(steps, f"k{i}", workflow_id=run) for i, run in enumerate(ids))
            )

            began: set[str] = set()

            async def follow(run: str) -> list[int]:
                seen: list[int] = []
                async for event in client.events(run):
                    seen.append(event.offset)
                    began.add(run)
                return seen

            watched = ids[:: count // followed]
            followers = [asyncio.ensure_future(follow(run)) for run in watched]
            await asyncio.to_thread(wait_until, lambda: len(began) == followed)
            for least in (count // 10, count):
                await asyncio.to_thread(wait_until, lambda: len(daemon.effects()) >= least)  # noqa: B023
                await asyncio.to_thread(daemon.kill)
                await asyncio.to_thread(daemon.start)
            done: set[str] = set()

            async def finish(run: str) -> str:
                while True:
                    result = await client.rest(run)
                    done.update(daemon.effects())
                    if result.state != "waiting":
                        return result.state
                    await settle(client, run, done)

            assert set(await asyncio.gather(*(finish(run) for run in ids))) == {"completed"}
            effects = Counter(daemon.effects())
            assert effects == Counter(f"{name}-k{i}" for i in range(count) for name in ("one", "two"))
            for run, seen in zip(watched, await asyncio.gather(*followers), strict=True):
                record = await client.record(run)
                assert seen == list(range(record.last_offset + 1))
                lines = [event.type async for event in client.events(run, follow=False)]
                assert [t for t in lines if t in TERMINAL_TYPES] == [lines[-1]] == ["workflow.completed"]
        assert "Traceback" not in daemon.errors()

    def test_a_stale_socket_is_replaced(self, daemon):
        daemon.kill()
        assert (daemon.folder / "s").exists()
        daemon.start()
        with SyncClient(daemon.socket) as client:
            assert client.health().status == "ok"


class TestDrained:
    async def test_runs_are_parked_and_go_on(self, daemon):
        steps = document("one touch", *["slow"] * 15, "two touch")
        async with Client(daemon.socket, reconnect_timeout=40) as client:
            runs = [await client.submit(steps, f"k{i}") for i in range(30)]
            asking = await client.submit("tests/integration/support/approval.yaml")
            assert (await asking.result()).state == "waiting"
            streamed: list[str] = []

            async def read() -> None:
                path = f"/workflows/{runs[-1].workflow_id}/events"
                async with client._transport.stream(path, query={}, timeout=30) as response:
                    streamed.extend([line async for line in response.aiter_lines()])

            reading = asyncio.ensure_future(read())
            await asyncio.to_thread(wait_until, lambda: len(daemon.effects()) >= 30)
            began = time.monotonic()
            daemon.signal(signal.SIGTERM)
            assert await asyncio.to_thread(daemon.wait) == 0
            assert time.monotonic() - began < 30
            await reading  # the stream ended in order, without a terminal event
            assert '"workflow.paused"' in streamed[-1]
            assert '"reason":"drain"' in streamed[-1]
            with pytest.raises(Unreachable):
                await client.version()
            await asyncio.to_thread(daemon.start)
            states = await asyncio.gather(*(run.result() for run in runs))
            assert {result.state for result in states} == {"completed"}
            assert Counter(daemon.effects()) == Counter(
                f"{n}-k{i}" for i in range(30) for n in ("one", "two")
            )
            assert (await asking.result()).state == "waiting"
            types = [event.type async for event in runs[-1].events()]
            assert types.count("workflow.paused") == types.count("workflow.resumed") == 1

    def test_the_verb_drains(self, daemon):
        done = agentflow("drain", "--url", daemon.socket)
        assert (done.returncode, done.stderr) == (0, "")
        assert daemon.wait() == 0
        assert not (daemon.folder / "s").exists()

    def test_a_second_signal_stops_at_once(self, daemon):
        with SyncClient(daemon.socket) as client:
            client.submit(document("linger 30"), "x")
            wait_until(lambda: (daemon.folder / "lingers").exists())
            daemon.signal(signal.SIGTERM)
            wait_until(lambda: client.health().status == "draining")
            began = time.monotonic()
            daemon.signal(signal.SIGTERM)
            assert daemon.wait() == 128 + signal.SIGTERM
            assert time.monotonic() - began < 15  # it would linger for 30 s
        assert "stopped at once" in daemon.errors()

    def test_what_takes_too_long_is_left_in_the_log(self, daemon):
        with SyncClient(daemon.socket) as client:
            run = client.submit(document("linger 100"), "x")
            wait_until(lambda: (daemon.folder / "lingers").exists())
            daemon.signal(signal.SIGINT)
            began = time.monotonic()
            assert daemon.wait() == 0
            assert time.monotonic() - began < 15
            daemon.start()
            result = run.result()
            assert result.state == "waiting"
            (request,) = client.requests(run.workflow_id)
            assert request.subject


class TestFullDisk:
    async def test_nothing_is_acknowledged_until_there_is_room_again(self, daemon):
        """The size of every file of the daemon is limited while it works, which is a full disk to it."""
        steps = document(*["slow"] * 8)
        async with Client(daemon.socket, reconnect_timeout=40) as client:
            runs = [await client.submit(steps, f"k{i}") for i in range(5)]
            pid = daemon.process.pid
            unlimited = resource.prlimit(pid, resource.RLIMIT_FSIZE)
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (1, unlimited[1]))
            refused = 0
            for _ in range(10):
                try:
                    await client.submit(steps, "late")
                except StorageUnavailable:
                    refused += 1
            assert refused
            with pytest.raises(StorageUnavailable):
                await client._transport.send("GET", "/readyz")
            assert (await client.health()).status == "ok"  # it is not over: there may be room again
            resource.prlimit(pid, resource.RLIMIT_FSIZE, unlimited)
            results = await asyncio.gather(*(run.result() for run in runs))
            assert {result.state for result in results} == {"completed"}
            late = await client.run(steps, "late")
            assert late.output == "late"
            for run in runs:
                offsets = [event.offset async for event in run.events()]
                assert offsets == list(range(len(offsets)))


class TestTwo:
    def test_on_one_store(self, daemon, tmp_path):
        url = f"sqlite:{daemon.folder / 'runs.db'}"
        done = agentflow("serve", "--store", url, "--socket", str(tmp_path / "other"))
        assert done.returncode == 78
        assert "another daemon" in done.stderr
        assert f"pid {daemon.process.pid}" in done.stderr
        with SyncClient(daemon.socket) as client:
            assert client.health().status == "ok"

    def test_on_one_socket(self, daemon):
        done = agentflow("serve", "--store", "memory:", "--socket", str(daemon.folder / "s"))
        assert done.returncode == 78
        assert "a daemon listens" in done.stderr
        assert (daemon.folder / "s").exists()

    def test_on_one_port(self, tmp_path):
        with Process(tmp_path, "127.0.0.1:0") as daemon:
            address = daemon.url.removeprefix("http://")
            done = agentflow("serve", "--store", "memory:", "--no-socket", "--listen", address)
            assert done.returncode == 78
            assert "another program listens there" in done.stderr

    def test_a_command_on_a_run_that_the_daemon_owns(self, daemon):
        with SyncClient(daemon.socket) as client:
            run = client.submit(document("linger 20"), "x")
            wait_until(lambda: (daemon.folder / "lingers").exists())
            store = f"sqlite:{daemon.folder / 'runs.db'}"
            done = agentflow("cancel", run.workflow_id, "--store", store, "--local")
            assert done.returncode == 5, done.stderr
            client.cancel(run.workflow_id, mode="hard")


STRONG = "a-token-of-0123456789-and-more-characters"


async def refusal(config: ServerConfig, **env: str) -> str:
    """Why a daemon does not start: the message, and the hint."""
    with pytest.raises(ConfigurationError) as caught:
        await Daemon(Config(store="memory:", server=config), env=env).run()
    return f"{caught.value} {caught.value.hint}"


class TestUnsafe:
    @pytest.mark.parametrize(
        ("config", "token", "said"),
        [
            ({"listen": ("0.0.0.0:0",)}, "", "needs a token"),
            ({"listen": ("0.0.0.0:0",)}, "short", "at least 32 characters"),
            ({"listen": ("0.0.0.0:0",)}, "a" * 40, "too easy to guess"),
            ({"listen": ("0.0.0.0:0",)}, STRONG, "needs TLS"),
            ({"listen": ("[::]:0",)}, STRONG, "needs TLS"),
            ({"listen": ("127.0.0.1:0",), "require_token": True}, "", "no token is configured"),
            ({"listen": ("127.0.0.1:99999",)}, "", "HOST:PORT"),
            ({"listen": ("8700",)}, "", "HOST:PORT"),
            ({"listen": ("::1:80",)}, "", "HOST:PORT"),
            ({"listen": ("nowhere.invalid:80",)}, "", "no address"),
            ({"listen": ("127.0.0.1:0",), "tls_cert": "x"}, "", "belong together"),
            ({"listen": ("127.0.0.1:0",), "tls_cert": "x", "tls_key": "y"}, "", "cannot be used"),
            ({}, "", "nothing to listen on"),
            ({"socket": "/" + "x" * 120}, "", "longer than"),
        ],
    )
    async def test_it_does_not_start(self, config, token, said):
        text = await refusal(ServerConfig(**{"socket": "", **config}), AGENTFLOW_TOKEN=token)
        assert said in text
        assert STRONG not in text

    @pytest.mark.parametrize(
        ("text", "mode", "said"),
        [
            (f"ci run {STRONG}\n", 0o644, "others may read"),
            ("ci run\n", 0o600, "tokens:1: write NAME SCOPES TOKEN"),
            (f"ci fly {STRONG}\n", 0o600, "the scopes are"),
            (f"ci run {STRONG}\nother run {STRONG}\n", 0o600, "are the same"),
            (f"ci run {STRONG}\nci run {STRONG}x\n", 0o600, "stands there twice"),
            ("# nothing\n", 0o600, "there is no token"),
        ],
    )
    async def test_tokens_that_are_not_taken(self, tmp_path, text, mode, said):
        path = tmp_path / "tokens"
        path.write_text(text)
        path.chmod(mode)
        text = await refusal(ServerConfig(socket="", listen=("127.0.0.1:0",), tokens=str(path)))
        assert said in text
        assert STRONG not in text

    async def test_a_folder_that_others_write_to(self, tmp_path):
        folder = tmp_path / "open"
        folder.mkdir()
        folder.chmod(0o777)
        assert "others may write" in await refusal(ServerConfig(socket=str(folder / "s")))
        (tmp_path / "file").write_text("precious")
        assert "is no socket" in await refusal(ServerConfig(socket=str(tmp_path / "file")))
        assert (tmp_path / "file").read_text() == "precious"

    def test_the_command_says_so(self, tmp_path):
        (tmp_path / "agentflow.toml").write_text("[server]\nlisen = []\n")
        done = agentflow("serve", "--store", "memory:", cwd=tmp_path)
        assert done.returncode == 78
        assert 'did you mean "listen"' in done.stderr
        assert "Traceback" not in done.stderr


class TestSystemd:
    def test_a_socket_that_is_handed_over_and_what_is_told(self, tmp_path):
        """As systemd does it: the socket as descriptor 3, its number in the environment, a socket to tell."""
        told = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        told.bind(str(tmp_path / "notify"))
        told.settimeout(30)
        handed = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        handed.bind(str(tmp_path / "handed"))
        handed.listen()
        program = (
            "import os, sys\n"
            "os.dup2(int(sys.argv[1]), 3, inheritable=True)\n"
            "os.environ['LISTEN_PID'] = str(os.getpid())\n"
            "os.environ['LISTEN_FDS'] = '1'\n"
            "os.execv(sys.executable, [sys.executable, '-m', 'agentflow', 'serve', '--store', 'memory:'])\n"
        )
        with told, handed, (tmp_path / "stderr").open("wb") as errors:
            process = subprocess.Popen(
                [sys.executable, "-c", program, str(handed.fileno())],
                cwd=ROOT,
                pass_fds=(handed.fileno(),),
                stderr=errors,
                env={**os.environ, "NOTIFY_SOCKET": str(tmp_path / "notify"), "OTEL_SDK_DISABLED": "true"},
            )
            try:
                assert told.recv(1000).startswith(b"READY=1\nSTATUS=serving unix:")
                with SyncClient(f"unix:{tmp_path / 'handed'}") as client:
                    assert client.health().status == "ok"
                process.send_signal(signal.SIGTERM)
                assert told.recv(1000) == b"STOPPING=1"
                assert process.wait(30) == 0
                assert (tmp_path / "handed").exists()  # it belongs to systemd
            finally:
                process.kill()
                process.wait()

    def test_the_unit(self):
        done = agentflow(
            "serve", "--print-unit", "--listen", "127.0.0.1:8700", "--store", "sqlite:/var/x y.db"
        )
        assert done.returncode == 0
        assert f"ExecStart={sys.executable} -m agentflow serve --listen 127.0.0.1:8700" in done.stdout
        assert "'sqlite:/var/x y.db'" in done.stdout
        assert "Type=notify" in done.stdout
        assert "LimitNOFILE=65536" in done.stdout
        analyze = shutil.which("systemd-analyze")
        if analyze is None:
            pytest.skip("systemd-analyze is not on this machine: the unit is not verified")


class TestVerbs:
    def test_health(self, daemon):
        done = agentflow("health", "--url", daemon.socket)
        assert (done.returncode, done.stdout) == (0, "ok, store sqlite (durable)\n")
        done = agentflow("health", "--json", env={"AGENTFLOW_URL": daemon.socket})
        assert '"status":"ok"' in done.stdout

    @pytest.mark.parametrize("verb", ["health", "drain"])
    def test_nobody_is_there(self, tmp_path, verb):
        done = agentflow(verb, env={"XDG_RUNTIME_DIR": str(tmp_path), "AGENTFLOW_URL": ""})
        assert done.returncode == 6
        assert "no daemon answers" in done.stderr
        assert "agentflow serve" in done.stderr

    def test_the_default_socket(self, tmp_path):
        env = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path), "OTEL_SDK_DISABLED": "true"}
        env.pop("AGENTFLOW_URL", None)
        process = subprocess.Popen(
            [sys.executable, "-m", "agentflow", "serve", "--store", "memory:"],
            cwd=ROOT,
            stderr=subprocess.PIPE,
            text=True,
            env=env,
        )
        try:
            path = tmp_path / "agentflow" / "agentflow.sock"
            assert process.stderr is not None
            while "agentflow serves" not in (line := process.stderr.readline()):
                assert line, "the daemon ended"
            assert path.stat().st_mode & 0o777 == 0o600
            assert path.parent.stat().st_mode & 0o777 == 0o700
            assert agentflow("health", env={"XDG_RUNTIME_DIR": str(tmp_path)}).returncode == 0
            assert agentflow("drain", env={"XDG_RUNTIME_DIR": str(tmp_path)}).returncode == 0
            assert process.wait(30) == 0
        finally:
            process.kill()
            process.wait()
            process.stderr.close()


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not on this machine")
class TestCurl:
    """What the README shows, with the program that it shows it with."""

    def curl(self, daemon: Process, *words: str) -> str:
        socket_path = daemon.socket.removeprefix("unix:")
        done = subprocess.run(
            ["curl", "-sS", "--max-time", "30", "--unix-socket", socket_path, *words],
            capture_output=True,
            text=True,
            timeout=40,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def test_submit_and_follow(self, daemon, tmp_path):
        import json

        body = tmp_path / "body.json"
        body.write_text(json.dumps({"definition": document("slow", "x"), "input": "hi"}))
        kind = ("-H", "Content-Type: application/json")
        run = json.loads(self.curl(daemon, *kind, "--data-binary", f"@{body}", "http://x/workflows"))
        lines = self.curl(daemon, "-N", f"http://x{run['links']['events']}").splitlines()
        events = [json.loads(line) for line in lines if line]
        assert [event["offset"] for event in events] == list(range(len(events)))
        assert events[-1]["type"] == "workflow.completed"
        record = json.loads(self.curl(daemon, f"http://x{run['links']['self']}"))
        assert record["output"] == "hi"
        sse = self.curl(daemon, "-N", "-H", "Accept: text/event-stream", f"http://x{run['links']['events']}")
        assert sse.startswith("retry: 3000\n\nid: 0\nevent: workflow.started\ndata: {")
        status = self.curl(daemon, "-o", "/dev/null", "-w", "%{http_code}", "http://x/workflows/wf_none")
        assert status == "404"


def test_the_folder_of_the_tests_is_clean(tmp_path):
    """The helper program leaves nothing but its own files."""
    with Process(tmp_path) as process:
        process.signal(signal.SIGTERM)
        assert process.wait() == 0
    assert {path.name for path in Path(tmp_path).iterdir()} <= {
        "runs.db",
        "runs.db-wal",
        "runs.db-shm",
        "runs.db.daemon",
        "s.lock",
        "stderr",
    }
